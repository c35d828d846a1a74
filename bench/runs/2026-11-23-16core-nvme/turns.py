#!/usr/bin/env python3
"""Measures reads from memory with two builds, plain messages and iperf3, in turns. Writes turns.json.

    turns.py ROUNDS SECONDS 1,2,4,8

The folders `before` and `after` have the program of `reads.rs`, built with the two versions of the library. The folder
`before` also has `plain-messages`, an example of crates/nvme. iperf3 must be installed.
"""

import json
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROUNDS, SECONDS, JOBS = int(sys.argv[1]), sys.argv[2], [int(n) for n in sys.argv[3].split(",")]
BUILDS = ["before", "after"]
MOST = max(JOBS)
CORES = sorted(os.sched_getaffinity(0))
IPERF_PORT = 9300


def on(cores, command):
    return ["taskset", "-c", ",".join(map(str, cores)), *map(str, command)]


def start(command):
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def output(command):
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def processor_ns(process):
    """Returns the processor time of all threads of a process, in nanoseconds."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{process.pid}/task").iterdir())


def wait_for(address):
    host, port = address.split(":")
    for _ in range(400):
        try:
            socket.create_connection((host, int(port)), 1).close()
            return
        except OSError:
            time.sleep(0.02)
    sys.exit(f"nothing listens on {address}")


def pin(process):
    """Pins each worker thread of a target to a core."""
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        name = (task / "comm").read_text().strip().removeprefix("inlane-nvme-")
        if name.isdigit():
            os.sched_setaffinity(int(task.name), {CORES[int(name)]})


def plain(addresses, jobs, block, depth):
    def load(n):
        command = ["before/plain-messages", "load", addresses[n], depth, 72, block + 24, SECONDS]
        return output(on([CORES[n - jobs]], command))

    with ThreadPoolExecutor(jobs) as pool:
        found = list(pool.map(load, range(jobs)))
    rate = sum(one["operations_per_second"] for one in found)
    return {"operations_per_second": rate, "p99_ns": max(one["p99_ns"] for one in found)}


def inlane(build, address, process, jobs, block, depth, digests):
    before = processor_ns(process)
    command = [f"{build}/reads", "bench", address, "randread", block, depth, jobs, digests, SECONDS]
    found = output(on(CORES[-jobs:], command))
    found["target_ns_per_operation"] = (processor_ns(process) - before) / found["operations"]
    found["initiator_ns_per_operation"] = found["cpu_share"] * found["run_ns"] / found["operations"]
    return found


def iperf(block):
    command = ["iperf3", "--client", "127.0.0.1", "--port", IPERF_PORT, "--reverse", "--time", 1, "--json"]
    rate = output(on([CORES[-1]], command))["end"]["sum_received"]["bits_per_second"]
    return {"operations_per_second": rate / 8 / block}


def main():
    if len(CORES) < 2 * MOST:
        sys.exit(f"{MOST} jobs need {2 * MOST} cores")
    targets = {}
    for n, build in enumerate(BUILDS):
        address = f"127.0.0.1:{9100 + n}"
        targets[build] = (address, start([f"{build}/reads", "target", address, str(MOST)]))
    floors = [f"127.0.0.1:{9200 + n}" for n in range(MOST)]
    servers = [start(on([core], ["before/plain-messages", "serve", floor])) for core, floor in zip(CORES, floors)]
    servers.append(start(on([CORES[0]], ["iperf3", "--server", "--port", IPERF_PORT])))
    rows = []
    try:
        for address in [*floors, *(address for address, _ in targets.values())]:
            wait_for(address)
        for address, process in targets.values():
            pin(process)
            # Write the namespace. Otherwise all reads would return one page of zeros, which stays in the cache.
            output(["after/reads", "bench", address, "write", "1048576", "4", "1", "none", "0.6"])
        cases = [("4 KiB", 4096, 32, digests, jobs) for digests in ("none", "both") for jobs in JOBS]
        cases += [("128 KiB", 131072, 8, digests, jobs) for digests in ("none", "both") for jobs in (1, MOST)]
        for _ in range(ROUNDS):
            for size, block, depth, digests, jobs in cases:
                name = size if digests == "none" else f"{size}, digests"
                if digests == "none":
                    rows.append({"case": name, "jobs": jobs, "who": "plain messages", **plain(floors, jobs, block, depth)})
                if (size, digests, jobs) == ("128 KiB", "none", 1):
                    rows.append({"case": name, "jobs": jobs, "who": "iperf3", **iperf(block)})
                for build, (address, process) in targets.items():
                    measured = inlane(build, address, process, jobs, block, depth, digests)
                    rows.append({"case": name, "jobs": jobs, "who": build, **measured})
    finally:
        for server in [*servers, *(process for _, process in targets.values())]:
            server.terminate()
    Path("turns.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
