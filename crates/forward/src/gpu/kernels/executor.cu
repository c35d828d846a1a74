// The GPU executors' kernels: they take items from the burst ring, run the packet function, and complete the
// items.
//
// gpu/loaded_function.rs compiles this text after FunctionSource::for_gpu, which contains inlane.h and
// defines inlane_run_item. If INLANE_PULLS is 1, the kernels can pull packets: copy them into GPU memory
// before they are processed.
//
//     inlane_persistent   method persistent: block b takes items b, b+n, ... until the ring ends
//     inlane_items        methods single, split and stream: one block per item, launched for given positions
//     inlane_slots        method graph: one block per item, launched for given slots
//     inlane_tick         calls the function's `tick`
//
// Memory order: one thread acquires the item's word at system scope. After a barrier, all threads read the
// item and write their results. After a second barrier, one thread stores the word that completes the item,
// with release semantics at system scope. Descriptors of small bursts are read together with the word. If a
// descriptor's lap differs from the word's lap, the descriptor is stale (core's ring/protocol.rs).

#include "system.cuh"

// One pipeline's ring, buffers and settings. lane.rs has the same struct. Assertions appended to this text
// make compilation fail if the layouts differ.
struct inlane_lane {
    const uint8_t *submit;         // the ring's submission half, in pinned memory; the host writes it
    uint8_t *complete;             // the ring's completion half, in pinned memory; kernels write it
    const uint64_t *control;       // pinned memory; the host writes it: [0] not 0: stop at once; [16] the heartbeat, which changes
    uint8_t *stage;                // GPU memory that packets are pulled into; null: packets are processed in place
    uint8_t *shadow;               // GPU memory with the front of each packet as it was pulled, to detect changes
    void *state;                   // the packet function's state, in GPU memory
    uint8_t *output;               // the packet function's output region, in GPU memory; null if it has none
    uint64_t *relay;               // GPU memory; block 0 of a persistent kernel writes it: [0] the ring's end; [1] not 0: stop at once
    uint64_t output_bytes;
    uint64_t orphan_ns;            // the kernel stops if the heartbeat does not change for this long
    uint32_t submit_stride;        // bytes from one slot to the next in the submission half
    uint32_t complete_stride;      // bytes from one slot to the next in the completion half
    uint32_t slot_shift;           // slots = 1 << slot_shift
    uint32_t burst;                // the most packets of an item
    uint32_t room;                 // bytes that a packet may occupy from its address on
    uint32_t pull;                 // the most bytes of each packet to pull
    uint32_t stage_stride;         // bytes per packet in `stage`: a multiple of 16
    uint32_t shadow_stride;        // bytes per packet in `shadow`: a multiple of 16; 0: the function writes no packets
    uint32_t writes;               // the most bytes at a packet's front that the function writes
    uint32_t pause_ns;             // the pause between two polls of the ring
    uint32_t work_ns;              // busy time that is added per packet and thread, to measure its effect
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
    uint64_t first; // the index of the item's first packet in `stage` and `shadow`
    uint32_t lap;
};

__device__ __forceinline__ slot slot_of(const inlane_lane &lane, uint64_t position) {
    uint32_t index = static_cast<uint32_t>(position) & ((1u << lane.slot_shift) - 1);
    return {lane.submit + INLANE_RING_LINE + static_cast<uint64_t>(index) * lane.submit_stride,
            lane.complete + static_cast<uint64_t>(index) * lane.complete_stride,
            static_cast<uint64_t>(index) * lane.burst, static_cast<uint32_t>(position >> lane.slot_shift) + 1};
}

// The first bytes of a packet, which the kernel pulls: copies from host memory into GPU memory. They are
// copied as aligned chunks of 16 bytes:
//
//     host   ..|skew| packet bytes ...        the first chunk begins `skew` bytes before the packet
//     stage    |skew| packet bytes ...        a copy of the same chunks
struct pulled {
    uint8_t *host;   // the first chunk
    uint32_t skew;   // 0 to 15
    uint32_t length; // the number of the packet's bytes that are pulled
};

__device__ __forceinline__ pulled pulled_of(const inlane_lane &lane, uint4 descriptor) {
    uint64_t address = descriptor.x | static_cast<uint64_t>(descriptor.y) << 32;
    return {reinterpret_cast<uint8_t *>(address & ~15ull), descriptor.x & 15u, min(descriptor.z, lane.pull)};
}

