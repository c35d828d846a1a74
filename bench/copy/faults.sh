#!/bin/bash
# Provokes faults between GPUs and checks how runs end: kernels that trap, a GPU that does not answer, movers
# dropped during transfers, both directions many times, signals and kill -9 during a copy, missing devices,
# and too little memory. After each fault, a normal run must succeed.
#
#   bench/copy/faults.sh INLANE [TESTS]     TESTS: the compiled crates/copy/tests/gpu.rs; cargo builds it if not given
#
# On a machine with one GPU, that GPU is both the source and the destination.
set -u
inlane=$1 tests=${2:-} failed=0
to=gpu:1
"$inlane" copy --from gpu:1 --to gpu:1 --sizes 4K --path dma --repeats 1 --duration 1ms --no-ceiling >/dev/null 2>&1 || to=gpu:0
pair="--from gpu:0 --to $to --no-ceiling --rotate 32M"
result=$(mktemp -u)
. "$(dirname "$0")/../expect.sh"
try() { expect "$@" || failed=1; } # runs expect and notes a failure for the exit status
works() {
    try "  then a run" 0 "staged-sm" "$inlane" copy $pair --require staged-sm --sizes 1M --measure latency --repeats 1 --duration 10ms
}
if [ -n "$tests" ]; then
    for test in every_size_and_alignment_arrives_and_nothing_else_changes a_mover_dropped_at_any_point_leaves_nothing_behind \
        both_directions_end_every_time a_kernel_that_traps_is_a_clear_error_and_the_next_process_works \
        a_gpu_that_does_not_answer_is_given_up; do
        EXPECT_SECONDS=150 try "$test" 0 "1 passed" "$tests" --exact $test --nocapture --test-threads 1
    done
else
    cargo test --release -p inlane-copy --test gpu -- --test-threads 1 || failed=1
fi
for path in staged-sm "staged-sm --sm-launch" staged dma sm; do
    ends=$pair
    case $path in dma | sm) ends="--from host --to gpu:0 --no-ceiling --rotate 32M" ;; esac
    for signal in INT TERM KILL; do
        rm -f "$result"
        status=1 text="is not reported"
        [ $signal = KILL ] && status=137 text=""
        try "SIG$signal during a copy, $path" $status "$text" timeout --foreground -s $signal --preserve-status 2.5 \
            "$inlane" copy $ends --require $path --sizes 1M --measure stream --repeats 1 --duration 60s --json "$result"
        [ -s "$result" ] && { echo "FAILED  a result was written: $result"; failed=1; }
        works
    done
done
try "no such GPU" 2 "does not exist" "$inlane" copy --from gpu:0 --to gpu:99 --sizes 4K
try "beyond the memory" 3 "bytes free" "$inlane" copy $pair --sizes 1T
try "more channels than fit" 2 "give 1 to" "$inlane" copy $pair --require staged-sm --sm-channels 100000 --sizes 4K
exit $failed
