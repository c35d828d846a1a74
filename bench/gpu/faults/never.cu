// Never ends: the watchdog has to notice, the process to end, and the GPU to serve the next one.
#include <inlane.h>

struct never {
    uint32_t stop;

    INLANE inlane::verdict packet(inlane::packet &) {
        while (inlane::load(stop) == 0) {
        }
        return inlane::forward;
    }
};
INLANE_FUNCTION(never)
