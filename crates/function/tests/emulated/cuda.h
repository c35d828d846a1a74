// Emulates a block of GPU threads on one CPU thread, with the parts of CUDA that inlane's headers use.
//
// Each GPU thread is a fiber. At barriers, atomics and fences, fibers switch at random. A seed determines the
// random choices. Blocks share the function's state. Each block is a copy of the shared object, on a CPU
// thread of its own.
//
// Weak memory order, coalescing and timing are not emulated. If some threads do not reach a barrier, the
// program ends with a message.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>
#include <unistd.h>

#define __CUDACC__ 1
#define __host__
#define __device__
#define __shared__ static
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))

namespace emulated {

constexpr unsigned most = 128, warp = 32;

struct barrier {
    unsigned arrived, generation;
    int any, result;
};

struct fiber {
    ucontext_t context;
    const barrier *waits; // this fiber waits until this barrier's generation differs from `generation`
    unsigned generation;
    bool done;
};

struct position {
    unsigned x;
};

static fiber fibers[most];
static ucontext_t caller;
static unsigned threads, current;
static uint64_t state_of_chance;
static barrier block, warp_barriers[most / warp];
static uint32_t exchanged[most];

static uint32_t chance() {
    state_of_chance ^= state_of_chance << 13;
    state_of_chance ^= state_of_chance >> 7;
    state_of_chance ^= state_of_chance << 17;
    return static_cast<uint32_t>(state_of_chance >> 16);
}

static bool can_run(const fiber &one) {
    return !one.done && (one.waits == nullptr || one.waits->generation != one.generation);
}

// Switches to a fiber that can run, or ends the block if all fibers are done.
static void switch_away() {
    unsigned from = current, first = chance() % threads;
    for (unsigned i = 0; i < threads; i++) {
        unsigned next = (first + i) % threads;
        if (!can_run(fibers[next])) continue;
        current = next;
        if (next != from) swapcontext(&fibers[from].context, &fibers[next].context);
        return;
    }
    for (unsigned i = 0; i < threads; i++) {
        if (fibers[i].done) continue;
        fprintf(stderr, "emulated block: not all threads reach a barrier\n");
        abort();
    }
    setcontext(&caller);
}

// Lets another fiber run, with some probability, so that tests reach many interleavings.
static void turn() {
    uint32_t what = chance() % 64;
    if (what == 0) usleep(chance() % 50); // lets another block run
    if (what < 16) switch_away();
}

// Blocks the calling fiber until `members` fibers have arrived. Returns true if any of these fibers passed a
// `value` other than 0.
static int wait_at(barrier &at, unsigned members, int value) {
    at.any |= value;
    if (++at.arrived == members) {
        at.result = at.any;
        at.any = 0;
        at.arrived = 0;
        at.generation++;
        turn();
    } else {
        fiber &self = fibers[current];
        self.waits = &at;
        self.generation = at.generation;
        switch_away();
        self.waits = nullptr;
    }
    return at.result;
}

static void end() {
    fibers[current].done = true;
    switch_away();
}

// Runs a block of `members` fibers. Each runs `thread`, which must call `end`.
static void run_block(unsigned members, uint64_t seed, void (*thread)()) {
    static char stacks[most][128 << 10];
    if (members > most || members % warp != 0) abort();
    threads = members;
    state_of_chance = seed * 2 + 1;
    for (unsigned i = 0; i < threads; i++) {
        fibers[i].done = false;
        fibers[i].waits = nullptr;
        getcontext(&fibers[i].context);
        fibers[i].context.uc_stack.ss_sp = stacks[i];
        fibers[i].context.uc_stack.ss_size = sizeof stacks[i];
        fibers[i].context.uc_link = nullptr;
        makecontext(&fibers[i].context, thread, 0);
    }
    current = chance() % threads;
    swapcontext(&caller, &fibers[current].context);
}

} // namespace emulated

#define threadIdx (emulated::position{emulated::current})
#define blockDim (emulated::position{emulated::threads})

inline int __syncthreads_or(int value) { return emulated::wait_at(emulated::block, emulated::threads, value); }
inline void __syncthreads() { __syncthreads_or(0); }
inline uint32_t __shfl_xor_sync(uint32_t, uint32_t value, int distance) {
    unsigned self = emulated::current;
    emulated::barrier &warp = emulated::warp_barriers[self / emulated::warp];
    emulated::exchanged[self] = value;
    emulated::wait_at(warp, emulated::warp, 0);
    value = emulated::exchanged[self ^ distance];
    emulated::wait_at(warp, emulated::warp, 0);
    return value;
}
inline void __threadfence() {
    emulated::turn();
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
template <class T> T atomicAdd(T *at, T value) {
    emulated::turn();
    return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);
}
template <class T> T atomicOr(T *at, T value) {
    emulated::turn();
    return __atomic_fetch_or(at, value, __ATOMIC_SEQ_CST);
}
template <class T> T atomicCAS(T *at, T expected, T value) {
    emulated::turn();
    __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return expected;
}
inline int __popc(uint32_t bits) { return __builtin_popcount(bits); }
inline uint32_t __byte_perm(uint32_t value, uint32_t, uint32_t) { return __builtin_bswap32(value); } // inlane uses it with 0x0123 only
