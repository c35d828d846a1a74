#!/usr/bin/env bash
# Starts two virtual machines that share only a PCI device: ivshmem with doorbells, under vfio-pci behind an
# emulated IOMMU.
#
#   lab/ntb-two-vms.sh [--memory 16M] [--vectors 4] [--timeout 120] [--file PATH]... [--module NAME]... PROGRAM [ARG...] [::: PROGRAM [ARG...]]
#
# Runs the program in both machines, or the program after ':::' in the second. --file copies more files to
# /bin of both, --module loads a kernel module. The device is 0000:00:01.0 in both; the first machine has number 0, the second number 1. The
# first machine's stdout goes to stdout, everything else to stderr. The exit status is that of the machine
# that failed first, or 0; 3 if a package is missing.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
memory=16M vectors=4 timeout=120 files=()
while [[ ${1-} == --* ]]; do
    case $1 in
        --memory) memory=$2 ;;
        --vectors) vectors=$2 ;;
        --timeout) timeout=$2 ;;
        --file | --module) files+=("$1" "$2") ;;
        *) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;;
    esac
    shift 2
done
first=() second=()
while [[ $# -gt 0 && $1 != ::: ]]; do first+=("$1"); shift; done
if [[ $# -gt 0 ]]; then shift; second=("$@"); else second=("${first[@]}"); fi
[[ ${#first[@]} -gt 0 && ${#second[@]} -gt 0 ]] || { echo "$0: name a program to run in the machines" >&2; exit 2; }

server=${IVSHMEM_SERVER:-$here/../target/debug/ivshmem-server}
[[ -n ${IVSHMEM_SERVER-} ]] || cargo build --quiet --manifest-path "$here/Cargo.toml" --bin ivshmem-server

home=$(mktemp -d -t inlane-ntb-XXXXXX)
children=()
finish() {
    for child in "${children[@]}"; do kill "$child" 2>/dev/null || true; done
    wait 2>/dev/null || true
    rm -rf "$home"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

await() { # await FILE TEXT: waits up to ten seconds until the file contains the text
    for _ in $(seq 200); do
        grep -q "$2" "$1" 2>/dev/null && return
        sleep 0.05
    done
    echo "$0: '$2' did not appear in $1 within ten seconds:" >&2
    cat "$1" >&2
    exit 1
}

"$server" --memory "$memory" --vectors "$vectors" "$home/socket" 2>"$home/server" &
children+=($!)
await "$home/server" listening

machine() { # machine NAME PROGRAM [ARG...]
    local name=$1
    shift
    exec "$here/vm/run.py" --name "$name" --timeout "$timeout" --iommu --doorbell "$home/socket:$vectors" \
        "${files[@]}" --vfio 0000:00:01.0 -- "$@"
}
machine first "${first[@]}" &
children+=($!)
# If the first machine cannot start, it prints why and never joins. The loop then ends with its exit status.
for _ in $(seq 200); do
    grep -q 'peer 0 joined' "$home/server" && break
    kill -0 "${children[1]}" 2>/dev/null || { wait "${children[1]}"; exit; }
    sleep 0.05
done
machine second "${second[@]}" >&2 &
children+=($!)

status=0
wait -n -p ended "${children[@]:1}" || status=$?
for child in "${children[@]:1}"; do
    [[ $status -ne 0 || $child -eq $ended ]] || wait "$child" || status=$?
done
exit "$status"
