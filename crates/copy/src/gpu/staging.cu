// Staging by SMs: GPU A pushes chunks into rings in pinned host memory, GPU B pulls them out; no CPU in between.
//
// A block is a lane. Lane n of the pusher and lane n of the puller share two rings of `slots` places each, one for chunks
// and one for lines, and these words:
//
//   ready: chunks that the pusher has published      (written by the pusher alone)
//   seen:  commands that the pusher has read         (written by the pusher alone)
//   taken: chunks that the puller has copied out     (written by the puller alone)
//   chunk k lies in place k % slots; it may be written while k - taken < slots.
//
// A chunk is handed over in one of two ways, which the command names:
//
//   plain: its bytes, then a fence at system scope (which waits for writes to cross PCIe, 1 us and more), then ready > k.
//          The puller reads `ready`, and then the bytes: two round trips. All of the link's bandwidth.
//   lines: 16 bytes at a time, 12 of data and 4 of lap, written and read as one. The puller reads lines until their lap is
//          that of the command: no fence, no second round trip, three quarters of the bandwidth. For transfers whose
//          latency counts. Lines have a ring of their own, so that nothing but a lap is ever where a lap is looked for.
//
// Commands come from the CPU through a ring of 64-byte lines in pinned memory. Block 0 reads it and passes each on through a
// ring in its GPU's memory, where the others look: reads of one line of host memory by many blocks queue behind each other,
// a PCIe round trip each; and a block that reads host memory once others push waits behind all that they wrote, for a read
// does not pass writes. Behind that ring is a word that says that block 0 has left, for the same reason. Each 16 bytes of a line are a value and the command's number, so that one read a thread tells
// whether the line is whole:
//
//   | source, seq | destination, seq | bytes, seq | chunk and how, seq |
//
// Chunk c of a transfer goes through lane c % lanes. Each lane of the puller writes the number of the command it has done
// to its word of `ended`; a command is complete when all have. A side that gives up says so in `failed`, and moves its
// word of `ended` far ahead, so that nothing waits for it for ever.
#include "copy.cuh"

struct Control {
    u64 failed;  // written once by whichever side gave up waiting: 1 for a command, 2 for a chunk
    u64 pad0[15];
    u64 leave;   // written by the CPU when the kernels shall end whatever they wait for
    u64 pad1[15];
};

constexpr u32 MARKS = 6;

struct Lane {
    u64 ready;
    u64 seen;    // the newest command that this lane of the pusher has read: its line may be written again
    u64 pushed[MARKS]; // times, where the kernels were compiled with TRACE
    u64 pad0[8];
    u64 taken;
    u64 pad1;
    u64 pulled[MARKS];
    u64 pad2[8];
};

// What a command's `bytes` says to end the kernel.
constexpr u64 LEAVE = ~0ull;
// The bit of a command's `chunk` that says lines.
constexpr u64 LINES = 1ull << 63;
constexpr u32 LINE_DATA = 12;
// Lines that a thread has in flight.
constexpr u32 AHEAD = 4;
constexpr u32 ALL = ~0u;

// Times of a command, for those who ask where its microseconds go: a mark costs a read of the timer.
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

// 16 bytes at once: a single access in PTX's memory model, so a number never comes with another one's value.
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

// For the other blocks of this GPU.
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

// Everything that this block has read and written, before whatever this thread writes next, for whoever reads that.
__device__ inline void fence_system() {
    asm volatile("fence.acq_rel.sys;" : : : "memory");
}

// The same for whoever reads this GPU's memory.
__device__ inline void fence_gpu() {
    asm volatile("fence.acq_rel.gpu;" : : : "memory");
}

__device__ inline void store_relaxed(u64* word, u64 value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" : : "l"(word), "l"(value) : "memory");
}

// Told to end, or past the time to wait.
__device__ inline bool is_over(const Control* control, u64 give_up) {
    return now_ns() > give_up || load_acquire(&control->leave) != 0;
}

// Block 0 of this GPU has left.
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

// Up to 4 bytes, of `left` that there are; whole words where the address allows.
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

// Thread t of a block takes every blockDim-th line, so that a warp writes 512 bytes on end.
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

