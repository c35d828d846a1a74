// Emulates parts of CUDA that the executor's kernels use and emulated/cuda.h lacks. A call of turn() may
// switch to another emulated thread.
#include <time.h>

#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define blockIdx (emulated::position{emulated::index_of_block})
#define gridDim (emulated::position{emulated::blocks})

struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline uint32_t min(uint32_t a, uint32_t b) { return a < b ? a : b; }
inline uint32_t max(uint32_t a, uint32_t b) { return a > b ? a : b; }

namespace emulated {
static unsigned index_of_block, blocks;
static unsigned long long shown[most];
} // namespace emulated

inline int __any_sync(uint32_t, int value) {
    return emulated::wait_at(emulated::warp_barriers[emulated::current / emulated::warp], emulated::warp, value);
}
inline void __syncwarp() { __any_sync(~0u, 0); }
inline unsigned long long __shfl_sync(uint32_t, unsigned long long value, int from) {
    unsigned self = emulated::current;
    emulated::shown[self] = value;
    __syncwarp();
    value = emulated::shown[self / emulated::warp * emulated::warp + from];
    __syncwarp();
    return value;
}
inline void __nanosleep(unsigned) { emulated::turn(); }

// Replacements for the functions of inlane_cuda's system.cuh.
namespace inlane_system {
struct pair {
    unsigned long long low;
    unsigned long long high;
};
inline unsigned long long load_acquire(const void *word) {
    emulated::turn();
    return __atomic_load_n(static_cast<const unsigned long long *>(word), __ATOMIC_ACQUIRE);
}
inline pair load_acquire_pair(const void *words) {
    typedef unsigned long long two __attribute__((vector_size(16)));
    emulated::turn();
    two both = *static_cast<const volatile two *>(words); // a single load
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return {both[0], both[1]};
}
inline void store_release(void *word, unsigned long long value) {
    emulated::turn();
    __atomic_store_n(static_cast<unsigned long long *>(word), value, __ATOMIC_RELEASE);
}
inline unsigned long long now_ns() {
    timespec now;
    emulated::turn();
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}
inline uint4 load16(const void *from) { return *static_cast<const uint4 *>(from); }
} // namespace inlane_system
