# Runs in a guest. Starts `inlane nvme target` and uses it with Linux's NVMe/TCP host: discovery, file systems, digests, events,
# resizing, and a target that is killed and restarted under load.
#
#   lab/vm/run.py --memory 1G --module nvme_tcp --module ext4 --module crc32c_generic --file target/debug/inlane \
#       --file $(which nvme) --file $(which mkfs.ext4) --file $(which fio) --file lab/guest/steps.sh \
#       --file lab/guest/nvme-host.sh -- sh /bin/nvme-host.sh
#
# Each step prints a line that ends in ': ok'.
set -e
. /bin/steps.sh
nqn=nqn.2026-11.inlane:lab
at="--transport tcp --traddr 127.0.0.1"
mkdir -p /etc/nvme /tmp/mount
echo nqn.2014-08.org.nvmexpress:uuid:0f01fb42-9f7f-4856-b0b3-51e60b8de349 >/etc/nvme/hostnqn
echo 0f01fb42-9f7f-4856-b0b3-51e60b8de349 >/etc/nvme/hostid
cp /etc/nvme/hostnqn /tmp/hosts
truncate -s 64M /tmp/disk /tmp/readonly

start() { # starts the target on two ports
    inlane nvme target --listen 127.0.0.1:4420 --listen 127.0.0.1:4421 --namespace memory:64M,lba=4096 --namespace file:/tmp/disk \
        --namespace file:/tmp/readonly,ro --nqn $nqn --hosts-file /tmp/hosts --threads 2 --json /tmp/result.json \
        2>>/tmp/target.log >/tmp/result.txt &
    target=$!
    await 20 grep -q "$1" /tmp/target.log
}

connect() { # ARGUMENTS...: connects to the subsystem and waits for its namespaces
    nvme connect $at --nqn $nqn --trsvcid 4420 --keep-alive-tmo 4 --reconnect-delay 1 --ctrl-loss-tmo 60 "$@"
    await 10 test -b /dev/nvme0n3
}

start "namespace 3"

nvme discover $at --trsvcid 4421 >/tmp/discovery
[ "$(grep -c "subnqn: *$nqn" /tmp/discovery)" = 2 ] || fail "$(cat /tmp/discovery)"
echo discovery: ok

refused nvme connect $at --trsvcid 4420 --nqn nqn.2026-11.inlane:other
refused nvme connect $at --trsvcid 4420 --nqn $nqn --hostnqn nqn.2026-11.inlane:stranger
echo refusals: ok

# connect-all connects to every address that discovery names. One subsystem has two paths then, and needs only one of them. The discovery
# controller was nvme0 until then, so Linux numbers the subsystem by its first controller, nvme1.
nvme connect-all $at --trsvcid 4421 >/tmp/out
await 10 test -b /dev/nvme1n3
await 10 grep -q live /sys/class/nvme/nvme2/state
dd if=/dev/urandom of=/tmp/block bs=4096 count=1 2>/tmp/err
dd if=/tmp/block of=/dev/nvme1n1 bs=4096 count=1 conv=fsync 2>/tmp/err
nvme disconnect --device nvme1 >/tmp/out
dd if=/dev/nvme1n1 bs=4096 count=1 iflag=direct 2>/tmp/err | cmp - /tmp/block
nvme disconnect --nqn $nqn >/tmp/out
await 10 test ! -e /sys/class/nvme/nvme2
echo connect-all: ok

for digests in "" "--hdr-digest --data-digest"; do
    connect $digests
    for n in 1 2; do
        mkfs.ext4 -q /dev/nvme0n$n
        mount /dev/nvme0n$n /tmp/mount
        dd if=/dev/urandom of=/tmp/source bs=1M count=6 2>/dev/null
        cp /tmp/source /tmp/mount/copy
        umount /tmp/mount
        mount -o ro /dev/nvme0n$n /tmp/mount
        cmp /tmp/source /tmp/mount/copy
        umount /tmp/mount
    done
    nvme disconnect --nqn $nqn >/tmp/out
    echo "file systems ${digests:-without digests}: ok"
done

connect --hdr-digest --data-digest
[ "$(cat /sys/block/nvme0n3/ro)" = 1 ]
refused dd if=/dev/zero of=/dev/nvme0n3 bs=4096 count=1
echo read-only: ok

