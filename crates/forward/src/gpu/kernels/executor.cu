// The device side of the GPU executors: takes items from the burst ring, runs the packet function on them, completes them.
// Compiled behind the function's source (Function::gpu_source, which brings inlane.h and inlane_run_item) by gpu/program.rs;
// lane.rs has the other half of the structs. INLANE_PULLS is 1 where packets are pulled into GPU memory, or may be.
//
//   persistent   inlane_persistent: block b takes items b, b+n, ... until the ring ends
//   others       inlane_items: one block an item, once the item is known to be there
//
// Order: one thread acquires the item's word (system scope), then a barrier, then all threads read the item. All threads'
// writes, a barrier, then one thread releases the completed word (system scope). Nothing else orders anything. Descriptors of small
// bursts come with the word, and say themselves whether they are the item's: see core's ring/protocol.rs.

#include "system.cuh"

struct inlane_lane {
    const uint8_t *submit;         // the ring's submit half
    uint8_t *complete;             // the ring's complete half
    const uint64_t *control;       // pinned: [0] not 0: stop at once; [16] signs of life of the host
    uint8_t *stage;                // GPU memory that payload is pulled into; null: packets are worked on in place
    uint8_t *shadow;               // the front of each packet as it was pulled, to see what the function changed
    void *state;                   // the packet function's
    uint8_t *output;
    uint64_t *relay;               // GPU memory, what block 0 of a persistent kernel saw: [0] the ring's end; [1] not 0: stop at once
    uint64_t output_bytes;
    uint64_t orphan_ns;            // a host that gives no sign for so long is dead
    uint32_t submit_stride;
    uint32_t complete_stride;
    uint32_t slot_shift;           // slots = 1 << slot_shift
    uint32_t burst;
    uint32_t room;                 // bytes a packet may grow to
    uint32_t pull;                 // most bytes of each packet to pull
    uint32_t stage_stride;         // bytes a packet in `stage`: a multiple of 16
    uint32_t shadow_stride;        // bytes a packet in `shadow`: a multiple of 16; 0: the function writes nothing
    uint32_t writes;               // most bytes at the front that the function writes
    uint32_t pause_ns;             // between two looks at an item that is not there
    uint32_t work_ns;              // forced work of a thread for each of its packets
    uint32_t reserved;
};

