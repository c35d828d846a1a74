"""Checks the GPU executors: runs every method with every function, memory and port, and verifies each result.

Usage: check.py INLANE [SECTION...]      sections: functions own oran ports overload auto (default: all)
FULL=1 combines every function and port with every memory. Otherwise each combination of function and method uses one memory.
ON=cpu tests this script without a GPU, with the methods of the CPU. Cases that cannot run on this machine are skipped by name.
"""
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLES = os.path.join(HERE, "..", "..", "examples", "functions")
INLANE = os.path.abspath(sys.argv[1])
ON = os.environ.get("ON", "gpu:0")
CPU = ON == "cpu"
METHODS = ["single", "split"] if CPU else ["single", "split", "persistent", "stream", "graph"]
IN_PLACE = [] if CPU else ["--memory", "pinned"]
MEMORIES = [[]] if CPU else [IN_PLACE, ["--memory", "gpu"], ["--header-split", "128"]]
# The watchdog ends a run whose GPU is stuck. Runs on the CPU have none.
WATCHDOG = [] if CPU else ["--watchdog", "10s"]
# Threads are not pinned: cases run side by side, and pinned threads of several cases would share cores.
UNBOUND = ["--cores", "none"]
WORKERS = 2
full = bool(os.environ.get("FULL"))
DROPS = ("dropped_overload", "dropped_verdict", "dropped_invalid", "dropped_unsent")
say_alone = threading.Lock()
failed = []
os.environ.setdefault("INLANE_CACHE", "/tmp/inlane-cache")


class Wrong(Exception):
    pass


class Skipped(Exception):
    pass


def wants(condition, what):
    if not condition:
        raise Wrong(what)


def forward(*flags, limit=40, on=None, status=(0,), cores=UNBOUND):
    """Runs inlane forward and returns its result. Fails if a packet or buffer is unaccounted for."""
    command = [INLANE, "forward", "--no-baseline", "--json", "-", *flags, *cores, "--on", on or ON]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=limit, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise Wrong(f"still running after {limit} s: {' '.join(command)}")
    if ran.returncode not in status:
        raise Wrong(f"exit status {ran.returncode}: {' '.join(command)}\n{ran.stderr[:1500]}")
    document = json.loads(ran.stdout)
    result = document["results"][0]
    result["reason"] = result["path"]["reason"]
    wants(result["leaked_buffers"] == 0, "buffers leaked")
    gone = result["tx"]["packets"] + sum(result[drop] for drop in DROPS)
    wants(gone == result["rx"]["packets"], f"{result['rx']['packets']} received, {gone} sent or counted as dropped")
    return result


def checked(result, at_least=1):
    found = result["verification"]
    wrong = sum(found[f"{what}_packets"] for what in ("lost", "duplicated", "reordered", "altered"))
    wants(wrong == 0 and found["verified_packets"] >= at_least, str(found))
    return f"{found['verified_packets']} packets checked"


def functions():
    def case(function, method, memory):
        burst = {"single": "64", "split": "33", "persistent": "16", "stream": "128", "graph": "32"}[method]
        flags = ["--rx", "gen:imix,flows=48", "--tx", "check", "--packets", "400000", "--duration", "30s", *WATCHDOG]
        if function.startswith("drop-rule"):
            flags += ["--tx", "null"]
        return checked(forward(*flags, "--function", function, "--method", method, "--burst", burst, *memory))

    rules = "drop-rule:udp:0-40000,src:10.0.0.0/8,tcp"
    for row, function in enumerate(("macswap", "io", "l3-decrement", "flow-count", rules, "checksum")):
        # Function checksum reads whole packets, so the memory that copies only the first 128 bytes is left
        # out.
        memories = MEMORIES[:2] if function == "checksum" else MEMORIES
        for column, method in enumerate(METHODS):
            for turn, memory in enumerate(memories):
                if full or function == "macswap" or turn == (row + column) % len(memories):
                    yield f"{function.split(':')[0]}, {method} {' '.join(memory)}", case, (function, method, memory)


def own():
    """Users' functions, checked by what they count and drop."""
    def case(file, method, memory, burst="64"):
        flags = ["--rx", "gen:imix,flows=8", "--tx", "null", "--packets", "200000", "--duration", "30s", *WATCHDOG]
        result = forward(*flags, "--function", os.path.join(EXAMPLES, file), "--method", method, "--burst", burst, *memory)
        wants(result["rx"]["packets"] == 200000, "not all received")
        return f"{result['tx']['packets']} sent, {result['tx']['bytes']} bytes"

    for file in ("truncate.cu:truncate:100", "vxlan.cu", "sizes.cu"):
        for method in METHODS:
            yield f"{file}, {method}", case, (file, method, IN_PLACE)
    # A burst of 1024 needs more shared memory than a block has by default, so this tests the larger setting.
    for method in METHODS:
        yield f"sizes.cu, {method}, largest burst", case, ("sizes.cu", method, [] if CPU else ["--memory", "gpu"], "1024")


