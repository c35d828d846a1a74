// A histogram of packet lengths in steps of 64 bytes. This is a burst function: the threads of a block first
// count in their shared memory. Then they add the sum of each step to the state once, because all blocks
// share the state.
//
//     inlane forward --rx gen:imix --tx null --function examples/functions/sizes.cu:sizes
#include <inlane.h>

struct sizes {
    static constexpr uint32_t reads = 0, writes = 0;
    static constexpr uint32_t steps = 32; // the last step also counts all longer packets
    uint64_t packets[steps];

    INLANE void burst(inlane::burst &burst) {
        INLANE_SHARED uint32_t here[steps];
        for (uint32_t step = inlane::thread_index(); step < steps; step += inlane::threads()) here[step] = 0;
        inlane::sync();
        for (uint32_t i = inlane::thread_index(); i < burst.count(); i += inlane::threads()) {
            uint32_t step = burst[i].length() / 64;
            inlane::add(here[step < steps ? step : steps - 1], 1);
        }
        inlane::sync();
        for (uint32_t step = inlane::thread_index(); step < steps; step += inlane::threads())
            if (here[step] > 0) inlane::add(packets[step], here[step]);
    }
};
INLANE_FUNCTION(sizes)
INLANE_COUNTER(sizes, packets)
