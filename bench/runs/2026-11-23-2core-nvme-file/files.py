#!/usr/bin/env python3
"""Measures a namespace in a file with several builds, plain messages and fio, in turns. Writes files.json.

    files.py ROUNDS SECONDS TARGET_CORE INITIATOR_CORE FILE BUILDS SPINS [CASE...]

Each of BUILDS (joined by commas) is a folder with the program of `reads.rs`; the first also has `plain-messages`. SPINS
are times in microseconds for which both sides poll before they sleep. fio runs twice: with its default memory and with
huge pages, which must be reserved (vm.nr_hugepages).
"""

import json
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROUNDS, SECONDS, TARGET, INITIATOR, FILE = int(sys.argv[1]), float(sys.argv[2]), *sys.argv[3:6]
BUILDS, SPINS = sys.argv[6].split(","), sys.argv[7].split(",")
CASES = {
    "randread 4k d1": ("randread", 4096, 1, 1),
    "randread 4k d32": ("randread", 4096, 32, 32),
    "randread 4k d64, fio 32": ("randread", 4096, 64, 32),
    "randwrite 4k d32": ("randwrite", 4096, 32, 32),
    "read 128k d8": ("read", 131072, 8, 8),
    "read 128k d16, fio 8": ("read", 131072, 16, 8),
    "randread 128k d8": ("randread", 131072, 8, 8),
    "write 128k d8": ("write", 131072, 8, 8),
}


def on(core, command):
    return ["taskset", "-c", core, *map(str, command)]


def output(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command}: {done.stderr}")
    return json.loads(done.stdout)


def start(command):
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wait_for(port):
    for _ in range(400):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.01)
    sys.exit(f"nothing listens on {port}")


def fio(rw, size, depth, memory):
    found = output(on(TARGET, [
        "fio", "--name=file", f"--filename={FILE}", "--ioengine=io_uring", "--direct=1", f"--rw={rw}", f"--bs={size}", f"--iodepth={depth}",
        "--time_based", f"--runtime={int(SECONDS * 1000)}ms", f"--size={Path(FILE).stat().st_size}", "--output-format=json", "--thread",
        f"--mem={memory}", *(["--norandommap"] if "rand" in rw else []),
    ]))
    return found["jobs"][0]["read" if "read" in rw else "write"]["iops"]


def inlane(build, spin, rw, size, depth):
    port = 9100
    server = start(on(TARGET, [f"{build}/reads", "target", f"127.0.0.1:{port}", 1, f"file:{FILE}", spin]))
    try:
        wait_for(port)
        found = output(on(INITIATOR, [f"{build}/reads", "bench", f"127.0.0.1:{port}", rw, size, depth, 1, "none", SECONDS, spin]))
        return found["operations_per_second"]
    finally:
        server.terminate()
        server.wait()


def plain(spin, size, depth):
    port = 9200
    server = start(on(TARGET, [f"{BUILDS[0]}/plain-messages", "serve-file", f"127.0.0.1:{port}", FILE, spin]))
    try:
        wait_for(port)
        return output(on(INITIATOR, [
            f"{BUILDS[0]}/plain-messages", "load", f"127.0.0.1:{port}", depth, 72, size + 24, SECONDS, spin,
        ]))["operations_per_second"]
    finally:
        server.kill()
        server.wait()


values = {}
chosen = sys.argv[8:] or list(CASES)
for _ in range(ROUNDS):
    for name in chosen:
        rw, size, depth, fio_depth = CASES[name]
        values.setdefault((name, "fio"), []).append(fio(rw, size, fio_depth, "malloc"))
        values.setdefault((name, "fio, huge pages"), []).append(fio(rw, size, fio_depth, "mmaphuge"))
        for spin in SPINS:
            who = "" if spin == "0" else f", spin {spin}"
            if rw == "randread":
                values.setdefault((name, f"plain messages{who}"), []).append(plain(spin, size, depth))
            for build in BUILDS:
                values.setdefault((name, build + who), []).append(inlane(build, spin, rw, size, depth))
rows = []
for (name, who), found in values.items():
    base = statistics.median(values[name, "fio"])
    size = CASES[name][1]
    rows.append({"case": name, "who": who, "operations_per_second": found, "ratio_to_fio": statistics.median(found) / base})
    print(f"{name:26} {who:24} {statistics.median(found):10,.0f}/s ({min(found):,.0f} to {max(found):,.0f}) {statistics.median(found) * size / 1e9:6.2f} GB/s  x{rows[-1]['ratio_to_fio']:.2f}")
Path("files.json").write_text(json.dumps(rows, indent=1) + "\n")