namespace {

using inlane_system::load16;
using inlane_system::load_acquire;
using inlane_system::load_acquire_pair;
using inlane_system::now_ns;
using inlane_system::pair;
using inlane_system::store_release;

__device__ __forceinline__ bool same(uint4 a, uint4 b) {
    return a.x == b.x && a.y == b.y && a.z == b.z && a.w == b.w;
}

// ---- One item. ----------------------------------------------------------------------------------------------------------

struct slot {
    const uint8_t *submit;
    uint8_t *complete;
    uint64_t first; // number of its first packet in `stage` and `shadow`
    uint32_t lap;
};

__device__ __forceinline__ slot slot_of(const inlane_lane &lane, uint64_t position) {
    uint32_t index = static_cast<uint32_t>(position) & ((1u << lane.slot_shift) - 1);
    return {lane.submit + INLANE_RING_LINE + static_cast<uint64_t>(index) * lane.submit_stride,
            lane.complete + static_cast<uint64_t>(index) * lane.complete_stride,
            static_cast<uint64_t>(index) * lane.burst, static_cast<uint32_t>(position >> lane.slot_shift) + 1};
}

// Where a packet's bytes are while the function works on them, and where they came from.
//
//   host   ..|skew| packet bytes ...        the sixteen-byte chunks that hold it; the first begins `skew` bytes before it
//   stage    |skew| packet bytes ...        the same chunks
struct pulled {
    uint8_t *host;   // first chunk
    uint32_t skew;
    uint32_t length; // pulled
};

__device__ __forceinline__ pulled pulled_of(const inlane_lane &lane, uint4 descriptor) {
    uint64_t address = descriptor.x | static_cast<uint64_t>(descriptor.y) << 32;
    return {reinterpret_cast<uint8_t *>(address & ~15ull), descriptor.x & 15u, min(descriptor.z, lane.pull)};
}

// Pulls the packets into `stage`, a warp a packet, up to eight loads in flight a thread, and points `now` there.
__device__ void pull(const inlane_lane &lane, const slot &at, uint32_t count, const uint4 *given, uint4 *now) {
    constexpr uint32_t packets = 4, chunks = 2;
    uint32_t warps = blockDim.x / 32, lane_id = threadIdx.x % 32;
    for (uint32_t base = threadIdx.x / 32; base < count; base += warps * packets) {
        uint32_t most = 0;
#pragma unroll
        for (uint32_t p = 0; p < packets; p++) {
            uint32_t i = base + p * warps;
            if (i < count) {
                pulled from = pulled_of(lane, given[i]);
                most = max(most, (from.skew + from.length + 15) / 16);
            }
        }
        for (uint32_t front = 0; front < most; front += 32 * chunks) {
            uint4 values[packets][chunks];
#pragma unroll
            for (uint32_t p = 0; p < packets; p++) {
                uint32_t i = base + p * warps;
                if (i >= count) continue;
                pulled from = pulled_of(lane, given[i]);
#pragma unroll
                for (uint32_t c = 0; c < chunks; c++) {
                    uint32_t chunk = front + c * 32 + lane_id;
                    if (chunk * 16 < from.skew + from.length) values[p][c] = load16(from.host + chunk * 16);
                }
            }
#pragma unroll
            for (uint32_t p = 0; p < packets; p++) {
                uint32_t i = base + p * warps;
                if (i >= count) continue;
                pulled from = pulled_of(lane, given[i]);
#pragma unroll
                for (uint32_t c = 0; c < chunks; c++) {
                    uint32_t chunk = front + c * 32 + lane_id;
                    if (chunk * 16 >= from.skew + from.length) continue;
                    *reinterpret_cast<uint4 *>(lane.stage + (at.first + i) * lane.stage_stride + chunk * 16) = values[p][c];
                    if (chunk * 16 < lane.shadow_stride)
                        *reinterpret_cast<uint4 *>(lane.shadow + (at.first + i) * lane.shadow_stride + chunk * 16) =
                            values[p][c];
                }
            }
        }
    }
    for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
        uint64_t address =
            reinterpret_cast<uint64_t>(lane.stage) + (at.first + i) * lane.stage_stride + (given[i].x & 15u);
        now[i] = make_uint4(static_cast<uint32_t>(address), static_cast<uint32_t>(address >> 32), given[i].z, 0);
    }
}

// Writes the chunks that the function changed back to where they came from. `lengths` are the packets' new ones.
__device__ void write_back(const inlane_lane &lane, const slot &at, uint32_t count, const uint4 *given,
                           const inlane_packet_verdict *verdicts) {
    uint32_t chunks = lane.shadow_stride / 16;
    for (uint32_t work = threadIdx.x; work < count * chunks; work += blockDim.x) {
        uint32_t i = work / chunks, chunk = work % chunks;
        pulled from = pulled_of(lane, given[i]);
        uint32_t length = verdicts ? verdicts[i].length : given[i].z;
        uint32_t end = from.skew + min(length, lane.writes); // bytes of the stage up to which it may have written
        uint32_t begin = max(chunk * 16, from.skew), stop = min(chunk * 16 + 16, end);
        if (begin >= stop) continue;
        const uint8_t *stage = lane.stage + (at.first + i) * lane.stage_stride;
        uint4 value = *reinterpret_cast<const uint4 *>(stage + chunk * 16);
        bool fresh = chunk * 16 >= from.skew + from.length; // behind what was pulled: it can only be new
        if (!fresh && same(value, *reinterpret_cast<const uint4 *>(lane.shadow + (at.first + i) * lane.shadow_stride +
                                                                   chunk * 16)))
            continue;
        if (begin == chunk * 16 && stop == chunk * 16 + 16) {
            *reinterpret_cast<uint4 *>(from.host + chunk * 16) = value;
        } else {
            // The rest of the chunk is not this packet's.
            for (uint32_t byte = begin; byte < stop; byte++) from.host[byte] = stage[byte];
        }
    }
}

