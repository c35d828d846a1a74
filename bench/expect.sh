# Sourced by scripts that try what must go wrong well: a command must end with a status and say a text, within a time.
# shellcheck shell=bash

# expect LABEL STATUS TEXT COMMAND...: TEXT is a pattern of grep's; EXPECT_SECONDS (30) is how long it may take. Prints a line that begins
# with ok or FAILED, and in the latter case what the command said; its status says which.
expect() {
    local label=$1 status=$2 text=$3 begun=$SECONDS output rc
    shift 3
    output=$(timeout -k 1 "${EXPECT_SECONDS:-30}" "$@" 2>&1)
    rc=$?
    if [ $rc = "$status" ] && grep -q -- "$text" <<<"$output"; then
        echo "ok      $label: exit status $rc after $((SECONDS - begun)) s"
    else
        echo "FAILED  $label: exit status $rc, wanted $status and '$text'"
        head -12 <<<"$output"
        return 1
    fi
}
