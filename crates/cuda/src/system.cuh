// What device code shares with the CPU and other GPUs: words that one side writes and others read, and bytes that are read once.
// Kernels include it as "system.cuh" (inlane_cuda::SYSTEM).
#pragma once

namespace inlane_system {

// One writer a word, aligned to 8 bytes; release and acquire at system scope; no read-modify-write, which PCIe may not have.
__device__ __forceinline__ unsigned long long load_acquire(const void *word) {
    unsigned long long value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

// Two words that lie together, read by one aligned access: sixteen bytes at once, so that neither is older than the other by what
// was written in between.
struct pair {
    unsigned long long low;
    unsigned long long high;
};

__device__ __forceinline__ pair load_acquire_pair(const void *words) {
    pair value;
    asm volatile("{ .reg .b128 both; ld.acquire.sys.global.b128 both, [%2]; mov.b128 {%0, %1}, both; }"
                 : "=l"(value.low), "=l"(value.high)
                 : "l"(words)
                 : "memory");
    return value;
}

__device__ __forceinline__ void store_release(void *word, unsigned long long value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

// The GPU's clock, in nanoseconds.
__device__ __forceinline__ unsigned long long now_ns() {
    unsigned long long time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

// Sixteen bytes that do not stay in the first-level cache: they are read once, and host memory changes under it.
__device__ __forceinline__ uint4 load16(const void *from) {
    uint4 value;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(from)
                 : "memory");
    return value;
}

} // namespace inlane_system
