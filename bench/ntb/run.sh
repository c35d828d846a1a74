#!/usr/bin/env bash
# The figures of the windows in one command, on the machine it runs on: every size, all completions, beside UCX's shared-memory
# put where ucx_perftest is at hand.
#
#   bench/ntb/run.sh [OUT]
#
# INLANE      the program to measure             (target/release/inlane)
# UCX         ucx_perftest                       (found in PATH; skipped, loudly, without)
# UCX_LIB     where its libraries lie, when they were carried along
#
# Writes OUT/ntb.json, OUT/ntb.svg, OUT/ntb.txt and OUT/host.txt; OUT is the current directory unless named.
set -euo pipefail

here=$(cd "$(dirname "$0")/../.." && pwd)
inlane=${INLANE:-$here/target/release/inlane}
out=${1:-${OUT:-.}}
ucx=${UCX:-$(command -v ucx_perftest || true)}
mkdir -p "$out"

if [[ -n ${UCX_LIB-} ]]; then
    export LD_LIBRARY_PATH=$UCX_LIB${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export UCX_MODULE_DIR=$UCX_LIB/ucx
fi
{
    date -u +%Y-%m-%dT%H:%M:%SZ
    uname -srm
    grep -m1 'model name' /proc/cpuinfo
    nproc
    cat /proc/loadavg
    [[ -z $ucx ]] || echo "$ucx"
} >"$out/host.txt"

arguments=(ntb bench --fine --repeats 7 --batch 20ms --json "$out/ntb.json" --svg "$out/ntb.svg")
if [[ -n $ucx ]]; then
    arguments+=(--ucx "$ucx")
else
    echo "SKIPPED the comparison with UCX: no ucx_perftest (apt: ucx-utils)" >&2
fi
# Two processes need two processors that nobody else uses: say so where it is not so.
[[ $(nproc) -ge 4 ]] || echo "bench/ntb: $(nproc) processors: service threads share those that measure" >&2
"$inlane" "${arguments[@]}" | tee "$out/ntb.txt"