// The time, the same for all threads of a block: a function may have them meet by what it says.
__device__ __forceinline__ uint64_t time_of_block() {
    __shared__ uint64_t time;
    if (threadIdx.x == 0) time = now_ns();
    __syncthreads();
    return time;
}

// Time of an item; not read where nobody looks at it.
__device__ __forceinline__ uint64_t time_of_item(const inlane_lane &lane) {
    if constexpr (inlane_needs_time) return time_of_block();
    return lane.work_ns ? now_ns() : 0;
}

// All threads are done with an item; hands it to the sender. Afterwards nobody reads what the block shared about it.
__device__ __forceinline__ void complete(const inlane_lane &lane, const slot &at, uint32_t count, uint64_t begun_ns, uint32_t info) {
    if (lane.work_ns) {
        uint64_t until = begun_ns + static_cast<uint64_t>(lane.work_ns) * ((count + blockDim.x - 1) / blockDim.x);
        while (now_ns() < until) {
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) store_release(at.complete, at.lap | static_cast<uint64_t>(info) << 32);
}

// Works on an item whose descriptors are in shared memory already, called by all threads of a block: where its packets lie.
__device__ __forceinline__ void process_in_place(const inlane_lane &lane, const slot &at, uint32_t count, const uint4 *given) {
    inlane_context call = {lane.state, lane.output, lane.output_bytes, time_of_item(lane), lane.room, 0};
    inlane_packet_verdict *verdicts = reinterpret_cast<inlane_packet_verdict *>(at.complete + INLANE_RING_ENTRIES);
    uint32_t info = inlane_run_item(reinterpret_cast<const inlane_descriptor *>(given), count, verdicts, call);
    complete(lane, at, count, call.now_ns, info);
}

// The same in GPU memory, where packets are pulled to.
__device__ __forceinline__ void process_pulled(const inlane_lane &lane, const slot &at, uint32_t count, uint4 *given) {
    inlane_context call = {lane.state, lane.output, lane.output_bytes, time_of_item(lane), lane.room, 0};
    inlane_packet_verdict *verdicts = reinterpret_cast<inlane_packet_verdict *>(at.complete + INLANE_RING_ENTRIES);
    uint4 *now = given + lane.burst;
    inlane_packet_verdict *local = reinterpret_cast<inlane_packet_verdict *>(now + lane.burst);
    pull(lane, at, count, given, now);
    __syncthreads();
    uint32_t info = inlane_run_item(reinterpret_cast<const inlane_descriptor *>(now), count, local, call);
    __syncthreads();
    if (lane.shadow_stride) write_back(lane, at, count, given, info == INLANE_VERDICTS ? local : nullptr);
    if (info == INLANE_VERDICTS)
        for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) verdicts[i] = local[i];
    complete(lane, at, count, call.now_ns, info);
}

__device__ __forceinline__ void process(const inlane_lane &lane, const slot &at, uint32_t count, uint4 *given) {
    if constexpr (INLANE_PULLS) {
        if (lane.stage != nullptr) return process_pulled(lane, at, count, given);
    }
    process_in_place(lane, at, count, given);
}

// What a block of the persistent kernel has at hand in shared memory where packets are pulled: that is then worked on apart, for
// inlined, what lives across it would make the loops in it spill registers. The kernel's parameter would be read there through
// memory, and from afar after each acquire.
struct desk {
    inlane_lane lane;
    uint64_t position;
    uint32_t looks;
};

__device__ __noinline__ void process_apart(const desk &here, uint32_t count, uint4 *given) {
    process(here.lane, slot_of(here.lane, here.position), count, given);
}

// ---- Waiting, in the persistent kernel. ---------------------------------------------------------------------------------

