#!/bin/bash
# Generates, processes and checks 10^9 packets per method, at burst 128. Uses several pipelines, because one
# core generates or checks about ten million packets per second. Short trials find the fastest number of
# pipelines.
# Usage: billion.sh INLANE OUT [METHOD...]
inlane=$1 out=$2 here=$(dirname "$0") failed=0
shift 2
[ $# != 0 ] || set -- single split persistent stream graph
trials=$(mktemp -d)
trap 'rm -rf "$trials"' EXIT
flags="--on gpu:0 --rx gen:64,flows=96 --tx check --function macswap --burst 128"
for method in "$@"; do
    # A pipeline has one thread with the methods single and persistent, and two with other methods. The
    # numbers of pipelines to try differ accordingly.
    case $method in single | persistent) counts="8 15" ;; *) counts="4 7" ;; esac
    for pipelines in $counts; do
        echo "$pipelines | $flags --method $method --pipelines $pipelines --duration 700ms"
    done | LIMIT=20 "$here/run.sh" "$inlane" "$trials"
    pipelines=$(python3 -c '
import json, sys
runs = [json.loads(line) for line in open(sys.argv[1])]
print(max(runs, key=lambda run: run["document"]["results"][0]["tx"]["packets_per_second"])["label"])' "$trials/results.jsonl" 2>/dev/null)
    rm -f "$trials/results.jsonl"
    [ -n "$pipelines" ] || { failed=1; continue; }
    echo "billion $method | $flags --method $method --pipelines $pipelines --packets $((1000000000 / pipelines + 1)) --duration 100s" |
        LIMIT=110 "$here/run.sh" "$inlane" "$out" || failed=1
done
exit $failed
