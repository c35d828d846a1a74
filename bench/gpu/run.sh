#!/bin/bash
# Runs inlane forward once for each line of a list. Prints one line per run and keeps every JSON document in
# OUT/results.jsonl.
# Usage: run.sh INLANE OUT < list      Each line of the list is: LABEL | FLAGS
inlane=$1 out=$2 failed=0
export INLANE_CACHE=${INLANE_CACHE:-/tmp/inlane-cache}
here=$(dirname "$0")
while IFS='|' read -r label flags; do
    [ -n "$flags" ] || continue
    # shellcheck disable=SC2086
    timeout -k 3 "${LIMIT:-30}" "$inlane" forward --no-baseline --json - $flags 2>"$out/err.txt" >"$out/one.json" </dev/null
    rc=$?
    [ -s "$out/one.json" ] && python3 "$here/line.py" "$out/one.json" "$label" "$out/results.jsonl"
    [ $rc = 0 ] || { failed=1; echo "   $label: exit status $rc"; head -5 "$out/err.txt"; }
done
rm -f "$out/one.json" "$out/err.txt"
exit $failed