// What threads of a block's first warp look at, all by one load, so that no read waits for another: the time of a look is that of
// one read over PCIe. A quarter of a warp fetches at a time: thread 0 and those behind it get the item's line in one piece.
constexpr uint32_t ITEM = 0;   // the item's word; in threads 1 to 7 the descriptors behind it, if that is all of them
constexpr uint32_t RELAY = 8;  // what block 0 saw
constexpr uint32_t END = 9;    // in block 0, now and then: the ring's end,
constexpr uint32_t ORDER = 10; // the order to stop,
constexpr uint32_t SIGNS = 11; // and the host's signs of life
constexpr uint32_t ASK_EVERY_LOOKS = 32;
constexpr uint64_t ASK_FOR_SIGNS_EVERY_NS = 200000000;
constexpr uint32_t ALL = 0xffffffffu;

__device__ __forceinline__ bool comes_with_word(const inlane_lane &lane) { return lane.burst <= INLANE_RING_TOGETHER; }

// Waits for an item, by the whole first warp of a block; 0 in place of its word when there will be none. Descriptors that come with
// the word are in `given` then, for this warp. `looks` counts those of block 0, whatever they find.
//
// What is polled lies in the host's memory, and every look is a read over PCIe. Reads of one line by several blocks queue up behind
// each other, microseconds a block: so each block polls its own item's word, and only block 0 also looks at the words that all
// share, and passes them on in GPU memory.
//
// An order to stop counts also where the item is there: a ring full of items would keep a block for long, and the host takes back
// what is left. The end does not: it is the number of items there ever were, plus one, and whoever waits at or behind it waits in
// vain, but items before it are there or will be.
__device__ __forceinline__ uint64_t wait_for(const inlane_lane &lane, const slot &at, uint64_t position, uint32_t &looks,
                                             uint4 *given) {
    static_assert(INLANE_RING_TOGETHER < RELAY && INLANE_RING_ENTRIES == 16, "thread n has the line's bytes from 16 n on");
    uint32_t me; // asked for each time: what is made of it need not be kept in registers over the work on an item
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(me));
    const void *place = me == RELAY   ? static_cast<const void *>(lane.relay)
                        : me == END   ? static_cast<const void *>(lane.submit)
                        : me == ORDER ? static_cast<const void *>(lane.control)
                        : me == SIGNS ? static_cast<const void *>(lane.control + 16)
                                      : static_cast<const void *>(at.submit + me % RELAY * 16);
    bool looking = me <= (comes_with_word(lane) ? lane.burst : ITEM) || me == RELAY;
    uint64_t sign = 0, seen_ns = 0, asked_ns = 0, now = 0; // the latest sign of life; times from the first look that asks on
    for (;;) {
        bool asking = false;
        if (blockIdx.x == 0 && ++looks % ASK_EVERY_LOOKS == 0) {
            now = now_ns();
            if (asked_ns == 0) asked_ns = seen_ns = now;
            asking = me == END || me == ORDER || (me == SIGNS && now - asked_ns > ASK_FOR_SIGNS_EVERY_NS);
        }
        pair found = {0, 0};
        __syncwarp(); // threads that came here by different ways load together
        if (looking || asking) found = load_acquire_pair(place);
        __syncwarp();
        if (asking) {
            volatile uint64_t *relay = lane.relay;
            bool stop = me == ORDER && found.low != 0;
            if (me == END) relay[0] = found.low;
            if (me == SIGNS) {
                if (found.low != sign) {
                    sign = found.low;
                    seen_ns = now;
                }
                asked_ns = now;
                stop = now - seen_ns > lane.orphan_ns;
            }
            if (stop) relay[1] = 1;
        }
        bool relaying = me == RELAY;
        if (__any_sync(ALL, relaying && found.high != 0)) return 0;
        if (__any_sync(ALL, me == ITEM && static_cast<uint32_t>(found.low) == at.lap)) {
            uint64_t word = __shfl_sync(ALL, found.low, ITEM);
            if (comes_with_word(lane) && me - 1 < min(static_cast<uint32_t>(word >> 32), lane.burst)) {
                uint4 descriptor = make_uint4(found.low, found.low >> 32, found.high, found.high >> 32);
                // Older than the word: read after it.
                if (descriptor.w != at.lap || at.lap == 0) descriptor = load16(place);
                given[me - 1] = descriptor;
            }
            return word;
        }
        if (__any_sync(ALL, relaying && found.low != 0 && position >= found.low - 1)) return 0;
        if (lane.pause_ns) __nanosleep(lane.pause_ns);
    }
}

} // namespace