def oran():
    """A radio in real time, with reordering and losses. The counts must equal those of the CPU."""
    radio = "gen:oran,slots=1000,shuffle=256,loss=1%,seed=5,realtime"
    # With 16 slots assembled at a time, no packet of this radio is late. Timing then decides only the reason
    # for which a slot is delivered. All other counts must equal the CPU's.
    roomy = "oran-reorder:windows=16,limit=5ms"
    exact = ("uplane_packets", "malformed_packets", "late_packets", "received_prbs", "duplicate_prbs", "missing_prbs")
    slots = ("complete_slots", "timed_out_slots", "overtaken_slots")

    def run(function, method, memory, on=None, radio=radio):
        flags = ["--rx", radio, "--tx", "null", "--function", function, "--method", method, "--burst", "32", "--flush", "100us"]
        return forward(*flags, *memory, "--packets", "all", on=on)["function"]

    def counts(found):
        numbers = {counter["name"]: counter["value"] for counter in found["counters"]}
        return {name: numbers[name] for name in exact + slots}

    reference = {}
    lock = threading.Lock()

    def case(method, memory):
        with lock:
            if not reference:
                reference.update(counts(run(roomy, "single", [], on="cpu")))
        found = counts(run(roomy, method, memory))
        for name in exact:
            wants(found[name] == reference[name], f"{name}: {found[name]}, on the CPU {reference[name]}; {found}")
        wants(found["late_packets"] == 0 and sum(found[name] for name in slots) == 1000, str(found))
        wants(found["missing_prbs"] > 0 and found["timed_out_slots"] > 0, str(found))
        return f"1000 slots, {found['missing_prbs']} PRBs missing as on the CPU, {found['timed_out_slots']} at their time limit"

    def late(method):
        # Packets are reordered further than the time limit allows, so some are late. Every PRB must be
        # received or missing, and none twice.
        found = counts(run("oran-reorder:windows=16,limit=50us", method, IN_PLACE,
                           radio="gen:oran,slots=400,shuffle=2048,seed=5,realtime"))
        wants(found["late_packets"] > 0 and found["timed_out_slots"] > 0 and found["duplicate_prbs"] == 0, str(found))
        delivered = sum(found[name] for name in slots)
        wants(delivered == 400 and found["received_prbs"] + found["missing_prbs"] == 4 * 14 * 273 * delivered, str(found))
        return f"{found['late_packets']} packets late, {found['missing_prbs']} PRBs missing, {found['timed_out_slots']} slots at their limit"

    for method in METHODS:
        for memory in [[]] if CPU else [IN_PLACE, ["--memory", "gpu"]]:
            yield f"oran-reorder, {method} {' '.join(memory)}", case, (method, memory)
        yield f"oran-reorder with late packets, {method}", late, (method,)


