#!/bin/bash
# Lists the runs of the speed table, three times in turns. Usage: table.sh | run.sh INLANE OUT
null="--rx null:1024 --tx null --duration 800ms"
gpu="--on gpu:0 $null --function macswap"
for round in 1 2 3; do
    for burst in 16 128; do
        echo "cpu split $burst | $null --function macswap --method split --burst $burst"
        echo "persistent $burst | $gpu --method persistent --burst $burst"
        echo "persistent, payload to GPU memory $burst | $gpu --method persistent --burst $burst --memory gpu"
        echo "persistent, buffers in GPU memory $burst | $gpu --method persistent --burst $burst --memory gpu-pool"
    done
    for method in split stream graph; do
        echo "$method 64 | $gpu --method $method --burst 64"
    done
    echo "persistent, burst 1 at 50 kpps | $gpu --method persistent --burst 1 --stages --rate 50Kpps"
done
echo "persistent 128, two pipelines | $gpu --method persistent --burst 128 --pipelines 2"
echo "persistent 16, two pipelines | $gpu --method persistent --burst 16 --pipelines 2"
echo "net_null persistent 128 | --on gpu:0 --rx net_null:1024 --tx net_null --duration 800ms --function macswap --method persistent --burst 128"
echo "net_null cpu split 128 | --rx net_null:1024 --tx net_null --duration 800ms --function macswap --method split --burst 128"
