#!/usr/bin/env python3
"""Prints Markdown tables of recorded sweeps and transfers: tables.py DOCUMENT.json ...

A packet sweep becomes a table with one row for each value of the flags before the last swept flag, and one column for each value of that
flag. Transfers become a table with one row for each size. Cells hold medians with (minimum to maximum) where a run was repeated.
"""

import json
import sys


def number(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def spread(summary, scale):
    """Formats a summary with its minimum and maximum."""
    median, low, high = (summary[key] / scale for key in ("median", "min", "max"))
    return number(median) if low == high else f"{number(median)} ({number(low)} to {number(high)})"


def packets(document):
    """Prints a table of rates, and one of latencies if the stages were measured."""
    rows = document["results"]
    swept = [name for name in rows[0]["parameters"] if len({str(row["parameters"].get(name)) for row in rows}) > 1]
    if not swept:
        swept = ["burst"]
    # A flag with numeric values makes the columns. If there are several, the flag with the most values does.
    values = {name: {str(row["parameters"].get(name)) for row in rows} for name in swept}
    numeric = [name for name in swept if all(value[:1].isdigit() for value in values[name])]
    column = max(numeric or swept, key=lambda name: len(values[name]))
    others = [name for name in swept if name != column]
    columns = list(dict.fromkeys(str(row["parameters"][column]) for row in rows))
    lines = {}
    for row in rows:
        key = ", ".join(f"`{row['parameters'][name]}`" for name in others) or "rate"
        rate = row["tx"]["packets_per_second"] / 1e6
        cell = spread(row["repeats"]["packets_per_second"], 1e6) if row.get("repeats") else number(rate)
        total = (row.get("stages") or {}).get("total") or row.get("latency")
        latency = f"{number(total['p50_ns'] / 1e3)} / {number(total['p99_ns'] / 1e3)}" if total else ""
        lines.setdefault(key, {})[str(row["parameters"][column])] = (cell, latency)
    for index, title in ((0, "Mpps"), (1, "p50 / p99, us")):
        if not any(cell[index] for line in lines.values() for cell in line.values()):
            continue
        print(f"\n{title}:\n\n| {', '.join(others)} | " + " | ".join(f"{column} {value}" for value in columns) + " |")
        print("| --- |" + " --- |" * len(columns))
        for key, line in lines.items():
            print(f"| {key} | " + " | ".join(line.get(value, ("", ""))[index] for value in columns) + " |")


def transfers(document):
    """Prints latency and bandwidth of each size."""
    print("\n| size | path | completion | latency, us (min to max) | GB/s (min to max) | of ceiling | verified, MB of transferred |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for row in document["results"]:
        latency = row.get("latency_ns")
        latency = spread(latency, 1e3) if latency and "median" in latency else ""
        rate = row.get("bytes_per_second")
        share = row.get("share_of_ceiling")
        size = row["size_bytes"]
        size = f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
        path = row["path"] if isinstance(row["path"], str) else (row["path"] or {}).get("name", "")
        # Documents before schema version 3 have the count in the row instead of in `verification`.
        verified = (row.get("verification") or {}).get("verified_bytes", row.get("verified_bytes", 0))
        transferred = (row.get("verification") or {}).get("transferred_bytes")
        bytes_ = f"{number(verified / 1e6)} of {number(transferred / 1e6)}" if transferred else number(verified / 1e6)
        print(
            f"| {size} | {path} | {row['completion']} | {latency} | {spread(rate, 1e9) if rate else ''} "
            f"| {f'{share * 100:.0f} %' if share else ''} | {bytes_} |"
        )


def main():
    for name in sys.argv[1:]:
        document = json.load(open(name))
        print(f"\n### {name}\n\n`inlane {' '.join(document['command']['arguments'])}`, inlane {document['command']['version']}, {document['host']['cpu']}")
        (packets if "tx" in document["results"][0] else transfers)(document)


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        sys.exit(2)
    main()