// Pulls an item's packets into `stage` and writes the descriptors of the copies to `now`. A warp pulls four
// packets at a time. Each thread has up to eight loads in flight.
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

// Copies the chunks that the function changed from `stage` back to host memory. `verdicts` is null if no
// length changed.
__device__ void write_back(const inlane_lane &lane, const slot &at, uint32_t count, const uint4 *given,
                           const inlane_packet_verdict *verdicts) {
    uint32_t chunks = lane.shadow_stride / 16;
    for (uint32_t work = threadIdx.x; work < count * chunks; work += blockDim.x) {
        uint32_t i = work / chunks, chunk = work % chunks;
        pulled from = pulled_of(lane, given[i]);
        uint32_t length = verdicts ? verdicts[i].length : given[i].z;
        uint32_t end = from.skew + min(length, lane.writes); // the end of the bytes that the function may have written, in the stage
        uint32_t begin = max(chunk * 16, from.skew), stop = min(chunk * 16 + 16, end);
        if (begin >= stop) continue;
        const uint8_t *stage = lane.stage + (at.first + i) * lane.stage_stride;
        uint4 value = *reinterpret_cast<const uint4 *>(stage + chunk * 16);
        bool fresh = chunk * 16 >= from.skew + from.length; // the chunk is beyond what was pulled, so the function wrote it
        if (!fresh && same(value, *reinterpret_cast<const uint4 *>(lane.shadow + (at.first + i) * lane.shadow_stride +
                                                                   chunk * 16)))
            continue;
        if (begin == chunk * 16 && stop == chunk * 16 + 16) {
            *reinterpret_cast<uint4 *>(from.host + chunk * 16) = value;
        } else {
            // Write only this packet's bytes, because the other bytes of the 16-byte chunk may belong to
            // other packets.
            for (uint32_t byte = begin; byte < stop; byte++) from.host[byte] = stage[byte];
        }
    }
}

// Returns the current time, the same for all threads of a block. With different times, a function whose
// barriers depend on the time could deadlock.
__device__ __forceinline__ uint64_t time_of_block() {
    __shared__ uint64_t time;
    if (threadIdx.x == 0) time = now_ns();
    __syncthreads();
    return time;
}

// Returns the time at which the processing of an item begins. Returns 0 if neither the packet function nor
// the added work needs the time.
__device__ __forceinline__ uint64_t time_of_item(const inlane_lane &lane) {
    if constexpr (inlane_needs_time) return time_of_block();
    return lane.work_ns ? now_ns() : 0;
}

