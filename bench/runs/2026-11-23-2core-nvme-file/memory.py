#!/usr/bin/env python3
"""Measures reads from memory with two builds, plain messages and iperf3, in turns, one core a side. Writes memory.json.

    memory.py ROUNDS SECONDS TARGET_CORE INITIATOR_CORE

The folders `before` and `after` have the program of `reads.rs`; `after` also has `plain-messages`.
"""

import json
import statistics
import subprocess
import sys

ROUNDS, SECONDS, TARGET, INITIATOR = sys.argv[1:5]
CASES = {"4 KiB, depth 32": (4096, 32), "4 KiB, depth 1": (4096, 1), "128 KiB, depth 8": (131072, 8)}


def on(core, command):
    return ["taskset", "-c", core, *map(str, command)]


def output(command):
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


servers, values = [], {}


def start(command):
    servers.append(subprocess.Popen(on(TARGET, command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))


def wait_for(port):
    import socket
    import time
    for _ in range(1000):
        try:
            return socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.01)
    sys.exit(f"nothing listens on {port}")


def main():
    ports = {"before": 9100, "after": 9101}
    start(["after/plain-messages", "serve", "127.0.0.1:9200"])
    start(["iperf3", "--server", "--port", 9300])
    for build, port in ports.items():
        start([f"{build}/reads", "target", f"127.0.0.1:{port}", 1, "memory:1G", 0])
    for port in (9200, *ports.values()):
        wait_for(port)
    for build, port in ports.items():
        output(on(INITIATOR, [f"{build}/reads", "bench", f"127.0.0.1:{port}", "write", 1 << 20, 4, 1, "none", 1.2, 0]))
    for _ in range(int(ROUNDS)):
        for name, (size, depth) in CASES.items():
            found = output(on(INITIATOR, ["after/plain-messages", "load", "127.0.0.1:9200", depth, 72, size + 24, SECONDS]))
            values.setdefault((name, "plain messages"), []).append(found)
            for digests in ("none", "both"):
                for build, port in ports.items():
                    found = output(on(INITIATOR, [
                        f"{build}/reads", "bench", f"127.0.0.1:{port}", "randread", size, depth, 1, digests, SECONDS, 0,
                    ]))
                    values.setdefault((name, build + (", digests" if digests == "both" else "")), []).append(found)
            if size > 4096:
                found = output(on(INITIATOR, ["iperf3", "--client", "127.0.0.1", "--port", 9300, "--reverse", "--time", 1, "--json"]))
                rate = found["end"]["sum_received"]["bits_per_second"] / 8 / size
                values.setdefault((name, "iperf3"), []).append({"operations_per_second": rate, "p99_ns": 0})


try:
    main()
finally:
    for server in servers:
        server.terminate()
rows = []
for (name, who), found in values.items():
    rates, p99 = ([one[key] for one in found] for key in ("operations_per_second", "p99_ns"))
    rows.append({"case": name, "who": who, "operations_per_second": rates, "p99_ns": p99})
    print(f"{name:18} {who:18} {statistics.median(rates):11,.0f}/s ({min(rates):,.0f} to {max(rates):,.0f})  p99 {statistics.median(p99) / 1000:.1f} us ({min(p99) / 1000:.1f} to {max(p99) / 1000:.1f})")
with open("memory.json", "w") as file:
    file.write(json.dumps(rows, indent=1) + "\n")
