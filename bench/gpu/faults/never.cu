// A packet function that never returns. The watchdog must report that, and the process must end. The next
// process must be able to use the GPU.
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
