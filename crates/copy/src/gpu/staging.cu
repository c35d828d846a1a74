// Staging by SMs: GPU A pushes chunks into rings in pinned host memory, and GPU B pulls them out.
//
// Channel n is block n of the pusher and block n of the puller. They share a ring for chunks and a ring for
// lines, with `slots` slots each, and these words:
//
//   ready   written by the pusher: the number of chunks that it published
//   seen    written by the pusher: the newest command that it read
//   taken   written by the puller: the number of chunks that it copied out
//
// Chunk k lies in slot k % slots. The pusher may write it while k - taken < slots.
//
// A command selects one of two ways to transfer chunks:
//
//   plain   The pusher stores the bytes, executes a fence at system scope, and stores ready = k + 1. The
//           fence waits until the stores crossed PCIe, at least 1 us. The puller loads `ready`, then the
//           bytes. This way reaches the link's full bandwidth.
//   lines   The pusher stores lines of 16 bytes: 12 of data, and 4 of lap, which is the command's number. The
//           puller loads each line again until its lap is that number. This way needs only one round trip and
//           no fence, but reaches only three quarters of the bandwidth. Lines have a ring of their own.
//
// The CPU writes commands to a ring of 64-byte lines in pinned memory. Block 0 of each GPU relays the
// commands to the other blocks through a ring in its GPU's memory. If all blocks loaded the host's lines,
// their loads would queue behind each other. The word behind the relay ring says that block 0 has left.
//
// Each 16 bytes of a command hold a value and the command's number. One load reads both:
//
//   | source, seq | destination, seq | bytes, seq | chunk and way, seq |
//
// Chunk c of a transfer goes through channel c % channels. Each channel of the puller has an `ended` word.
// There it stores the number of each command that it has ended. A command is complete when all channels have
// ended it. A kernel that gives up stores the reason in `failed` and advances `ended` by 2^30. Nothing waits
// for this kernel then.
#include "copy.cuh"
#include "staging.h"

// Bytes of data in a line of the ring. One store writes a line of 16 bytes: 12 bytes of data and 4 bytes of
// lap.
constexpr u32 LINE_DATA = 12;
// The number of lines that a thread has loaded in advance when it uses the first of them.
constexpr u32 AHEAD = 4;
// The mask of all 32 threads of a warp.
constexpr u32 ALL = ~0u;

// Stores a timestamp at the end of a step. Without TRACE, it does nothing, because reading the GPU's timer
// takes time.
#ifdef TRACE
#define MARK(place, index) \
    if (threadIdx.x == 0) place[index] = now_ns()
#else
#define MARK(place, index)
#endif

struct Pair {
    u64 value;
    u64 seq;
};

// Loads a value and its sequence number by one 16-byte access. PTX carries this out as a single access, so
// the value and the number always belong together.
__device__ inline Pair load_pair(const char* from, bool host) {
    Pair pair;
    if (host) {
        asm volatile("{ .reg .b128 both; ld.acquire.sys.global.b128 both, [%2]; mov.b128 {%0, %1}, both; }"
                     : "=l"(pair.value), "=l"(pair.seq)
                     : "l"(from)
                     : "memory");
    } else {
        asm volatile("{ .reg .b128 both; ld.acquire.gpu.global.b128 both, [%2]; mov.b128 {%0, %1}, both; }"
                     : "=l"(pair.value), "=l"(pair.seq)
                     : "l"(from)
                     : "memory");
    }
    return pair;
}

// Stores a value and its sequence number by one 16-byte store, with release order at GPU scope. The other
// blocks of this GPU load both with `load_pair`.
__device__ inline void pass_on(char* to, Pair pair) {
    asm volatile("{ .reg .b128 both; mov.b128 both, {%1, %2}; st.release.gpu.global.b128 [%0], both; }"
                 :
                 : "l"(to), "l"(pair.value), "l"(pair.seq)
                 : "memory");
}

__device__ inline uint4 load_line(const uint4* from) {
    u64 low, high;
    asm volatile("{ .reg .b128 both; ld.relaxed.sys.global.b128 both, [%2]; mov.b128 {%0, %1}, both; }"
                 : "=l"(low), "=l"(high)
                 : "l"(from)
                 : "memory");
    return make_uint4((u32)low, (u32)(low >> 32), (u32)high, (u32)(high >> 32));
}

