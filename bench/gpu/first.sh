#!/bin/bash
# A first look at a GPU machine: does every method run, how fast, what is the ceiling. Usage: first.sh INLANE OUT
inlane=$1 out=$2
export INLANE_CACHE=${INLANE_CACHE:-/tmp/inlane-cache}
one() { # label, flags...
    local label=$1; shift
    echo "== $label: $*"
    timeout 25 "$inlane" forward --no-baseline --json - "$@" 2>"$out/err.txt" >"$out/one.json"
    local rc=$?
    if [ -s "$out/one.json" ]; then
        python3 - "$out/one.json" "$label" <<'P'
import json,sys
d=json.load(open(sys.argv[1])); r=d["results"][0]
c=d.get("ceiling") or {}
print("   rx %.2f Mpps %.1f Gb/s  missed %d  cpu %.2fs  pcie %s  ceiling %s  verif %s stages %s" % (r["rx"]["packets_per_second"]/1e6, r["tx"]["bits_per_second"]/1e9, r["rx"]["missed"], r["cpu_ns"]/1e9, r["pcie_bytes"], "%.1f Mpps"%(c["packets_per_second"]/1e6) if c.get("packets_per_second") else None, d["verification"], {k:(v or {}).get("p50_ns") for k,v in (r["stages"] or {}).items()}))
P
        python3 -c "import json,sys;print(json.dumps({'label':sys.argv[2],'document':json.load(open(sys.argv[1]))}))" "$out/one.json" "$label" >>"$out/results.jsonl"
    fi
    [ $rc = 0 ] || { echo "   rc=$rc"; head -5 "$out/err.txt"; }
    rm -f "$out/one.json" "$out/err.txt"
}
nvidia-smi --query-gpu=name,driver_version,pcie.link.gen.current,pcie.link.width.current --format=csv,noheader
lscpu | grep -E "Model name|^CPU\(s\)|NUMA"; uname -r; grep -i huge /proc/meminfo | head -4
"$inlane" doctor 2>&1 | head -40
for b in 16 128; do
    one "cpu io split $b" --rx null:1024 --tx null --function io --method split --burst $b --duration 1500ms
    one "cpu macswap split $b" --rx null:1024 --tx null --function macswap --method split --burst $b --duration 1500ms
done
g="--on gpu:0 --rx null:1024 --tx null --function macswap --duration 1500ms"
for b in 16 128; do
    one "persistent $b" $g --method persistent --burst $b
    one "persistent $b gpu" $g --method persistent --burst $b --memory gpu
    one "persistent $b pool" $g --method persistent --burst $b --memory gpu-pool
done
for m in single split stream graph; do
    one "$m 64" $g --method $m --burst 64
done
one "persistent 16 io" --on gpu:0 --rx null:1024 --tx null --function io --duration 1500ms --method persistent --burst 16
one "persistent latency" $g --method persistent --burst 1 --stages --rate 100Kpps --blocks 32
for n in 8 16 32 64 128; do one "persistent 16 blocks $n" $g --method persistent --burst 16 --blocks $n; done
for n in 8192 16384 32768; do one "persistent 128 buffers $n" $g --method persistent --burst 128 --buffers $n --slots 256; done