// Completes an item: stores the word that shows the host that the item is complete. All threads of the block
// must call this. Afterwards the slot may be reused, so no thread may access the item.
__device__ __forceinline__ void complete(const inlane_lane &lane, const slot &at, uint32_t count, uint64_t begun_ns, uint32_t info) {
    if (lane.work_ns) {
        uint64_t until = begun_ns + static_cast<uint64_t>(lane.work_ns) * ((count + blockDim.x - 1) / blockDim.x);
        while (now_ns() < until) {
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) store_release(at.complete, at.lap | static_cast<uint64_t>(info) << 32);
}

// Processes an item's packets in place. `given` points to their descriptors in shared memory. All threads of
// a block call this function.
__device__ __forceinline__ void process_in_place(const inlane_lane &lane, const slot &at, uint32_t count, const uint4 *given) {
    inlane_context call = {lane.state, lane.output, lane.output_bytes, time_of_item(lane), lane.room, 0};
    inlane_packet_verdict *verdicts = reinterpret_cast<inlane_packet_verdict *>(at.complete + INLANE_RING_ENTRIES);
    uint32_t info = inlane_run_item(reinterpret_cast<const inlane_descriptor *>(given), count, verdicts, call);
    complete(lane, at, count, call.now_ns, info);
}

// Pulls an item's packets (copies them into GPU memory), runs the packet function on the copies, and
// completes the item. `given` points to the packets' descriptors in shared memory. The memory after them
// holds first the copies' descriptors and later the verdicts.
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

// The variables that a persistent block keeps in shared memory, if its kernel can pull packets. This kernel
// calls a function for each item, because inlined code would make the loops spill registers. `lane` is a
// copy, because the kernel's parameter would be reread from memory after each acquire.
struct block_variables {
    inlane_lane lane;
    uint64_t position;
    uint32_t polls;
};

__device__ __noinline__ void process_out_of_line(const block_variables &own, uint32_t count, uint4 *given) {
    process(own.lane, slot_of(own.lane, own.position), count, given);
}

// ---- Waiting, in the persistent kernel. ---------------------------------------------------------------------------------

// The threads of a block's first warp poll different words with one load instruction. The hardware combines loads of one
// line by 8 adjacent threads. So threads 0 to 7 read the item's whole line with one read over PCIe.
constexpr uint32_t ITEM = 0;       // this thread polls the item's word; see comes_with_word for threads 1 to 7
constexpr uint32_t RELAY = 8;      // polls what block 0 found
constexpr uint32_t END = 9;        // in block 0, in some polls: the ring's end
constexpr uint32_t STOP = 10;      // in block 0, in some polls: the order to stop
constexpr uint32_t HEARTBEAT = 11; // in block 0, every 200 ms: the host's heartbeat
constexpr uint32_t CHECK_EVERY_POLLS = 32;
constexpr uint64_t CHECK_HEARTBEAT_EVERY_NS = 200000000;
constexpr uint32_t ALL = 0xffffffffu;

// Returns true if an item's descriptors fit into the cache line of the item's word. Threads 1 to 7 then poll
// the descriptors together with the word.

__device__ __forceinline__ bool comes_with_word(const inlane_lane &lane) { return lane.burst <= INLANE_RING_DESCRIPTORS_WITH_WORD; }

// Waits for the item at `position`. All threads of a block's first warp call it. Returns the item's word, or
// 0 if the block must end. If comes_with_word(lane), as for small bursts, also writes the item's descriptors
// to `given`. `polls` counts the polls of block 0.
//
// Every poll is a read over PCIe, and reads of one line by several blocks queue up. So a block polls only its
// own item's word. Some words concern all blocks. Block 0 also reads these words, in every 32nd poll, and
// copies them to GPU memory. The other blocks poll the copies there.
//
// If the host orders a stop, the block ends even if the item was submitted. At the ring's end, the block ends
// only if `position` is beyond the last item. The word for the ring's end is 0 while the ring is open.
// Afterwards it is the number of items plus one.
__device__ __forceinline__ uint64_t wait_for(const inlane_lane &lane, const slot &at, uint64_t position, uint32_t &polls,
                                             uint4 *given) {
    static_assert(INLANE_RING_DESCRIPTORS_WITH_WORD < RELAY && INLANE_RING_ENTRIES == 16, "thread n reads the line's bytes from 16 n on");
    uint32_t me; // read each time, so that it occupies no register while an item is processed
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(me));
    const void *place = me == RELAY   ? static_cast<const void *>(lane.relay)
                        : me == END   ? static_cast<const void *>(lane.submit)
                        : me == STOP  ? static_cast<const void *>(lane.control)
                        : me == HEARTBEAT ? static_cast<const void *>(lane.control + 16)
                                      : static_cast<const void *>(at.submit + me % RELAY * 16);
    bool polling = me <= (comes_with_word(lane) ? lane.burst : ITEM) || me == RELAY;
    uint64_t heartbeat = 0, changed_ns = 0, checked_ns = 0, now = 0; // times are counted from the first check in this call
    for (;;) {
        bool checking = false;
        if (blockIdx.x == 0 && ++polls % CHECK_EVERY_POLLS == 0) {
            now = now_ns();
            if (checked_ns == 0) checked_ns = changed_ns = now;
            checking = me == END || me == STOP || (me == HEARTBEAT && now - checked_ns > CHECK_HEARTBEAT_EVERY_NS);
        }
        pair found = {0, 0};
        __syncwarp(); // makes threads that took different branches load together
        if (polling || checking) found = load_acquire_pair(place);
        __syncwarp();
        if (checking) {
            volatile uint64_t *relay = lane.relay;
            bool stop = me == STOP && found.low != 0;
            if (me == END) relay[0] = found.low;
            if (me == HEARTBEAT) {
                if (found.low != heartbeat) {
                    heartbeat = found.low;
                    changed_ns = now;
                }
                checked_ns = now;
                stop = now - changed_ns > lane.orphan_ns;
            }
            if (stop) relay[1] = 1;
        }
        bool relaying = me == RELAY;
        if (__any_sync(ALL, relaying && found.high != 0)) return 0;
        if (__any_sync(ALL, me == ITEM && static_cast<uint32_t>(found.low) == at.lap)) {
            uint64_t word = __shfl_sync(ALL, found.low, ITEM);
            if (comes_with_word(lane) && me - 1 < min(static_cast<uint32_t>(word >> 32), lane.burst)) {
                uint4 descriptor = make_uint4(found.low, found.low >> 32, found.high, found.high >> 32);
                // If the descriptor's lap differs from the word's lap, the descriptor was read before the
                // host wrote it. Read it again then. Lap 0 cannot show this, because unwritten memory is 0,
                // too.
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

// The block's shared memory: first the descriptors of the item's packets. If packets are pulled (copied into
// GPU memory), the descriptors of the copies and then the verdicts follow.
extern __shared__ uint4 inlane_shared[];

// The kernel of method persistent. Processes items from the ring until one of these events: the ring ends,
// the host orders a stop, or the host's heartbeat stops. All blocks of the kernel must be resident at once.
extern "C" __global__ void __launch_bounds__(INLANE_MOST_THREADS, 2) inlane_persistent(const __grid_constant__ inlane_lane lane) {
    __shared__ uint64_t shared_word;
    uint32_t polls = 0;
#if INLANE_PULLS
    __shared__ block_variables own;
    if (threadIdx.x == 0) own.lane = lane;
#endif
    for (uint64_t position = blockIdx.x;; position += gridDim.x) {
        slot at = slot_of(lane, position);
        if (threadIdx.x < 32) {
            uint64_t word = wait_for(lane, at, position, polls, inlane_shared);
            if (threadIdx.x == 0) {
                shared_word = word;
#if INLANE_PULLS
                own.position = position, own.polls = polls;
#endif
            }
        }
        __syncthreads();
        uint64_t word = shared_word;
        if (word == 0) return;
        uint32_t count = min(static_cast<uint32_t>(word >> 32), lane.burst);
        if (!comes_with_word(lane)) {
            const uint8_t *entries = at.submit + INLANE_RING_ENTRIES;
            for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) inlane_shared[i] = load16(entries + i * 16);
            __syncthreads();
        }
#if INLANE_PULLS
        process_out_of_line(own, count, inlane_shared);
        position = own.position, polls = own.polls;
        __syncthreads();
#else
        process_in_place(lane, at, count, inlane_shared);
#endif
    }
}

// Processes the items from `position` on, one per block. All of them were submitted before the kernel runs. A
// block ends at once if its slot has no packets. This happens if the launch only sets up a stream, or if the
// host released the waits.
extern "C" __global__ void __launch_bounds__(INLANE_MOST_THREADS, 2) inlane_items(const __grid_constant__ inlane_lane lane, uint64_t position, uint32_t most) {
    slot at = slot_of(lane, position + blockIdx.x);
    // Load `most` descriptors, the most that an item has, without waiting for the word's packet count. This
    // is safe, because the host wrote the word and the descriptors before the kernel began.
    uint64_t word = inlane_system::load_acquire(at.submit);
    const uint8_t *entries = at.submit + INLANE_RING_ENTRIES;
    for (uint32_t i = threadIdx.x; i < most; i += blockDim.x) inlane_shared[i] = inlane_system::load16(entries + i * 16);
    // End the block in two cases. If the word is of another lap, it belongs to another item. If the packet
    // count is 0, the word only releases the wait for an item that is never submitted.
    if (static_cast<uint32_t>(word) != at.lap || word >> 32 == 0) return;
    __syncthreads();
    process(lane, at, min(static_cast<uint32_t>(word >> 32), most), inlane_shared);
}

// Processes the slots of one launch of a graph. Each lap launches the graph with the same parameters, so
// `index` names a slot, and the kernel reads the lap from the slot's word. One graph serves the odd laps
// (`odd` is 1), another graph the even laps (`odd` is 0). If the word's lap belongs to the other graph, the
// block ends at once.
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

// Calls the function's `tick` with the time `end`; 0 stands for the current time.
extern "C" __global__ void inlane_tick(const __grid_constant__ inlane_lane lane, uint64_t end) {
    inlane_run_tick({lane.state, lane.output, lane.output_bytes, end ? end : time_of_block(), lane.room, 0});
}
