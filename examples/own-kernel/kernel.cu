// A kernel that takes items from the burst ring. One block adds up the bytes of the items' packets.
#include <inlane.h>

// How long the kernel waits for an item. Without this limit, the kernel would occupy the GPU forever if the
// host was stopped.
constexpr unsigned long long TIMEOUT_NS = 2000000000;

static __device__ unsigned long long now_ns() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

extern "C" __global__ void add_up(const uint8_t *submit, uint8_t *complete, uint32_t slots, uint32_t burst,
                                  unsigned long long *total) {
    __shared__ unsigned long long word;
    for (uint64_t position = 0;; position++) {
        uint32_t slot = position % slots, lap = position / slots + 1;
        const uint8_t *item = submit + INLANE_RING_LINE + slot * INLANE_SUBMIT_STRIDE(burst);
        if (threadIdx.x == 0) {
            unsigned long long seen, end, since = now_ns();
            do { // loads the item's word first and the ring's end second, so that no submitted item is missed
                asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(seen) : "l"(item) : "memory");
                asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(end) : "l"(submit) : "memory");
            } while (uint32_t(seen) != lap && (end == 0 || position < end - 1) && now_ns() - since < TIMEOUT_NS);
            word = uint32_t(seen) == lap ? seen : 0;
        }
        __syncthreads();
        if (word == 0) return;
        const inlane_descriptor *packets = reinterpret_cast<const inlane_descriptor *>(item + INLANE_RING_ENTRIES);
        unsigned long long sum = 0;
        for (uint32_t i = threadIdx.x; i < word >> 32; i += blockDim.x) {
            const uint8_t *bytes = reinterpret_cast<const uint8_t *>(packets[i].address);
            for (uint32_t k = 0; k < packets[i].length; k++) sum += bytes[k];
        }
        atomicAdd(total, sum);
        __syncthreads();
        // The word's high half is INLANE_UNCHANGED (0): all packets are forwarded unchanged.
        uint8_t *done = complete + slot * INLANE_COMPLETE_STRIDE(burst);
        if (threadIdx.x == 0)
            asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(done), "l"((unsigned long long)lap) : "memory");
    }
}
