#!/bin/bash
# 10^9 packets a method at burst 128, each made, processed and checked. Usage: billion.sh INLANE OUT [PIPELINES]
inlane=$1 out=$2 pipelines=${3:-6}
here=$(dirname "$0")
for method in persistent split stream graph; do
    echo "billion $method | --on gpu:0 --rx gen:64,flows=96 --tx check --function macswap --method $method --burst 128 --blocks 16 --streams 4 --pipelines $pipelines --packets $((1000000000 / pipelines + 1)) --duration 100s"
done | LIMIT=110 "$here/run.sh" "$inlane" "$out"
