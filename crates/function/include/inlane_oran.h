// What `oran-reorder` puts into its output region, for those who use it: kernels and the host.
//
//   0            oran_record[64]       record n (from 0) is at n % 64; its sequence becomes n + 1 when the rest of it is there
//   4096         received PRBs         uint32_t for each window, stream (eAxC) and symbol
//   ...          data                  for each window, stream and symbol: the PRBs in order, as they came (compressed or not)
//
// A slot's data stays as it is until a slot that is `windows` later begins. PRBs that did not come are zero.
#ifndef INLANE_ORAN_H
#define INLANE_ORAN_H

#include "inlane_block.h"

#define INLANE_ORAN_RECORDS 64u
#define INLANE_ORAN_SYMBOLS 14u

// One slot, delivered. src/builtins/oran.rs is the other half of this.
struct oran_record {
    uint64_t sequence;     // n + 1 for record n, written last
    uint64_t opened_ns;    // when its first packet came
    uint64_t delivered_ns;
    uint64_t data;         // where its first symbol begins in the output region
    uint32_t received;     // PRBs that came
    uint32_t missing;      // PRBs that did not
    uint32_t counts;       // where its received PRBs a stream and symbol are in the output region
    uint32_t symbol_bytes; // from one symbol to the next
    uint32_t stream_bytes; // from one stream to the next
    uint32_t prb_bytes;
    uint8_t frame;
    uint8_t subframe;
    uint8_t slot;
    uint8_t reason;        // 0 complete, 1 its time was up, 2 overtaken by a later slot
    uint32_t reserved;
};
static_assert(sizeof(oran_record) == 64, "64 of them before byte 4096");

namespace inlane {

// Record n, or null while it is not there. Kept for 64 records. It may appear at any moment: in a block that works on it as a whole, one
// thread asks, and a barrier follows.
INLANE const oran_record *oran_slot(const uint8_t *output, uint64_t n) {
    const oran_record *record = reinterpret_cast<const oran_record *>(output) + n % INLANE_ORAN_RECORDS;
    return load(record->sequence) == n + 1 ? record : nullptr;
}

// The PRBs of a symbol.
INLANE const uint8_t *oran_symbol(const uint8_t *output, const oran_record &record, uint32_t stream, uint32_t symbol) {
    return output + record.data + static_cast<uint64_t>(stream) * record.stream_bytes + symbol * record.symbol_bytes;
}

} // namespace inlane

#endif
