// The ground that packet functions stand on: the block of threads, state that several blocks change, bytes in any
// alignment. See inlane.h.
#ifndef INLANE_BLOCK_H
#define INLANE_BLOCK_H

#if defined(__CUDACC__)
#define INLANE_GPU 1
#define INLANE __device__ __forceinline__
#define INLANE_RARE static __device__ __noinline__
#define INLANE_ANYWHERE __host__ __device__
#define INLANE_SHARED __shared__ // memory of the block: a static array inside `burst`
#else
#define INLANE_GPU 0
#define INLANE inline __attribute__((always_inline))
#define INLANE_RARE [[maybe_unused]] static __attribute__((noinline, cold))
#define INLANE_ANYWHERE
#define INLANE_SHARED
#endif

// The offset of a member in a struct. NVRTC has no offsetof and no __builtin_offsetof.
#if defined(__CUDACC_RTC__)
#define INLANE_OFFSETOF(type, member) __INTADDR__(&(static_cast<type *>(nullptr))->member)
#else
#define INLANE_OFFSETOF(type, member) __builtin_offsetof(type, member)
#endif

#define INLANE_LIKELY(condition) __builtin_expect(!!(condition), 1)

#if defined(__CUDACC_RTC__)
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
typedef unsigned long uintptr_t;
#else
#include <stdint.h>
#endif
#include "inlane_ring.h"

// What a call of a function gets beside the packets; made by the executor.
struct inlane_context {
    void *state;           // the function's own struct
    uint8_t *output;       // output_bytes of zeroed memory that outlives the call, for functions that assemble; or null
    uint64_t output_bytes; // how many
    uint64_t now_ns;       // time of the burst, monotonic
    uint32_t room;         // bytes that a packet may have from its address on; 0: no longer than it is
    uint32_t reserved;
};

