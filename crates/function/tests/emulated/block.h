// Runs an emulated block (cuda.h) on an item, or its tick. Comes behind a function's GPU source.
namespace emulated {

static struct {
    const inlane_descriptor *packets; // null: tick
    uint32_t count;
    inlane_outcome *outcomes;
    const inlane_context *context;
    uint32_t info;
} work;

static void thread() {
    uint32_t info = INLANE_UNCHANGED;
    if (work.packets != nullptr) {
        info = inlane_run_item(work.packets, work.count, work.outcomes, *work.context);
    } else {
        inlane_run_tick(*work.context);
    }
    if (work.info != ~0u && work.info != info) {
        fprintf(stderr, "emulated block: threads disagree about what was returned\n");
        abort();
    }
    work.info = info;
    fibers[current].done = true;
    switch_away();
}

} // namespace emulated

extern "C" __attribute__((visibility("default"))) uint32_t emulated_run(uint32_t threads, uint64_t seed,
                                                                        const inlane_descriptor *packets, uint32_t count,
                                                                        inlane_outcome *outcomes,
                                                                        const inlane_context *context) {
    using namespace emulated;
    static char stacks[most][128 << 10];
    if (threads > most || threads % team != 0) abort();
    emulated::threads = threads;
    state_of_chance = seed * 2 + 1;
    work = {packets, count, outcomes, context, ~0u};
    for (unsigned i = 0; i < threads; i++) {
        fibers[i].done = false;
        fibers[i].waits = nullptr;
        getcontext(&fibers[i].context);
        fibers[i].context.uc_stack.ss_sp = stacks[i];
        fibers[i].context.uc_stack.ss_size = sizeof stacks[i];
        fibers[i].context.uc_link = nullptr;
        makecontext(&fibers[i].context, thread, 0);
    }
    current = chance() % threads;
    swapcontext(&caller, &fibers[current].context);
    return work.info;
}
