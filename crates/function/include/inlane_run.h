// How executors call a packet function, and INLANE_FUNCTION, which registers it.
//
//   CPU   The executor finds the symbol `inlane_function_NAME`, an `inlane_entry`. One thread calls its `run` once per burst.
//   GPU   All threads of a block call `inlane::run_item<NAME>` once per item. Before the call, one thread acquires the item, and a
//         barrier follows. After the call comes a barrier, then one thread releases the item. The host reads the function's
//         properties from the module's variable `inlane_info_NAME`.
//
// Both return INLANE_UNCHANGED if they wrote no verdicts, or INLANE_VERDICTS if they wrote a verdict for
// every packet.
#ifndef INLANE_RUN_H
#define INLANE_RUN_H

#include "inlane_packet.h"

#define INLANE_ABI 1u
#define INLANE_KIND_PACKET 0u
#define INLANE_KIND_BURST 1u
#define INLANE_WHOLE_PACKET 0xffffffffu

// A function's properties. src/abi.rs has the same struct; both compilers check that the layouts agree.
struct inlane_info {
    uint32_t abi;           // the version of these structs: INLANE_ABI
    uint32_t kind;          // INLANE_KIND_PACKET or INLANE_KIND_BURST
    uint64_t state_bytes;   // bytes of state per pipeline, which the host zeroes and aligns to 128 bytes
    uint64_t output_bytes;  // bytes of zeroed output region per pipeline, 0 for none
    uint32_t reads;         // bytes at a packet's front that the function reads
    uint32_t writes;        // bytes at a packet's front that the function writes
    uint32_t time;          // bit 0: the function has a `tick`; bit 1: `packet` or `burst` takes a context, and so the time
    uint32_t parameters;    // how many uint64_t at the beginning of the state the command line sets
};

// Where the counters of a member lie in a function's state. src/abi.rs has the same struct.
struct inlane_counter {
    uint64_t offset; // bytes from the start of the state
    uint32_t bytes;  // the size of the member
    uint32_t each;   // the size of one counter, 4 or 8 bytes; the member is one counter or an array of them
};

#if !INLANE_GPU
// A function that was compiled for the CPU.
struct inlane_entry {
    inlane_info info;
    // Runs the function on `count` packets. `packets` is the first inlane_descriptor, and `stride` the bytes
    // from one to the next (16 or 24).
    uint32_t (*run)(const void *packets, uint32_t stride, uint32_t count, inlane_packet_verdict *verdicts,
                    const inlane_context *context);
    void (*tick)(const inlane_context *context);
};
#endif