__device__ inline void store_line(uint4* to, uint4 line) {
    u64 low = line.x | (u64)line.y << 32;
    u64 high = line.z | (u64)line.w << 32;
    asm volatile("{ .reg .b128 both; mov.b128 both, {%1, %2}; st.relaxed.sys.global.b128 [%0], both; }"
                 :
                 : "l"(to), "l"(low), "l"(high)
                 : "memory");
}

// Orders all earlier accesses of this block before the later stores of this thread. All observers in the
// system see this order.
__device__ inline void fence_system() {
    asm volatile("fence.acq_rel.sys;" : : : "memory");
}

// Like `fence_system`, but only for observers on this GPU. It is faster, because it does not wait for PCIe.
__device__ inline void fence_gpu() {
    asm volatile("fence.acq_rel.gpu;" : : : "memory");
}

__device__ inline void store_relaxed(u64* word, u64 value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" : : "l"(word), "l"(value) : "memory");
}

// Returns true if the CPU told the kernel to leave, or the time `give_up` (on the GPU's clock, in ns) has
// passed.
__device__ inline bool is_over(const Control* control, u64 give_up) {
    return now_ns() > give_up || load_acquire(&control->leave) != 0;
}

// Returns true if block 0 of this GPU has given up. The other blocks then give up too, because they get their
// commands from block 0.
__device__ inline bool has_left(const u64* gone) {
    u64 value;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(gone) : "memory");
    return value != 0;
}

__device__ inline void give_up_on(Control* control, u64* gone, u64* ended, u64 seq, u64 why) {
    if (blockIdx.x == 0) asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" : : "l"(gone), "l"(1ull) : "memory");
    store_release(&control->failed, why);
    store_release(ended + blockIdx.x, seq + (1ull << 30));
}

