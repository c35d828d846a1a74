#!/bin/sh
# Runs an engine of `inlane offload` on an ivshmem device, and a program on it. Call it in two machines:
#
#   lab/ntb-two-vms.sh --timeout 300 --file target/debug/inlane --file target/debug/libinlane_preload.so \
#       --file lab/guest/engines.sh sh /bin/engines.sh target ::: sh /bin/engines.sh bench
#
# The first machine runs an NVMe/TCP target, until the second machine has ended. The second machine runs the bench.
set -u
control=/run/engine log=/tmp/log
mkdir -p /run /tmp
case $1 in target) number=1 ;; bench) number=2 ;; *) echo "give target or bench" >&2; exit 2 ;; esac

await() { # await TEXT: waits until the engine has logged the text
    for _ in $(seq 200); do
        grep -q "$1" "$log" && return
        kill -0 "$engine" || break
        sleep 1
    done
    echo "'$1' is not in the engine's log:" >&2
    cat "$log" >&2
    exit 1
}

inlane offload serve --port ntb:0000:00:01.0,wait=120 --address 10.0.0.$number/24 --mac 02:00:00:00:00:0$number --socket "$control" 2>"$log" &
engine=$!
await ready
run="inlane offload run --require --socket $control -- /bin/inlane nvme"
if [ "$1" = target ]; then
    $run target --namespace memory:16M --listen 10.0.0.1:4420 &
    target=$!
    await "link is down"
    kill "$target"
    wait "$target"
    status=$?
else
    # The target may start later.
    for _ in $(seq 60); do
        $run bench 10.0.0.1:4420 --rw randrw --bs 4K --duration 2s --digests both --verify crc32c && break
        sleep 1
    done
    status=$?
fi
inlane offload status --socket "$control"
kill "$engine"
wait "$engine" || status=$?
[ $status -ne 0 ] || echo "engine $number: ok"
exit $status
