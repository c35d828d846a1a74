// Bare kernels: `bare_pull` and `bare_round_trip` cause an executor's memory traffic without ring, host
// threads and ports. Their rates are the ceilings in results. `bare_compete` is the competing job.
#include "system.cuh"

typedef unsigned char uint8_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;

using namespace inlane_system;

// Pulls `items` items of `count` packets from pinned or GPU memory into `stage`, and writes the first 16
// bytes of each packet back. For each item, stores a word with release semantics. A packet has `chunks`
// chunks of 16 bytes. Packets are `stride` bytes apart. Item i uses the memory of item i % period.
extern "C" __global__ void bare_pull(const uint8_t *packets, uint8_t *stage, uint64_t *done, uint64_t items,
                                     uint32_t period, uint32_t count, uint32_t chunks, uint32_t stride) {
    uint32_t warps = blockDim.x / 32, lane = threadIdx.x % 32;
    for (uint64_t item = blockIdx.x; item < items; item += gridDim.x) {
        uint64_t place = item % period;
        const uint8_t *from = packets + place * count * stride;
        uint8_t *to = stage + place * count * stride;
        for (uint32_t base = threadIdx.x / 32; base < count; base += warps * 4) {
            for (uint32_t front = 0; front < chunks; front += 64) {
                uint4 values[4][2];
#pragma unroll
                for (uint32_t p = 0; p < 4; p++)
#pragma unroll
                    for (uint32_t c = 0; c < 2; c++) {
                        uint32_t i = base + p * warps, chunk = front + c * 32 + lane;
                        if (i < count && chunk < chunks) values[p][c] = load16(from + i * stride + chunk * 16);
                    }
#pragma unroll
                for (uint32_t p = 0; p < 4; p++)
#pragma unroll
                    for (uint32_t c = 0; c < 2; c++) {
                        uint32_t i = base + p * warps, chunk = front + c * 32 + lane;
                        if (i >= count || chunk >= chunks) continue;
                        *reinterpret_cast<uint4 *>(to + i * stride + chunk * 16) = values[p][c];
                        if (chunk == 0) *reinterpret_cast<uint4 *>(const_cast<uint8_t *>(from) + i * stride) = values[p][c];
                    }
            }
        }
        __syncthreads();
        if (threadIdx.x == 0) store_release(done + place * 16, item + 1);
    }
}

// Does the least work that any executor has for an item of one packet: reads the flag, the descriptor and the
// packet, changes the packet, and stores the answer. Repeats this for items 1 to `last`, or until an item
// does not arrive within 50 million polls.
//
//   line[0]           the flag from the host
//   line[2], line[3]  the descriptor
//   answer            the flag to the host
extern "C" __global__ void bare_round_trip(const uint64_t *line, uint64_t *answer, uint64_t last) {
    for (uint64_t item = 1; item <= last; item++) {
        for (uint32_t polls = 0; load_acquire(line) != item; polls++)
            if (polls > 50000000u) return;
        uint4 descriptor = load16(line + 2);
        uint8_t *packet = reinterpret_cast<uint8_t *>(descriptor.x | static_cast<uint64_t>(descriptor.y) << 32);
        uint4 bytes = load16(packet);
        uint32_t kept = bytes.x;
        bytes.x = bytes.y;
        bytes.y = kept;
        *reinterpret_cast<uint4 *>(packet) = bytes;
        store_release(answer, item);
    }
}

// The competing job: each block computes for `nanoseconds` and stores how many rounds of arithmetic it did.
extern "C" __global__ void bare_compete(uint64_t *rounds, uint64_t nanoseconds) {
    uint64_t start = now_ns(), now;
    float x = threadIdx.x * 1e-3f + 1.0f;
    uint64_t count = 0;
    do {
#pragma unroll 16
        for (int i = 0; i < 4096; i++) x = x * 1.0000001f + 1e-7f;
        count++;
        now = now_ns();
    } while (now - start < nanoseconds);
    if (x == 12345.0f) count = 0;
    if (threadIdx.x == 0) rounds[blockIdx.x] = count;
}
