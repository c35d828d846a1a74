#!/bin/bash
# Measures transfers between two GPUs without peer access: inlane, CUDA's own copy and NCCL, in one run on one
# machine.
#
#   bench/copy/run.sh INLANE OUT        INLANE: the program; OUT: a folder for the JSON documents
#
# The variables REPEATS (5) and TIME (60ms) set the number and the duration of repeats. Needs two GPUs. NCCL
# also needs python3 with PyTorch. Takes about two minutes. Measurements that the documentation quotes run
# first.
set -u
inlane=$(realpath "$1") out=$2 here=$(dirname "$(realpath "$0")")
repeats=${REPEATS:-5} time=${TIME:-60ms}
mkdir -p "$out"
pair="--from gpu:0 --to gpu:1"
run() { # NAME ARGUMENTS...
    local name=$1
    shift
    echo "== $(date +%T) $name: inlane copy $*"
    timeout 40 "$inlane" copy "$@" --repeats "$repeats" --duration "$time" --json "$out/$name.json" || echo "FAILED $name"
}

nvidia-smi topo -m >"$out/topology.txt" 2>&1
# Measures each path in one direction: single transfers, and streaming.
run staged-sm $pair --require staged-sm --sizes 4K,64K,256K,1M,4M,16M,64M,256M
run staged $pair --require staged --sizes 64K,1M,16M,256M --no-ceiling
run cuda $pair --require cuda --sizes 64K,1M,16M,256M --no-ceiling
echo "== $(date +%T) nccl"
NCCL_P2P_DISABLE=1 timeout 60 python3 "$here/nccl.py" --repeats "$repeats" --seconds 0.06 >"$out/nccl.json" || echo "FAILED nccl"
# Measures both directions at once. The ceiling is what the links carry when both directions are busy.
for path in auto staged staged-sm; do
    run both-$path $pair --path $path --without p2p --direction both --sizes 64K,1M,16M,256M --calibrate
done
# Measures the cost of sleeping. With one transfer in flight, a late wake-up adds to the time of each
# transfer.
run completion --from host --to gpu:0 --completion poll,interrupt,adaptive --sizes 64K..64M --in-flight 1 --rotate 64M --no-ceiling
# Records the time of each step of a transfer.
echo "== $(date +%T) trace"
INLANE_COPY_TRACE=1 timeout 40 "$inlane" copy $pair --require staged-sm --sizes 64K,256K,1M --measure latency --repeats 3 \
    --duration "$time" --no-ceiling 2>"$out/trace.jsonl" >/dev/null || echo "FAILED trace"
run staged-sm-launched $pair --require staged-sm --sm-launch --sizes 64K,1M,16M,256M --no-ceiling
run completion-sm $pair --require staged-sm --completion poll,interrupt,adaptive --sizes 64K,1M,16M --in-flight 1 --no-ceiling
# Measures the paths that auto chooses with and without peer access, and a matrix of all devices.
run auto-staging $pair --sizes 4K..256M --without p2p --calibrate --no-ceiling
run host --from host --to gpu:0 --path dma,sm --direction all --sizes 64K,1M,16M --rotate 64M
run auto $pair --sizes 4K..256M --calibrate --no-ceiling
run hybrid $pair --require hybrid --sizes 64K,1M,16M,256M --no-ceiling
run matrix --matrix --sizes 64M --no-ceiling
