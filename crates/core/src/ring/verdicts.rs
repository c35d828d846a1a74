//! Applies the verdicts of a completed item to the item's packets. Counts the packets that are forwarded and
//! dropped.

use super::layout::{self, PacketVerdict};
use crate::packet::Packet;

/// The numbers of packets that an item's verdicts forward and drop.
#[derive(Clone, Copy, Debug, Default)]
pub struct VerdictCounts {
    /// The number of packets to forward. These packets are at the front of the array, in their original
    /// order.
    pub forwarded: usize,
    /// The number of packets to drop. They follow the forwarded packets in the array.
    pub dropped: usize,
    /// The number of dropped packets whose verdict or length was invalid.
    pub invalid: usize,
}

/// Applies a verdict to each packet: sets its length and port, and moves the packets to forward to the front.
///
/// A length may be from 1 byte to the packet's old length or `room`, whichever is greater. Packets with other
/// lengths and unknown verdicts are invalid and dropped.
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
        let valid = (length > 0 || packet.length == 0)
            && length <= room.max(packet.length)
            && verdict < layout::PORT_BASE + u16::MAX as u32;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(packets: &[(u32, u32, u32)]) -> (VerdictCounts, Vec<u32>) {
        let mut array: Vec<_> =
            packets.iter().map(|&(before, ..)| Packet { length: before, ..Packet::EMPTY }).collect();
        let verdict = |i: usize| PacketVerdict { length: packets[i].1, verdict: packets[i].2 };
        let counts = apply_verdicts(&mut array, verdict, 100);
        (counts, array[..counts.forwarded].iter().map(|packet| packet.length).collect())
    }

    #[test]
    fn an_empty_packet_stays_valid_whatever_becomes_of_its_neighbours() {
        let (counts, lengths) =
            apply(&[(0, 0, layout::FORWARD), (60, 60, layout::DROP), (0, 0, layout::FORWARD)]);
        assert_eq!((counts.dropped, counts.invalid, lengths), (1, 0, vec![0, 0]));
    }

    #[test]
    fn a_function_cannot_empty_a_packet_or_exceed_the_room() {
        let (counts, lengths) = apply(&[
            (60, 0, layout::FORWARD),
            (60, 101, layout::FORWARD),
            (60, 100, layout::FORWARD),
            (60, 1, layout::FORWARD),
        ]);
        assert_eq!((counts.dropped, counts.invalid, lengths), (2, 2, vec![100, 1]));
    }
}
