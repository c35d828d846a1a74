// A block of GPU threads on one CPU thread: the names of CUDA that inlane's headers use, for tests of the device half without a
// device. Each thread is a fiber; they take turns at random (by seed) at barriers, atomics and fences. Blocks are copies of the
// shared object that this is compiled into, each driven by a thread of its own; they share the function's state.
//
// Not emulated: weak memory, coalescing, time. A barrier that not all threads reach ends the program, with a message.
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

constexpr unsigned most = 128, team = 32;

struct barrier {
    unsigned arrived, generation;
    int any, result;
};

struct fiber {
    ucontext_t context;
    const barrier *waits; // until its generation is another
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
static barrier block, team_barriers[most / team];
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
        fprintf(stderr, "emulated block: a barrier that not all threads reach\n");
        abort();
    }
    setcontext(&caller);
}

// A place where another thread may go first.
static void turn() {
    uint32_t what = chance() % 64;
    if (what == 0) usleep(chance() % 50); // another block
    if (what < 16) switch_away();
}

static int meet(barrier &at, unsigned members, int value) {
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

// Ends the calling thread.
static void end() {
    fibers[current].done = true;
    switch_away();
}

// Runs a block of so many threads; each ends by `end`.
static void run_block(unsigned members, uint64_t seed, void (*thread)()) {
    static char stacks[most][128 << 10];
    if (members > most || members % team != 0) abort();
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

inline int __syncthreads_or(int value) { return emulated::meet(emulated::block, emulated::threads, value); }
inline void __syncthreads() { __syncthreads_or(0); }
inline uint32_t __shfl_xor_sync(uint32_t, uint32_t value, int distance) {
    unsigned self = emulated::current;
    emulated::barrier &team = emulated::team_barriers[self / emulated::team];
    emulated::exchanged[self] = value;
    emulated::meet(team, emulated::team, 0);
    value = emulated::exchanged[self ^ distance];
    emulated::meet(team, emulated::team, 0);
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
inline uint32_t __byte_perm(uint32_t value, uint32_t, uint32_t) { return __builtin_bswap32(value); } // 0x0123 alone is used
