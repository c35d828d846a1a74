"""Writes a capture, reads it in batches, and counts bytes by protocol with NumPy."""

import inlane
import numpy

# ANCHOR: send
frames = numpy.zeros((1000, 60), numpy.uint8)
frames[:, 12:14] = [0x08, 0x00]  # EtherType IPv4
frames[:, 23] = numpy.tile([6, 17], 500)  # TCP, UDP
with inlane.Sender("pcap:traffic.pcap") as sender:
    sender.send(frames)
print(sender.row.tx.packets, "frames written")
# ANCHOR_END: send

# ANCHOR: receive
octets = numpy.zeros(256, numpy.int64)
for batch in inlane.receive("pcap:traffic.pcap", frames=256):
    protocols = batch.matrix(24)[:, 23]
    octets += numpy.bincount(protocols, weights=batch.lengths, minlength=256).astype(numpy.int64)
print({"TCP": int(octets[6]), "UDP": int(octets[17])})
# ANCHOR_END: receive
