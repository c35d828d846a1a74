use super::*;
use proptest::prelude::*;

const SECOND: u64 = 1_000_000_000;

fn fragment(v6: bool, id: u16, offset: usize, more: bool, data: &[u8]) -> Vec<u8> {
    let place = offset as u16;
    if v6 {
        let head = [17, 0, (place >> 8) as u8, place as u8 | u8::from(more), 0, 0, (id >> 8) as u8, id as u8];
        let mut packet = ipv6::Packet::init([&[0; ipv6::HEADER], &head[..], data].concat()).unwrap();
        packet.set_next_header(44);
        packet.set_source("fd00::2".parse().unwrap());
        packet.set_destination("fd00::1".parse().unwrap());
        return packet.into_inner();
    }
    let mut packet = ipv4::Packet::init([&[0; ipv4::HEADER], data].concat()).unwrap();
    packet.set_protocol(17);
    packet.set_id(id);
    packet.set_flags_and_offset((place / 8) | if more { 0x2000 } else { 0 });
    packet.set_source([10, 0, 0, 2].into());
    packet.set_destination([10, 0, 0, 1].into());
    packet.fill_checksum();
    packet.into_inner()
}

fn payload(packet: &[u8]) -> Vec<u8> {
    match packet[0] >> 4 {
        4 => ipv4::Packet::new(packet).unwrap().payload().to_vec(),
        _ => ipv6::Packet::new(packet).unwrap().payload().to_vec(),
    }
}

fn data(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 7) as u8).collect()
}

proptest! {
    /// Fragments arrive in any order, some of them twice. The last missing fragment must complete the packet,
    /// and no fragment may remain stored.
    #[test]
    fn fragments_in_any_order_give_the_packet(v6: bool, len in 9usize..5000, size in 1usize..100, seed: u64, repeat in 0usize..4) {
        let whole = data(len);
        let size = size * 8;
        prop_assume!(size < len);
        let mut fragments: Vec<Vec<u8>> = whole.chunks(size).enumerate()
            .map(|(i, part)| fragment(v6, 7, i * size, i * size + part.len() < len, part)).collect();
        let copies: Vec<_> = fragments.iter().take(repeat).cloned().collect();
        let count = fragments.len();
        for i in (1..count).rev() {
            fragments.swap(i, (seed.rotate_left(i as u32 % 64) % (i as u64 + 1)) as usize);
        }
        let last = fragments.pop().unwrap();
        let mut reassembly = Reassembly::default();
        for fragment in fragments.iter().chain(copies.iter().filter(|copy| **copy != last)) {
            prop_assert_eq!(reassembly.add(0, fragment), (Outcome::Waits, 0));
        }
        let (Outcome::Whole(packet), 0) = reassembly.add(0, &last) else { panic!("not complete") };
        prop_assert!(payload(&packet) == whole);
        prop_assert_eq!((reassembly.packets.len(), reassembly.cost), (0, 0));
    }

    /// Adds damaged fragments at any offsets and times. The counted memory must be correct and stay within
    /// the limit.
    #[test]
    fn hostile_fragments_take_bounded_memory(fragments in proptest::collection::vec(
        (any::<bool>(), 0u16..3, 0usize..65536, any::<bool>(), 0usize..200, proptest::collection::vec((0usize..60, any::<u8>()), 0..2), 0u64..70), 1..60)) {
        let mut reassembly = Reassembly::default();
        let mut now = 0;
        for (v6, id, offset, more, len, damage, seconds) in fragments {
            now += seconds * SECOND / 10;
            let mut bytes = fragment(v6, id, offset & 0xfff8, more, &data(len));
            for (at, value) in damage {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
            }
            reassembly.add(now, &bytes);
            let cost: usize = reassembly.packets.values().map(|partial| {
                COST + partial.parts.values().map(|part| part.len() + COST).sum::<usize>()
            }).sum();
            prop_assert_eq!(reassembly.cost, cost);
            prop_assert!(cost <= MOST_BYTES && reassembly.order.len() >= reassembly.packets.len());
        }
    }
}

