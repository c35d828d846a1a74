"""Runs inlane from Python, with results as objects and packets as NumPy arrays.

    import inlane

    result = inlane.forward("gen:64", "check", function="macswap", duration="1s")
    print(result.rows[0].tx.packets_per_second, result.rows[0].limit)

    for batch in inlane.receive("pcap:traffic.pcap"):
        print(len(batch), batch.lengths.mean(), batch.matrix(14)[:, 12:14])

`forward`, `copy`, `nvme_bench`, `mix` and `run` start the command `inlane` as a process of its own, and return what it measured. `receive` and
`Sender` move packets between ports and this process.
"""

from ._command import Interrupted, Result, Row, RunFailed, Unavailable, UsageError, copy, forward, mix, nvme_bench, run
from ._packets import Batch, PacketsInPlace, PlaceReceiver, Receiver, Sender, receive, receive_in_place

__all__ = [
    "Batch",
    "Interrupted",
    "PacketsInPlace",
    "PlaceReceiver",
    "Receiver",
    "Result",
    "Row",
    "RunFailed",
    "Sender",
    "Unavailable",
    "UsageError",
    "copy",
    "forward",
    "mix",
    "nvme_bench",
    "receive",
    "receive_in_place",
    "run",
]
