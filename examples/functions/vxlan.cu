// Forwards the packets of one VXLAN network (RFC 7348). Sends packets of other VXLAN networks to port 1.
// Drops packets that are not VXLAN:
//
//     inlane forward --rx ... --tx ... --function examples/functions/vxlan.cu:only_network:42
#include <inlane.h>

struct only_network {
    static constexpr uint32_t parameters = 1;
    static constexpr uint32_t reads = 96, writes = 0;
    uint64_t network; // the parameter: a VXLAN network identifier

    INLANE inlane::verdict packet(inlane::packet &packet) {
        auto head = packet.front<96>(); // fetches all headers at once, because on a GPU each access may cross PCIe
        inlane::layers at = inlane::layers_of(head);
        uint32_t vxlan = at.upper + 8; // the VXLAN header follows the UDP header
        bool is_vxlan = at.version != 0 && !at.fragment && at.protocol == 17 && head.be16(at.upper + 2) == 4789 &&
                        head.has(vxlan, 8) && (head.u8(vxlan) & 0x08);
        if (!is_vxlan) return inlane::drop;
        return head.be32(vxlan + 4) >> 8 == network ? inlane::forward : inlane::to_port(1);
    }
};
INLANE_FUNCTION(only_network)
