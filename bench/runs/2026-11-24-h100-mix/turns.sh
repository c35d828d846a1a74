#!/bin/bash
# Runs the old and the new build in turns. Prints one line for each run: case, build, Mpps.
export LD_LIBRARY_PATH=$PWD/.gpu INLANE_CACHE=/tmp/cache
B=.gpu
one() { # NAME BUILD FLAGS...
  local name=$1 build=$2; shift 2
  ./$B/$build forward "$@" --no-baseline --json /tmp/r.json >/tmp/o.txt 2>&1 || { echo "$name $build FAILED $(tail -1 /tmp/o.txt)"; return; }
  python3 - "$name" "$build" <<'P'
import json,sys
r=json.load(open('/tmp/r.json'))['results'][0]
v=r['verification'] or {}
print(sys.argv[1],sys.argv[2],'%.2f'%(r['tx']['packets_per_second']/1e6),'lost',v.get('lost_packets'),flush=True)
P
}
F="--function macswap --duration 700ms"
for i in 1 2 3 4 5; do for b in old new; do
  one null-io $b --rx null:64 --tx null --function io --duration 500ms --cores 5
  one gen-check $b --rx gen:64 --tx check $F --cores 5
  one gpu-graph $b --rx null:1024 --tx null $F --on gpu:0 --burst 128 --method graph --cores 5,6
  one gpu-pull $b --rx null:1024 --tx null $F --on gpu:0 --burst 128 --method persistent --memory gpu --cores 5,6
done; done
hh() { taskset -c 7 ./$B/$1 copy --from host --to host --path bar --sizes 4K,1M --duration 50ms --json /tmp/c.json >/tmp/o.txt 2>&1 || { echo "hh $1 FAILED $(tail -1 /tmp/o.txt)"; return; }
python3 - "$1" <<'P'
import json,sys
for r in json.load(open('/tmp/c.json'))['results']:
    print('hh',r.get('size_bytes'),sys.argv[1],'%.3f'%((r['bytes_per_second'] or {}).get('median',0)/1e9),flush=True)
P
}
for i in 1 2 3 4 5; do for b in new old; do hh $b; done; done
