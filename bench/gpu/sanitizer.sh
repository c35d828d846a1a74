#!/bin/bash
# Runs compute-sanitizer: memcheck on every method and function; racecheck and synccheck on functions that use
# shared memory, with packets pulled into GPU memory.
# Usage: sanitizer.sh INLANE [WIDTH]      WIDTH: the number of parallel runs (3)
# FULL=1 combines every method with every function. Otherwise each method runs a part of the functions.
inlane=$1 width=${2:-3} here=$(dirname "$0")
export INLANE_CACHE=${INLANE_CACHE:-/tmp/inlane-cache} inlane here
command -v compute-sanitizer >/dev/null || PATH=$PATH:/usr/local/cuda/bin
command -v compute-sanitizer >/dev/null || { echo "SKIPPED compute-sanitizer: not found; install the CUDA toolkit"; exit 0; }
one() { # tool, method, memory, function
    local tool=$1 method=$2 memory=$3 function=$4 ports="--rx gen:256 --tx check --packets 20000" output rc
    case $function in
    oran*) ports="--rx gen:oran,slots=6,shuffle=64,loss=1% --tx null --packets all" ;;
    *.cu*) ports="--rx gen:256 --tx null --packets 20000" ;;
    drop*) ports="--rx gen:256,flows=48 --tx check --tx null --packets 20000" ;;
    esac
    # Checks only the kernels of the executor. Checking the kernels that measure the ceiling would take too
    # long.
    output=$(timeout -k 1 120 compute-sanitizer --tool "$tool" --kernel-name kernel_substring=inlane_ --error-exitcode 9 "$inlane" \
        forward $ports --function "$function" --on gpu:0 --method "$method" $memory --burst 32 --watchdog 60s --duration 60s \
        --no-baseline --cores none 2>&1)
    rc=$?
    [ $rc = 0 ] && printf ok || printf FAILED
    echo "      $tool $method $memory ${function##*/}: exit status $rc; $(grep -E 'SUMMARY' <<<"$output" | tr -d =); $(grep -E '^verified' <<<"$output")"
    [ $rc = 0 ] || head -20 <<<"$output"
}
export -f one
list() {
    local turn=0 others=("io" "l3-decrement" "flow-count" "drop-rule:udp:0-40000,tcp:80" "checksum")
    for method in single split persistent stream graph; do
        echo "memcheck $method --memory=gpu macswap"
        echo "memcheck $method --split=64 macswap"
        echo "memcheck $method --memory=gpu oran-reorder:limit=1s"
        if [ -n "$FULL" ]; then
            for function in macswap checksum oran-reorder:limit=1s; do echo "memcheck $method --memory=pinned $function"; done
            for function in "${others[@]}" "$here/../../examples/functions/sizes.cu"; do echo "memcheck $method --memory=gpu $function"; done
        else
            echo "memcheck $method --memory=pinned ${others[turn++]}"
        fi
        # Checks functions that use shared memory and barriers, where races can occur.
        for tool in racecheck synccheck; do
            case $method in single | persistent) echo "$tool $method --memory=gpu oran-reorder:limit=1s" ;; esac
            case $method in persistent | graph) echo "$tool $method --memory=gpu $here/../../examples/functions/sizes.cu" ;; esac
        done
    done
}
list | xargs -P "$width" -L 1 bash -c 'one "$@"' _ | tee /tmp/inlane-sanitizer.$$
! grep -q FAILED /tmp/inlane-sanitizer.$$
status=$?
rm -f /tmp/inlane-sanitizer.$$
exit $status
