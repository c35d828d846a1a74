#!/bin/bash
# profile.sh BUILD FILE PATTERN BYTES DEPTH: where the time of the target's thread goes, and how many requests and system calls an
# operation takes. BUILD is a folder with the program of ../2026-11-23-2core-nvme-file/reads.rs. Needs root and perf.
build=$1 file=$2 scratch=$(mktemp -d)
shift 2
chrt --rr 1 taskset -c 0 "$build/reads" target 127.0.0.1:9101 1 "file:$file" 0 &
target=$!
sleep 0.5
chrt --rr 1 taskset -c 1 "$build/reads" bench 127.0.0.1:9101 "$@" 1 none 1.5 0 >"$scratch/bench" &
bench=$!
chrt --rr 2 perf record -q -e cpu-clock -F 4000 -g -p $target -o "$scratch/data" -- sleep 1 2>"$scratch/errors"
wait $bench
echo "# $* "
perf report -i "$scratch/data" --no-children --sort sym -g none 2>/dev/null | grep -v '^#' | grep . | head -12
perf report -i "$scratch/data" --children --sort sym -g none 2>/dev/null | grep -E ' (tcp_recvmsg|tcp_sendmsg|handle_softirqs|virtqueue_notify|io_write|io_read)$'
chrt --rr 2 perf stat -p $target -e io_uring:io_uring_submit_req,syscalls:sys_enter_io_uring_enter,context-switches -o "$scratch/stat" -- sleep 1.3 &
counts=$!
sleep 0.2
chrt --rr 1 taskset -c 1 "$build/reads" bench 127.0.0.1:9101 "$@" 1 none 0.8 0 >"$scratch/bench"
wait $counts
kill $target
wait $target
python3 - "$scratch" <<'PYTHON'
import json, re, sys
operations = json.load(open(sys.argv[1] + "/bench"))["operations_per_second"] * 0.8
for count, name in re.findall(r"([\d,]+)\s+([a-z][\w:-]+)\s*\n", open(sys.argv[1] + "/stat").read()):
    print(f"{name:40} {int(count.replace(',', '')) / operations:.2f} per operation")
PYTHON
rm -r "$scratch"
