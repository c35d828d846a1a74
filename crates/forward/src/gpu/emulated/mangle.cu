// A packet function for tests that writes bytes anywhere, grows, shrinks, drops, and sends to other ports.
#include <inlane.h>

struct mangle {
    uint64_t seen;

    INLANE inlane::verdict packet(inlane::packet &packet) {
        inlane::add(seen, 1);
        uint32_t length = packet.length(), more = 1 + packet.u8(1) % 40;
        switch (packet.u8(0) % 8) {
        case 0: return inlane::forward;
        case 1: return inlane::drop;
        case 2: packet.set_u8(length - 1, 0x5a); return inlane::forward;
        case 3: packet.set_be16(length / 2 | 1, 0xbeef); return inlane::forward;
        case 4:
            if (!packet.resize(length + more)) return inlane::to_port(2);
            for (uint32_t i = 0; i < more; i++) packet.set_u8(length + i, static_cast<uint8_t>(i + length));
            return inlane::forward;
        case 5: packet.resize(length / 2); return inlane::forward;
        case 6: packet.store16(3, packet.load16(7)); return inlane::to_port(1);
        default:
            for (uint32_t i = 0; i < length; i++) packet.set_u8(i, packet.u8(i) ^ 0xa5);
            return inlane::forward;
        }
    }
};
INLANE_FUNCTION(mangle)
