// Writes where no memory is: the run has to end with the GPU's error, and the next process to work.
#include <inlane.h>

struct wild {
    INLANE inlane::verdict packet(inlane::packet &packet) {
        *reinterpret_cast<volatile uint8_t *>(uint64_t(packet.length()) << 40) = 1;
        return inlane::forward;
    }
};
INLANE_FUNCTION(wild)
