// Where the headers of a frame begin: Ethernet (up to two VLAN tags), IPv4 or IPv6 with extension headers, what they carry.
#ifndef INLANE_LAYERS_H
#define INLANE_LAYERS_H

#include "inlane_packet.h"

namespace inlane {

// Offsets count from the frame's first byte. What is cut off, by the frame's end or the N of `front<N>`, is not found.
struct layers {
    uint16_t type;     // EtherType behind the tags
    uint8_t version;   // 4 or 6; 0 when it is not IP, or its header is wrong or cut off
    uint8_t protocol;  // what IP carries, behind extension headers
    bool fragment;     // part of a larger datagram: ports and checksums of the upper layer mean nothing
    bool routed;       // has an IPv6 routing header: its destination may not be the last
    uint32_t ip;       // where IP begins
    uint32_t upper;    // where what it carries begins
    uint32_t end;      // where IP says that the datagram ends; may lie behind the frame's end
};

template <class Bytes> INLANE layers layers_of(const reader<Bytes> &head) {
    layers found = {0, 0, 0, false, false, 0, 0, 0};
    uint32_t at = 12;
    found.type = head.be16(at);
    for (int tags = 0; tags < 2 && (found.type == 0x8100 || found.type == 0x88a8); tags++) { // 802.1Q, 802.1ad
        at += 4;
        found.type = head.be16(at);
    }
    uint32_t ip = found.ip = at + 2;
    if (found.type == 0x0800 && head.has(ip, 20) && head.u8(ip) >> 4 == 4) { // RFC 791
        uint32_t header = (head.u8(ip) & 15) * 4u;
        if (header < 20 || !head.has(ip, header)) return found;
        found.version = 4;
        found.protocol = head.u8(ip + 9);
        found.fragment = (head.be16(ip + 6) & 0x3fff) != 0; // more to come, or not the first
        found.upper = ip + header;
        found.end = ip + head.be16(ip + 2);
    } else if (found.type == 0x86dd && head.has(ip, 40) && head.u8(ip) >> 4 == 6) { // RFC 8200
        found.version = 6;
        found.protocol = head.u8(ip + 6);
        found.upper = ip + 40;
        found.end = found.upper + head.be16(ip + 4);
        for (int extensions = 0; extensions < 8; extensions++) {
            uint8_t kind = found.protocol;
            uint32_t header;
            if (kind == 0 || kind == 43 || kind == 60) { // hop-by-hop, routing, destination options
                header = (head.u8(found.upper + 1) + 1u) * 8;
            } else if (kind == 44) { // fragment
                header = 8;
            } else if (kind == 51) { // authentication (RFC 4302)
                header = (head.u8(found.upper + 1) + 2u) * 4;
            } else {
                break;
            }
            if (!head.has(found.upper, 8)) break;
            found.fragment |= kind == 44 && (head.be16(found.upper + 2) & 0xfff9) != 0;
            found.routed |= kind == 43;
            found.protocol = head.u8(found.upper);
            found.upper += header;
        }
    }
    return found;
}

} // namespace inlane

#endif
