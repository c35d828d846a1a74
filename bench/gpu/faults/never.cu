// A packet function that never returns. The watchdog must end the process, and the next one must be able to
// use the GPU.
#include <inlane.h>

struct never {
    uint32_t stop;

    INLANE inlane::verdict packet(inlane::packet &) {
        while (inlane::load_acquire(stop) == 0) {
        }
        return inlane::forward;
    }
};
INLANE_FUNCTION(never)
