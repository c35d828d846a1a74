// Adds an 802.1Q tag with a VLAN to each frame, or removes the outer tag. Frames without a tag keep their bytes:
//
//     inlane forward --rx gen:64 --tx pcap:tagged.pcap --duration 1s --function examples/functions/vlan.cu:push_vlan:42
//     inlane forward --rx gen:64,vlan=42 --tx null --duration 1s --function examples/functions/vlan.cu:pop_vlan
#include <inlane.h>

struct push_vlan {
    static constexpr uint32_t parameters = 1;
    uint64_t vlan; // the parameter: the number of the VLAN, 0 to 4095
    uint64_t refused_packets; // packets without room for a tag, which are dropped

    INLANE inlane::verdict packet(inlane::packet &packet) {
        if (!packet.has(0, 12) || !packet.insert(12, 4)) { // a tag follows the two addresses
            inlane::add(refused_packets, 1);
            return inlane::drop;
        }
        packet.set_be16(12, 0x8100);
        packet.set_be16(14, static_cast<uint16_t>(vlan & 0xfff));
        return inlane::forward;
    }
};
INLANE_FUNCTION(push_vlan)
INLANE_COUNTER(push_vlan, refused_packets)

struct pop_vlan {
    uint64_t untagged_packets;

    INLANE inlane::verdict packet(inlane::packet &packet) {
        uint16_t type = packet.be16(12);
        if ((type != 0x8100 && type != 0x88a8) || !packet.remove(12, 4)) inlane::add(untagged_packets, 1);
        return inlane::forward;
    }
};
INLANE_FUNCTION(pop_vlan)
INLANE_COUNTER(pop_vlan, untagged_packets)
