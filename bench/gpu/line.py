"""Prints a summary line of a result document of inlane forward, and appends the document to a JSON-lines file.

Usage: line.py DOCUMENT LABEL FILE
"""
import json
import sys

document = json.load(open(sys.argv[1]))
result = document["results"][0]
ceiling = result.get("ceiling") or {}
parts = [
    f"{sys.argv[2].strip():<34}",
    f"{result['tx']['packets_per_second'] / 1e6:7.2f} Mpps {result['tx']['bits_per_second'] / 1e9:6.1f} Gb/s",
]
if ceiling.get("packets_per_second"):
    parts.append(f"ceiling {ceiling['packets_per_second'] / 1e6:.1f}")
if result["pcie"]:
    parts.append(f"pcie {result['pcie']['modelled_bytes'] / result['duration_ns']:.1f} GB/s modelled")
verification = result["verification"]
if verification:
    bad = {k: v for k, v in verification.items() if k not in ("method", "verified_packets") and v}
    parts.append(f"checked {verification['verified_packets']} {bad or 'ok'}")
for stage, figures in (result["stages"] or {}).items():
    if figures:
        parts.append(f"{stage} {figures['p50_ns']:.0f}/{figures['p99_ns']:.0f}")
for drop in ("dropped_overload", "dropped_verdict", "dropped_invalid", "dropped_unsent", "leaked_buffers"):
    if result[drop]:
        parts.append(f"{drop} {result[drop]}")
parts += document["notes"]
print("  ".join(parts), flush=True)
with open(sys.argv[3], "a") as lines:
    lines.write(json.dumps({"label": sys.argv[2].strip(), "document": document}) + "\n")
