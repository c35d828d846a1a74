// Uses what oran-reorder assembled: the power of each symbol of a slot, I * I + Q * Q summed over its samples of 16 bits. Not a packet
// function: a kernel (or on the CPU a call) beside them, which is given the function's output region.
//
// On a GPU launch it with one block, on a stream of its own: `found` becomes the record, with sequence 0 while it is not there. power
// holds 14 numbers a stream, in GPU memory. examples/oran-power does so while packets come in.
#include <inlane_oran.h>

// False while slot `n` has not been delivered.
INLANE bool power_of_slot(const uint8_t *output, uint64_t n, uint32_t streams, uint64_t *power) {
    const oran_record *record = inlane::oran_slot(output, n);
    if (record == nullptr) return false;
    uint32_t samples = (record->received + record->missing) / (streams * INLANE_ORAN_SYMBOLS) * 12;
    for (uint32_t i = inlane::team(); i < streams * INLANE_ORAN_SYMBOLS; i += inlane::teams()) {
        const uint8_t *symbol = inlane::oran_symbol(output, *record, i / INLANE_ORAN_SYMBOLS, i % INLANE_ORAN_SYMBOLS);
        uint64_t sum = 0;
        for (uint32_t sample = inlane::lane(); sample < samples; sample += inlane::lanes()) {
            const uint8_t *at = symbol + sample * 4; // I and Q, most significant byte first
            int64_t real = static_cast<int16_t>(at[0] << 8 | at[1]), imaginary = static_cast<int16_t>(at[2] << 8 | at[3]);
            sum += static_cast<uint64_t>(real * real + imaginary * imaginary);
        }
        if (inlane::lane() == 0) power[i] = 0;
        inlane::sum_of_lanes(0); // the lanes meet
        inlane::add(power[i], sum);
    }
    return true;
}

#if INLANE_GPU
extern "C" __global__ void oran_power(const uint8_t *output, uint64_t n, uint32_t streams, uint64_t *power,
                                      oran_record *found) {
    // One thread asks, for all: a record that appears while they ask would be there for some of them only.
    __shared__ bool there;
    if (threadIdx.x == 0) there = inlane::oran_slot(output, n) != nullptr;
    __syncthreads();
    if (there) power_of_slot(output, n, streams, power);
    if (threadIdx.x != 0) return;
    found->sequence = 0;
    if (there) *found = *inlane::oran_slot(output, n);
}
#else
extern "C" __attribute__((visibility("default"))) bool oran_power(const uint8_t *output, uint64_t n, uint32_t streams,
                                                                  uint64_t *power) {
    return power_of_slot(output, n, streams, power);
}
#endif
