# Runs in two guests that a network cable joins (--link), each after guest/rxe.sh. Runs OpenSHMEM programs over UCX by software
# RoCEv2, with PEs on both machines.
#
#   sh /bin/rxe.sh 10.0.0.2/24 sh /bin/openshmem.sh serve                the second machine: runs the commands of the first
#   sh /bin/rxe.sh 10.0.0.1/24 sh /bin/openshmem.sh run                  the first machine: runs each program
#
# The first machine prints a line that ends in ': ok' for each program and kind of connection: RC (reliable connection) or UD
# (unreliable datagram). The first failing program ends the script.
# lab/tests/openshmem.rs starts both machines with all files.
other=10.0.0.2

# UCX allows 7 s for RC and 30 s for UD until a packet is acknowledged. A busy host may stop a machine for longer.
export UCX_RC_VERBS_TIMEOUT=10s UCX_UD_VERBS_TIMEOUT=5m
# UCX finds another destination address in packets that rxe has received by UD than the sender gave, and would drop them.
export UCX_UD_VERBS_ETH_DGID_CHECK=n
export UCX_WARN_UNUSED_ENV_VARS=n SHMEM_SYMMETRIC_SIZE=16M SHMEM_DEBUG=1

there() { # COMMAND: runs a command on the other machine with this process's settings and prints what it prints
    {
        env | sed -nE "s/^((INLANE|SHMEM|UCX)_[A-Z_]*)=(.*)/export \1='\3'/p"
        echo "$* 2>&1; echo \"status \$?\""
    } | nc $other 9000
}

case $1 in
serve)
    nc -ll -p 9000 -e /bin/sh &
    until [ -e /tmp/end ]; do usleep 100000; done
    # The command that made the file has yet to answer the first machine.
    sleep 2
    ;;
place) # PROGRAM...: starts a PE, those with an odd number on the other machine
    shift
    [ $((INLANE_NTB_PE % 2)) = 1 ] || exec "$@"
    there "$@" | {
        while read -r line; do
            case $line in "status "*) exit "${line#status }" ;; *) echo "$line" ;; esac
        done
        exit 1
    }
    ;;
run)
    until there true 2>/dev/null | grep -q 'status 0'; do usleep 100000; done
    failed=0
    for run in "basics over rc" "forked over rc" "basics over ud"; do
        program=${run%% *} kind=${run##* }
        UCX_TLS=$kind,self inlane ntb run -n 3 --transport ucx --address 10.0.0.1 -- \
            sh /bin/openshmem.sh place "$program" >/tmp/out 2>&1
        status=$?
        lines=$(grep -c "UCX .* (${kind}_verbs)" /tmp/out)
        [ $status:"$lines" = 0:3 ] || {
            echo "FAILED: $run: status $status, $lines PEs by ${kind}_verbs"
            cat /tmp/out
            dmesg | tail -n 20
            failed=1
            break
        }
        echo "$run: ok"
    done
    # The second machine may end before its answer arrives, so the wait for the answer has a limit.
    echo 'touch /tmp/end' | timeout 60 nc $other 9000
    exit $failed
    ;;
esac
