#!/bin/bash
# What must go wrong well between GPUs: kernels that trap, transfers given up at any point, both directions again and again,
# signals and kill -9 in mid-copy, memory and devices that are not there. After each, a run must work.
#
#   bench/copy/faults.sh INLANE [TESTS]     TESTS: the program of crates/copy/tests/gpu.rs; cargo builds it where none is given
#
# With one GPU, it is both ends.
set -u
inlane=$1 tests=${2:-} failed=0
to=gpu:1
"$inlane" copy --from gpu:1 --to gpu:1 --sizes 4K --path dma --repeats 1 --time 1ms --no-ceiling >/dev/null 2>&1 || to=gpu:0
pair="--from gpu:0 --to $to --no-ceiling --rotate 32M"
result=$(mktemp -u)
expect() { # LABEL STATUS TEXT COMMAND...
    local label=$1 status=$2 text=$3 begun=$SECONDS output rc
    shift 3
    output=$(timeout -k 1 30 "$@" 2>&1)
    rc=$?
    if [ $rc = "$status" ] && grep -q -- "$text" <<<"$output"; then
        echo "ok      $label: exit status $rc after $((SECONDS - begun)) s"
    else
        echo "FAILED  $label: exit status $rc, wanted $status and '$text'"
        head -12 <<<"$output"
        failed=1
    fi
}
works() {
    expect "  then a run" 0 "staged-sm" "$inlane" copy $pair --require staged-sm --sizes 1M --measure latency --repeats 1 --time 10ms
}
if [ -n "$tests" ]; then
    for test in every_size_and_alignment_arrives_and_nothing_else_changes given_up_at_any_point_leaves_nothing_behind \
        both_directions_end_every_time a_kernel_that_traps_is_a_clear_error_and_the_next_process_works; do
        expect "$test" 0 "1 passed" "$tests" --exact $test --nocapture --test-threads 1
    done
else
    cargo test --release -p inlane-copy --test gpu -- --test-threads 1 || failed=1
fi
for path in staged-sm "staged-sm --sm-launch" staged; do
    for signal in INT TERM KILL; do
        rm -f "$result"
        status=1 text="nothing of it is reported"
        [ $signal = KILL ] && status=137 text=""
        expect "SIG$signal in mid-copy, $path" $status "$text" timeout --foreground -s $signal --preserve-status 2.5 \
            "$inlane" copy $pair --require $path --sizes 1M --measure stream --repeats 1 --time 60s --json "$result"
        [ -e "$result" ] && { echo "FAILED  a result was written: $result"; failed=1; }
        works
    done
done
expect "no such GPU" 2 "does not exist" "$inlane" copy --from gpu:0 --to gpu:99 --sizes 4K
expect "beyond the memory" 3 "bytes free" "$inlane" copy $pair --sizes 1T
expect "more lanes than fit" 2 "it holds 1 to" "$inlane" copy $pair --require staged-sm --sm-lanes 100000 --sizes 4K
exit $failed