namespace inlane {
namespace detail {

template <class T> INLANE_ANYWHERE T &a(); // stands for a T in unevaluated expressions

// INLANE_DETECT defines `name<F>(first())`. It returns true if `expression` compiles for F (SFINAE). Use it
// to find out which members a function declares.
struct last {};
struct first : last {};
#define INLANE_DETECT(name, expression)                                                                                 \
    template <class F> INLANE_ANYWHERE constexpr auto name(first) -> decltype((void)(expression), bool()) { return true; }\
    template <class F> INLANE_ANYWHERE constexpr bool name(last) { return false; }
INLANE_DETECT(packet_with_context, a<F>().packet(a<packet>(), a<const context>()))
INLANE_DETECT(packet_alone, a<F>().packet(a<packet>()))
INLANE_DETECT(burst_with_context, a<F>().burst(a<burst>(), a<const context>()))
INLANE_DETECT(burst_alone, a<F>().burst(a<burst>()))
INLANE_DETECT(has_tick, a<F>().tick(a<const context>()))
#undef INLANE_DETECT
#define INLANE_CONSTANT(name, type, otherwise)                                                                          \
    template <class F> INLANE_ANYWHERE constexpr auto name(first) -> decltype(F::name, type()) { return F::name; }      \
    template <class F> INLANE_ANYWHERE constexpr type name(last) { return otherwise; }
INLANE_CONSTANT(output_bytes, uint64_t, 0)
INLANE_CONSTANT(reads, uint32_t, INLANE_WHOLE_PACKET)
INLANE_CONSTANT(writes, uint32_t, INLANE_WHOLE_PACKET)
INLANE_CONSTANT(parameters, uint32_t, 0)
#undef INLANE_CONSTANT

template <class F> constexpr bool is_packet = packet_with_context<F>(first()) || packet_alone<F>(first());
template <class F> constexpr bool is_burst = burst_with_context<F>(first()) || burst_alone<F>(first());

template <class F> INLANE_ANYWHERE constexpr inlane_info info_of() {
    static_assert(is_packet<F> || is_burst<F>,
                  "the function needs: INLANE inlane::verdict packet(inlane::packet &), or INLANE void burst(inlane::burst &)");
    static_assert(!(is_packet<F> && is_burst<F>), "a function must have `packet` or `burst`, not both");
    static_assert(alignof(F) <= 128, "the state's alignment must not exceed 128 bytes");
    static_assert(parameters<F>(first()) * 8 <= sizeof(F), "the struct is too small for its parameters, which are its first members");
    return {INLANE_ABI,
            is_burst<F> ? INLANE_KIND_BURST : INLANE_KIND_PACKET,
            sizeof(F),
            output_bytes<F>(first()),
            reads<F>(first()),
            writes<F>(first()),
            (has_tick<F>(first()) ? 1u : 0u) | (packet_with_context<F>(first()) || burst_with_context<F>(first()) ? 2u : 0u),
            parameters<F>(first())};
}

// Returns the size of one counter of a member of type T: an unsigned number of 32 or 64 bits, or an array of them.
template <class T> struct counter_size {
    static_assert((sizeof(T) == 4 || sizeof(T) == 8) && T(-1) > T(0) && T(1) / T(2) == T(0),
                  "a counter must be a uint32_t, a uint64_t, or an array of them");
    static constexpr uint32_t bytes = sizeof(T);
};
template <class T, decltype(sizeof(0)) N> struct counter_size<T[N]> : counter_size<T> {};

INLANE inlane_descriptor descriptor_at(const void *packets, uint32_t stride, uint32_t i) {
    return *reinterpret_cast<const inlane_descriptor *>(static_cast<const uint8_t *>(packets) +
                                                        static_cast<uint64_t>(i) * stride);
}

template <class F> INLANE inlane_packet_verdict run_one(F &function, const inlane_descriptor &at, const context &call) {
    packet it(reinterpret_cast<uint8_t *>(at.address), at.length, call.room);
    verdict what;
    if constexpr (packet_with_context<F>(first())) {
        what = function.packet(it, call);
    } else {
        what = function.packet(it);
    }
    return {it.length(), what};
}

// True if the packet is dropped, sent to a port, or has a new length.
INLANE bool differs(const inlane_packet_verdict &now, const inlane_descriptor &before) {
    return (now.verdict ^ INLANE_FORWARD) | (now.length ^ before.length);
}

#if INLANE_GPU

// Runs a `packet` function on a burst. Thread i handles packets i, i + threads, ... Writes no verdicts if the
// function leaves all packets unchanged. Otherwise writes the verdicts of all packets.
template <class F>
INLANE uint32_t run_packets(const void *packets, uint32_t stride, uint32_t count, inlane_packet_verdict *verdicts,
                            const context &call) {
    F &function = *static_cast<F *>(call.state);
    bool writing = false; // has the same value in all threads
    for (uint32_t base = 0; base < count; base += threads()) {
        uint32_t i = base + thread_index();
        inlane_packet_verdict result = {0, INLANE_FORWARD};
        bool changed = false;
        if (i < count) {
            inlane_descriptor at = descriptor_at(packets, stride, i);
            result = run_one(function, at, call);
            changed = differs(result, at);
        }
        if (!writing && any(changed)) {
            writing = true;
            for (uint32_t j = thread_index(); j < base; j += threads())
                verdicts[j] = {descriptor_at(packets, stride, j).length, INLANE_FORWARD};
        }
        if (writing && i < count) verdicts[i] = result;
    }
    return writing ? INLANE_VERDICTS : INLANE_UNCHANGED;
}

#else

// Writes the verdicts of all packets of a burst. The first `done` packets are forwarded. The next `some`
// packets get the verdicts in `known`. Runs the function on the remaining packets.
template <class F>
INLANE uint32_t run_changing(const void *packets, uint32_t stride, uint32_t done, const inlane_packet_verdict *known, uint32_t some,
                             uint32_t count, inlane_packet_verdict *verdicts, const context &call, F &function) {
    for (uint32_t i = 0; i < done; i++) verdicts[i] = {descriptor_at(packets, stride, i).length, INLANE_FORWARD};
    for (uint32_t i = 0; i < some; i++) verdicts[done + i] = known[i];
    for (uint32_t i = done + some; i < count; i++) verdicts[i] = run_one(function, descriptor_at(packets, stride, i), call);
    return INLANE_VERDICTS;
}

// Runs a `packet` function on a burst, four packets at a time. Prefetches 8 packets ahead, unless the
// function reads at most 16 bytes: out-of-order execution then suffices.
template <class F, uint32_t Stride>
INLANE uint32_t run_strided(const void *packets, uint32_t count, inlane_packet_verdict *verdicts, const context &call) {
    constexpr uint32_t ahead = 8;
    F &function = *static_cast<F *>(call.state);
    uint32_t i = 0;
    for (const uint8_t *four = static_cast<const uint8_t *>(packets); i + 4 <= count; i += 4, four += 4 * Stride) {
        if constexpr (reads<F>(first()) > 16) {
            if (i + ahead + 4 <= count) {
#pragma GCC unroll 4
                for (uint32_t k = 0; k < 4; k++)
                    __builtin_prefetch(reinterpret_cast<void *>(descriptor_at(four, Stride, ahead + k).address), 1);
            }
        }
        inlane_packet_verdict now[4];
        bool changed = false;
#pragma GCC unroll 4
        for (uint32_t k = 0; k < 4; k++) {
            inlane_descriptor at = descriptor_at(four, Stride, k);
            now[k] = run_one(function, at, call);
            changed |= differs(now[k], at);
        }
        if (!INLANE_LIKELY(!changed)) return run_changing(packets, Stride, i, now, 4, count, verdicts, call, function);
    }
    for (; i < count; i++) {
        inlane_descriptor at = descriptor_at(packets, Stride, i);
        inlane_packet_verdict now = run_one(function, at, call);
        if (differs(now, at)) return run_changing(packets, Stride, i, &now, 1, count, verdicts, call, function);
    }
    return INLANE_UNCHANGED;
}

template <class F>
INLANE uint32_t run_packets(const void *packets, uint32_t stride, uint32_t count, inlane_packet_verdict *verdicts,
                            const context &call) {
    // A constant stride makes the loop faster: 16 for a ring's descriptors, 24 for a port's packets.
    return stride == 16 ? run_strided<F, 16>(packets, count, verdicts, call)
                        : run_strided<F, 24>(packets, count, verdicts, call);
}

#endif

template <class F>
INLANE uint32_t run_burst(const void *packets, uint32_t stride, uint32_t count, inlane_packet_verdict *verdicts,
                          const context &call) {
    // Collects the verdicts in shared memory. They are copied to `verdicts` if a thread called `set`.
    INLANE_SHARED inlane_packet_verdict staged[INLANE_MAX_BURST];
    for (uint32_t i = thread_index(); i < count; i += threads())
        staged[i] = {descriptor_at(packets, stride, i).length, INLANE_FORWARD};
    sync();
    burst all(packets, stride, count, call.room, staged);
    if constexpr (burst_with_context<F>(first())) {
        static_cast<F *>(call.state)->burst(all, call);
    } else {
        static_cast<F *>(call.state)->burst(all);
    }
    if (!any(all.changed())) return INLANE_UNCHANGED;
    for (uint32_t i = thread_index(); i < count; i += threads()) verdicts[i] = staged[i];
    return INLANE_VERDICTS;
}

} // namespace detail

// Runs function F on one item of up to INLANE_MAX_BURST packets. All threads of a block call it. All of them
// get the same result.
template <class F>
INLANE uint32_t run_item(const void *packets, uint32_t stride, uint32_t count, inlane_packet_verdict *verdicts,
                         const context &call) {
    if constexpr (detail::is_burst<F>) {
        return detail::run_burst<F>(packets, stride, count, verdicts, call);
    } else {
        return detail::run_packets<F>(packets, stride, count, verdicts, call);
    }
}

// Calls the function's `tick`, if the function has one. All threads of a block must call this.
template <class F> INLANE void run_tick(const context &call) {
    if constexpr (detail::has_tick<F>(detail::first())) static_cast<F *>(call.state)->tick(call);
}

} // namespace inlane

