// Uses what oran-reorder assembled: the power of each symbol of a slot, I * I + Q * Q summed over its samples of 16 bits. Not a packet
// function: a kernel (or on the CPU a call) beside them, which is given the function's output region.
//
// On a GPU launch it with one block, on a stream of its own: `found` becomes the record, with sequence 0 while it is not there. power
// holds 14 numbers a stream, in GPU memory. examples/oran-power does so while packets come in.
#include <inlane_oran.h>

// Called by all threads of a block together.
INLANE void power_of_slot(const uint8_t *output, const oran_record &record, uint32_t streams, uint64_t *power) {
    for (uint32_t i = inlane::thread_index(); i < streams * INLANE_ORAN_SYMBOLS; i += inlane::threads()) power[i] = 0;
    inlane::sync();
    uint32_t samples = (record.received + record.missing) / (streams * INLANE_ORAN_SYMBOLS) * 12;
    for (uint32_t i = inlane::team(); i < streams * INLANE_ORAN_SYMBOLS; i += inlane::teams()) {
        const uint8_t *symbol = inlane::oran_symbol(output, record, i / INLANE_ORAN_SYMBOLS, i % INLANE_ORAN_SYMBOLS);
        uint64_t sum = 0;
        for (uint32_t sample = inlane::lane(); sample < samples; sample += inlane::lanes()) {
            const uint8_t *at = symbol + sample * 4; // I and Q, most significant byte first
            int64_t real = static_cast<int16_t>(at[0] << 8 | at[1]), imaginary = static_cast<int16_t>(at[2] << 8 | at[3]);
            sum += static_cast<uint64_t>(real * real + imaginary * imaginary);
        }
        inlane::add(power[i], sum);
    }
}

#if INLANE_GPU
extern "C" __global__ void oran_power(const uint8_t *output, uint64_t n, uint32_t streams, uint64_t *power,
                                      oran_record *found) {
    // One thread asks, for all: a record that appears while they ask would be there for some of them only.
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
// False while slot `n` has not been delivered.
extern "C" __attribute__((visibility("default"))) bool oran_power(const uint8_t *output, uint64_t n, uint32_t streams,
                                                                  uint64_t *power) {
    const oran_record *record = inlane::oran_slot(output, n);
    if (record != nullptr) power_of_slot(output, *record, streams, power);
    return record != nullptr;
}
#endif
