#!/bin/bash
# Every method under compute-sanitizer's memcheck. Usage: sanitizer.sh INLANE
inlane=$1 failed=0
export INLANE_CACHE=${INLANE_CACHE:-/tmp/inlane-cache}
for memory in pinned gpu; do
    for method in single split persistent stream graph; do
        output=$(timeout -k 1 60 compute-sanitizer --tool memcheck --error-exitcode 9 "$inlane" forward --rx gen:256 --tx check \
            --function macswap --on gpu:0 --method $method --memory $memory --burst 32 --packets 20000 --watchdog 30s \
            --duration 30s --no-baseline 2>&1)
        rc=$?
        echo "memcheck $memory $method: exit status $rc; $(grep -E 'ERROR SUMMARY' <<<"$output"); $(grep -E '^(tx|verif|check)' <<<"$output" | tr '\n' ';')"
        [ $rc = 0 ] || { failed=1; head -20 <<<"$output"; }
    done
done
exit $failed
