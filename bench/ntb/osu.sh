#!/usr/bin/env bash
# The OpenSHMEM tests of OSU Micro-Benchmarks, compiled unmodified against this library and run.
#
#   bench/ntb/osu.sh SOURCES [PES]
#
# SOURCES: an unpacked release (https://mvapich.cse.ohio-state.edu/benchmarks/; 7.x, where the tests are in c/openshmem, or an older
# one, where they are in openshmem). PES: 2 unless given; the tests between pairs always take 2. Prints each test's output;
# the exit status is 1 when one does not compile or fails.
#
# INLANE, INLANE_LIB: the program, and the folder with libinlane_shmem.so (target/release, as built by
#   cargo build --release -p inlane -p inlane-shmem)
set -euo pipefail

here=$(cd "$(dirname "$0")/../.." && pwd)
sources=${1:?give the folder of the sources}
pes=${2:-2}
inlane=${INLANE:-$here/target/release/inlane}
library=${INLANE_LIB:-$here/target/release}
out=$(mktemp -d -t inlane-osu-XXXXXX)
trap 'rm -rf "$out"' EXIT

if [[ -d $sources/c/openshmem ]]; then
    tests=$sources/c/openshmem
    shared=("$sources/c/util/osu_util.c" "$sources/c/util/osu_util_pgas.c" -I "$sources/c/util")
else
    tests=$sources/openshmem
    shared=("$tests/osu_common.c" -I "$tests")
fi
failed=0
for source in "$tests"/osu_oshm_*.c; do
    name=$(basename "$source" .c)
    # Warnings are theirs.
    if ! "${CC:-cc}" -std=gnu99 -O2 -w -D_OSHM_ -DFIELD_WIDTH=18 -DFLOAT_PRECISION=2 -o "$out/$name" "$source" "${shared[@]}" \
        -I "$here/crates/shmem/include" -L "$library" -linlane_shmem "-Wl,-rpath,$library" -lm; then
        echo "$name: does not compile" >&2
        failed=1
        continue
    fi
    case $name in
        *put | *get | *put_nb | *get_nb | *overlap) count=2 arguments=(heap) ;;
        *put_mr* | *get_mr* | *atomics) count=2 arguments=(heap) ;;
        *) count=$pes arguments=() ;;
    esac
    echo "== $name, $count PEs"
    timeout 120 "$inlane" ntb run -n "$count" -- "$out/$name" "${arguments[@]}" || {
        echo "$name: status $?" >&2
        failed=1
    }
done
exit "$failed"
