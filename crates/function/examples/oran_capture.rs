//! Writes a capture of O-RAN U-plane packets as input for `oran-reorder`. The packets are out of order, and
//! some are missing. This example writes 40 slots, with 2 % of the packets lost and up to 60 places out of
//! order:
//!
//! ```console
//! $ cargo run -p inlane-function --example oran_capture -- uplane.pcap 40 2 60
//! $ inlane forward --rx pcap:uplane.pcap --tx null --function oran-reorder:eaxc=0+1,prbs=106,limit=1s
//! ```

mod fronthaul;

use fronthaul::{Carrier, UPlane, pcap, whole};

/// A carrier of 40 MHz: 30 kHz subcarriers, two antenna-carriers, 16-bit samples, frames of 1474 bytes.
const CARRIER: Carrier =
    Carrier { eaxc: &[0, 1], prbs: 106, slots_per_subframe: 2, prb_bytes: 48, header: None };
const SLOT_NS: u64 = 500_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path =
        arguments.next().ok_or("usage: oran_capture FILE [SLOTS [PERCENT-LOST [PLACES-OUT-OF-ORDER]]]")?;
    let mut number = |otherwise: u64| arguments.next().map_or(Ok(otherwise), |text| text.parse::<u64>());
    let (slots, lost, distance) = (number(40)?, number(2)?, number(60)?);

    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut chance = |of: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % of.max(1)
    };
    let mut packets: Vec<(u64, UPlane)> = Vec::new();
    for slot in 0..slots as u32 {
        for packet in whole(&CARRIER, slot, 30) {
            if chance(100) >= lost {
                packets.push((packets.len() as u64 + chance(distance), packet));
            }
        }
    }
    packets.sort_by_key(|(order, _)| *order);
    let each = slots * SLOT_NS / packets.len().max(1) as u64;
    let frames: Vec<(u64, Vec<u8>)> = packets
        .iter()
        .enumerate()
        .map(|(i, (_, packet))| (i as u64 * each, packet.frame(&CARRIER)))
        .collect();
    std::fs::write(&path, pcap(&frames))?;
    println!("{path}: {} packets of {slots} slots", frames.len());
    Ok(())
}
