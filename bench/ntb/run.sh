#!/usr/bin/env bash
# Measures the windows on this machine: all sizes and completion modes, beside UCX's shared-memory put if
# ucx_perftest is installed.
#
#   bench/ntb/run.sh [OUT]
#
# OUT         folder for the results [default: the current directory]
# INLANE      program to measure [default: target/release/inlane]
# UCX         path of ucx_perftest [default: the one in PATH; without one, the comparison is skipped]
# UCX_LIB     folder of UCX's libraries, if they are not installed
# GPU         number of a GPU whose copy engines are measured as the mover too
#
# Writes puts.json (put, plain copy, peer), ntb.json and ntb.svg (all cases, sizes in steps of four),
# twin.json (put by mover), log.txt and host.txt. With GPU, also writes gpu.json and gpu.svg. The windows are
# host memory, so the results are those of a model.
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
    echo "SKIPPED the comparison with UCX: ucx_perftest is not installed (apt install ucx-utils)" >&2
fi
# Two PEs and their service threads need four processors. Warn if there are fewer.
[[ $(nproc) -ge 4 ]] || echo "bench/ntb: $(nproc) processors; service threads share the processors of the PEs that measure" >&2
# Makes many short repeats. Other load on the machine then disturbs both sides of a comparison equally.
{
    "$inlane" ntb bench --sizes 8..64M,x2 --only puts --repeats 21 --duration 4ms "${ucx_arguments[@]}" --json "$out/puts.json"
    "$inlane" ntb bench --only mover --repeats 31 --duration 5ms --json "$out/twin.json"
    if [[ -n ${GPU-} ]]; then
        "$inlane" ntb bench --only mover --mover "gpu:$GPU" --repeats 21 --duration 5ms --json "$out/gpu.json" --svg "$out/gpu.svg"
    fi
    "$inlane" ntb bench --repeats 11 --duration 5ms --json "$out/ntb.json" --svg "$out/ntb.svg"
} | tee "$out/log.txt"
