# Runs in a guest. Injects faults into the disks of `inlane nvme target`: errors of reads, writes and flushes, a full disk, and writes that
# are still in flight when the host resets its controller. Linux's NVMe/TCP host and inlane's own are told the truth, and no flush
# succeeds whose data is lost.
#
#   lab/vm/run.py --memory 1G --timeout 240 --module nvme_tcp --module loop --module dm_flakey --module ext4 --module crc32c_generic \
#       --file target/debug/inlane --file $(which nvme) --file $(which mkfs.ext4) --file $(which dmsetup) --file lab/guest/steps.sh \
#       --file lab/guest/nvme-faults.sh -- sh /bin/nvme-faults.sh
#
# Each step prints a line that ends in ': ok'.
set -e
. /bin/steps.sh
nqn=nqn.2026-11.inlane:lab
at=127.0.0.1:4420
mkdir -p /etc/nvme /tmp/mount
echo nqn.2014-08.org.nvmexpress:uuid:0f01fb42-9f7f-4856-b0b3-51e60b8de349 >/etc/nvme/hostnqn
echo 0f01fb42-9f7f-4856-b0b3-51e60b8de349 >/etc/nvme/hostid
dd if=/dev/urandom of=/tmp/data bs=1M count=1 2>/tmp/out

# A device of 32 MiB on /tmp/backing. "broken" fails all requests from 8 to 9 MiB, and "deaf" fails all writes and flushes.
truncate -s 32M /tmp/backing
losetup /dev/loop0 /tmp/backing
whole() { echo "0 65536 linear /dev/loop0 0"; }
broken() { printf '0 16384 linear /dev/loop0 0\n16384 2048 error\n18432 47104 linear /dev/loop0 18432\n'; }
deaf() { echo "0 65536 flakey /dev/loop0 0 0 1000 1 error_writes"; }
whole | dmsetup create --noudevsync disk
device=/dev/dm-0
await 10 test -b $device
become() { # TABLE: replaces what the device does
    dmsetup suspend --noudevsync --noflush --nolockfs disk
    $1 | dmsetup load disk
    dmsetup resume --noudevsync disk
}

start() { # NAMESPACE...: starts the target
    arguments=
    for namespace in "$@"; do arguments="$arguments --namespace $namespace"; done
    : >/tmp/target.log
    inlane nvme target --listen $at $arguments --nqn $nqn --threads 2 2>>/tmp/target.log >/tmp/result.txt &
    target=$!
    await 20 grep -q "namespace $#:" /tmp/target.log
}

stop() { # STATUS: ends the target, which must end with this status
    kill -TERM $target
    status=0
    wait $target || status=$?
    [ $status = $1 ] || fail "the target ended with status $status instead of $1"
}

connect() {
    nvme connect --transport tcp --traddr 127.0.0.1 --trsvcid 4420 --nqn $nqn --keep-alive-tmo 60 --reconnect-delay 1 >/tmp/out
    await 10 test -b /dev/nvme0n1
}

put() { inlane nvme write $at /tmp/data --offset "$@"; }
get() { rm -f /tmp/back; inlane nvme read $at --length 64K --offset "$@" /tmp/back; }

# Errors of a device without a page cache reach the command that caused them, and only that one.
start block:$device,direct=on
put 8M >/tmp/out 2>&1
become broken
says "Unrecovered Read Error" get 8M
says "Write Fault" put 8M
put 2M >/tmp/out 2>&1
get 2M >/tmp/out 2>&1
head -c 65536 /tmp/data | cmp - /tmp/back
stop 0
echo "read and write errors: ok"

# Behind the page cache, a write succeeds at first. The kernel reports the loss to one flush only. No flush may succeed afterwards.
become whole
start block:$device,direct=off
put 2M >/tmp/out 2>&1
become broken
for n in 1 2 3 4; do
    (s=0; put $((n * 2))M >/tmp/out.$n 2>&1 || s=$?; echo $s >/tmp/status.$n) &
    eval "writer$n=$!"
done
wait $writer1 $writer2 $writer3 $writer4
[ "$(cat /tmp/status.4)" = 1 ] || fail "$(cat /tmp/out.4)"
cp /tmp/out.4 /tmp/out
grep -q "Write Fault" /tmp/out || fail "Write Fault is missing"
for n in 1 2 3; do
    # A flush that was served before the loss succeeds. Then its data is on the disk.
    [ "$(cat /tmp/status.$n)" != 0 ] || dd if=/tmp/backing bs=1M skip=$((n * 2)) count=1 2>/dev/null | cmp - /tmp/data
