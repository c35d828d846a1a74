#!/bin/bash
# bale.sh TRANSPORT PES SECONDS: conveyors' own checks (make check), then bale's applications, each with a limit
transport=$1 pes=$2 limit=$3 here=$PWD start=$SECONDS
export LAUNCH="$here/inlane/inlane ntb run -n $pes --heap ${HEAP:-128M} --transport $transport --" MPP_INIT_QUIET=1
export SHMEM_SYMMETRIC_SIZE=${HEAP:-128M}
work=$TMPDIR/bale-$transport; rm -rf "$work"; mkdir -p "$work"
left() { echo $((limit - (SECONDS - start))); }
errors() { grep -v 'no errors' "$work/output" | grep -i 'error\|fail\|wrong\|mismatch'; }
# one NAME SECONDS COMMAND...
one() {
    local name=$1 most=$2 t status; shift 2
    [ "$(left)" -gt 3 ] || { echo "$name: left out, no time"; return; }
    [ "$most" -lt "$(left)" ] || most=$(($(left) - 1))
    t=${EPOCHREALTIME/./}
    timeout -k 2 "$most" "$@" >"$work/output" 2>&1
    status=$?
    # Of conveyors' checks, each case begins with its arguments and ends with its time.
    printf '%s: status %d, %d ms, %d lines, cases begun %d, ended %d, lines with errors: %d\n' "$name" $status $(((${EPOCHREALTIME/./} - t) / 1000)) \
        "$(wc -l <"$work/output")" "$(grep -c 'args =' "$work/output")" "$(grep -c 'elapsed time' "$work/output")" "$(errors | wc -l)"
    if [ $status != 0 ] || [ -n "$(errors)" ]; then head -c 1500 "$work/output"; echo " [...]"; tail -c 1500 "$work/output"; fi
}
convey() {
    local folder=$1 each=$2; shift 2
    cd "$here/bale/$folder" || return
    for test in "$@"; do one "$folder test_$test" "$each" sh -e "./test_$test"; done
}
each=${EACH:-30}
convey convey "$each" shmem_ptr examples tensor twohop simple elastic compress
mkdir -p "$work" && cd "$work" || exit 1
for app in histo ig randperm; do
    one "app $app" 10 $LAUNCH "$here/bale/bin/$app" -b 35 -n 813 -M "${MASK:-31}"
done
for app in topo transpose_matrix permute_matrix triangles sssp sparse_matrix_io; do
    one "app $app" 10 $LAUNCH "$here/bale/bin/$app" -b 120 -n 100 -F -z 2 -M "${MASK:-31}"
done
convey convey-noptr "$each" examples tensor elastic
cd "$work" || exit 1
for app in topo transpose_matrix permute_matrix triangles sssp; do
    one "app $app geometric" 10 $LAUNCH "$here/bale/bin/$app" -b 31 -n 300 -G -z 4 -M "${MASK:-31}"
done
rm -rf "$work"