def ports():
    """Packets in mbufs: DPDK's ports, and packets from another process."""
    def silent(rx, tx, method, memory):
        # These ports never read or write payload, so packets may lie in any memory.
        result = forward("--rx", rx, "--tx", tx, "--function", "macswap", "--method", method, "--burst", "32", *memory,
                         "--duration", "300ms", *WATCHDOG)
        wants(result["tx"]["packets"] > 1000, f"{result['tx']['packets']} packets in 300 ms")
        return f"{result['tx']['packets']} packets"

    def memif(size, method, memory):
        # A frame of 4000 bytes needs two of the receiver's mbufs, because an mbuf holds 2048 bytes.
        with tempfile.TemporaryDirectory() as folder:
            packets = 300000 if size < 2000 else 100000
            port = f"memif:{folder}/socket,wait=30" + (f",mtu={size - 18}" if size > 2000 else "")
            sender = subprocess.Popen(
                [INLANE, "forward", "--no-baseline", "--rx", f"gen:{size},flows=8", "--tx", f"{port},role=server",
                 "--duration", "60s", *UNBOUND], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
            try:
                result = forward("--rx", port, "--tx", f"check:{size},flows=8", "--function", "macswap", "--method",
                                 method, "--burst", "32", *memory, "--packets", str(packets), "--duration", "30s",
                                 *WATCHDOG)
                wants(result["rx"]["packets"] == packets, f"{result['rx']['packets']} received")
                return checked(result, packets)
            finally:
                sender.kill()
                sender.wait()

    def veth(method, memory):
        # The sender has its own network namespace. Otherwise the sockets of both processes might join the
        # same fanout group.
        name = f"inl{os.getpid() % 10000}{METHODS.index(method)}"
        setting = (f"netns add {name}", f"link add {name}a type veth peer name {name}b", f"link set {name}a netns {name}",
                   f"link set {name}b up", f"-n {name} link set {name}a up")
        try:
            for words in setting:
                made = subprocess.run(["ip", *words.split()], capture_output=True, text=True)
                if made.returncode != 0:
                    raise Skipped(f"ip {words}: {made.stderr.strip()}")
            sender = subprocess.Popen(
                ["ip", "netns", "exec", name, INLANE, "forward", "--no-baseline", "--rx", "gen:1000,flows=8", "--tx", f"af_packet:{name}a", "--rate", "50Kpps",
                 "--duration", "60s", *UNBOUND], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
            try:
                result = forward("--rx", f"af_packet:{name}b", "--tx", "check:1000,flows=8", "--function", "macswap", "--method",
                                 method, "--burst", "32", *memory, "--packets", "50000", "--duration", "20s", status=(0, 1))
                found = result["verification"]
                wants(found["altered_packets"] + found["duplicated_packets"] == 0 and found["verified_packets"] > 10000, str(found))
                return f"{found['verified_packets']} packets checked, {found['lost_packets']} lost before they were received or in front of the first"
            finally:
                sender.kill()
                sender.wait()
        except FileNotFoundError:
            raise Skipped("no ip command (package iproute2)")
        finally:
            if os.path.exists(f"/var/run/netns/{name}"):
                subprocess.run(["ip", "netns", "del", name])

    pools = MEMORIES if CPU else MEMORIES + [["--memory", "gpu-pool"]]
    for column, method in enumerate(METHODS):
        for turn, memory in enumerate(pools):
            for row, port in enumerate(("net_null:1024", "ring:a,prime=1000,size=512")):
                if full or method == "persistent" or turn == (row + column) % len(pools):
                    yield f"{port.split(',')[0]}, {method} {' '.join(memory)}", silent, (port, port, method, memory)
        for turn, memory in enumerate(MEMORIES):
            if full or method == "persistent" or turn == column % len(MEMORIES):
                yield f"memif, {method} {' '.join(memory)}", memif, (1024, method, memory)
                yield f"memif, two segments, {method} {' '.join(memory)}", memif, (4000, method, memory)
        yield f"af_packet, {method}", veth, (method, IN_PLACE)


def overload():
    """Overload policies, with an executor that is too slow."""
    def case(method, policy):
        result = forward("--rx", "null:64", "--tx", "null", "--function", "macswap", "--method", method, "--burst", "32", *IN_PLACE,
                         "--work", "5us", "--overload", policy, "--duration", "300ms")
        dropped = result["dropped_overload"]
        # Method single has no ring that could become full, so it must drop nothing.
        wants((dropped > 0) == (policy == "drop" and method != "single"), f"{dropped} dropped")
        return f"{result['tx']['packets']} sent, {dropped} dropped and counted"

    for method in METHODS:
        for policy in ("wait", "drop", "shrink"):
            yield f"overload {policy}, {method}", case, (method, policy)


def auto():
    """Method auto, which chooses the method by the goal that is given."""
    def case(*goal):
        result = forward("--rx", "null:1024", "--tx", "null", "--function", "macswap", "--method", "auto", *goal, "--stages",
                         "--duration", "1s", limit=120, cores=())
        wants(result["reason"].startswith("auto: "), result["reason"] or "no reason")
        parameters = result["parameters"]
        return f"{parameters['method']}, burst {parameters['burst']}; {result['reason']}"

    yield "auto, throughput", case, ("--goal", "throughput")
    yield "auto, 50 us", case, ("--max-latency", "50us")


def attempt(label, case, arguments):
    begun = time.monotonic()
    try:
        verdict, said = "ok", case(*arguments)
    except Skipped as why:
        verdict, said = "SKIPPED", str(why)
    except Exception as why:  # includes errors from a malformed document
        verdict, said = "FAILED", f"{type(why).__name__}: {why}"
        failed.append(label)
    with say_alone:
        print(f"{verdict:<8}{label:<52} {time.monotonic() - begun:5.1f} s  {said}", flush=True)


if __name__ == "__main__":
    sections = {"functions": functions, "own": own, "oran": oran, "ports": ports, "overload": overload, "auto": auto}
    for name in sys.argv[2:] or sections:
        if name not in sections:
            sys.exit(f"unknown section {name}; choose from {', '.join(sections)}")
        # Sections whose results depend on time run one case at a time.
        with concurrent.futures.ThreadPoolExecutor(1 if name in ("oran", "auto") else WORKERS) as pool:
            for each in [pool.submit(attempt, *case) for case in sections[name]()]:
                each.result()
    sys.exit(f"{len(failed)} failed: {'; '.join(failed)}" if failed else 0)
