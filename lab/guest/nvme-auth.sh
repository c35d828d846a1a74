# Runs in a guest whose kernel has CONFIG_NVME_HOST_AUTH and CONFIG_NVME_TARGET_AUTH. Authenticates (DH-HMAC-CHAP) Linux's host at
# `inlane nvme target`, and `inlane nvme read` at Linux's target: with every hash function, with and without a Diffie-Hellman group,
# in one and in both directions, with right and wrong secrets.
#
#   lab/vm/run.py --kernel DIR --memory 1G --module nvme_tcp --module nvmet_tcp --module loop --module sha512_generic \
#       --file target/debug/inlane --file $(which nvme) --file lab/guest/nvmet.sh --file lab/guest/steps.sh \
#       --file lab/guest/nvme-auth.sh -- sh /bin/nvme-auth.sh
#
# Each step prints a line that ends in ': ok'.
set -e
. /bin/steps.sh
nqn=nqn.2026-11.inlane:lab
host=nqn.2014-08.org.nvmexpress:uuid:0f01fb42-9f7f-4856-b0b3-51e60b8de349
mkdir -p /etc/nvme
echo $host >/etc/nvme/hostnqn
echo 0f01fb42-9f7f-4856-b0b3-51e60b8de349 >/etc/nvme/hostid
umask 077

start() { # FLAGS...: starts the target
    : >/tmp/target.log
    inlane nvme target --listen 127.0.0.1:4430 --namespace memory:8M --nqn $nqn --secrets-file /tmp/secrets "$@" \
        >/tmp/result.txt 2>/tmp/target.log &
    target=$!
    await 20 grep -q "namespace 1" /tmp/target.log
}

stop() {
    kill -TERM $target
    wait $target || fail "the target ended with an error"
}

connect() { # FLAGS...: connects Linux's host with two I/O queues
    nvme connect --transport tcp --traddr 127.0.0.1 --trsvcid 4430 --nqn $nqn --nr-io-queues 2 "$@"
}

says() { # TEXT FLAGS...: inlane's host fails at Linux's target with a message that contains the text
    text=$1
    shift
    if inlane nvme read $at "$@" >/tmp/out 2>&1; then return 1; fi
    grep -q "$text" /tmp/out
}

# A machine that is loaded can exceed the time that a target allows for an authentication, so what must succeed is tried again.
use() { # FLAGS...: connects, writes, reads back and disconnects
    await 90 connect "$@"
    await 20 test -b /dev/nvme0n1
    dd if=/tmp/data of=/dev/nvme0n1 bs=4096 count=4 conv=fsync 2>/tmp/out
    dd if=/dev/nvme0n1 bs=4096 count=4 2>/tmp/out | cmp - /tmp/data
    nvme disconnect --nqn $nqn >/tmp/out
}

dd if=/dev/urandom of=/tmp/data bs=4096 count=4 2>/tmp/out
wrong=$(inlane nvme gen-dhchap-key)

# Linux's host at inlane's target.
for pair in "sha256 null" "sha384 null" "sha512 null" "sha256 ffdhe2048" "sha512 ffdhe3072"; do
    hash=${pair% *} group=${pair#* }
    inlane nvme gen-dhchap-key --hmac $hash --host-nqn $host --target-secret >/tmp/secrets
    read -r name secret of_target </tmp/secrets
    start --dhchap-hash $hash --dhchap-dhgroup $group
    use --dhchap-secret "$secret" --dhchap-ctrl-secret "$of_target"
    refused connect --dhchap-secret "$wrong"
    refused connect --dhchap-secret "$secret" --dhchap-ctrl-secret "$wrong"
    refused connect
    use --dhchap-secret "$secret"
    stop
    dmesg | grep -q "authenticated with hash.*$hash.*dhgroup $group" || fail "no message of the kernel for $hash $group"
    echo "host of Linux, $hash $group: ok"
done

# Reauthentication: the host gets its secret again, and then a wrong one, while it stays connected.
secret=$(nvme gen-dhchap-key --hmac 0)
echo "$host $secret" >/tmp/secrets
start
connect --dhchap-secret "$secret"
await 20 test -b /dev/nvme0n1
echo "$secret" >/sys/class/nvme/nvme0/dhchap_secret
dd if=/dev/nvme0n1 of=/tmp/read bs=4096 count=4 iflag=direct 2>/tmp/out
! grep -q "failed" /tmp/target.log || fail "the repetition with the right secret"
echo "$wrong" >/sys/class/nvme/nvme0/dhchap_secret || true
await 20 grep -q "the authentication of $host failed" /tmp/target.log
nvme disconnect --nqn $nqn >/tmp/out
stop
echo "reauthentication: ok"

# inlane's host at Linux's target.
cd /sys/kernel/config/nvmet
linux=nqn.2024-01.inlane:lab
mkdir hosts/$host
echo 0 >subsystems/$linux/attr_allow_any_host
ln -s /sys/kernel/config/nvmet/hosts/$host subsystems/$linux/allowed_hosts/$host
# Linux's target allows the time of the keep-alive timeout.
at="127.0.0.1:4420 --subsystem $linux --keep-alive 60s --timeout 60s --length 4K /tmp/read"
for pair in "sha256 null" "sha384 null" "sha512 null" "sha256 ffdhe2048" "sha512 ffdhe3072"; do
    hash=${pair% *} group=${pair#* }
    inlane nvme gen-dhchap-key --hmac $hash --host-nqn $host --target-secret >/tmp/secrets
    read -r name secret of_target </tmp/secrets
    echo "$secret" >hosts/$host/dhchap_key
    echo "$of_target" >hosts/$host/dhchap_ctrl_key
    echo "hmac($hash)" >hosts/$host/dhchap_hash
    echo $group >hosts/$host/dhchap_dhgroup
    await 90 inlane nvme read $at --secrets-file /tmp/secrets --queues 2
    echo "$host $secret" >/tmp/one
    await 90 inlane nvme read $at --secrets-file /tmp/one
    echo "$host $wrong" >/tmp/bad
    await 90 says "refused this host's secret" --secrets-file /tmp/bad
    echo "$host $secret $wrong" >/tmp/bad
    await 90 says "did not prove" --secrets-file /tmp/bad
    await 90 says "give the secrets with --secrets-file"
    echo "target of Linux, $hash $group: ok"
done
inlane nvme discover 127.0.0.1:4420 --secrets-file /tmp/secrets >/tmp/out || fail "discovery"
echo "end: ok"
trap - EXIT
