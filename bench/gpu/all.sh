#!/bin/bash
# Runs all checks, fault tests and measurements that need a GPU. Prints which steps failed at the end.
# Usage: all.sh INLANE OUT [EXAMPLES]      EXAMPLES: a folder with the built examples own-kernel and oran-power
inlane=$(realpath "$1") out=$2 examples=${3:-$(dirname "$1")/examples} here=$(realpath "$(dirname "$0")") failed=
mkdir -p "$out"
step() { # name, command...
    local name=$1 begun=$SECONDS
    shift
    echo "== $name"
    "$@" 2>&1 | tee "$out/$name.txt"
    [ "${PIPESTATUS[0]}" = 0 ] || failed="$failed $name"
    echo "== $name: $((SECONDS - begun)) s"
}
measured() { "$here/$1" | "$here/run.sh" "$inlane" "$out"; }
nvidia-smi -L || { echo "SKIPPED all steps: no GPU"; exit 0; }
step own-kernel "$examples/own-kernel"
step oran-power "$examples/oran-power"
step check python3 "$here/check.py" "$inlane"
step faults "$here/faults.sh" "$inlane"
step sanitizer "$here/sanitizer.sh" "$inlane"
step table measured table.sh
step scaling measured scaling.sh
step billion "$here/billion.sh" "$inlane" "$out"
[ -z "$failed" ] && echo "all passed" || { echo "FAILED:$failed"; exit 1; }