namespace inlane {

using context = inlane_context;
using verdict = uint32_t;

// Verdicts.
constexpr verdict forward = INLANE_FORWARD;
constexpr verdict drop = INLANE_DROP;
INLANE_ANYWHERE constexpr verdict to_port(uint32_t n) { return INLANE_PORT_BASE + n; }

// ---- The block of threads. On the CPU a block is one thread. ----------------------------------------------------------

// Lanes are the threads that run in step: 32 on a GPU, 1 on the CPU. `team()` of `teams()` is which 32 of the block.
#if INLANE_GPU
INLANE uint32_t thread_index() { return threadIdx.x; }
INLANE uint32_t threads() { return blockDim.x; }
INLANE uint32_t lane() { return threadIdx.x % 32; }
INLANE uint32_t lanes() { return 32; }
INLANE uint32_t team() { return threadIdx.x / 32; }
INLANE uint32_t teams() { return blockDim.x / 32; }
INLANE void sync() { __syncthreads(); }
INLANE bool any(bool condition) { return __syncthreads_or(condition); }
INLANE uint32_t sum_of_lanes(uint32_t value) {
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
    return value;
}
#else
INLANE uint32_t thread_index() { return 0; }
INLANE uint32_t threads() { return 1; }
INLANE uint32_t lane() { return 0; }
INLANE uint32_t lanes() { return 1; }
INLANE uint32_t team() { return 0; }
INLANE uint32_t teams() { return 1; }
INLANE void sync() {}                                               // all threads of the block meet here
INLANE bool any(bool condition) { return condition; }               // and learn whether it holds for any of them
INLANE uint32_t sum_of_lanes(uint32_t value) { return value; }      // the sum over a team, for each of its lanes
#endif

// ---- State that several blocks change. ------------------------------------------------------------------------------

#if INLANE_GPU
INLANE uint64_t add(uint64_t &at, uint64_t value) {
    return atomicAdd(reinterpret_cast<unsigned long long *>(&at), static_cast<unsigned long long>(value));
}
INLANE uint32_t add(uint32_t &at, uint32_t value) { return atomicAdd(&at, value); }
INLANE uint32_t set_bits(uint32_t &at, uint32_t bits) { return atomicOr(&at, bits); }
INLANE uint32_t replace(uint32_t &at, uint32_t expected, uint32_t value) { return atomicCAS(&at, expected, value); }
INLANE uint64_t replace(uint64_t &at, uint64_t expected, uint64_t value) {
    return atomicCAS(reinterpret_cast<unsigned long long *>(&at), static_cast<unsigned long long>(expected),
                     static_cast<unsigned long long>(value));
}
INLANE void fence() { __threadfence(); }
template <class T> INLANE T load(const T &at) {
    T value = *const_cast<const volatile T *>(&at);
    __threadfence();
    return value;
}
template <class T> INLANE void store(T &at, T value) {
    __threadfence();
    *const_cast<volatile T *>(&at) = value;
}
#else
INLANE uint64_t add(uint64_t &at, uint64_t value) { return (at += value) - value; } // each gives what was there before
INLANE uint32_t add(uint32_t &at, uint32_t value) { return (at += value) - value; }
INLANE uint32_t set_bits(uint32_t &at, uint32_t bits) {
    uint32_t old = at;
    at |= bits;
    return old;
}
template <class T> INLANE T compare_and_set(T &at, T expected, T value) {
    T old = at;
    if (old == expected) at = value;
    return old;
}
INLANE uint32_t replace(uint32_t &at, uint32_t expected, uint32_t value) { return compare_and_set(at, expected, value); }
INLANE uint64_t replace(uint64_t &at, uint64_t expected, uint64_t value) { return compare_and_set(at, expected, value); }
INLANE void fence() {}                                              // orders what is before against what is after
template <class T> INLANE T load(const T &at) { return at; }           // what another stored before is seen after
template <class T> INLANE void store(T &at, T value) { at = value; }   // what was written before is seen by who loads it
#endif

// ---- Bytes. ---------------------------------------------------------------------------------------------------------

namespace detail {
template <class T> INLANE T get(const uint8_t *from) {
#if INLANE_GPU
    if (reinterpret_cast<uintptr_t>(from) % sizeof(T) == 0) return *reinterpret_cast<const T *>(from);
    T value = 0;
    for (unsigned i = 0; i < sizeof(T); i++) value |= static_cast<T>(static_cast<T>(from[i]) << 8 * i);
    return value;
#else
    T value;
    __builtin_memcpy(&value, from, sizeof(T));
    return value;
#endif
}
template <class T> INLANE void put(uint8_t *to, T value) {
#if INLANE_GPU
    if (reinterpret_cast<uintptr_t>(to) % sizeof(T) == 0) {
        *reinterpret_cast<T *>(to) = value;
        return;
    }
    for (unsigned i = 0; i < sizeof(T); i++) to[i] = static_cast<uint8_t>(value >> 8 * i);
#else
    __builtin_memcpy(to, &value, sizeof(T));
#endif
}
} // namespace detail

INLANE uint16_t swap_bytes(uint16_t value) { return static_cast<uint16_t>(value << 8 | value >> 8); }
INLANE uint32_t swap_bytes(uint32_t value) {
#if INLANE_GPU
    return __byte_perm(value, 0, 0x0123);
#else
    return __builtin_bswap32(value);
#endif
}

// Sixteen bytes in two registers, in memory order: the most that one GPU load or store moves.
struct alignas(16) bytes16 {
    uint64_t low;  // bytes 0 to 7
    uint64_t high; // bytes 8 to 15
};

// Byte i of the result is byte I[i] of `from`.
template <unsigned... I> INLANE bytes16 permute(bytes16 from) {
    static_assert(sizeof...(I) == 16 && ((I < 16) && ...), "sixteen numbers from 0 to 15");
#if !INLANE_GPU && __has_builtin(__builtin_shufflevector)
    typedef uint8_t vector __attribute__((vector_size(16)));
    vector bytes;
    __builtin_memcpy(&bytes, &from, 16);
    bytes = __builtin_shufflevector(bytes, bytes, I...);
    __builtin_memcpy(&from, &bytes, 16);
    return from;
#else
    constexpr unsigned index[16] = {I...};
    bytes16 to = {0, 0};
    for (unsigned i = 0; i < 8; i++) {
        to.low |= ((index[i] < 8 ? from.low : from.high) >> index[i] % 8 * 8 & 0xff) << 8 * i;
        to.high |= ((index[i + 8] < 8 ? from.low : from.high) >> index[i + 8] % 8 * 8 & 0xff) << 8 * i;
    }
    return to;
#endif
}

} // namespace inlane

#endif
