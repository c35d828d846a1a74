// Acts as one hop of a router: decrements IPv4's time to live (RFC 791) and updates the header checksum (RFC
// 1624, equation 3), or decrements IPv6's hop limit (RFC 8200). Drops packets that expire. Forwards other
// packets unchanged.
//
// Does not change IPv6 neighbour discovery, because hosts accept it only with hop limit 255 (RFC 4861).
#include <inlane.h>

struct l3_decrement {
    static constexpr uint32_t reads = 96, writes = 96;
    uint64_t decremented;
    uint64_t expired;
    uint64_t others;

    // Returns true for neighbour discovery: ICMPv6 types 133 to 137 directly behind the IPv6 header.
    template <class Head> INLANE static bool is_discovery(const Head &head, const inlane::layers &at) {
        if (at.version != 6 || head.u8(at.ip + 6) != 58 || !head.has(at.ip + 40, 1)) return false;
        uint8_t type = head.u8(at.ip + 40);
        return type >= 133 && type <= 137;
    }

    INLANE inlane::verdict packet(inlane::packet &packet) {
        auto head = packet.front<96>();
        inlane::layers at = inlane::layers_of(head);
        if (at.version == 0) {
            inlane::add(others, 1);
            return inlane::forward;
        }
        uint32_t life = at.ip + (at.version == 4 ? 8 : 7);
        uint8_t left = head.u8(life);
        if (left == 255 && is_discovery(head, at)) {
            inlane::add(others, 1);
            return inlane::forward;
        }
        if (left <= 1) {
            inlane::add(expired, 1);
            return inlane::drop;
        }
        if (at.version == 4) {
            uint16_t old = head.be16(life); // time to live and protocol form one 16-bit word of the checksum
            uint32_t sum = static_cast<uint16_t>(~head.be16(at.ip + 10)) + static_cast<uint16_t>(~old) + (old - 0x100u);
            sum = (sum & 0xffff) + (sum >> 16);
            sum = (sum & 0xffff) + (sum >> 16);
            packet.set_be16(at.ip + 10, static_cast<uint16_t>(~sum));
        }
        packet.set_u8(life, left - 1);
        inlane::add(decremented, 1);
        return inlane::forward;
    }
};
INLANE_FUNCTION(l3_decrement)