#[test]
fn overlapping_fragments_make_the_packet_invalid() {
    for v6 in [false, true] {
        // The first fragment has bytes 0 to 23. Each case is a fragment that overlaps it.
        for (offset, more, len) in [(16, true, 16), (8, true, 8), (0, true, 32), (16, false, 3)] {
            let mut reassembly = Reassembly::default();
            assert_eq!(reassembly.add(0, &fragment(v6, 1, 0, true, &data(24))).0, Outcome::Waits);
            let overlapping = fragment(v6, 1, offset, more, &data(len));
            assert_eq!(reassembly.add(0, &overlapping).0, Outcome::Refused, "{offset} {more} {len}");
            // The packet is now invalid, so the missing fragments are refused, too.
            assert_eq!(reassembly.add(0, &fragment(v6, 1, 0, true, &data(24))).0, Outcome::Refused);
            assert_eq!(reassembly.add(0, &fragment(v6, 1, 24, false, &data(5))).0, Outcome::Refused);
        }
    }
}

#[test]
fn contradictory_ends_make_the_packet_invalid() {
    let mut reassembly = Reassembly::default();
    assert_eq!(reassembly.add(0, &fragment(false, 1, 24, false, &data(8))).0, Outcome::Waits);
    assert_eq!(reassembly.add(0, &fragment(false, 1, 32, true, &data(8))).0, Outcome::Refused);
    assert_eq!(reassembly.add(0, &fragment(false, 2, 32, true, &data(8))).0, Outcome::Waits);
    assert_eq!(reassembly.add(0, &fragment(false, 2, 8, false, &data(8))).0, Outcome::Refused);
}

#[test]
fn malformed_fragments_are_refused() {
    for v6 in [false, true] {
        let mut reassembly = Reassembly::default();
        for bytes in [
            fragment(v6, 1, 0, true, &data(9)),
            fragment(v6, 1, 8, true, &[]),
            fragment(v6, 1, 65528, false, &data(8)),
            Vec::new(),
        ] {
            assert_eq!(reassembly.add(0, &bytes).0, Outcome::Refused);
        }
        assert_eq!(reassembly.cost, 0);
    }
}

#[test]
fn a_first_fragment_without_others_is_a_packet() {
    let mut reassembly = Reassembly::default();
    reassembly.add(0, &fragment(true, 1, 8, true, &data(8)));
    let (Outcome::Whole(packet), _) = reassembly.add(0, &fragment(true, 1, 0, false, &data(11))) else {
        panic!("an atomic fragment is a whole packet")
    };
    assert_eq!(payload(&packet), data(11));
    assert_eq!(reassembly.packets.len(), 1, "the other packet is not affected");
}

#[test]
fn completed_packets_leave_nothing_behind() {
    let mut reassembly = Reassembly::default();
    reassembly.add(0, &fragment(false, 0xffff, 8, true, &data(8)));
    for id in 0..10_000 {
        reassembly.add(0, &fragment(false, id, 0, true, &data(8)));
        assert!(matches!(reassembly.add(0, &fragment(false, id, 8, false, &data(8))).0, Outcome::Whole(_)));
        assert!(reassembly.order.len() <= 2 + SLACK && reassembly.packets.len() == 1);
    }
}

#[test]
fn packets_are_given_up_after_their_time_and_when_memory_is_full() {
    let mut reassembly = Reassembly::default();
    assert_eq!(reassembly.add(0, &fragment(false, 1, 0, true, &data(8))), (Outcome::Waits, 0));
    let last = fragment(false, 1, 8, false, &data(8));
    assert_eq!(reassembly.add(60 * SECOND, &last), (Outcome::Waits, 1));
    assert_eq!(reassembly.add(61 * SECOND, &fragment(false, 1, 0, true, &data(8))).1, 0);

    let mut given_up = 0;
    for id in 0..10_000 {
        given_up += reassembly.add(62 * SECOND, &fragment(false, id, 8, true, &data(1024))).1;
        assert!(reassembly.cost <= MOST_BYTES);
    }
    assert!(given_up > 6000, "{given_up}");
    assert_eq!(reassembly.add(62 * SECOND, &fragment(false, 9999, 1032, false, &data(8))).0, Outcome::Waits);
    let first = fragment(false, 9999, 0, true, &data(8));
    assert!(matches!(reassembly.add(62 * SECOND, &first).0, Outcome::Whole(_)));
}
