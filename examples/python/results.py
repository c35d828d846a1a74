"""Measures how the packet rate depends on the packet's size, and saves the results for `inlane compare`."""

import inlane

# ANCHOR: run
result = inlane.forward("null", "null", function="macswap", sweep="size=64,512,1500", duration="200ms", no_baseline=True)
for row in result.rows:
    print(f"{row.parameters.size_bytes:>5} B {row.tx.packets_per_second / 1e6:6.1f} Mpps, limit: {row.limit.kind} {row.limit.resource}")
result.save("result.json")
# ANCHOR_END: run

# ANCHOR: errors
try:
    inlane.forward("gen:64,packets=1000", "check", faults="drop=1%", no_baseline=True)
except inlane.RunFailed as error:
    print(error)
    print(error.result.rows[0].verification.lost_packets > 0)
# ANCHOR_END: errors
