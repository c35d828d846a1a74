//! The burst ring with a consumer that writes what it likes into its half, whenever it likes: every packet comes back once at
//! most, with a length that fits, and what is in the ring at the end is all there.

#![no_main]

use inlane_core::Region;
use inlane_core::packet::Packet;
use inlane_core::ring::{Next, Ring, Stamps, layout, reclaim};
use libfuzzer_sys::fuzz_target;
use std::collections::HashSet;

const SLOTS: usize = 4;
const BURST: usize = 3;
const ROOM: u32 = 2048;

fuzz_target!(|bytes: &[u8]| {
    let submit = Region::host(layout::submit_bytes(SLOTS, BURST)).unwrap();
    let complete = Region::host(layout::complete_bytes(SLOTS, BURST)).unwrap();
    let hostile = complete.clone();
    let ring = Ring::over(SLOTS, BURST, submit, complete).unwrap();
    let (mut producer, _, mut sender) = ring.split(0);
    let mut inside: HashSet<u64> = HashSet::new();
    let mut next = 0u64;
    let mut input = bytes.iter().copied();
    while let Some(what) = input.next() {
        match what % 4 {
            0 => {
                let count = (what as usize / 4) % (BURST + 1);
                let packets: Vec<Packet> = (next..next + count as u64)
                    .map(|id| Packet { address: id * 4096, length: 64, port: 0, cookie: id })
                    .collect();
                if producer.submit(&packets, Stamps::default()) {
                    inside.extend(next..next + count as u64);
                    next += count as u64;
                }
            }
            1 | 2 => {
                // Any word anywhere, or a small one where words are read: laps, infos, lengths and verdicts.
                let slot = (what as usize / 4) % SLOTS;
                let word = input.next().unwrap_or(0) as usize % 16;
                let at = slot * layout::complete_stride(BURST) + word % 8 * 8;
                let mut value = input.next().unwrap_or(0) as u64 | (input.next().unwrap_or(0) as u64) << 32;
                if what % 4 == 2 {
                    value = value.wrapping_mul(0x0123_4567_89ab_cdef);
                }
                // SAFETY: inside the region (64 bytes a slot, of 128), aligned, and nothing but this thread touches it.
                unsafe { hostile.as_ptr().add(at).cast::<u64>().write_volatile(value) };
            }
            _ => {
                let mut packets = [Packet::EMPTY; BURST];
                if let Next::Item(done) = sender.poll(&mut packets, ROOM) {
                    assert!(done.forwarded + done.dropped <= BURST && done.invalid <= done.dropped);
                    for packet in &packets[..done.forwarded + done.dropped] {
                        assert!(inside.remove(&packet.cookie), "packet {} came back twice", packet.cookie);
                        assert_eq!(packet.address, packet.cookie * 4096);
                        assert!(packet.length > 0 && packet.length <= ROOM);
                    }
                }
            }
        }
    }
    drop(sender);
    let left: HashSet<u64> = reclaim(producer).iter().map(|packet| packet.cookie).collect();
    assert_eq!(left, inside, "what was not sent is still there");
});
