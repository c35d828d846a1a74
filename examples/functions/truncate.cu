// Truncates packets to their first N bytes, as a capture with a snap length does:
//
//     inlane forward --rx gen:1024 --tx null --function examples/functions/truncate.cu:truncate:96
#include <inlane.h>

struct truncate {
    static constexpr uint32_t parameters = 1; // the command line sets the first member
    static constexpr uint32_t reads = 0, writes = 0;
    uint64_t most; // the parameter N; 0 leaves packets alone
    uint64_t cut_bytes; // the number of bytes that were cut off so far

    INLANE inlane::verdict packet(inlane::packet &packet) {
        uint32_t length = packet.length();
        if (most > 0 && length > most) {
            packet.resize(static_cast<uint32_t>(most));
            inlane::add(cut_bytes, length - most);
        }
        return inlane::forward;
    }
};
INLANE_FUNCTION(truncate)
INLANE_COUNTER(truncate, cut_bytes)
