#!/bin/bash
# What must go wrong well on a GPU: functions that do not compile, write wildly, never end; memory that is not there; signals;
# kill -9. After each, a run must work. Usage: faults.sh INLANE
inlane=$1 here=$(dirname "$0") failed=0
export INLANE_CACHE=${INLANE_CACHE:-/tmp/inlane-cache}
ports="--rx null:1024 --tx null --on gpu:0 --no-baseline"
expect() { # label, status wanted, text wanted, command...
    local label=$1 status=$2 text=$3 begun=$SECONDS
    shift 3
    output=$(timeout -k 1 30 "$@" 2>&1)
    local rc=$?
    if [ $rc = "$status" ] && grep -q -- "$text" <<<"$output"; then
        echo "ok      $label: exit status $rc after $((SECONDS - begun)) s"
    else
        echo "FAILED  $label: exit status $rc, wanted $status and '$text'"
        head -12 <<<"$output"
        failed=1
    fi
}
works() { expect "  then a run" 0 "Mpps" "$inlane" forward $ports --function macswap --method persistent --duration 300ms; }
works
expect "does not compile" 2 "broken.cu(7)" "$inlane" forward $ports --function "$here/faults/broken.cu:broken" --method persistent
for method in single split persistent stream graph; do
    expect "wild write, $method" 1 "compute-sanitizer" \
        "$inlane" forward $ports --function "$here/faults/wild.cu:wild" --method $method --duration 2s
    works
    expect "never ends, $method" 1 "stuck" \
        "$inlane" forward $ports --function "$here/faults/never.cu:never" --method $method --duration 2s --watchdog 1s
    works
done
expect "memory exhausted" 3 "out of memory\|OUT_OF_MEMORY" \
    "$inlane" forward $ports --function macswap --method persistent --memory gpu-pool --buffers 4000000 --room 64K --duration 1s
works
expect "too many blocks" 2 "ask for fewer" "$inlane" forward $ports --method persistent --blocks 100000 --duration 1s
expect "no such GPU" 2 "does not exist" "$inlane" forward --rx null --tx null --on gpu:99 --method persistent --duration 1s
for method in single split persistent stream graph; do
    for signal in INT TERM; do
        expect "SIG$signal, $method" 0 "Mpps" timeout -s $signal --preserve-status 2 "$inlane" forward $ports --method $method --duration 20s
    done
    "$inlane" forward $ports --method $method --duration 20s >/dev/null 2>&1 &
    pid=$!
    sleep 1.5
    kill -9 $pid
    wait $pid 2>/dev/null
    echo "        kill -9, $method"
    works
done
exit $failed
