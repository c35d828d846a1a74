#!/usr/bin/env python3
"""Measures what a short connection costs each process, over memif with an engine at each end.

    connections.py FOLDER SECONDS cpu|calls SPIN

FOLDER has inlane, libinlane_preload.so and speed-peer (bench/offload/speed.c). One client keeps 48 connections open. `cpu` prints processor time,
`calls` the system calls of each process by strace.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

folder, seconds, mode, spin = sys.argv[1:]
scratch = tempfile.mkdtemp(prefix="inlane-connections-")
running = []


def start(command, name):
    log = open(f"{scratch}/{name}.log", "w")
    running.append(subprocess.Popen(command, stdout=log, stderr=log))
    return running[-1]


def wait_for(name, text):
    for _ in range(1200):
        if text in open(f"{scratch}/{name}.log").read():
            return
        time.sleep(0.05)
    sys.exit(f"{name} does not start: {open(f'{scratch}/{name}.log').read()}")


def offloaded(side, command):
    return [f"{folder}/inlane", "offload", "run", "--socket", f"{scratch}/control{side}", "--require", "--", *command]


def processor_time(process):
    fields = open(f"/proc/{process.pid}/stat").read().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def show_calls(name, connections):
    rows = []
    for line in open(f"{scratch}/{name}.calls"):
        found = re.match(r"\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s+(?:\d+\s+)?(\w+)$", line)
        if found and found[2] != "total":
            rows.append((int(found[1]) / connections, found[2]))
    rows.sort(reverse=True)
    print(f"{name}: {sum(count for count, _ in rows):.1f} calls:", ", ".join(f"{call} {count:.2f}" for count, call in rows if count > 0.05))


engines = []
for side, role in enumerate(("server", "client")):
    command = [f"{folder}/inlane", "offload", "serve", "--port", f"memif:{scratch}/link,role={role}", "--address", f"10.79.0.{side + 1}/24"]
    command += ["--socket", f"{scratch}/control{side}", "--mac", f"02:00:00:00:00:0{side + 1}", "--spin", spin]
    engines.append(start(command, f"engine{side}"))
for side in (0, 1):
    wait_for(f"engine{side}", "engine ready")
server = start(offloaded(0, [f"{folder}/speed-peer", "short", "10.79.0.1", "20001"]), "server")
wait_for("server", "ready")
tracers = []
command = offloaded(1, [f"{folder}/speed-peer", "churn", "10.79.0.1", "20001", "48", seconds])
if mode == "calls":
    for name, process in (("engine0", engines[0]), ("engine1", engines[1]), ("server", server)):
        trace = ["strace", "-c", "-f", "-o", f"{scratch}/{name}.calls", "-p", str(process.pid)]
        tracers.append(subprocess.Popen(trace, stderr=subprocess.DEVNULL))
    time.sleep(0.5)
    command = ["strace", "-c", "-f", "-o", f"{scratch}/client.calls", *command]
before, times = [processor_time(process) for process in (*engines, server)], os.times()
document = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=120).stdout)
after, connections = [processor_time(process) for process in (*engines, server)], document["connections"]
client = sum(getattr(os.times(), field) - getattr(times, field) for field in ("children_user", "children_system"))
costs = [*(end - begin for begin, end in zip(before, after)), client]
names = ("accepting engine", "connecting engine", "server", "client")
print(f"{folder}: {connections / document['seconds']:.0f} connections a second; us of processor time each:",
      ", ".join(f"{name} {1e6 * cost / connections:.1f}" for name, cost in zip(names, costs)))
for tracer in tracers:
    tracer.terminate()
    tracer.wait()
for process in reversed(running):
    process.terminate()
    process.wait()
if mode == "calls":
    for name in ("engine0", "engine1", "server", "client"):
        show_calls(name, connections)
shutil.rmtree(scratch)
