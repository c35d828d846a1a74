// Computes the power of each symbol of a slot that oran-reorder assembled. The power is the sum of
// I * I + Q * Q over the symbol's 16-bit samples. This is a kernel, or a C function on the CPU. It reads
// oran-reorder's output region.
//
// On a GPU, launch it with one block on a separate stream. Arguments:
//   power   GPU memory for 14 numbers per stream
//   n       the number of the slot, in the order of oran-reorder's output, from 0
//   found   receives the slot's record; its sequence is 0 if the slot is not among the last 64
#include <inlane_oran.h>

// Computes the power of all symbols of a slot. All threads of a block must call this function together.
INLANE void power_of_slot(const uint8_t *output, const oran_record &record, uint32_t streams, uint64_t *power) {
    for (uint32_t i = inlane::thread_index(); i < streams * INLANE_ORAN_SYMBOLS; i += inlane::threads()) power[i] = 0;
    inlane::sync();
    uint32_t samples = (record.received + record.missing) / (streams * INLANE_ORAN_SYMBOLS) * 12;
    for (uint32_t i = inlane::warp(); i < streams * INLANE_ORAN_SYMBOLS; i += inlane::warps()) {
        const uint8_t *symbol = inlane::oran_symbol(output, record, i / INLANE_ORAN_SYMBOLS, i % INLANE_ORAN_SYMBOLS);
        uint64_t sum = 0;
        for (uint32_t sample = inlane::lane(); sample < samples; sample += inlane::lanes()) {
            const uint8_t *at = symbol + sample * 4; // I and Q, each in network order
            int64_t real = static_cast<int16_t>(at[0] << 8 | at[1]), imaginary = static_cast<int16_t>(at[2] << 8 | at[3]);
            sum += static_cast<uint64_t>(real * real + imaginary * imaginary);
        }
        inlane::add(power[i], sum);
    }
}

#if INLANE_GPU
extern "C" __global__ void oran_power(const uint8_t *output, uint64_t n, uint32_t streams, uint64_t *power,
                                      oran_record *found) {
    // Only one thread looks for the record, because the record may appear at any moment. Several threads
    // could see different results.
    __shared__ const oran_record *record;
    if (threadIdx.x == 0) record = inlane::oran_slot(output, n);
    __syncthreads();
    if (record != nullptr) power_of_slot(output, *record, streams, power);
    if (threadIdx.x != 0) return;
    if (record != nullptr) {
        *found = *record;
    } else {
        found->sequence = 0;
    }
}
#else
// Computes the power of each symbol of a radio slot on the CPU. Stores it in `power`, which is host memory.
// `n` is the number of the slot, counted from 0 in the order in which oran-reorder outputs slots. Returns
// false if oran-reorder has not yet output the slot, or has since output 64 others.
extern "C" __attribute__((visibility("default"))) bool oran_power(const uint8_t *output, uint64_t n, uint32_t streams,
                                                                  uint64_t *power) {
    const oran_record *record = inlane::oran_slot(output, n);
    if (record != nullptr) power_of_slot(output, *record, streams, power);
    return record != nullptr;
}
#endif
