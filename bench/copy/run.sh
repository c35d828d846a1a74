#!/bin/bash
# Transfers between two GPUs without peer access: inlane, CUDA's own copy and NCCL in one run, on one machine.
#
#   bench/copy/run.sh INLANE OUT        INLANE: the program; OUT: a folder for the JSON documents
#
# Needs two GPUs, and python3 with PyTorch for NCCL. Takes about two minutes.
set -u
inlane=$(realpath "$1") out=$2 here=$(dirname "$(realpath "$0")")
mkdir -p "$out"
pair="--from gpu:0 --to gpu:1"
run() { # NAME ARGUMENTS...
    local name=$1
    shift
    echo "== $name: inlane copy $*"
    timeout 60 "$inlane" copy "$@" --time 60ms --json "$out/$name.json" || echo "FAILED $name"
}

nvidia-smi topo -m >"$out/topology.txt" 2>&1
# Each path alone: one way, one transfer at a time and streaming.
run staged-sm $pair --require staged-sm --sizes 4K,64K,256K,1M,4M,16M,64M,256M --repeats 7
run staged $pair --require staged --sizes 64K,256K,1M,4M,16M,64M,256M --repeats 7 --no-ceiling
run cuda $pair --require cuda --sizes 64K,1M,16M,256M --repeats 7 --no-ceiling
echo "== nccl"
NCCL_P2P_DISABLE=1 timeout 60 python3 "$here/nccl.py" --repeats 5 --seconds 0.06 >"$out/nccl.json" || echo "FAILED nccl"
run staged-sm-launched $pair --require staged-sm --sm-launch --sizes 64K,1M,16M,256M --repeats 3 --no-ceiling
# Where the microseconds of one transfer go.
echo "== trace"
INLANE_COPY_TRACE=1 timeout 60 "$inlane" copy $pair --require staged-sm --sizes 64K,256K,1M --measure latency --repeats 3 \
    --time 60ms --no-ceiling 2>"$out/trace.jsonl" >/dev/null || echo "FAILED trace"
run hybrid $pair --require hybrid --sizes 64K,1M,16M,256M --repeats 3 --no-ceiling
# Both directions at once, against the links' ceiling while all of them run.
for path in auto staged staged-sm; do
    run both-$path $pair --path $path --without p2p --direction both --sizes 64K,1M,16M,64M,256M --repeats 5 --calibrate
done
# What sleeping costs: one transfer at a time, so that nothing hides a late wake-up.
run completion --from host --to gpu:0 --completion poll,interrupt,adaptive --sizes 64K..64M --window 1 --repeats 7 --rotate 64M \
    --no-ceiling
run host --from host --to gpu:0 --path dma,sm --direction all --sizes 64K,1M,16M --repeats 3 --rotate 64M
# What auto takes, with and without peer access, and all devices to all.
run auto-staging $pair --sizes 4K..256M --without p2p --repeats 3 --calibrate --no-ceiling
run auto $pair --sizes 4K..256M --repeats 3 --calibrate --no-ceiling
run matrix --matrix --sizes 64M --repeats 3 --no-ceiling
