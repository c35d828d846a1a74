// A packet function for tests. It drops a burst if the threads of a block get different times for it. It also
// counts the calls of `tick` in which the times differ.
#include <inlane.h>

struct clocks {
    uint64_t differing_ticks;

    INLANE void burst(inlane::burst &burst, const inlane::context &call) {
        bool wrong = differ(call);
        for (uint32_t i = inlane::thread_index(); wrong && i < burst.count(); i += inlane::threads())
            burst.set(i, inlane::drop);
    }
    INLANE void tick(const inlane::context &call) {
        if (differ(call) && inlane::thread_index() == 0) inlane::add(differing_ticks, 1);
    }

  private:
    INLANE static bool differ(const inlane::context &call) {
        INLANE_SHARED uint64_t first;
        if (inlane::thread_index() == 0) first = call.now_ns;
        inlane::sync();
        return inlane::any(first != call.now_ns);
    }
};
INLANE_FUNCTION(clocks)
