// A packet function that writes to an unmapped address. The run must end with the GPU's error, and the next
// process must be able to use the GPU.
#include <inlane.h>

struct wild {
    INLANE inlane::verdict packet(inlane::packet &packet) {
        *reinterpret_cast<volatile uint8_t *>(uint64_t(packet.length()) << 40) = 1;
        return inlane::forward;
    }
};
INLANE_FUNCTION(wild)
