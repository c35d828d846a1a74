// Swaps the source and destination MAC addresses (IEEE 802.3, clause 3.2: six bytes each, destination first).
#include <inlane.h>

struct macswap {
    static constexpr uint32_t reads = 16, writes = 16;

    INLANE inlane::verdict packet(inlane::packet &packet) {
        if (packet.length() < 12) return inlane::forward; // too short for two addresses
        packet.store16(0, inlane::permute<6, 7, 8, 9, 10, 11, 0, 1, 2, 3, 4, 5, 12, 13, 14, 15>(packet.load16(0)));
        return inlane::forward;
    }
};
INLANE_FUNCTION(macswap)
