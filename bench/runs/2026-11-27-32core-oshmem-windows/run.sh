#!/bin/bash
# run.sh SECONDS PART...: jobs over windows with the builds in old/ and new/ in turns, and over UCX. Parts:
#   own     a PE on each core            shared  64 and 96 PEs on all cores      puts   puts of 2 PEs
#   few     2 to 16 PEs on 16 cores      many    1,024 and 96 PEs on 16 cores    checks conveyors' other checks
# Needs beside it: old/ and new/ with inlane and libinlane_shmem.so.0, lib/ with UCX, bale/ with conveyors' alltoallv and checks,
# the compiled barrier.c, start.c and figures.c, and own-core.sh. Processor times are in 1/100 s, of all cores.
here=$PWD start=$SECONDS cores=$(nproc) limit=$1; shift
export TMPDIR=${TMPDIR:-/tmp} UCX_LOG_LEVEL=error UCX_MODULE_DIR=$here/lib/ucx SHMEM_SYMMETRIC_SIZE=128M MPP_INIT_QUIET=1
ulimit -n "$(ulimit -Hn)"; ulimit -c 0
exec 2>&1
left() { echo $((limit - (SECONDS - start))); }
counters() {
    awk '/CAL:/ { n = 0; for (i = 2; i <= NF && $i ~ /^[0-9]+$/; i++) n += $i; printf "function-call-interrupts:%d ", n }' /proc/interrupts
    awk '/^cpu / { printf "user:%d sys:%d idle:%d steal:%d ", $2, $4, $5, $9 } /^ctxt/ { printf "context-switches:%d", $2 }' /proc/stat
}
# job BUILD TRANSPORT PES SECONDS COMMAND...
job() {
    local build=$1 transport=$2 pes=$3 most=$4 t before; shift 4
    echo "## $build $transport $pes PEs${pin:+ on 16 cores}: $*"
    [ "$(left)" -gt "$((most + 2))" ] || { echo "left out"; return; }
    export LD_LIBRARY_PATH=$here/$build:$here/lib LAUNCH="$pin $here/$build/inlane ntb run -n $pes --heap $heap --transport $transport --"
    before=$(counters) t=${EPOCHREALTIME/./}
    if [ -e "bale/$1" ]; then
        (cd bale && timeout -k 2 "$most" sh -e "./$1" >"$TMPDIR/output" 2>&1)
        echo "status $?, cases begun $(grep -c 'args =' "$TMPDIR/output"), ended $(grep -c 'elapsed time' "$TMPDIR/output"), $(((${EPOCHREALTIME/./} - t) / 1000)) ms"
        grep -i 'error\|fail\|wrong\|mismatch\|must divide' "$TMPDIR/output" | grep -v 'no errors' | sort | uniq -c | head -4
    else timeout -k 2 "$most" $LAUNCH "$@" | grep -v '^pinned'; fi
    echo "$before|$(counters)" | awk -F'|' '{ n = split($1, a, " "); split($2, b, " "); for (i = 1; i <= n; i++) { split(a[i], x, ":"); split(b[i], y, ":"); printf "%s %d  ", x[1], y[2] - x[2] } print "" }'
}
uname -rm; date -u +%F; sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1; echo "$cores cores"; free -g | sed -n 2p; cat /proc/loadavg
for part; do
    pin="taskset -c 0-15" heap=128M
    case $part in
    own | shared | checks) pin= ;;
    puts) pin= heap=64M ;;
    few) heap=1M ;;
    esac
    case $part in
    own) for turn in 1 2 3 4; do
        for build in old new; do job $build windows "$cores" 12 ./barrier 0.5; job $build windows "$cores" 12 test_simple; done
        [ $turn -gt 2 ] || { job new ucx "$cores" 12 ./barrier 0.5; job new ucx "$cores" 12 test_simple; }
    done ;;
    shared) for pes in 64 96; do
        [ $pes -gt "$cores" ] || continue
        for turn in 1 2; do
            for build in old new; do
                job $build windows $pes 12 ./barrier 0.5
                [ $build$turn = old2 ] || job $build windows $pes 15 test_simple
            done
            job new ucx $pes 12 ./barrier 0.5
        done
        job new ucx $pes 15 test_simple
    done ;;
    puts) for turn in 1 2 3 4 5 6; do for build in old new; do job $build windows 2 6 ./own-core.sh ./figures 0.5 8 512 put barrier add; done; done ;;
    few) for turn in 1 2 3 4 5 6; do for pes in 2 4 8 16 16; do for build in old new; do job $build windows $pes 8 ./own-core.sh ./barrier 0.25; done; done; done ;;
    many)
        heap=1M; for build in old new new; do job $build windows 1024 50 ./start 10; done
        heap=128M; for turn in 1 2; do for build in old new; do job $build windows 96 15 test_simple; done; done ;;
    checks) for check in test_tensor test_elastic test_compress; do job new windows "$cores" 15 $check; job new ucx "$cores" 15 $check; done ;;
    esac
done
echo "## end after $((SECONDS - start)) s"
