#!/usr/bin/env python3
"""Compares two builds of a target and its bench in many short runs that take turns.

    pairs.py ROUNDS SECONDS memory|FILE A B CASE...

A and B are folders with the program of `../2026-11-23-2core-nvme-file/reads.rs`, or FOLDER@PID to run in the network namespace of a
process. A CASE is PATTERN,BYTES,DEPTH[,none|both]. With FILE, B uses FILE2. Target on core 0, bench on core 1, both with real-time
priority. Prints medians, the median and the quartiles of the ratios of neighbouring runs, and the best values.
"""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROUNDS, SECONDS, NAMESPACE = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
BUILDS = dict(zip("AB", sys.argv[4:6]))


def on(core, build, *arguments):
    folder, _, namespace = build.partition("@")
    inside = ["nsenter", "--target", namespace, "--net"] if namespace else []
    return [*inside, "chrt", "--rr", "1", "taskset", "-c", core, f"{folder}/reads", *map(str, arguments)]


def start(name):
    storage = "memory:512M" if NAMESPACE == "memory" else f"file:{NAMESPACE}{'2' if name == 'B' else ''}"
    address = f"127.0.0.1:{9110 + 'AB'.index(name)}"
    command = on("0", BUILDS[name], "target", address, 1, storage, 0)
    return address, subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def processor_us(process):
    threads = Path(f"/proc/{process.pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1000


def measure(name, pattern, size, depth, digests="none", seconds=SECONDS):
    address, target = TARGETS[name]
    before = processor_us(target)
    command = on("1", BUILDS[name], "bench", address, pattern, size, depth, 1, digests, seconds, 0)
    row = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    operations = row["operations_per_second"] * seconds
    return {
        "operations/s": row["operations_per_second"],
        "target us": (processor_us(target) - before) / operations,
        "initiator us": row["cpu_share"] * seconds * 1e6 / operations,
    }


TARGETS = {name: start(name) for name in BUILDS}
try:
    time.sleep(1)
    if NAMESPACE == "memory":
        for name in BUILDS:
            measure(name, "write", 1 << 20, 4, "none", 0.5)
    for case in sys.argv[6:]:
        found = {name: [] for name in BUILDS}
        for number in range(ROUNDS):
            for name in sorted(BUILDS, reverse=number % 2 == 1):
                found[name].append(measure(name, *case.split(",")))
        for key in ("operations/s", "target us", "initiator us"):
            a, b = ([row[key] for row in found[name]] for name in "AB")
            ratios = sorted(y / x for x, y in zip(a, b))
            best = max if key == "operations/s" else min
            print(
                f"{case:22} {key:12} A {statistics.median(a):9.1f} B {statistics.median(b):9.1f}   B/A {statistics.median(ratios):.3f}"
                f" (quartiles {ratios[len(ratios) // 4]:.3f} to {ratios[3 * len(ratios) // 4]:.3f})   best A {best(a):9.1f} B {best(b):9.1f}",
                flush=True,
            )
finally:
    for _, target in TARGETS.values():
        target.terminate()
        target.wait()
