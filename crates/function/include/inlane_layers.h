// Finds the headers of a frame: Ethernet with up to two VLAN tags, IPv4 or IPv6 with up to eight extension
// headers, and the upper layer.
//
//   auto head = packet.front<96>();                  // 96 bytes hold the usual headers
//   inlane::layers at = inlane::layers_of(head);
//   if (at.version == 4 && at.protocol == 17) { uint16_t port = head.be16(at.upper + 2); ... }
#ifndef INLANE_LAYERS_H
#define INLANE_LAYERS_H

#include "inlane_packet.h"

namespace inlane {

// Offsets count from the frame's first byte. A header is found only if `head` covers all of it.
struct layers {
    uint16_t type;     // the EtherType after the tags
    uint8_t version;   // 4 or 6; 0 if the frame is not IP, or the IP header is invalid or cut off
    uint8_t protocol;  // the number of the upper layer's protocol, after extension headers
    bool fragment;     // the packet is part of a larger datagram, so its ports and upper-layer checksum are unusable
    bool routed;       // the packet has an IPv6 routing header, so its destination may be an intermediate one
    uint32_t ip;       // the offset of the IP header
    uint32_t upper;    // the offset of the upper layer's header; may be beyond the frame
    uint32_t end;      // the offset at which the datagram ends according to IP; may be beyond the frame
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
        found.fragment = (head.be16(ip + 6) & 0x3fff) != 0; // more fragments follow, or this is not the first
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
