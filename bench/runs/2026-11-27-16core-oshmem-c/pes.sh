#!/bin/bash
# pes.sh MOST: starts, barriers and ends of jobs of many PEs
most=$1
sample() { local least=999999999 now; while :; do now=$(awk '/MemAvailable/ {print $2}' /proc/meminfo); [ "$now" -lt $least ] && least=$now && echo $((least / 1024)) >"$TMPDIR/least"; sleep 0.2; done; }
for case in "8 ucx" "96 ucx" "96 windows" "256 ucx" "1024 ucx" "1024 windows"; do
    set -- $case; [ "$1" -le "$most" ] || continue
    sample & sampler=$!
    before=$(awk '/MemAvailable/ {print int($2 / 1024)}' /proc/meminfo) t=${EPOCHREALTIME/./}
    line=$(timeout -k 2 50 ./inlane/inlane ntb run -n "$1" --heap 1M --transport "$2" -- bin/start 10 2>&1 | tail -n 3 | tr '\n' ';'); status=${PIPESTATUS[0]}
    kill $sampler; wait $sampler 2>/dev/null
    printf '%s PEs %s: %s whole job %d ms, memory before %s MiB, least available %s MiB, open files limit %s\n' "$1" "$2" "$line" $(((${EPOCHREALTIME/./} - t) / 1000)) "$before" "$(cat "$TMPDIR/least")" "$(ulimit -n)"
done
