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
for i in 1 2 3 4 5 6 7 8; do for b in new old; do
  one gen-check $b --rx gen:64 --tx check $F --cores 5
  one gen-null $b --rx gen:64 --tx null $F --cores 5
  one null-io $b --rx null:64 --tx null --function io --duration 1s --cores 5
  one gpu-split $b --rx null:1024 --tx null $F --on gpu:0 --burst 128 --method split --cores 5,6
done; done
