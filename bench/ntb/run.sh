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
# GPU         a GPU's number: its copy engines as mover too
#
# Writes into OUT (the current directory unless named): puts.json (put, plain copy, peer), ntb.json and ntb.svg (everything, sizes in
# steps of four), twin.json and, with GPU, gpu.json and gpu.svg (put by mover), log.txt, host.txt.
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

ucx_arguments=()
if [[ -n $ucx ]]; then
    ucx_arguments=(--ucx "$ucx" --ucx-repeats 11)
else
    echo "SKIPPED the comparison with UCX: no ucx_perftest (apt: ucx-utils)" >&2
fi
# Two processes need two processors that nobody else uses: say so where it is not so.
[[ $(nproc) -ge 4 ]] || echo "bench/ntb: $(nproc) processors: service threads share those that measure" >&2
# Many short turns rather than few long ones: what else the machine does then meets both sides of a comparison.
{
    "$inlane" ntb bench --fine --from 8 --only puts --repeats 21 --batch 4ms "${ucx_arguments[@]}" --json "$out/puts.json"
    "$inlane" ntb bench --only mover --repeats 31 --batch 5ms --json "$out/twin.json"
    if [[ -n ${GPU-} ]]; then
        "$inlane" ntb bench --only mover --mover "gpu:$GPU" --repeats 21 --batch 5ms --json "$out/gpu.json" --svg "$out/gpu.svg"
    fi
    "$inlane" ntb bench --repeats 11 --batch 5ms --json "$out/ntb.json" --svg "$out/ntb.svg"
} | tee "$out/log.txt"