// False when the lines did not come in time. A warp stays together: its lines of one turn come or are asked for again as one.
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
    Lane* lanes;
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
    __shared__ u64 other; // thread 0's last look at the other side's word
    __shared__ u64 resume;
    __shared__ u32 leave;
    Lane* lane = rings.lanes + blockIdx.x;
    char* my_chunks = rings.chunks + (u64)blockIdx.x * rings.slots * rings.chunk_bytes;
    char* my_lines = rings.lines + (u64)blockIdx.x * rings.slots * rings.line_bytes;
    if (threadIdx.x == 0) {
        resume = PUSH ? load_acquire(&lane->ready) : load_acquire(&lane->taken);
        other = PUSH ? load_acquire(&lane->taken) : 0;
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
        MARK((PUSH ? lane->pushed : lane->pulled), 1);
        const char* source = (const char*)field[0];
        char* destination = (char*)field[1];
        u64 bytes = field[2];
        bool lines = field[3] & LINES;
        u64 chunk = field[3] & ~LINES;
        if (leave) {
            if (threadIdx.x == 0) give_up_on(control, gone, ended, seq, 1);
            return;
        }
        if (PUSH && threadIdx.x == 0) store_relaxed(&lane->seen, seq);
        if (bytes == LEAVE) return;
        for (u64 offset = blockIdx.x * chunk; offset < bytes; offset += gridDim.x * chunk) {
            u64 give_up = now_ns() + stuck_ns;
            if (threadIdx.x == 0 && (PUSH || !lines)) {
                // `ready` does not tell of lines, so it may be behind.
                for (u32 turns = 1; PUSH ? chunks_done - other >= rings.slots : other <= chunks_done; ++turns) {
                    other = load_acquire(PUSH ? &lane->taken : &lane->ready);
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
            MARK((PUSH ? lane->pushed : lane->pulled), 2);
            chunks_done += 1;
            bool last = offset + gridDim.x * chunk >= bytes;
            if (threadIdx.x == 0) {
                if (PUSH) {
                    // Where lines are pushed, this says only where the next launch goes on.
                    if (!lines) fence_system();
                    store_relaxed(&lane->ready, chunks_done);
                } else {
                    // All that was read from the place was looked at, or written on, before the barrier: only who waits
                    // for the transfer needs its bytes to be there. They are in this GPU's memory, and whoever reads that
                    // does so through this GPU's L2: being there is enough, which a fence at system scope would take 2 us
                    // longer to say, for it also waits for PCIe.
                    if (last) {
                        fence_gpu();
                        MARK(lane->pulled, 3);
                        store_relaxed(ended + blockIdx.x, seq);
                    }
                    store_relaxed(&lane->taken, chunks_done);
                }
            }
        }
        // Between two commands there is time to look how far the puller is; at the start of the next there would be none.
        if (PUSH && threadIdx.x == 0 && chunks_done - other > rings.slots / 2) other = load_acquire(&lane->taken);
        // A lane that has no part in a command ends it too.
        if (!PUSH && threadIdx.x == 0 && blockIdx.x * chunk >= bytes) store_relaxed(ended + blockIdx.x, seq);
        __syncthreads(); // `field` is read by all before its writers fill it again
        MARK((PUSH ? lane->pushed : lane->pulled), 4);
#ifdef TRACE
        if (threadIdx.x == 0) (PUSH ? lane->pushed : lane->pulled)[0] = seq;
#endif
    }
}

#define SERVE(name, push)                                                                                            \
    extern "C" __global__ void __launch_bounds__(1024) name(                                                         \
        Control* control, u64* ended, const char* commands, char* relay, u64 depth, Lane* lanes, char* chunks,       \
        char* lines, u64 slots, u64 chunk_bytes, u64 line_bytes, u64 first, u64 count, u64 idle_ns, u64 stuck_ns     \
    ) {                                                                                                              \
        Rings rings = {lanes, chunks, lines, slots, chunk_bytes, line_bytes};                                        \
        serve<push>(control, ended, commands, relay, depth, rings, first, count, idle_ns, stuck_ns);                 \
    }

SERVE(push, true)
SERVE(pull, false)
