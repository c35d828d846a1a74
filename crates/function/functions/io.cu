// Forwards every packet unchanged, without access to its bytes. It is the baseline for other functions.
#include <inlane.h>

struct io {
    static constexpr uint32_t reads = 0, writes = 0;

    INLANE inlane::verdict packet(inlane::packet &) { return inlane::forward; }
};
INLANE_FUNCTION(io)
