#!/usr/bin/env python3
"""Compares the CPU's and a GPU's executors on ports that move packets: the same packet function, in turns, medians.

    ports.py [--rounds 3] [--seconds 1] [--size 1024] [--cpu-only] INLANE OUT [CASE ...]

Cases:
  net_null    DPDK's null driver in one process; buffers are allocated and freed, no bytes are written or checked
  gen-check   inlane's generator to inlane's checker in one process; every packet is verified
  memif       generator, forwarder and checker are three processes joined by memif; every received packet is verified
  af_xdp      the same over two veth pairs in a network namespace of its own, by AF_XDP; needs root and iproute2

Writes OUT/ports.jsonl, one line for each run, and prints a table: packets a second that arrived, median (minimum to maximum), and how many
packets the checker verified. Exit status: 0 done, 1 a run failed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EXECUTORS = {
    "cpu single": ["--method", "single"],
    "cpu split": ["--method", "split"],
    "gpu persistent": ["--on", "gpu:0", "--method", "persistent"],
    "gpu stream": ["--on", "gpu:0", "--method", "stream"],
}
FLOWS = "flows=64"


class Bench:
    def __init__(self, arguments, folder):
        self.inlane, self.size, self.seconds = str(Path(arguments.inlane).resolve()), arguments.size, arguments.seconds
        self.folder = Path(folder)

    def forward(self, name, *flags, prefix=()):
        """Starts `inlane forward` and returns the process; its result goes to NAME.json."""
        command = [*prefix, self.inlane, "forward", *flags, "--no-baseline", "--json", str(self.folder / f"{name}.json")]
        log = open(self.folder / f"{name}.log", "w")
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def result(self, name, process, timeout):
        """Waits for a process and returns its document. Raises with the end of its log if it failed.

        Two failures are expected: a memif port loses its peer when the generator has ended, and AF_XDP loses packets when the
        generator is faster than the forwarder. The table shows the losses."""
        status = process.wait(timeout)
        log = (self.folder / f"{name}.log").read_text()
        if status not in (0, 1) or (status == 1 and "disappeared" not in log and "verification failed" not in log):
            raise RuntimeError(f"{name} ended with status {status}: {log[-400:]}")
        return json.loads((self.folder / f"{name}.json").read_text())

    def one_process(self, rx, tx, executor):
        flags = ["--rx", rx, "--tx", tx, "--function", "macswap", "--duration", f"{self.seconds}s"]
        return self.result("forwarder", self.forward("forwarder", *flags, *executor), self.seconds + 30)

    def net_null(self, executor):
        return self.one_process(f"net_null:{self.size}", "net_null", executor)

    def gen_check(self, executor):
        return self.one_process(f"gen:{self.size},{FLOWS}", "check", executor)

    def chain(self, into, outof, executor, prefix=()):
        """Runs checker, forwarder and generator as processes. `into` names the ports that join generator and
        forwarder, `outof` those that join forwarder and checker: the sender's port first.

        The generator swaps addresses as well, so the forwarder restores what was generated, and the checker can verify it."""
        slack = 3
        names = ["checker", "forwarder", "generator"]
        lines = [
            ["--rx", outof[1], "--tx", f"check:{self.size},{FLOWS}", "--duration", f"{self.seconds + 2 * slack}s"],
            ["--rx", into[1], "--tx", outof[0], "--function", "macswap", "--duration", f"{self.seconds + 2 * slack}s", *executor],
            ["--rx", f"gen:{self.size},{FLOWS}", "--tx", into[0], "--function", "macswap", "--duration", f"{self.seconds}s"],
        ]
        # Each process would pin its threads to the last cores, without regard to the other processes. So each
        # gets its own cores here.
        allowed = sorted(os.sched_getaffinity(0))
        cores = [",".join(map(str, chosen)) for chosen in (allowed[-1:], allowed[-3:-1], allowed[-4:-3])]
        processes = {}
        try:
            for name, line, chosen in zip(names, lines, cores):
                threads = 2 if name == "forwarder" and {"split", "stream"} & set(executor) else 1
                bound = chosen.split(",")[:threads] if len(allowed) >= 8 else ["none"]
                processes[name] = self.forward(name, *line, "--cores", ",".join(bound), prefix=prefix)
                time.sleep(1.5)
            generator = self.result("generator", processes["generator"], self.seconds + 30)
            time.sleep(0.5)
            for name in ("forwarder", "checker"):
                if processes[name].poll() is None:
                    processes[name].terminate()
            forwarder = self.result("forwarder", processes["forwarder"], 20)
            checker = self.result("checker", processes["checker"], 20)
        finally:
            for process in processes.values():
                if process.poll() is None:
                    process.kill()
                    process.wait()
        # The checker's process also runs before and after the traffic. So the rate is computed from the
        # generator's duration.
        seconds = generator["results"][0]["duration_ns"] / 1e9
        checker["arrived_per_second"] = checker["results"][0]["rx"]["packets"] / seconds
        checker["offered"], checker["forwarder"] = generator["results"][0]["tx"], forwarder["results"][0]
        return checker

    def memif(self, executor):
        a, b = self.folder / "in.sock", self.folder / "out.sock"
        for socket in (a, b):
            socket.unlink(missing_ok=True)
        # The forwarder is the server of both sockets, so the generator and the checker connect to it as
        # clients.
        return self.chain(
            (f"memif:{a},role=client,wait=20", f"memif:{a},role=server"),
            (f"memif:{b},role=server", f"memif:{b},role=client,wait=20"),
            executor,
        )

    def af_xdp(self, executor):
        namespace = f"inlane-ports-{os.getpid()}"
        ip = lambda *words: subprocess.run(["ip", *words], check=True, capture_output=True)
        inside = ["ip", "netns", "exec", namespace]
        ip("netns", "add", namespace)
        try:
            for pair in ("a", "b"):
                ip("-n", namespace, "link", "add", f"{pair}0", "type", "veth", "peer", f"{pair}1")
                for end in "01":
                    subprocess.run([*inside, "sysctl", "-qw", f"net.ipv6.conf.{pair}{end}.disable_ipv6=1"], capture_output=True)
                    ip("-n", namespace, "link", "set", f"{pair}{end}", "up")
            return self.chain(("af_xdp:a0", "af_xdp:a1"), ("af_xdp:b0", "af_xdp:b1"), executor, [*inside])
        finally:
            ip("netns", "del", namespace)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inlane")
    parser.add_argument("out")
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=1)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--cpu-only", action="store_true")
    arguments = parser.parse_args()
    Path(arguments.out).mkdir(parents=True, exist_ok=True)
    executors = {name: flags for name, flags in EXECUTORS.items() if not arguments.cpu_only or name.startswith("cpu")}
    rates, checks, failed = {}, {}, False
    with tempfile.TemporaryDirectory() as folder, open(Path(arguments.out) / "ports.jsonl", "a") as lines:
        bench = Bench(arguments, folder)
        cases = {"net_null": bench.net_null, "gen-check": bench.gen_check, "memif": bench.memif, "af_xdp": bench.af_xdp}
        for _ in range(arguments.rounds):
            for case in arguments.cases or cases:
                for executor, flags in executors.items():
                    try:
                        document = cases[case](flags)
                    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
                        print(f"FAILED {case}, {executor}: {error}", file=sys.stderr)
                        failed = True
                        continue
                    result = document["results"][0]
                    rate = document.get("arrived_per_second", result["rx"]["packets_per_second"])
                    rates.setdefault((case, executor), []).append(rate / 1e6)
                    checks.setdefault((case, executor), []).append(result.get("verification") or document.get("verification"))
                    lines.write(json.dumps({"case": case, "executor": executor, "document": document}) + "\n")
                    lines.flush()
    print(f"| port, {arguments.size} B | executor | Mpps (min to max) | Gb/s of frames | verified packets | wrong | lost |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for (case, executor), values in sorted(rates.items(), key=lambda entry: list(cases).index(entry[0][0])):
        found = [check for check in checks[(case, executor)] if check]
        verified = sum(check.get("verified_packets") or 0 for check in found)
        wrong = sum(check.get(f"{what}_packets") or 0 for check in found for what in ("duplicated", "reordered", "altered"))
        lost = sum(check.get("lost_packets") or 0 for check in found)
        median = statistics.median(values)
        print(
            f"| {case} | {executor} | {median:.2f} ({min(values):.2f} to {max(values):.2f}) "
            f"| {median * arguments.size * 8 / 1e3:.1f} | {verified or ''} | {wrong if found else ''} | {lost if found else ''} |"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
