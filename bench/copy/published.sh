#!/bin/bash
# Runs the parts of the published experiment that need no accelerator: the CPU reads and writes a PCI BAR with
# each access width and copies from BAR to BAR; twins of the published accelerator transfer data.
#
#   bench/copy/published.sh INLANE OUT       INLANE: the program; OUT: a folder for the results
#
# The BARs belong to two ivshmem devices under vfio-pci in a virtual machine (lab/README.md lists what it
# needs). The machine's processor is emulated, so the accesses are real, but their times are the emulator's.
# Takes two minutes.
set -eu
inlane=$(realpath "$1") root=$(realpath "$(dirname "$0")/../..")
mkdir -p "$2"
cd "$2"

a=pci:0000:00:01.0/bar2@0+4M b=pci:0000:00:02.0/bar2@0+4M
guest="
for access in 4 8 16 32 nt; do
    for ends in '--from host --to $a' '--from $a --to host' '--from $a --to $b'; do
        inlane copy \$ends --require cpu --access \$access --sizes 4K,64K,1M --repeats 5 --duration 50ms \
            --allow-bar-read --allow-bar-write --json - 2>/tmp/errors || { cat /tmp/errors >&2; exit 1; }
    done
done"
"$root/lab/vm/run.py" --timeout 400 --memory 1G --iommu --ivshmem 4M --ivshmem 4M --vfio 0000:00:01.0 --vfio 0000:00:02.0 \
    --file "$inlane" -- sh -c "$guest" >bar.txt
python3 - <<'PYTHON'
import json

text, decoder = open("bar.txt").read().strip(), json.JSONDecoder()
with open("bar.jsonl", "w") as lines:
    while text:
        document, end = decoder.raw_decode(text)
        text = text[end:].lstrip()
        lines.write(json.dumps(document) + "\n")
        for row in document["results"]:
            access = document["command"]["arguments"][document["command"]["arguments"].index("--access") + 1]
            print(f"{row['from']} -> {row['to']}, {access}, {row['store_end'] or 'done'}, {row['size_bytes']} B: "
                  f"{row['latency_ns']['median'] / 1e3:.1f} us, {row['verification']['verified_bytes']} bytes verified")
PYTHON
rm bar.txt
# Makes many long repeats. The result of a twin is its best repeat, because other jobs may disturb some
# repeats.
"$inlane" copy --published --repeats 10 --duration 300ms --json twins.json >twins.txt
cat twins.txt
