// The output region of `oran-reorder`, for kernels and host programs that use the assembled data.
//
//   offset 0      oran_record[64]   record n, from 0, is at index n % 64; valid once its sequence is n + 1
//   offset 4096   uint32_t          the number of received PRBs, for each window, stream (eAxC) and symbol
//   then          data              the PRBs in order, for each window, stream and symbol
//
// The PRBs are stored as received, compressed or not. PRBs that did not arrive are zero.
//
// A window is the memory in which one radio slot is assembled. A radio slot is delivered when all of its PRBs
// have arrived, when its time limit has passed, or when a later radio slot needs its window.
//
// Radio slots whose numbers differ by a multiple of the setting `windows` share a window. The first packet of
// the later slot overwrites the data of the earlier one.
#ifndef INLANE_ORAN_H
#define INLANE_ORAN_H

#include "inlane_block.h"

#define INLANE_ORAN_RECORDS 64u
#define INLANE_ORAN_SYMBOLS 14u

// Describes one delivered radio slot. src/builtins/oran.rs has the same struct for the host.
struct oran_record {
    uint64_t sequence;     // n + 1 for record n; written last
    uint64_t opened_ns;    // when the slot's first packet arrived, in nanoseconds of the executor's clock
    uint64_t delivered_ns; // when the slot was delivered
    uint64_t data;         // the offset of the slot's first symbol in the output region, in bytes
    uint32_t received;     // PRBs that arrived
    uint32_t missing;      // PRBs that did not
    uint32_t counts;       // the offset of this slot's numbers of received PRBs in the output region, in bytes
    uint32_t symbol_bytes; // bytes from one symbol to the next
    uint32_t stream_bytes; // bytes from one stream to the next
    uint32_t prb_bytes;    // bytes per PRB
    uint8_t frame;         // 0 to 255
    uint8_t subframe;      // 0 to 9
    uint8_t slot;          // the slot in its subframe
    uint8_t reason;        // 0 complete, 1 its time limit passed, 2 a later slot needed its window
    uint32_t reserved;
};
static_assert(sizeof(oran_record) == 64, "64 records fill the first 4096 bytes");

namespace inlane {

// Returns the record of the nth delivered radio slot, counted from 0. Returns null if the slot is not among
// the last 64 delivered slots. Only one thread of a block may call this. It passes the result to the other
// threads, because a slot may be delivered between the calls of two threads.
INLANE const oran_record *oran_slot(const uint8_t *output, uint64_t n) {
    const oran_record *record = reinterpret_cast<const oran_record *>(output) + n % INLANE_ORAN_RECORDS;
    return load_acquire(record->sequence) == n + 1 ? record : nullptr;
}

// Returns the first PRB of a symbol of a delivered radio slot.
INLANE const uint8_t *oran_symbol(const uint8_t *output, const oran_record &record, uint32_t stream, uint32_t symbol) {
    return output + record.data + static_cast<uint64_t>(stream) * record.stream_bytes + symbol * record.symbol_bytes;
}

} // namespace inlane

#endif
