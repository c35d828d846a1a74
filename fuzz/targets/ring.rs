//! Drives the burst ring's dispatcher against a hostile consumer. The consumer may write any value to the
//! completion half at any time. This is the half of the ring's memory that consumers write.
//!
//! Each submitted packet must come back at most once, with its own address and a length that fits its buffer.
//! If the consumer completes an item by the protocol, the item must come back. This holds whatever the
//! consumer wrote before.

use inlane_core::Region;
use inlane_core::packet::Packet;
use inlane_core::ring::{Ring, apply_verdicts, lap_of, layout};
use std::collections::VecDeque;

const SLOTS: usize = 4;
const BURST: usize = 3;
const ROOM: u32 = 2048;

pub fn run(bytes: &[u8]) {
    let submit = Region::host(layout::submit_bytes(SLOTS, BURST)).unwrap();
    let complete = Region::host(layout::complete_bytes(SLOTS, BURST)).unwrap();
    let hostile = complete.clone();
    let write = |offset: usize, value: u64| {
        assert!(offset + 8 <= hostile.len());
        // SAFETY: the word is aligned and inside the region. Only this thread accesses it.
        unsafe { hostile.as_ptr().add(offset).cast::<u64>().write_volatile(value) };
    };
    // SAFETY: this thread acts as the device, and writes only the completion half.
    let mut dispatcher = unsafe { Ring::to_device(SLOTS, BURST, submit, complete) }.unwrap();
    let mut in_flight: VecDeque<Vec<Packet>> = VecDeque::new();
    let (mut next, mut freed) = (0u64, 0u64);
    let mut input = bytes.iter().copied();
    loop {
        // Take the next action from the input. Once the input has ended, let the consumer complete the
        // remaining items by the protocol, because every item must come back.
        let what = input.next();
        match what.map(|what| (what % 4, what as usize / 4)) {
            Some((0, argument)) => {
                let count = (argument % (BURST + 1)) as u64;
                let packets: Vec<Packet> = (next..next + count)
                    .map(|id| Packet { address: id * 4096, length: 64, port: 0, cookie: id })
                    .collect();
                let accepted = dispatcher.submit(&packets);
                assert_eq!(accepted, in_flight.len() < SLOTS);
                if accepted {
                    in_flight.push_back(packets);
                    next += count;
                }
            }
            Some((kind @ (1 | 2), argument)) => {
                // Overwrite one of the first 8 words of a slot. If `kind` is 1, write two small 32-bit
                // halves. If `kind` is 2, write arbitrary bits.
                let word = input.next().unwrap_or(0) as usize % 8;
                let mut value = input.next().unwrap_or(0) as u64 | (input.next().unwrap_or(0) as u64) << 32;
                if kind == 2 {
                    value = value.wrapping_mul(0x0123_4567_89ab_cdef);
                }
                write(argument % SLOTS * layout::complete_stride(BURST) + word * 8, value);
            }
            Some(_) => {}
            None if in_flight.is_empty() => break,
            None => {
                let slot = (freed % SLOTS as u64) as usize;
                write(slot * layout::complete_stride(BURST), lap_of(freed, SLOTS as u32) as u64);
            }
        }
        let Some(completed) = dispatcher.poll() else {
            assert!(what.is_some(), "the oldest item was completed");
            continue;
        };
        let mut packets = in_flight.pop_front().expect("an item that was not submitted came back");
        let submitted = packets.clone();
        if completed.changed() {
            let counts = apply_verdicts(&mut packets, |i| completed.verdict(i), ROOM);
            assert_eq!(counts.forwarded + counts.dropped, packets.len());
            assert!(counts.invalid <= counts.dropped);
        }
        completed.free();
        freed += 1;
        assert_eq!(dispatcher.in_flight(), in_flight.len() as u64);
        assert!(packets.iter().all(|packet| packet.length > 0 && packet.length <= ROOM));
        // Check that the item returns each submitted packet once, with its own address.
        packets.sort_unstable_by_key(|packet| packet.cookie);
        assert!(
            packets
                .iter()
                .zip(&submitted)
                .all(|(now, before)| (now.cookie, now.address) == (before.cookie, before.address))
        );
    }
    assert!(dispatcher.poll().is_none());
}
