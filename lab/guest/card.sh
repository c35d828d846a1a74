#!/bin/sh
# Runs an engine of `inlane offload` in one machine and its card in another. They share only an ivshmem device:
#
#   lab/ntb-two-vms.sh --timeout 300 --module veth --file target/debug/inlane --file target/debug/libinlane_preload.so \
#       --file target/debug/tcp-check --file lab/guest/card.sh sh /bin/card.sh engine ::: sh /bin/card.sh card
#
# A program of the first machine exchanges bytes with servers and clients of the second machine's kernel, which are in a network
# namespace behind the card's veth. Then the card is killed and started again.
set -u
control=/run/engine log=/tmp/log
mkdir -p /run /tmp
touch $log /tmp/server /tmp/held

fail() {
    echo "FAILED $role: $*" >&2
    tail -n 50 $log /tmp/server /tmp/held >&2
    exit 1
}

await() { # COMMAND...: repeats a command until it succeeds
    for _ in $(seq 600); do
        "$@" >/dev/null 2>&1 && return
        usleep 200000
    done
    fail "no success in time: $*"
}

engine() {
    local run="inlane offload run --require --socket $control --"
    inlane offload serve --card --port ntb:0000:00:01.0,wait=120 --address 10.0.0.1/24 --socket $control 2>>$log &
    engine=$!
    await grep -q ready $log
    $run tcp-check exchange 10.0.0.2:5000 || fail "download and upload"
    $run tcp-check serve 10.0.0.1:6000 >/tmp/server &
    server=$!
    # The other machine kills the card when its server holds this connection, so after the status.
    {
        await grep -q connected /tmp/held
        inlane offload status --socket $control --json - >/tmp/status
    } | $run tcp-check hold 10.0.0.2:5000 >/tmp/held || fail "a connection whose card is killed"
    grep -q '"transport": *"card"' /tmp/status || fail "transport in the status: $(cat /tmp/status)"
    $run tcp-check exchange 10.0.0.2:5000 || fail "a connection by the second card"
    # A client of the second card ends the server.
    wait $server || fail "the program's server"
    [ "$(grep -c served /tmp/server)" = 2 ] || fail "the program's server has not served two clients"
    $run tcp-check end 10.0.0.2:5000 || fail "the end of the kernel's server"
    kill $engine
    wait $engine || fail "the engine's exit status"
}

card() {
    # The `ip` of busybox cannot name the peer. The kernel calls it veth0.
    ip link add e0 type veth || fail "veth"
    unshare -n sleep 1000 &
    namespace=$!
    await sh -c "[ \$(readlink /proc/$namespace/ns/net) != \$(readlink /proc/self/ns/net) ]"
    inside="nsenter -t $namespace -n"
    ip link set veth0 netns $namespace && ip link set e0 up && $inside ip addr add 10.0.0.2/24 dev veth0 &&
        $inside ip link set veth0 up || fail "the network namespace"
    $inside tcp-check serve 10.0.0.2:5000 >/tmp/server &
    server=$!
    for number in 1 2; do
        : >$log
        inlane offload card --engine ntb:0000:00:01.0,wait=120 --port af_xdp:e0 2>>$log &
        card=$!
        await grep -q ready $log
        $inside tcp-check exchange 10.0.0.1:6000 || fail "an exchange with the program's server by card $number"
        [ $number = 1 ] || break
        await grep -q holding /tmp/server
        kill -9 $card
        wait $card
    done
    $inside tcp-check end 10.0.0.1:6000 || fail "the end of the program's server"
    wait $server || fail "the kernel's server"
    [ "$(grep -c served /tmp/server)" = 2 ] || fail "the kernel's server has not served two clients"
    kill $card
    wait $card || fail "the card's exit status"
}

role=$1
"$role"
echo "$role: ok"
