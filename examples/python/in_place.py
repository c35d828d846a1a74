"""Receives a capture in place, and counts its frames by EtherType without copying them."""

import inlane
import numpy

frames = numpy.zeros((1000, 60), numpy.uint8)
frames[:, 12:14] = [0x08, 0x00]
with inlane.Sender("pcap:traffic.pcap") as sender:
    sender.send(frames)

# ANCHOR: receive
counts = {}
for packets in inlane.receive_in_place("pcap:traffic.pcap", function="macswap"):
    memory = numpy.from_dlpack(packets.memory)
    types = memory[packets.offsets + 12].astype(int) << 8 | memory[packets.offsets + 13]
    for ethertype, count in zip(*numpy.unique(types, return_counts=True)):
        counts[hex(ethertype)] = counts.get(hex(ethertype), 0) + int(count)
print(counts)
# ANCHOR_END: receive
