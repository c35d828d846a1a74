#!/bin/bash
# Provokes faults on a GPU and checks how runs end: functions that do not compile, write to wild addresses or
# never return; exhausted memory; a missing compiler or GPU; signals; kill -9 at several moments. After each
# fault, a normal run must work. The methods are tested side by side in separate processes.
# Usage: faults.sh INLANE
inlane=$1 here=$(dirname "$0")
export INLANE_CACHE=${INLANE_CACHE:-/tmp/inlane-cache}
ports="--rx null:1024 --tx null --on gpu:0 --no-baseline --cores none"
said=$(mktemp -d)
trap 'rm -rf "$said"' EXIT
. "$here/../expect.sh"
EXPECT_SECONDS=60
works() { expect "  then a run, $1" 0 "Mpps" "$inlane" forward $ports --function macswap --method "$1" --watchdog 10s --duration 300ms; }
of_method() {
    local method=$1 delay pid
    expect "wild write, $method" 1 "compute-sanitizer" \
        "$inlane" forward $ports --function "$here/faults/wild.cu:wild" --method "$method" --duration 5s --watchdog 10s
    works "$method"
    expect "never ends, $method" 1 "stuck" \
        "$inlane" forward $ports --function "$here/faults/never.cu:never" --method "$method" --duration 5s --watchdog 1s
    works "$method"
    for signal in INT TERM; do
        # After a signal, all received packets must be sent. Runs that share a GPU take seconds to start, so
        # the signal comes after 15 s.
        expect "SIG$signal, $method" 0 "Mpps" timeout -s $signal --preserve-status 15 \
            "$inlane" forward $ports --method "$method" --watchdog 10s --duration 30s
        timeout -s $signal --preserve-status 15 "$inlane" forward $ports --method "$method" --watchdog 10s --duration 30s --json - \
            2>/dev/null | python3 -c '
import json, sys
result = json.load(sys.stdin)["results"][0]
drops = [result[name] for name in ("dropped_overload", "dropped_unsent", "dropped_invalid", "leaked_buffers")]
right = result["rx"]["packets"] == result["tx"]["packets"] > 0 and not any(drops)
print("ok     " if right else "FAILED ", " ", sys.argv[1], "drained:", result["rx"]["packets"], "received,", result["tx"]["packets"], "sent")
' "SIG$signal, $method" || echo "FAILED    SIG$signal, $method: no result"
    done
    for delay in 0.1 0.4 0.8 1.6; do
        "$inlane" forward $ports --method "$method" --duration 20s >/dev/null 2>&1 &
        pid=$!
        sleep $delay
        kill -9 $pid
        wait $pid 2>/dev/null
    done
    echo "        kill -9 after 0.1, 0.4, 0.8 and 1.6 s, $method"
    works "$method"
}
once() {
    expect "does not compile" 2 "broken.cu(7)" "$inlane" forward $ports --function "$here/faults/broken.cu:broken" --method persistent
    expect "never ends, beside another job" 1 "stuck" "$inlane" forward $ports --function "$here/faults/never.cu:never" \
        --method persistent --compete=large --duration 5s --watchdog 1s
    works persistent
    expect "memory exhausted" 3 "out of memory\|OUT_OF_MEMORY" \
        "$inlane" forward $ports --function macswap --method persistent --memory gpu-pool --buffers 4000000 --room 64K --duration 1s
    works persistent
    expect "too many blocks" 2 "ask for fewer" "$inlane" forward $ports --method persistent --blocks 100000 --duration 1s
    expect "no such GPU" 2 "does not exist" "$inlane" forward --rx null --tx null --on gpu:99 --method persistent --duration 1s
    expect "no GPU" 3 "CUDA_ERROR_NO_DEVICE" env CUDA_VISIBLE_DEVICES= "$inlane" forward $ports --method persistent --duration 1s
    expect "no NVRTC" 3 "pip install nvidia-cuda-nvrtc" \
        env INLANE_NVRTC=/absent/libnvrtc.so "$inlane" forward $ports --method persistent --duration 1s
    # A missing driver and one that is too old are tested by crates/cli/tests/gpu.rs, which needs no GPU.
}
works persistent
once >"$said/once" 2>&1 &
for method in single split persistent stream graph; do
    of_method $method >"$said/$method" 2>&1 &
done
wait
cat "$said"/*
! grep -q FAILED "$said"/*
