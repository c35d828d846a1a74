// Kernels that fill, check and copy GPU memory.
#include "copy.cuh"

// Returns word `index` of the pattern of `seed`. Must equal `word` in pattern.rs.
__device__ inline u64 pattern(u64 index, u64 seed) {
    u64 word = (index + seed) * 0x9E3779B97F4A7C15ull;
    return word ^ (word >> 29);
}

extern "C" __global__ void fill(char* memory, u64 bytes, u64 seed) {
    u64 stride = (u64)gridDim.x * blockDim.x;
    u64 words = (bytes + 7) / 8;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += stride) {
        u64 word = pattern(i, seed);
        if (i * 8 + 8 <= bytes && (u64)memory % 8 == 0) {
            ((u64*)memory)[i] = word;
        } else {
            for (u64 byte = i * 8; byte < bytes && byte < i * 8 + 8; ++byte) {
                memory[byte] = (char)(word >> (byte % 8 * 8));
            }
        }
    }
}

// Counts the bytes of `memory` that differ from the pattern of `seed`. Adds the count to `wrong`, a counter
// in this GPU's memory.
extern "C" __global__ void check(const char* memory, u64 bytes, u64 seed, u64* wrong) {
    u64 stride = (u64)gridDim.x * blockDim.x;
    u64 words = (bytes + 7) / 8;
    u64 found = 0;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += stride) {
        u64 word = pattern(i, seed);
        if (i * 8 + 8 <= bytes && (u64)memory % 8 == 0 && ((const u64*)memory)[i] == word) continue;
        for (u64 byte = i * 8; byte < bytes && byte < i * 8 + 8; ++byte) {
            found += memory[byte] != (char)(word >> (byte % 8 * 8));
        }
    }
    if (found) atomicAdd(wrong, found);
}

// Copies from this GPU's memory to pinned host memory, from pinned host memory to this GPU's memory, or
// within this GPU's memory.
extern "C" __global__ void __launch_bounds__(1024) copy(char* to, const char* from, u64 bytes) {
    copy_span(to, from, bytes, (u64)blockIdx.x * blockDim.x + threadIdx.x, (u64)gridDim.x * blockDim.x);
}
