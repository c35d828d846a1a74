// Staging by SMs: GPU A pushes chunks into a ring in pinned host memory, GPU B pulls them out; no CPU in between.
//
// A block is a lane. Lane n of the pusher and lane n of the puller share a ring of `slots` chunks:
//
//   ready: chunks that the pusher has published      (written by the pusher alone)
//   seen:  commands that the pusher has read         (written by the pusher alone)
//   taken: chunks that the puller has copied out     (written by the puller alone)
//   chunk k lies in slot k % slots; it may be written while k - taken < slots, and read once ready > k.
//
// Commands come from the CPU through rings of 64-byte lines in pinned memory, a ring a lane: reads of one line by many
// blocks of a GPU would queue behind each other, a PCIe round trip each. Each 16 bytes of a line are a value and the
// command's number, so that one read a thread tells whether the line is whole:
//
//   | source, seq | destination, seq | bytes, seq | chunk, seq |
//
// Chunk c of a transfer goes through lane c % lanes. Each lane of the puller writes the number of the command it has done
// to its word of `ended`; a command is complete when all have. A side that gives up says so in `failed`, and moves its
// word of `ended` far ahead, so that nothing waits for it for ever.
//
// A fence at system scope waits for writes to cross PCIe, 1 us and more, so there is one a chunk and no other: between the
// chunk and the words that publish it.
#include "copy.cuh"

struct Control {
    u64 failed;  // written once by whichever side gave up waiting: 1 for a command, 2 for a chunk
    u64 pad0[15];
    u64 leave;   // written by the CPU when the kernels shall end whatever they wait for
    u64 pad1[15];
};

struct Lane {
    u64 ready;
    u64 seen;    // the newest command that this lane of the pusher has read: its line may be written again
    u64 pad0[14];
    u64 taken;
    u64 pad1[15];
};

// What a command's `bytes` says to end the kernel.
constexpr u64 LEAVE = ~0ull;

__device__ inline ulonglong2 load_pair(const ulonglong2* from) {
    ulonglong2 value;
    asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];" : "=l"(value.x), "=l"(value.y) : "l"(from) : "memory");
    return value;
}

// Everything that this block has read and written, before whatever this thread writes next, for whoever reads that.
__device__ inline void fence_system() {
    asm volatile("fence.acq_rel.sys;" : : : "memory");
}

__device__ inline void store_relaxed(u64* word, u64 value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" : : "l"(word), "l"(value) : "memory");
}

// Told to end, or past the time to wait.
__device__ inline bool is_over(const Control* control, u64 give_up) {
    return now_ns() > give_up || load_acquire(&control->leave) != 0;
}

__device__ inline void give_up_on(Control* control, u64* ended, u64 seq, u64 why) {
    store_release(&control->failed, why);
    store_release(ended + blockIdx.x, seq + (1ull << 30));
}

template <bool PUSH>
__device__ void serve(
    Control* control,
    u64* ended,
    const ulonglong2* commands,
    u64 depth,
    Lane* lanes,
    char* ring,
    u64 slots,
    u64 slot_bytes,
    u64 first,
    u64 count,
    u64 idle_ns,
    u64 stuck_ns
) {
    __shared__ u64 field[4];
    __shared__ u64 resume;
    __shared__ u32 leave;
    Lane* lane = lanes + blockIdx.x;
    char* mine = ring + (u64)blockIdx.x * slots * slot_bytes;
    if (threadIdx.x == 0) {
        resume = PUSH ? load_acquire(&lane->ready) : load_acquire(&lane->taken);
        leave = 0;
    }
    __syncthreads();
    u64 chunks_done = resume;
    u64 other = PUSH ? 0 : chunks_done; // thread 0's last look at the other side's word
    if (PUSH && threadIdx.x == 0) other = load_acquire(&lane->taken);

    commands += (u64)blockIdx.x * depth * 4;

    for (u64 seq = first; seq < first + count; ++seq) {
        if (threadIdx.x < 4) {
            const ulonglong2* part = commands + seq % depth * 4 + threadIdx.x;
            u64 give_up = now_ns() + idle_ns;
            ulonglong2 pair = load_pair(part);
            for (u32 turns = 1; !__all_sync(0xf, pair.y == seq); ++turns) {
                if (turns % 64 == 0 && __any_sync(0xf, is_over(control, give_up))) {
                    leave = 1;
                    break;
                }
                pair = load_pair(part);
            }
            field[threadIdx.x] = pair.x;
            fence_system(); // what the command tells of was there before it
        }
        __syncthreads();
        const char* source = (const char*)field[0];
        char* destination = (char*)field[1];
        u64 bytes = field[2];
        u64 chunk = field[3];
        if (leave) {
            if (threadIdx.x == 0) give_up_on(control, ended, seq, 1);
            return;
        }
        if (PUSH && threadIdx.x == 0) store_relaxed(&lane->seen, seq);
        if (bytes == LEAVE) return;
        for (u64 offset = blockIdx.x * chunk; offset < bytes; offset += gridDim.x * chunk) {
            if (threadIdx.x == 0) {
                u64 give_up = now_ns() + stuck_ns;
                for (u32 turns = 1; PUSH ? chunks_done - other >= slots : other == chunks_done; ++turns) {
                    other = load_acquire(PUSH ? &lane->taken : &lane->ready);
                    if (turns % 64 == 0 && is_over(control, give_up)) {
                        leave = 1;
                        break;
                    }
                }
            }
            __syncthreads();
            if (leave) {
                if (threadIdx.x == 0) give_up_on(control, ended, seq, 2);
                return;
            }
            char* slot = mine + chunks_done % slots * slot_bytes;
            u64 length = bytes - offset < chunk ? bytes - offset : chunk;
            if (PUSH) {
                copy_span(slot, source + offset, length, threadIdx.x, blockDim.x);
            } else {
                copy_span(destination + offset, slot, length, threadIdx.x, blockDim.x);
            }
            __syncthreads();
            chunks_done += 1;
            if (threadIdx.x == 0) {
                fence_system();
                if (PUSH) {
                    store_relaxed(&lane->ready, chunks_done);
                } else {
                    if (offset + gridDim.x * chunk >= bytes) store_relaxed(ended + blockIdx.x, seq);
                    store_relaxed(&lane->taken, chunks_done);
                }
            }
        }
        // A lane that has no part in a command ends it too.
        if (!PUSH && threadIdx.x == 0 && blockIdx.x * chunk >= bytes) store_relaxed(ended + blockIdx.x, seq);
        __syncthreads(); // `field` is read by all before thread 0..3 fill it again
    }
}

#define SERVE(name, push)                                                                                            \
    extern "C" __global__ void __launch_bounds__(1024) name(                                                         \
        Control* control, u64* ended, const ulonglong2* commands, u64 depth, Lane* lanes, char* ring, u64 slots,     \
        u64 slot_bytes, u64 first, u64 count, u64 idle_ns, u64 stuck_ns                                              \
    ) {                                                                                                              \
        serve<push>(                                                                                                 \
            control, ended, commands, depth, lanes, ring, slots, slot_bytes, first, count, idle_ns, stuck_ns         \
        );                                                                                                           \
    }

SERVE(push, true)
SERVE(pull, false)