done
become whole
says "Write Fault" put 2M
get 2M >/tmp/out 2>&1
stop 1
grep -q "cannot make data durable" /tmp/target.log || fail "the log does not name the failed flush"
echo "concurrent flushes: ok"

# A flush that failed once fails until the target restarts, even if the device recovers. FUA writes behave the same.
for direct in on off; do
    start block:$device,direct=$direct
    connect
    dd if=/tmp/data of=/dev/nvme0n1 bs=64K count=1 oflag=direct 2>/tmp/out
    nvme flush /dev/nvme0n1 >/tmp/out
    become deaf
    if [ $direct = on ]; then
        says "Write Fault" nvme write /dev/nvme0n1 --start-block 0 --block-count 7 --data-size 4096 --data /tmp/data --force-unit-access
    else
        says "Write Fault" nvme flush /dev/nvme0n1
    fi
    become whole
    says "Write Fault" nvme flush /dev/nvme0n1
    says "Write Fault" nvme write /dev/nvme0n1 --start-block 0 --block-count 7 --data-size 4096 --data /tmp/data --force-unit-access
    nvme disconnect --nqn $nqn >/tmp/out
    stop 1
    echo "flushes after a failure with direct=$direct: ok"
done

# A flush that fails while the target ends makes it fail.
start block:$device,direct=off
connect
dd if=/tmp/data of=/dev/nvme0n1 bs=64K count=1 oflag=direct 2>/tmp/out
become deaf
nvme disconnect --nqn $nqn >/tmp/out 2>&1 || true
stop 1
become whole
echo "a failed flush at the end: ok"

# A full disk: new blocks are refused, with FUA too, and everything else goes on.
truncate -s 8M /tmp/small
losetup /dev/loop1 /tmp/small
mkfs.ext4 -q -m 0 /dev/loop1
mount /dev/loop1 /tmp/mount
for direct in on off; do
    rm -f /tmp/mount/disk /tmp/mount/filler
    start file:/tmp/mount/disk,size=16M,direct=$direct memory:4M
    connect
    put 0 >/tmp/out 2>&1
    dd if=/dev/zero of=/tmp/mount/filler bs=64K 2>/tmp/out || true
    sync
    block="nvme write /dev/nvme0n1 --block-count 7 --data-size 4096 --data /tmp/data"
    says "Capacity Exceeded" $block --start-block 20480 --force-unit-access
    says "Capacity Exceeded" $block --start-block 24576
    $block --start-block 0 --force-unit-access >/tmp/out 2>&1
    nvme flush /dev/nvme0n1 >/tmp/out
    inlane nvme write $at /tmp/data --namespace 2 >/tmp/out 2>&1
    rm /tmp/mount/filler
    $block --start-block 20480 --force-unit-access >/tmp/out 2>&1
    nvme disconnect --nqn $nqn >/tmp/out
    stop 0
    echo "full disk with direct=$direct: ok"
done

# While the device holds a write back, a reset of the controller is not complete. So the write cannot land on later data.
start block:$device,direct=on
connect
yes a | tr -d "\n" | head -c 4096 >/tmp/old
yes b | tr -d "\n" | head -c 4096 >/tmp/new
dmsetup suspend --noudevsync --noflush --nolockfs disk
dd if=/tmp/old of=/dev/nvme0n1 bs=4096 count=1 oflag=direct 2>/tmp/out.old &
old=$!
usleep 500000
echo 1 >/sys/class/nvme/nvme0/reset_controller &
reset=$!
await 5 grep -q resetting /sys/class/nvme/nvme0/state
usleep 1500000
grep -q resetting /sys/class/nvme/nvme0/state || fail "the reset is complete while a write is in flight"
dmsetup resume --noudevsync disk
await 30 grep -q live /sys/class/nvme/nvme0/state
wait $reset $old
dd if=/tmp/new of=/dev/nvme0n1 bs=4096 count=1 oflag=direct 2>/tmp/out
usleep 500000
head -c 4096 /tmp/backing | cmp - /tmp/new
nvme disconnect --nqn $nqn >/tmp/out
stop 0
echo "reset with a write in flight: ok"
trap - EXIT
