// Verifies the checksums (RFC 1071) of IPv4 headers and of TCP, UDP, ICMP and ICMPv6. Drops packets with a
// wrong checksum. Forwards all others unchanged. On a GPU, the 32 threads of a warp add up one packet
// together.
#include <inlane.h>

struct checksum {
    static constexpr uint32_t writes = 0;
    uint64_t right;
    uint64_t wrong;
    uint64_t unchecked; // not IP, a fragment, another protocol, or UDP without a checksum

    enum result : uint32_t { is_right, is_wrong, is_unchecked };

    INLANE void burst(inlane::burst &burst) {
        for (uint32_t i = inlane::warp(); i < burst.count(); i += inlane::warps()) {
            result found = check(burst[i]);
            if (inlane::lane() != 0) continue;
            inlane::add(found == is_right ? right : found == is_wrong ? wrong : unchecked, 1);
            if (found == is_wrong) burst.set(i, inlane::drop);
        }
    }

  private:
    INLANE static result check(const inlane::packet &packet) {
        inlane::layers at = inlane::layers_of(packet.front<96>());
        if (at.version == 0) return is_unchecked;
        if (at.version == 4 && folded(sum(packet, at.ip, at.upper)) != 0xffff) return is_wrong;
        if (at.end > packet.length() || at.end < at.upper) return is_wrong; // the datagram exceeds the frame, or ends inside its headers
        if (at.fragment || at.routed) return is_unchecked;

        uint32_t bytes = at.end - at.upper;
        uint64_t pseudo = 0; // the sum of the pseudo-header: addresses, protocol, length
        if (at.protocol == 17) { // RFC 768
            if (bytes < 8) return is_wrong;
            uint32_t stated = packet.be16(at.upper + 4);
            if (stated < 8 || stated > bytes) return is_wrong;
            if (packet.be16(at.upper + 6) == 0) return at.version == 4 ? is_unchecked : is_wrong;
            bytes = stated;
        } else if (at.protocol == 6) { // RFC 9293
            if (bytes < 20) return is_wrong;
        } else if (at.protocol == 58 && at.version == 6) { // RFC 4443
            if (bytes < 4) return is_wrong;
        } else if (at.protocol == 1 && at.version == 4) { // RFC 792
            if (bytes < 4) return is_wrong;
        } else {
            return is_unchecked;
        }
        if (at.protocol != 1) {
            pseudo = at.version == 4 ? sum(packet, at.ip + 12, at.ip + 20) : sum(packet, at.ip + 8, at.ip + 40);
            pseudo += big(at.protocol) + big(bytes);
        }
        return folded(pseudo + sum(packet, at.upper, at.upper + bytes)) == 0xffff ? is_right : is_wrong;
    }

    // Returns the sum of bytes `from` to `to - 1` as 16-bit little-endian words. It is the checksum's
    // big-endian sum with swapped bytes (RFC 1071, section 2(B)). `from` must be even.
    INLANE static uint64_t sum(const inlane::packet &packet, uint32_t from, uint32_t to) {
        uint32_t total = 0;
        for (uint32_t at = from / 16 * 16 + inlane::lane() * 16; at < to; at += inlane::lanes() * 16) {
            inlane::bytes16 some = packet.load16(at);
            if (at < from || at + 16 > to) some = within(some, from > at ? from - at : 0, to - at);
            uint64_t words = (some.low & mask) + (some.low >> 16 & mask) + (some.high & mask) + (some.high >> 16 & mask);
            total += static_cast<uint32_t>(words) + static_cast<uint32_t>(words >> 32);
        }
        return inlane::warp_sum(total);
    }
    static constexpr uint64_t mask = 0x0000ffff0000ffff;

    // Returns `some` with all bytes cleared except bytes `from` to `to - 1`.
    INLANE static inlane::bytes16 within(inlane::bytes16 some, uint32_t from, uint32_t to) {
        return {some.low & below(to) & ~below(from), some.high & below(to > 8 ? to - 8 : 0) & ~below(from > 8 ? from - 8 : 0)};
    }
    INLANE static uint64_t below(uint32_t bytes) { return bytes >= 8 ? ~0ull : (1ull << 8 * bytes) - 1; }

    INLANE static uint32_t big(uint32_t value) { return (value & 0xff) << 8 | value >> 8; }
    INLANE static uint32_t folded(uint64_t sum) {
        while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
        return static_cast<uint32_t>(sum);
    }
};
INLANE_FUNCTION(checksum)
