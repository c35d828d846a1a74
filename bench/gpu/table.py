"""Prints medians and ranges of a results file as a Markdown table.

Usage: table.py RESULTS.jsonl
"""
import json
import statistics
import sys
from collections import OrderedDict

runs = OrderedDict()
for line in open(sys.argv[1]):
    entry = json.loads(line)
    runs.setdefault(entry["label"], []).append(entry["document"])


def of(document, key):
    """Returns a part of the result. Documents before schema version 3 have it beside the results."""
    return document["results"][0].get(key) or document.get(key)


def count(verification, what):
    """Returns a count of a verification. Documents before schema version 3 have no unit in its key."""
    return verification.get(f"{what}_packets", verification.get(what, 0))


print("| run | Mpps, median (minimum to maximum) | Gb/s of frames | PCIe, GB/s, modelled | bare kernel, Mpps | latency p50 / p99, us | checked |")
print("| --- | --- | --- | --- | --- | --- | --- |")
for label, documents in runs.items():
    results = [document["results"][0] for document in documents]
    rates = [result["tx"]["packets_per_second"] / 1e6 for result in results]
    bits = statistics.median(result["tx"]["bits_per_second"] / 1e9 for result in results)
    # Documents before schema version 2 have `pcie_bytes` instead of `pcie`.
    crossed = [result.get("pcie_bytes") or (result.get("pcie") or {}).get("modelled_bytes") for result in results]
    pcie = [bytes / result["duration_ns"] for bytes, result in zip(crossed, results) if bytes]
    on_gpu = results[0]["parameters"]["on"] != "cpu"
    bare = [(of(document, "ceiling") or {}).get("packets_per_second") for document in documents]
    bare = [rate / 1e6 for rate in bare if rate and on_gpu]
    totals = [result["stages"]["process"] for result in results if result["stages"]]
    latency = ""
    if totals:
        p50 = statistics.median(total["p50_ns"] for total in totals) / 1e3
        p99 = statistics.median(total["p99_ns"] for total in totals) / 1e3
        latency = f"{p50:.1f} / {p99:.1f}"
    checks = [of(document, "verification") for document in documents if of(document, "verification")]
    checked = ""
    if checks:
        bad = sum(count(c, what) for c in checks for what in ("lost", "duplicated", "reordered", "altered"))
        verified = sum(c.get("verified_packets") or c.get("checked", 0) for c in checks)
        checked = f"{verified}, {bad} wrong"
    spread = f"{statistics.median(rates):.2f} ({min(rates):.2f} to {max(rates):.2f})" if len(rates) > 1 else f"{rates[0]:.2f}"
    print(
        f"| {label} | {spread} | {bits:.0f} | {f'{statistics.median(pcie):.1f}' if pcie else ''} "
        f"| {f'{statistics.median(bare):.1f}' if bare else ''} | {latency} | {checked} |"
    )