// Loads the next 4 bytes of a chunk, or `left` bytes if fewer remain. Set `whole` if the address is aligned
// to 4 bytes: one access then loads all 4 bytes. Otherwise each byte is loaded alone.
__device__ inline u32 gather(const char* from, u64 left, bool whole) {
    u32 word = 0;
    if (whole && left >= 4) {
        asm volatile("ld.global.L1::no_allocate.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
        return word;
    }
    for (u32 byte = 0; byte < 4 && byte < left; ++byte) {
        word |= (u32)((const volatile unsigned char*)from)[byte] << 8 * byte;
    }
    return word;
}

__device__ inline void scatter(char* to, u32 word, u64 left, bool whole) {
    if (whole && left >= 4) {
        *(u32*)to = word;
        return;
    }
    for (u32 byte = 0; byte < 4 && byte < left; ++byte) to[byte] = (char)(word >> 8 * byte);
}

__device__ inline u64 after(u64 left, u64 bytes) {
    return left > bytes ? left - bytes : 0;
}

// Stores a chunk as lines. Thread t takes every blockDim-th line, so a warp writes 512 contiguous bytes.
__device__ inline void push_lines(uint4* place, const char* source, u64 bytes, u32 lap) {
    bool whole = (u64)source % 4 == 0;
    u64 lines = (bytes + LINE_DATA - 1) / LINE_DATA;
    for (u64 first = threadIdx.x; first < lines; first += AHEAD * blockDim.x) {
        uint4 line[AHEAD];
#pragma unroll
        for (u32 i = 0; i < AHEAD; ++i) {
            u64 at = (first + i * blockDim.x) * LINE_DATA;
            u64 left = after(bytes, at);
            line[i].x = gather(source + at, left, whole);
            line[i].y = gather(source + at + 4, after(left, 4), whole);
            line[i].z = gather(source + at + 8, after(left, 8), whole);
            line[i].w = lap;
        }
#pragma unroll
        for (u32 i = 0; i < AHEAD; ++i) {
            u64 index = first + i * blockDim.x;
            if (index < lines) store_line(place + index, line[i]);
        }
    }
}

// Copies a chunk out of its lines. Returns false if the lines did not arrive in time, or if the CPU told the
// kernel to leave. The threads of a warp stay together: the warp reloads a row of 32 lines until all 32 lines
// carry `lap`.
__device__ inline bool pull_lines(
    char* destination,
    const uint4* place,
    u64 bytes,
    u32 lap,
    const Control* control,
    u64 give_up
) {
    bool whole = (u64)destination % 4 == 0;
    u64 lines = (bytes + LINE_DATA - 1) / LINE_DATA;
    u32 in_warp = threadIdx.x % 32;
    for (u64 row = threadIdx.x - in_warp; row < lines; row += AHEAD * blockDim.x) {
        uint4 line[AHEAD];
        u32 missing = 0;
#pragma unroll
        for (u32 i = 0; i < AHEAD; ++i) missing |= (row + i * blockDim.x < lines ? 1u : 0u) << i;
        for (u32 turns = 1;; ++turns) {
#pragma unroll
            for (u32 i = 0; i < AHEAD; ++i) {
                u64 index = row + i * blockDim.x + in_warp;
                if (missing >> i & 1 && index < lines) line[i] = load_line(place + index);
            }
#pragma unroll
            for (u32 i = 0; i < AHEAD; ++i) {
                u64 index = row + i * blockDim.x + in_warp;
                bool here = !(missing >> i & 1) || index >= lines || line[i].w == lap;
                if (__all_sync(ALL, here)) missing &= ~(1u << i);
            }
            if (missing == 0) break;
            bool over = turns % 64 == 0 && in_warp == 0 && is_over(control, give_up);
            if (__any_sync(ALL, over)) return false;
        }
#pragma unroll
        for (u32 i = 0; i < AHEAD; ++i) {
            u64 index = row + i * blockDim.x + in_warp;
            if (index >= lines) continue;
            u64 at = index * LINE_DATA;
            scatter(destination + at, line[i].x, bytes - at, whole);
            if (bytes - at > 4) scatter(destination + at + 4, line[i].y, bytes - at - 4, whole);
            if (bytes - at > 8) scatter(destination + at + 8, line[i].z, bytes - at - 8, whole);
        }
    }
    return true;
}

struct Rings {
    Channel* channels;
    char* chunks;
    char* lines;
    u64 slots;
    u64 chunk_bytes;
    u64 line_bytes;
};

template <bool PUSH>
__device__ void serve(
    Control* control,
    u64* ended,
    const char* commands,
    char* relay,
    u64 depth,
    Rings rings,
    u64 first,
    u64 count,
    u64 idle_ns,
    u64 stuck_ns
) {
    __shared__ u64 field[4];
    __shared__ u64 other; // the other side's counter, as thread 0 loaded it last
    __shared__ u64 resume;
    __shared__ u32 leave;
    Channel* channel = rings.channels + blockIdx.x;
    char* my_chunks = rings.chunks + (u64)blockIdx.x * rings.slots * rings.chunk_bytes;
    char* my_lines = rings.lines + (u64)blockIdx.x * rings.slots * rings.line_bytes;
    if (threadIdx.x == 0) {
        resume = PUSH ? load_acquire(&channel->ready) : load_acquire(&channel->taken);
        other = PUSH ? load_acquire(&channel->taken) : 0;
        leave = 0;
    }
    __syncthreads();
    u64 chunks_done = resume;
    bool reads_host = blockIdx.x == 0;
    u64* gone = (u64*)(relay + depth * 64);

    for (u64 seq = first; seq < first + count; ++seq) {
        if (threadIdx.x < 4) {
            u64 at = seq % depth * 64 + threadIdx.x * 16;
            const char* part = (reads_host ? commands : relay) + at;
            u64 give_up = now_ns() + idle_ns;
            Pair pair = load_pair(part, reads_host);
            for (u32 turns = 1; !__all_sync(0xf, pair.seq == seq); ++turns) {
                if (turns % 64 == 0) {
                    bool over = reads_host ? is_over(control, give_up) : has_left(gone) || now_ns() > give_up;
                    if (__any_sync(0xf, over)) {
                        leave = 1;
                        break;
                    }
                }
                pair = load_pair(part, reads_host);
            }
            if (reads_host && !leave) pass_on(relay + at, pair);
            field[threadIdx.x] = pair.value;
        }
        __syncthreads();
        MARK((PUSH ? channel->pushed : channel->pulled), 1);
        const char* source = (const char*)field[0];
        char* destination = (char*)field[1];
        u64 bytes = field[2];
        bool lines = field[3] & LINES;
        u64 chunk = field[3] & ~LINES;
        if (leave) {
            if (threadIdx.x == 0) give_up_on(control, gone, ended, seq, 1);
            return;
        }
        if (PUSH && threadIdx.x == 0) store_relaxed(&channel->seen, seq);
        if (bytes == LEAVE) return;
        for (u64 offset = blockIdx.x * chunk; offset < bytes; offset += gridDim.x * chunk) {
            u64 give_up = now_ns() + stuck_ns;
            if (threadIdx.x == 0 && (PUSH || !lines)) {
                // The pusher waits for a free slot, the puller for a filled slot. For lines, the puller does
                // not wait here: each line contains a lap number, which shows `pull_lines` that the line has
                // arrived.
                for (u32 turns = 1; PUSH ? chunks_done - other >= rings.slots : other <= chunks_done; ++turns) {
                    other = load_acquire(PUSH ? &channel->taken : &channel->ready);
                    if (turns % 64 == 0 && is_over(control, give_up)) {
                        leave = 1;
                        break;
                    }
                }
            }
            __syncthreads();
            u64 length = bytes - offset < chunk ? bytes - offset : chunk;
            u64 place = chunks_done % rings.slots;
            if (!leave) {
                if (lines) {
                    uint4* at = (uint4*)(my_lines + place * rings.line_bytes);
                    if (PUSH) {
                        push_lines(at, source + offset, length, (u32)seq);
                    } else if (!pull_lines(destination + offset, at, length, (u32)seq, control, give_up)) {
                        leave = 1;
                    }
                } else if (PUSH) {
                    copy_span(my_chunks + place * rings.chunk_bytes, source + offset, length, threadIdx.x, blockDim.x);
                } else {
                    copy_span(destination + offset, my_chunks + place * rings.chunk_bytes, length, threadIdx.x, blockDim.x);
                }
            }
            __syncthreads();
            if (leave) {
                if (threadIdx.x == 0) give_up_on(control, gone, ended, seq, 2);
                return;
            }
            MARK((PUSH ? channel->pushed : channel->pulled), 2);
            chunks_done += 1;
            bool last = offset + gridDim.x * chunk >= bytes;
            if (threadIdx.x == 0) {
                if (PUSH) {
                    // Data that is sent as lines carries its own sequence numbers. `ready` then only shows
                    // the next launch where to continue, so no fence is needed before this store.
                    if (!lines) fence_system();
                    store_relaxed(&channel->ready, chunks_done);
                } else {
                    // Every thread that waits for the end of the transfer must see the bytes that the puller
                    // stored. All readers use this GPU's L2 cache, so a fence at GPU scope is enough. A fence
                    // at system scope would take 2 us longer, because it also waits for PCIe.
                    if (last) {
                        fence_gpu();
                        MARK(channel->pulled, 3);
                        store_relaxed(ended + blockIdx.x, seq);
                    }
                    store_relaxed(&channel->taken, chunks_done);
                }
            }
        }
        // If more than half of the slots seem full, the pusher reads `taken` again. It does so here, between
        // two commands, because the load then delays no transfer.
        if (PUSH && threadIdx.x == 0 && chunks_done - other > rings.slots / 2) other = load_acquire(&channel->taken);
        // Each block of the puller records the end of a command in `ended`, together with the block's last
        // chunk. If the command has no chunk for this block, the block records the end here.
        if (!PUSH && threadIdx.x == 0 && blockIdx.x * chunk >= bytes) store_relaxed(ended + blockIdx.x, seq);
        __syncthreads(); // all threads read `field` before threads 0 to 3 overwrite it
        MARK((PUSH ? channel->pushed : channel->pulled), 4);
#ifdef TRACE
        if (threadIdx.x == 0) (PUSH ? channel->pushed : channel->pulled)[0] = seq;
#endif
    }
}

#define SERVE(name, push)                                                                                            \
    extern "C" __global__ void __launch_bounds__(1024) name(                                                         \
        Control* control, u64* ended, const char* commands, char* relay, u64 depth, Channel* channels, char* chunks,       \
        char* lines, u64 slots, u64 chunk_bytes, u64 line_bytes, u64 first, u64 count, u64 idle_ns, u64 stuck_ns     \
    ) {                                                                                                              \
        Rings rings = {channels, chunks, lines, slots, chunk_bytes, line_bytes};                                        \
        serve<push>(control, ended, commands, relay, depth, rings, first, count, idle_ns, stuck_ns);                 \
    }

SERVE(push, true)
SERVE(pull, false)
