#!/bin/bash
# run.sh [SECONDS] > results.jsonl
# Small puts and barriers from one C source: inlane (windows, UCX), Open MPI and Sandia in shared memory; over TCP also beside
# ucx_perftest. All libraries in turns, each PE pinned to a core of its own. Needs nothing but this folder and the C library.
set -u
here=$(cd "$(dirname "$0")" && pwd); cd "$here" || exit 1
limit=${1:-95} start=$SECONDS cores=$(nproc)
export LD_LIBRARY_PATH=$here/lib:$here/inlane UCX_MODULE_DIR=$here/lib/ucx OPAL_PREFIX=$here/prefix PMIX_INSTALL_PREFIX=$here/lib/pmix2
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 HOME=${HOME:-/tmp} TMPDIR=${TMPDIR:-/tmp}
export SHMEM_PROGRESS_INTERVAL=0 SHMEM_SYMMETRIC_SIZE=100000000 UCX_LOG_LEVEL=error
mpi="$here/prefix/bin/orterun --allow-run-as-root --mca plm isolated --mca btl_vader_single_copy_mechanism none --bind-to core"
left() { echo $((limit - (SECONDS - start))); }
cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)
printf '{"machine":"%s","cores":%d,"kernel":"%s","load":"%s","commit":"%s"}\n' "$cpu" "$cores" "$(uname -r)" "$(cut -d' ' -f1-3 /proc/loadavg)" "$(cat COMMIT)"

# figures TURN LIBRARY TRANSPORT PES MILLISECONDS OPERATION...: runs figures once, one JSON line for each case
figures() {
    local turn=$1 library=$2 transport=$3 pes=$4 ms=$5; shift 5
    [ "$(left)" -gt 4 ] && [ "$pes" -le "$cores" ] || return
    local program=$library settings=()
    case $library in windows | ucx) program=inlane settings+=(INLANE_NTB_TRANSPORT=$library) ;; esac
    [ "$transport" = tcp ] && settings+=(UCX_TLS=tcp,self UCX_NET_DEVICES=lo)
    local began=${EPOCHREALTIME/./} out
    # Open MPI 4.1.4 crashes in shmem_finalize, after the last figure, so the status says nothing. "checked" is the last line.
    out=$(env "${settings[@]}" timeout -k 2 8 $mpi -np "$pes" "$here/bin/$program" "$ms" 8 4096 "$@" 2>"$here/errors.txt")
    local ms_used=$(((${EPOCHREALTIME/./} - began) / 1000)) ok=false
    grep -q '^checked ' <<<"$out" && ok=true
    awk -v t="$turn" -v l="$library" -v tr="$transport" -v p="$pes" -v ok=$ok -v used=$ms_used '
        $1 == "pinned" { cores = cores (cores == "" ? "" : " ") $3 "/" $4 }
        $1 != "pinned" && $1 != "checked" && NF == 4 && $3 + 0 > 0 {
            printf "{\"turn\":%d,\"library\":\"%s\",\"transport\":\"%s\",\"pes\":%d,\"operation\":\"%s\",\"bytes\":%d,\"least_ns\":%s,\"median_ns\":%s}\n", t, l, tr, p, $1, $2, $3, $4 }
        END { printf "{\"turn\":%d,\"library\":\"%s\",\"transport\":\"%s\",\"pes\":%d,\"checked\":%s,\"cores\":\"%s\",\"run_ms\":%d}\n", t, l, tr, p, ok, cores, used }' <<<"$out"
    [ $ok = true ] || printf '{"turn":%d,"library":"%s","transport":"%s","pes":%d,"error":"%s"}\n' "$turn" "$library" "$transport" "$pes" \
        "$(tr -d '"\\\000-\037' <"$here/errors.txt" | tail -c 300)"
}
# perftest TURN TRANSPORT BYTES: ucx_perftest's put on the first two cores
perftest() {
    [ "$(left)" -gt 4 ] || return
    local port=$((20000 + RANDOM % 10000)) tls=tcp,self server line
    [ "$2" = shm ] && tls=shm,self,tcp
    UCX_TLS=$tls UCX_NET_DEVICES=lo timeout -k 1 6 taskset -c 1 bin/ucx_perftest -p $port >/dev/null 2>&1 &
    server=$!
    sleep 0.2
    line=$(UCX_TLS=$tls UCX_NET_DEVICES=lo timeout -k 1 6 taskset -c 0 bin/ucx_perftest 127.0.0.1 -p $port -f -t ucp_put_bw -s "$3" -n "$4" -w $(($4 / 10)) 2>"$here/errors.txt" | tail -1)
    wait $server 2>/dev/null
    # With -f: iterations, median, average and overall microseconds, bandwidths, rates
    awk -v t="$1" -v tr="$2" -v b="$3" '{ sub(/^Final:/, ""); if (NF >= 4) printf "{\"turn\":%d,\"library\":\"ucx_perftest\",\"transport\":\"%s\",\"pes\":2,\"operation\":\"put\",\"bytes\":%d,\"iterations\":%d,\"mean_ns\":%.1f}\n", t, tr, b, $1, $4 * 1000
        else printf "{\"turn\":%d,\"library\":\"ucx_perftest\",\"transport\":\"%s\",\"bytes\":%d,\"error\":\"no result\"}\n", t, tr, b }' <<<"$line"
}
for turn in 1 2 3 4 5 6; do
    order="windows ucx openmpi sandia"; [ $((turn % 2)) = 0 ] && order="sandia openmpi ucx windows"
    for library in $order; do figures $turn $library shm 2 0.5 put barrier; done
    for pes in 4 8 16; do for library in $order; do figures $turn $library shm $pes 0.5 barrier; done; done
    for library in $order; do
        # Open MPI's barriers do not use UCX, so they do not run over TCP.
        case $library in windows) ;; openmpi) figures $turn openmpi tcp 2 2 put ;; *) figures $turn $library tcp 2 2 put barrier ;; esac
    done
    for bytes in 8 64 512 1024 4096; do perftest $turn tcp $bytes 50000; done
    for bytes in 8 64 512 1024 4096; do perftest $turn shm $bytes 500000; done
    [ "$(left)" -gt 15 ] || break
done
printf '{"seconds":%d,"load":"%s"}\n' $((SECONDS - start)) "$(cut -d' ' -f1-3 /proc/loadavg)"
