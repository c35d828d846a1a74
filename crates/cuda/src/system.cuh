// Device functions for memory that a GPU shares with the CPU and with other GPUs. In Rust, the text of this
// header is inlane_cuda::SYSTEM_HEADER.
#pragma once

namespace inlane_system {

// Loads a word with acquire semantics at system scope. Words are aligned to 8 bytes and have one writer each.
// There are no atomic read-modify-write functions, because PCIe need not support them.
__device__ __forceinline__ unsigned long long load_acquire(const void *word) {
    unsigned long long value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

// Two adjacent words, loaded together by one aligned 16-byte access. No store can come between the two loads.
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

// Stores a word with release semantics at system scope.
__device__ __forceinline__ void store_release(void *word, unsigned long long value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

__device__ __forceinline__ unsigned long long now_ns() {
    unsigned long long time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

// Loads sixteen bytes without keeping them in the L1 cache. Each byte is read only once, and the host may
// change it later.
__device__ __forceinline__ uint4 load16(const void *from) {
    uint4 value;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(from)
                 : "memory");
    return value;
}

} // namespace inlane_system
