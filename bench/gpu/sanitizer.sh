#!/bin/bash
# compute-sanitizer on every method and function: memcheck; and on the functions that use a block's own memory, and payload pulled
# into GPU memory, racecheck and synccheck. Usage: sanitizer.sh INLANE [WIDTH]     WIDTH: how many at a time (6)
inlane=$1 width=${2:-6} here=$(dirname "$0")
export INLANE_CACHE=${INLANE_CACHE:-/tmp/inlane-cache} inlane here
command -v compute-sanitizer >/dev/null || PATH=$PATH:/usr/local/cuda/bin
command -v compute-sanitizer >/dev/null || { echo "SKIPPED compute-sanitizer: not there; it comes with the CUDA toolkit"; exit 0; }
one() { # tool, method, memory, function
    local tool=$1 method=$2 memory=$3 function=$4 ports="--rx gen:256 --tx check --packets 20000" output rc
    case $function in
    oran*) ports="--rx gen:oran,slots=6,shuffle=64,loss=1% --tx null --packets all" ;;
    *.cu*) ports="--rx gen:256 --tx null --packets 20000" ;;
    drop*) ports="$ports --tx null" ;;
    esac
    # Only the executor's kernels: the ceiling's bare ones move a lot.
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
    for method in single split persistent stream graph; do
        for function in macswap io l3-decrement flow-count drop-rule:udp,tcp:80 checksum oran-reorder:limit=1s "$here/../../examples/functions/sizes.cu"; do
            echo "memcheck $method --memory=gpu $function"
            case $function in macswap | checksum | oran*) echo "memcheck $method --memory=pinned $function" ;; esac
            case $method.$function in
            single.oran* | persistent.oran* | graph.oran* | *.*sizes.cu | persistent.macswap | persistent.drop*)
                echo "racecheck $method --memory=gpu $function"
                echo "synccheck $method --memory=gpu $function"
                ;;
            esac
        done
        echo "memcheck $method --split=64 macswap"
    done
}
list | xargs -P "$width" -L 1 bash -c 'one "$@"' _ | tee /tmp/inlane-sanitizer.$$
! grep -q FAILED /tmp/inlane-sanitizer.$$
status=$?
rm -f /tmp/inlane-sanitizer.$$
exit $status
