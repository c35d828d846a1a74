#!/bin/bash
# Runs the experiments on one GPU: methods against burst size, unmodified packets in host and GPU memory,
# competing jobs, latency against load, packet sizes, and PCIe traffic. Takes about ten minutes. Give names to
# run only those experiments.
# Usage: sweeps.sh INLANE OUT [NAME...]      writes OUT/NAME.json, .svg, .txt and .log for each
inlane=$1 out=$2
wanted=" ${*:3} "
export INLANE_CACHE=${INLANE_CACHE:-/tmp/inlane-cache}
null="--rx null:1024 --tx null"
gpu="--on gpu:0 --function macswap"
sweep() { # name, limit in seconds, flags...
    local name=$1 limit=$2 begun=$SECONDS
    shift 2
    [ "$wanted" = "  " ] || [[ "$wanted" = *" $name "* ]] || return
    timeout -k 5 -s INT "$limit" "$inlane" forward --json "$out/$name.json" --svg "$out/$name.svg" "$@" \
        >"$out/$name.txt" 2>"$out/$name.log" </dev/null
    echo "exit status $? after $((SECONDS - begun)) s: inlane forward $*" | tee -a "$out/$name.log"
}
sweep burst 90 $null $gpu --duration 500ms --repeats 3 --sweep method=all --sweep burst=16,32,64,128
sweep unmodified 80 --rx null --tx null --on gpu:0 --function io --method persistent --duration 500ms --repeats 3 \
    --sweep memory=pinned,gpu,gpu-pool --sweep size=64..1024
sweep beside 110 $null $gpu --stages --duration 600ms --repeats 2 \
    --sweep method=all --sweep rate=100Kpps,1Mpps,4Mpps,10Mpps --sweep compete=none,compute
sweep large 60 $null $gpu --stages --duration 600ms --compete=large --sweep method=all --sweep rate=100Kpps,1Mpps,4Mpps
sweep blocks 40 $null $gpu --stages --duration 600ms --method persistent --rate 1Mpps \
    --sweep compete=compute,large --sweep blocks=4..128
sweep streams 60 $null $gpu --stages --duration 400ms --rate 1Mpps \
    --sweep method=split,stream,graph --sweep compete=all --sweep streams=1..8
sweep priority 40 $null $gpu --stages --duration 600ms --compete \
    --sweep method=all --sweep rate=100Kpps,1Mpps --sweep priority=normal
sweep load 120 --rx gen:1024,flows=64 --tx check $gpu --burst 32 --duration 400ms \
    --sweep method=persistent,stream,graph,split --load=10,30,50,70,90,100
sweep flush 40 $null $gpu --stages --burst 32 --rate 1Mpps --duration 400ms \
    --sweep method=persistent,stream,graph,split --sweep flush=0,5us,20us,50us
sweep sizes 60 --rx null --tx null $gpu --method persistent --duration 400ms --repeats 3 \
    --sweep memory=pinned,gpu --sweep size=64..1500
sweep sizes-cpu 30 --rx null --tx null --function macswap --method split --duration 400ms --repeats 3 --sweep size=64..1500
sweep pcie 20 $null $gpu --method persistent --duration 1s --measure-pcie \
    --sweep memory=pinned,gpu,gpu-pool --sweep burst=16,128
sweep rate 50 $null $gpu --stages --burst 32 --duration 400ms --sweep method=persistent,stream,graph,split,single \
    --sweep rate=100Kpps,500Kpps,1Mpps,2Mpps,5Mpps,10Mpps,20Mpps,50Mpps