#define INLANE_JOIN_(a, b) a##b
#define INLANE_JOIN(a, b) INLANE_JOIN_(a, b)

#ifndef INLANE_VARIANT // a suffix for programs that contain several builds of a function
#define INLANE_VARIANT
#endif

// Reports the member `member` of the packet function `function` after a run, as a counter with the member's name.
// The run adds up the values of all pipelines. The member is a uint32_t or uint64_t, or an array of them: element 3
// of `packets` is the counter `packets_3`. Write this macro after the struct, outside any namespace.
#if INLANE_GPU
#define INLANE_COUNTER_LINKAGE extern "C" __device__ const
#else
#define INLANE_COUNTER_LINKAGE extern "C" __attribute__((visibility("default"))) const
#endif
#define INLANE_COUNTER(function, member)                                                                                \
    INLANE_COUNTER_LINKAGE inlane_counter inlane_counter_##function##_##member = {                                      \
        INLANE_OFFSETOF(struct ::function, member), sizeof(::function::member),                                         \
        inlane::detail::counter_size<decltype(::function::member)>::bytes};

// Registers the struct `name` as the packet function `name`. The struct has `packet` or `burst`. Write this
// macro after the struct, outside any namespace.
#if INLANE_GPU
#define INLANE_FUNCTION(name)                                                                                           \
    using inlane_registered_##name = struct ::name;                                                                     \
    extern "C" __device__ const inlane_info inlane_info_##name = inlane::detail::info_of<inlane_registered_##name>();
#else
#define INLANE_FUNCTION(name)                                                                                           \
    using inlane_registered_##name = struct ::name;                                                                     \
    static uint32_t inlane_run_##name(const void *packets, uint32_t stride, uint32_t count, inlane_packet_verdict *verdicts,   \
                                      const inlane_context *call) {                                                     \
        return inlane::run_item<inlane_registered_##name>(packets, stride, count, verdicts, *call);                     \
    }                                                                                                                   \
    static void inlane_tick_##name(const inlane_context *call) { inlane::run_tick<inlane_registered_##name>(*call); }   \
    extern "C" __attribute__((visibility("default"))) const inlane_entry INLANE_JOIN(inlane_function_##name,            \
                                                                                     INLANE_VARIANT) = {                \
        inlane::detail::info_of<inlane_registered_##name>(), inlane_run_##name, inlane_tick_##name};
#endif

#endif