dd if=/dev/urandom of=/tmp/block bs=4096 count=1 2>/tmp/err
[ "$(cat /sys/block/nvme0n1/queue/write_zeroes_max_bytes)" = $((32 << 20)) ]
dd if=/tmp/block of=/dev/nvme0n2 bs=4096 count=2 conv=fsync 2>/tmp/err
for n in 1 2; do
    # The first namespace has blocks of 4096 bytes, the second one blocks of 512 bytes. NVMe counts blocks less one.
    blocks=$((4096 / $(cat /sys/block/nvme0n$n/queue/logical_block_size)))
    range="--start-block 0 --block-count $((blocks - 1)) --data-size 4096"
    dd if=/tmp/block of=/dev/nvme0n$n bs=4096 count=1 conv=fsync 2>/tmp/err
    nvme compare /dev/nvme0n$n $range --data /tmp/block >/tmp/out
    nvme write-zeroes /dev/nvme0n$n --start-block 0 --block-count 0 >/tmp/out
    refused nvme compare /dev/nvme0n$n $range --data /tmp/block
    nvme dsm /dev/nvme0n$n --ad --slbs 0 --blocks $blocks >/tmp/out
    nvme flush /dev/nvme0n$n >/tmp/out
    nvme read /dev/nvme0n$n $range --data /tmp/read 2>/tmp/out
    dd if=/dev/zero bs=4096 count=1 2>/tmp/err | cmp - /tmp/read
    nvme write /dev/nvme0n$n $range --data /tmp/block 2>/tmp/out
    nvme read /dev/nvme0n$n $range --data /tmp/read 2>/tmp/out
    cmp /tmp/block /tmp/read
done
nvme id-ns /dev/nvme0n1 >/tmp/out
grep -q "^nsze *: 0x4000$" /tmp/out && grep -q "lbads:12.*in use" /tmp/out || fail "identify namespace"
nvme ns-descs /dev/nvme0 --namespace-id 1 >/tmp/out
grep -q "uuid *: $(cat /sys/block/nvme0n1/uuid)" /tmp/out || fail "namespace descriptors"
[ "$(nvme list-ns /dev/nvme0 | grep -c ":0x")" = 3 ]
says "Invalid Namespace" nvme id-ns /dev/nvme0 --namespace-id 9
says "Invalid Command Opcode" nvme format /dev/nvme0n1 --lbaf 0 --force
says "Invalid Command Opcode" nvme sanitize /dev/nvme0 --sanact 2
says "Invalid Log Page" nvme persistent-event-log /dev/nvme0 --action 0
says "Invalid Log Page" nvme self-test-log /dev/nvme0
nvme reset /dev/nvme0
await 10 grep -q live /sys/class/nvme/nvme0/state
dd if=/dev/nvme0n2 bs=4096 count=1 iflag=direct 2>/tmp/err | cmp - /tmp/block
refused nvme resv-register /dev/nvme0n1 --nrkey 1
nvme id-ctrl /dev/nvme0 >/tmp/out
nvme effects-log /dev/nvme0 --csi 0 >/tmp/out
grep -q "Write Zeroes" /tmp/out || fail "$(cat /tmp/out)"
nvme show-regs /dev/nvme0 >/tmp/out
grep -q "^version *: 10400" /tmp/out || fail "$(cat /tmp/out)"
nvme fw-log /dev/nvme0 >/tmp/out
nvme error-log /dev/nvme0 >/tmp/out
grep -q "Invalid Command Opcode" /tmp/out || fail "$(cat /tmp/out)"
nvme smart-log /dev/nvme0 --namespace-id 3 >/tmp/out
grep -q "host_write_commands.*: 0" /tmp/out || fail "$(cat /tmp/out)"
refused nvme smart-log /dev/nvme0 --namespace-id 9
refused nvme set-feature /dev/nvme0n1 --feature-id 0xf --value 5000
grep -qi "not namespace specific" /tmp/out || fail "$(cat /tmp/out)"
echo commands: ok

truncate -s 96M /tmp/disk
await 10 grep -qx $((96 * 2048)) /sys/block/nvme0n2/size
truncate -s 64M /tmp/disk
await 10 grep -qx $((64 * 2048)) /sys/block/nvme0n2/size
echo resizing: ok

# The target is killed and restarted while fio writes and verifies. Linux's host reconnects and repeats what was not acknowledged.
fio --name=load --filename=/dev/nvme0n2 --direct=1 --ioengine=libaio --iodepth=16 --rw=randwrite --bs=4k --size=8M \
    --verify=crc32c --do_verify=1 --verify_fatal=1 --rate_iops=400 --randseed=7 >/tmp/fio.txt 2>&1 &
load=$!
sleep 2
kill -9 $target
sleep 1
: >/tmp/target.log
start "namespace 3"
wait $load || fail "$(cat /tmp/fio.txt)"
[ "$(cat /sys/class/nvme/nvme0/state)" = live ]
echo restart: ok

nvme disconnect --nqn $nqn >/tmp/out
kill -TERM $target
wait $target || fail "the target ended with an error"
grep -q '"protocol_violations": 0' /tmp/result.json || fail "$(cat /tmp/result.json)"
echo end: ok
trap - EXIT
