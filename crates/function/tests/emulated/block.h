// Calls a packet function for GPUs, or the function's `tick`, with an emulated block of threads (cuda.h).
// Include this file after the function's source.
namespace emulated {

static struct {
    const inlane_descriptor *packets; // null: run the tick
    uint32_t count;
    inlane_packet_verdict *verdicts;
    const inlane_context *context;
    uint32_t info;
} work;

static void thread() {
    uint32_t info = INLANE_UNCHANGED;
    if (work.packets != nullptr) {
        info = inlane_run_item(work.packets, work.count, work.verdicts, *work.context);
    } else {
        inlane_run_tick(*work.context);
    }
    if (work.info != ~0u && work.info != info) {
        fprintf(stderr, "emulated block: threads returned different results\n");
        abort();
    }
    work.info = info;
    end();
}

} // namespace emulated

extern "C" __attribute__((visibility("default"))) uint32_t emulated_run(uint32_t threads, uint64_t seed,
                                                                        const inlane_descriptor *packets, uint32_t count,
                                                                        inlane_packet_verdict *verdicts,
                                                                        const inlane_context *context) {
    using namespace emulated;
    work = {packets, count, verdicts, context, ~0u};
    run_block(threads, seed, thread);
    return work.info;
}
