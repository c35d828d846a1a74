#!/usr/bin/env bash
# Compiles the OpenSHMEM tests of the OSU Micro-Benchmarks unmodified against this library, and runs them.
#
#   bench/ntb/osu.sh SOURCES [PES]
#
# SOURCES     folder of an unpacked release (https://mvapich.cse.ohio-state.edu/benchmarks/), 7.x or older
# PES         number of PEs [default: 2]; tests between pairs use 2
# INLANE      the program [default: target/release/inlane]
# INLANE_LIB  folder of libinlane_shmem.so [default: target/release]
#
# Build both by: cargo build --release -p inlane -p inlane-shmem
# Prints each test's output. Exits with 1 if a test does not compile or fails.
set -euo pipefail

here=$(cd "$(dirname "$0")/../.." && pwd)
sources=${1:?give the directory of the OSU sources}
pes=${2:-2}
inlane=${INLANE:-$here/target/release/inlane}
library=${INLANE_LIB:-$here/target/release}
out=$(mktemp -d -t inlane-osu-XXXXXX)
trap 'rm -rf "$out"' EXIT
# A program that was linked with the library looks for it by the name with the version.
ln -s "$(realpath "$library/libinlane_shmem.so")" "$out/libinlane_shmem.so.0"

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
    # -w hides warnings, because these sources must stay unmodified.
    if ! "${CC:-cc}" -std=gnu99 -O2 -w -D_OSHM_ -DFIELD_WIDTH=18 -DFLOAT_PRECISION=2 -o "$out/$name" "$source" "${shared[@]}" \
        -I "$here/crates/shmem/include" -L "$library" -linlane_shmem "-Wl,-rpath,$out" -lm; then
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
