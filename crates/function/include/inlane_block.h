// The building blocks of packet functions: the threads of a block, atomic functions on shared state, and
// bytes at any alignment. Start with inlane.h.
//
// Functions marked INLANE run on the GPU, or are inlined on the CPU. Mark your own functions with it.
#ifndef INLANE_BLOCK_H
#define INLANE_BLOCK_H

#if defined(__CUDACC__)
#define INLANE_GPU 1
#define INLANE __device__ __forceinline__
#define INLANE_RARE static __device__ __noinline__
#define INLANE_ANYWHERE __host__ __device__
#define INLANE_SHARED __shared__ // for variables inside `burst` or `tick` that all threads of the block share
#else
#define INLANE_GPU 0
#define INLANE inline __attribute__((always_inline))
#define INLANE_RARE [[maybe_unused]] static __attribute__((noinline, cold))
#define INLANE_ANYWHERE
#define INLANE_SHARED
#endif

// The offset of a member in bytes, as a constant. NVRTC has neither offsetof nor __builtin_offsetof.
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

// The arguments that the executor passes to a function besides packets.
struct inlane_context {
    void *state;           // the function's own struct
    uint8_t *output;       // the output region, which outlives the call; null if output_bytes is 0
    uint64_t output_bytes; // the length of the output region
    uint64_t now_ns;       // the time of the burst in nanoseconds, from a monotonic clock; UINT64_MAX in the last tick of a run
    uint32_t room;         // bytes that a packet may occupy from its address on; 0: packets must not grow
    uint32_t reserved;
};

namespace inlane {

using context = inlane_context;
using verdict = uint32_t;

// The verdicts. `forward` sends a packet to the first `--tx` port. `drop` drops it. `to_port(n)` sends it to
// the nth `--tx` port, counted from 0.
constexpr verdict forward = INLANE_FORWARD;
constexpr verdict drop = INLANE_DROP;
INLANE_ANYWHERE constexpr verdict to_port(uint32_t n) { return INLANE_PORT_BASE + n; }

// ---- The threads of a block. On the CPU a block is one thread. --------------------------------------------------------

// thread_index() of threads()   this thread's number in the block, and the block's number of threads
// warp() of warps()             this thread's warp: a group of threads that run in step, 32 on a GPU and 1 on the CPU
// lane() of lanes()             this thread's number in its warp
// sync()                        a barrier: waits until all threads of the block arrive. All threads must call it.
// any(condition)                a barrier that returns true to all threads if the condition holds for at least one
// warp_sum(value)               the sum over a warp, returned to all of its lanes. All lanes of the warp must call it.
#if INLANE_GPU
INLANE uint32_t thread_index() { return threadIdx.x; }
INLANE uint32_t threads() { return blockDim.x; }
INLANE uint32_t lane() { return threadIdx.x % 32; }
INLANE uint32_t lanes() { return 32; }
INLANE uint32_t warp() { return threadIdx.x / 32; }
INLANE uint32_t warps() { return blockDim.x / 32; }
INLANE void sync() { __syncthreads(); }
INLANE bool any(bool condition) { return __syncthreads_or(condition); }
INLANE uint32_t warp_sum(uint32_t value) {
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
    return value;
}
#else
INLANE uint32_t thread_index() { return 0; }
INLANE uint32_t threads() { return 1; }
INLANE uint32_t lane() { return 0; }
INLANE uint32_t lanes() { return 1; }
INLANE uint32_t warp() { return 0; }
INLANE uint32_t warps() { return 1; }
INLANE void sync() {}
INLANE bool any(bool condition) { return condition; }
INLANE uint32_t warp_sum(uint32_t value) { return value; }
#endif

// ---- State that several blocks change. ------------------------------------------------------------------------------

// add(at, value)                          adds atomically; returns the value before
// set_bits(at, bits)                      sets bits atomically; returns the value before
// compare_and_swap(at, expected, value)   stores `value` if `at` equals `expected`; returns the value before
// fence()                                 all blocks see this thread's earlier writes before its later ones
// load_acquire(at)                        reads; later reads see what was written before the matching store_release
// store_release(at, value)                writes; makes earlier writes visible to threads that read it with load_acquire
//
// These functions work on GPU memory, not on packets in host memory. On the CPU they are plain accesses,
// because one thread owns the state.
#if INLANE_GPU
INLANE uint64_t add(uint64_t &at, uint64_t value) {
    return atomicAdd(reinterpret_cast<unsigned long long *>(&at), static_cast<unsigned long long>(value));
}
INLANE uint32_t add(uint32_t &at, uint32_t value) { return atomicAdd(&at, value); }
INLANE uint32_t set_bits(uint32_t &at, uint32_t bits) { return atomicOr(&at, bits); }
INLANE uint32_t compare_and_swap(uint32_t &at, uint32_t expected, uint32_t value) { return atomicCAS(&at, expected, value); }
INLANE uint64_t compare_and_swap(uint64_t &at, uint64_t expected, uint64_t value) {
    return atomicCAS(reinterpret_cast<unsigned long long *>(&at), static_cast<unsigned long long>(expected),
                     static_cast<unsigned long long>(value));
}
INLANE void fence() { __threadfence(); }
template <class T> INLANE T load_acquire(const T &at) {
    T value = *const_cast<const volatile T *>(&at);
    __threadfence();
    return value;
}
template <class T> INLANE void store_release(T &at, T value) {
    __threadfence();
    *const_cast<volatile T *>(&at) = value;
}
#else
INLANE uint64_t add(uint64_t &at, uint64_t value) { return (at += value) - value; }
INLANE uint32_t add(uint32_t &at, uint32_t value) { return (at += value) - value; }
INLANE uint32_t set_bits(uint32_t &at, uint32_t bits) {
    uint32_t old = at;
    at |= bits;
    return old;
}
namespace detail {
template <class T> INLANE T plain_compare_and_swap(T &at, T expected, T value) {
    T old = at;
    if (old == expected) at = value;
    return old;
}
} // namespace detail
INLANE uint32_t compare_and_swap(uint32_t &at, uint32_t expected, uint32_t value) {
    return detail::plain_compare_and_swap(at, expected, value);
}
INLANE uint64_t compare_and_swap(uint64_t &at, uint64_t expected, uint64_t value) {
    return detail::plain_compare_and_swap(at, expected, value);
}
INLANE void fence() {}
template <class T> INLANE T load_acquire(const T &at) { return at; }
template <class T> INLANE void store_release(T &at, T value) { at = value; }
#endif

// ---- Bytes. ---------------------------------------------------------------------------------------------------------

namespace detail {
// `get` reads and `put` writes a value at any address, in the processor's byte order.
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

// Reverses the order of bytes, to convert between network order and the processor's.
INLANE uint16_t swap_bytes(uint16_t value) { return static_cast<uint16_t>(value << 8 | value >> 8); }
INLANE uint32_t swap_bytes(uint32_t value) {
#if INLANE_GPU
    return __byte_perm(value, 0, 0x0123);
#else
    return __builtin_bswap32(value);
#endif
}

// Sixteen bytes in memory order: the most that one GPU thread loads at a time.
struct alignas(16) bytes16 {
    uint64_t low;  // bytes 0 to 7
    uint64_t high; // bytes 8 to 15
};

// Reorders sixteen bytes: byte i of the result is byte I[i] of `from`.
template <unsigned... I> INLANE bytes16 permute(bytes16 from) {
    static_assert(sizeof...(I) == 16 && ((I < 16) && ...), "permute needs sixteen numbers from 0 to 15");
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