// The descriptors of an item, and where payload is pulled: those of the pulled packets, and their verdicts.
extern __shared__ uint4 inlane_shared[];

// Persistent: runs until the ring ends, the host says so, or is dead. All blocks must be resident at once.
extern "C" __global__ void __launch_bounds__(INLANE_MOST_THREADS, 2) inlane_persistent(const __grid_constant__ inlane_lane lane) {
    __shared__ uint64_t seen;
    uint32_t looks = 0;
#if INLANE_PULLS
    __shared__ desk here;
    if (threadIdx.x == 0) here.lane = lane;
#endif
    for (uint64_t position = blockIdx.x;; position += gridDim.x) {
        slot at = slot_of(lane, position);
        if (threadIdx.x < 32) {
            uint64_t word = wait_for(lane, at, position, looks, inlane_shared);
            if (threadIdx.x == 0) {
                seen = word;
#if INLANE_PULLS
                here.position = position, here.looks = looks;
#endif
            }
        }
        __syncthreads();
        uint64_t word = seen;
        if (word == 0) return;
        uint32_t count = min(static_cast<uint32_t>(word >> 32), lane.burst);
        if (!comes_with_word(lane)) {
            const uint8_t *entries = at.submit + INLANE_RING_ENTRIES;
            for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) inlane_shared[i] = load16(entries + i * 16);
            __syncthreads();
        }
#if INLANE_PULLS
        process_apart(here, count, inlane_shared);
        position = here.position, looks = here.looks;
        __syncthreads();
#else
        process_in_place(lane, at, count, inlane_shared);
#endif
    }
}

// One block an item from `position` on, all published before the launch. A position that never came is left alone.
extern "C" __global__ void __launch_bounds__(INLANE_MOST_THREADS, 2) inlane_items(const __grid_constant__ inlane_lane lane, uint64_t position, uint32_t most) {
    slot at = slot_of(lane, position + blockIdx.x);
    // Word and descriptors in one go: the launch came after all of them were written. `most` spares reads behind the last.
    uint64_t word = inlane_system::load_acquire(at.submit);
    const uint8_t *entries = at.submit + INLANE_RING_ENTRIES;
    for (uint32_t i = threadIdx.x; i < most; i += blockDim.x) inlane_shared[i] = inlane_system::load16(entries + i * 16);
    // The host ends a stream that waits for items which will not come by words without packets.
    if (static_cast<uint32_t>(word) != at.lap || word >> 32 == 0) return;
    __syncthreads();
    process(lane, at, min(static_cast<uint32_t>(word >> 32), most), inlane_shared);
}

// As inlane_items, for graphs, which know slots and not their lap: takes the lap from the word.
extern "C" __global__ void __launch_bounds__(INLANE_MOST_THREADS, 2) inlane_slots(const __grid_constant__ inlane_lane lane, uint32_t index, uint32_t odd) {
    slot at = slot_of(lane, index + blockIdx.x);
    uint64_t word = inlane_system::load_acquire(at.submit);
    const uint8_t *entries = at.submit + INLANE_RING_ENTRIES;
    for (uint32_t i = threadIdx.x; i < lane.burst; i += blockDim.x) inlane_shared[i] = inlane_system::load16(entries + i * 16);
    if ((static_cast<uint32_t>(word) & 1u) != odd || word >> 32 == 0) return;
    at.lap = static_cast<uint32_t>(word);
    __syncthreads();
    process(lane, at, min(static_cast<uint32_t>(word >> 32), lane.burst), inlane_shared);
}

// The function's time limits: now and then, and at the `end` (else 0), when all of them are due.
extern "C" __global__ void inlane_tick(const __grid_constant__ inlane_lane lane, uint64_t end) {
    inlane_run_tick({lane.state, lane.output, lane.output_bytes, end ? end : time_of_block(), lane.room, 0});
}
