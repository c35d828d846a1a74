//! Applying verdicts to the packets of an item.

use super::layout::{self, PacketVerdict};
use crate::packet::Packet;

/// What verdicts made of the packets of an item.
#[derive(Clone, Copy, Debug, Default)]
pub struct VerdictCounts {
    /// Packets to forward: the first ones of the array, in their order.
    pub forwarded: usize,
    /// Packets to drop: those behind them.
    pub dropped: usize,
    /// Packets among `dropped` whose verdict or length was invalid.
    pub invalid: usize,
}

/// Applies a verdict to each packet: sets lengths and ports, and moves the packets to forward to the front.
///
/// A verdict may shorten a packet, or lengthen it up to `room` bytes. A length of 0, a longer length or an unknown verdict is
/// invalid and drops the packet.
#[inline]
pub fn apply_verdicts(
    packets: &mut [Packet],
    verdict_of: impl Fn(usize) -> PacketVerdict,
    room: u32,
) -> VerdictCounts {
    let mut counts = VerdictCounts::default();
    for i in 0..packets.len() {
        let PacketVerdict { length, verdict } = verdict_of(i);
        let packet = &mut packets[i];
        let valid =
            length > 0 && length <= room.max(packet.length) && verdict < layout::PORT_BASE + u16::MAX as u32;
        if verdict == layout::DROP || !valid {
            counts.invalid += (verdict != layout::DROP) as usize;
            continue;
        }
        packet.length = length;
        packet.port = verdict.saturating_sub(layout::PORT_BASE);
        packets.swap(i, counts.forwarded);
        counts.forwarded += 1;
    }
    counts.dropped = packets.len() - counts.forwarded;
    counts
}
