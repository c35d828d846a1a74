// Copies memory by several threads. Every kernel file of this crate includes this header.
#pragma once
#include "system.cuh"

using namespace inlane_system;

typedef unsigned int u32;
typedef unsigned long long u64;

// Copies one thread's share of `bytes` bytes. `thread` is the thread's number among `threads` threads. The
// thread copies 16 of every 16 * threads bytes, with four loads in flight. If an address is not a multiple of
// 16, all bytes are copied one at a time, which is slow.
__device__ inline void copy_span(char* to, const char* from, u64 bytes, u64 thread, u64 threads) {
    u64 words = ((u64)to | (u64)from) % 16 == 0 ? bytes / 16 : 0;
    uint4* wide_to = (uint4*)to;
    const uint4* wide_from = (const uint4*)from;
    u64 i = thread;
    for (; i + 3 * threads < words; i += 4 * threads) {
        uint4 a = load16(wide_from + i);
        uint4 b = load16(wide_from + i + threads);
        uint4 c = load16(wide_from + i + 2 * threads);
        uint4 d = load16(wide_from + i + 3 * threads);
        wide_to[i] = a;
        wide_to[i + threads] = b;
        wide_to[i + 2 * threads] = c;
        wide_to[i + 3 * threads] = d;
    }
    for (; i < words; i += threads) wide_to[i] = load16(wide_from + i);
    for (u64 byte = words * 16 + thread; byte < bytes; byte += threads) {
        to[byte] = ((const volatile char*)from)[byte];
    }
}
