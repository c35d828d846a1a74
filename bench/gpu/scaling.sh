#!/bin/bash
# What pipelines add, by method, and what forced work and a pause between looks tell of the limit. Usage: scaling.sh | run.sh INLANE OUT
gpu="--on gpu:0 --rx null:1024 --tx null --duration 700ms --function macswap --burst 64"
for method in single split persistent stream graph; do
    for pipelines in 1 2 4 8; do
        # A pipeline of single and persistent has one thread, of the others two: on 16 cores all are bound to a core of their own.
        echo "$method, $pipelines pipelines | $gpu --method $method --pipelines $pipelines"
    done
done
for pipelines in 1 2 4; do
    echo "persistent, payload to GPU memory, $pipelines pipelines | $gpu --method persistent --memory gpu --pipelines $pipelines"
done
