// Runs one emulated block of one of the executor's kernels. Include this file after the kernels.
namespace emulated {

static struct {
    uint32_t kernel;
    const inlane_lane *lane;
    uint64_t place;
    uint32_t more;
} launched;

static void thread() {
    const auto &[kernel, lane, place, more] = launched;
    switch (kernel) {
    case 0: inlane_persistent(*lane); break;
    case 1: inlane_items(*lane, place, more); break;
    case 2: inlane_slots(*lane, static_cast<uint32_t>(place), more); break;
    case 3: inlane_tick(*lane, place); break;
    }
    end();
}

} // namespace emulated

extern "C" __attribute__((visibility("default"))) void emulated_launch(uint32_t kernel, uint32_t threads, uint64_t seed,
                                                                       uint32_t block, uint32_t blocks, const inlane_lane *lane,
                                                                       uint64_t place, uint32_t more) {
    emulated::index_of_block = block;
    emulated::blocks = blocks;
    emulated::launched = {kernel, lane, place, more};
    emulated::run_block(threads, seed, emulated::thread);
}
