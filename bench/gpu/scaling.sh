#!/bin/bash
# Lists runs of each method with 1 to 8 pipelines, to show how the rate scales.
# Usage: scaling.sh | run.sh INLANE OUT
gpu="--on gpu:0 --rx null:1024 --tx null --duration 700ms --function macswap --burst 64"
for method in single split persistent stream graph; do
    for pipelines in 1 2 4 8; do
        # A pipeline has one thread with the methods single and persistent, and two with the others. With 16
        # cores, each thread has its own core.
        echo "$method, $pipelines pipelines | $gpu --method $method --pipelines $pipelines"
    done
done
for pipelines in 1 2 4; do
    echo "persistent, payload to GPU memory, $pipelines pipelines | $gpu --method persistent --memory gpu --pipelines $pipelines"
done
