#!/bin/bash
# series.sh COUNTS SECONDS: puts over TCP, in series of several lengths, beside ucx_perftest; COUNTS gets the counters of calls and of TCP for 512 bytes
counts_file=$1 limit=$2 here=$PWD start=$SECONDS; : >"$counts_file"
export UCX_NET_DEVICES=lo SHMEM_PROGRESS_INTERVAL=0 SHMEM_SYMMETRIC_SIZE=100000000 INLANE_NTB_TRANSPORT=ucx
mpi="$here/prefix/bin/orterun --allow-run-as-root --mca plm isolated --mca btl_vader_single_copy_mechanism none --bind-to core -np 2"
has_time() { [ $((limit - (SECONDS - start))) -gt "$1" ]; }
# series LABEL LIBRARY TLS BYTES COUNT...
series() {
    local label=$1 library=$2 tls=$3 bytes=$4; shift 4
    has_time 8 || return
    UCX_TLS=$tls timeout -k 1 8 $mpi $preload "bin/series-$library" "$bytes" "$@" 2>/dev/null |
        awk -v l="$label" -v lib="$library" '$1 == "series" { printf "{\"label\":\"%s\",\"library\":\"%s\",\"bytes\":%d,\"puts\":%d,\"repeats\":%d,\"least_ns\":%s,\"median_ns\":%s,\"median_loop_ns\":%s}\n", l, lib, $2, $3, $4, $5, $6, $7 }'
}
# perftest LABEL TLS BYTES COUNT
perftest() {
    has_time 4 || return
    local port=$((20000 + RANDOM % 10000)) server line
    $counter env UCX_TLS=$2 timeout -k 1 4 taskset -c 1 bin/ucx_perftest -p $port >/dev/null 2>&1 & server=$!
    sleep 0.2
    line=$($counter env UCX_TLS=$2 timeout -k 1 4 taskset -c 0 bin/ucx_perftest 127.0.0.1 -p $port -f -t ucp_put_bw -s "$3" -n "$4" -w "$4" 2>/dev/null | tail -1)
    wait $server
    awk -v l="$1" -v b="$3" -v n="$4" '{ sub(/^Final:/, ""); if (NF >= 4) printf "{\"label\":\"%s\",\"library\":\"ucx_perftest\",\"bytes\":%d,\"puts\":%d,\"mean_ns\":%.1f}\n", l, b, n, $4 * 1000 }' <<<"$line"
}
t=${TCP:-tcp,self}
preload= counter=
for turn in 1 2; do # the main question: does the length of a series explain the difference?
    for library in inlane openmpi sandia; do series "tcp $turn" $library $t 512 100 300 1000 3000 10000 50000; done
    for n in 300 300 300 1000 1000 3000 3000 10000 50000 500000; do perftest "tcp $turn" $t 512 $n; done
done
# counters
export COUNT_OUT=$TMPDIR/count
for library in inlane openmpi sandia; do
    preload="-x LD_PRELOAD=$here/bin/libcount.so -x COUNT_OUT -x COUNT_LABEL=$library"
    series counted $library $t 512 300 3000 50000
done
preload= counter="env LD_PRELOAD=$here/bin/libcount.so COUNT_AT_END=1"
for n in 300 3000 50000; do COUNT_OUT=$TMPDIR/count.perftest.$n perftest counted $t 512 $n; done
for f in "$TMPDIR"/count.*; do
    name=$(basename "$f"); sed "s/^{/{\"file\":\"$name\",/" "$f" >>"$counts_file"; rm -f "$f"
done
counter=; unset COUNT_OUT
for setting in UCX_TCP_NODELAY=n UCX_TCP_RCVBUF=64k UCX_TCP_RCVBUF=256k UCX_TCP_SNDBUF=64k; do
    export "${setting?}"; series "tcp ${setting}" inlane $t 512 300 3000 50000; perftest "tcp ${setting}" $t 512 300; perftest "tcp ${setting}" $t 512 50000; unset "${setting%%=*}"
done
SERIES_NBI=1 series "tcp nbi" inlane $t 512 300 3000 50000
for bytes in 8 64 1024 4096; do
    for library in inlane openmpi sandia; do series tcp $library $t $bytes 300 3000 50000; done
    for n in 300 3000 50000; do perftest tcp $t $bytes $n; done
done
for bytes in 8 64 512 1024 4096; do
    for library in inlane openmpi sandia; do series shm $library shm,self,tcp $bytes 300 50000; done
    for n in 300 50000; do perftest shm shm,self,tcp $bytes $n; done
done
exit 0
