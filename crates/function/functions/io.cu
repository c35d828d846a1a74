// Forwards every packet unchanged. Reads and writes nothing, so it is the baseline for other functions.
#include <inlane.h>

struct io {
    static constexpr uint32_t reads = 0, writes = 0;

    INLANE inlane::verdict packet(inlane::packet &) { return inlane::forward; }
};
INLANE_FUNCTION(io)
