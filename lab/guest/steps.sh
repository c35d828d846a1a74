# For scripts that run in a guest and print a line ending in ': ok' for each step. Include it by '. /bin/steps.sh' after 'set -e'. The first
# failing step ends the script with the log of the target, the output of the last command and the kernel's last messages.
# The last line of the script must be 'trap - EXIT'.

: >/tmp/target.log
: >/tmp/out

fail() {
    echo "FAILED: $*"
    cat /tmp/target.log /tmp/out
    dmesg | tail -n 30
    trap - EXIT
    exit 1
}
trap 'fail "the last command of the script"' EXIT

refused() { # COMMAND...: runs a command that must fail
    # The shell does not end the script if a command after '!' succeeds, not even with 'set -e'.
    if "$@" >/tmp/out 2>&1; then fail "the command must be refused: $*"; fi
}

says() { # TEXT COMMAND...: runs a command that must fail with this text in its output
    text=$1
    shift
    refused "$@"
    grep -qi "$text" /tmp/out || fail "'$text' is missing: $*"
}

await() { # SECONDS COMMAND...: repeats a command until it succeeds
    left=$(($1 * 10))
    shift
    until "$@" >/dev/null 2>&1; do
        left=$((left - 1))
        [ $left -gt 0 ] || fail "no success in time: $*"
        usleep 100000
    done
}
