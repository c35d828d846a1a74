# Sourced by scripts that provoke faults: runs a command and checks its exit status, its output and the time
# it takes.
# shellcheck shell=bash

# expect LABEL STATUS TEXT COMMAND...: passes if COMMAND ends with STATUS within EXPECT_SECONDS (30) and
# prints TEXT (a grep pattern). Prints a line that starts with "ok" or "FAILED", and after a failure the start
# of the command's output. Returns 1 on failure.
expect() {
    local label=$1 status=$2 text=$3 begun=$SECONDS output rc
    shift 3
    output=$(timeout -k 1 "${EXPECT_SECONDS:-30}" "$@" 2>&1)
    rc=$?
    if [ $rc = "$status" ] && grep -q -- "$text" <<<"$output"; then
        echo "ok      $label: exit status $rc after $((SECONDS - begun)) s"
    else
        echo "FAILED  $label: exit status $rc, expected $status and '$text'"
        head -12 <<<"$output"
        return 1
    fi
}
