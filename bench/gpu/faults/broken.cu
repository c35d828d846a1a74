// A packet function that does not compile. The error message must name line 7.
#include <inlane.h>

struct broken {
    INLANE inlane::verdict packet(inlane::packet &packet) {
        uint32_t length = packet.length();
        return lenght > 60 ? inlane::forward : inlane::drop;
    }
};
INLANE_FUNCTION(broken)
