#!/bin/bash
# Runs the old and the new build in turns. Prints one line for each run: case, build, Mpps.
export LD_LIBRARY_PATH=$PWD/.gpu INLANE_CACHE=/tmp/cache
one() { # NAME BUILD FLAGS...
  local name=$1 build=$2; shift 2
  ./$build forward "$@" --no-baseline --json /tmp/r.json >/tmp/o.txt 2>&1 || { echo "$name $build FAILED $(tail -1 /tmp/o.txt)"; return; }
  python3 - "$name" "$build" <<'P'
import json,sys
r=json.load(open('/tmp/r.json'))['results'][0]
l=r['limit']; l=l if isinstance(l,str) or l is None else l['resource']+' '+str([e.get('kind') for e in l['evidence']])
v=r['verification'] or {}
print(sys.argv[1],sys.argv[2],'%.2f'%(r['tx']['packets_per_second']/1e6),'lost',v.get('lost_packets'),'shape',r['shape'],'|',(l or '')[:90],flush=True)
P
}
F="--function macswap --duration 1s"
for i in 1 2 3 4 5; do for b in old new; do
  one null-single $b --rx null:1024 --tx null $F
  one null-single-io $b --rx null:64 --tx null --function io --duration 1s
  one null-split $b --rx null:1024 --tx null $F --burst 128 --method split
  one gen-check $b --rx gen:64 --tx check $F
done; done
for i in 1 2 3; do for b in old new; do
  for m in persistent graph stream split single; do one gpu-$m $b --rx null:1024 --tx null $F --on gpu:0 --burst 128 --method $m; done
  one gpu-check $b --rx gen:1024 --tx check $F --on gpu:0 --method persistent
  one gpu-pull $b --rx null:1024 --tx null $F --on gpu:0 --burst 128 --method persistent --memory gpu
done; done
./new forward --rx null:1024 --tx null $F --on gpu:0 --method auto --max-latency 100us --json $OUT/auto.json 2>&1 | tail -12
cp /tmp/r.json $OUT/last.json
