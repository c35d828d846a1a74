//! Compares `oran-reorder` with a reference in Rust, also for late, lost and hostile packets.

#[path = "../examples/fronthaul/mod.rs"]
#[allow(dead_code, reason = "the example uses the rest")]
mod fronthaul;
mod harness;

use fronthaul::{Carrier, Section, UPlane, samples, whole};
use harness::{Fate, instance, run_shaped};
use inlane_function::{DeliveryReason, Instance, oran_slot};
use proptest::prelude::*;
use std::collections::BTreeMap;

const EAXC: [u16; 2] = [0x0102, 7];
const PRBS: u16 = 40;
/// Half of the time after which slot numbers repeat. They repeat after 256 frames of 10 ms, which is 2.56 s.
const HALF_CYCLE_NS: u64 = 1_280_000_000;
const LIMIT_NS: u64 = 1_000_000;
const WINDOWS: u32 = 2;

const PLAIN: Carrier =
    Carrier { eaxc: &EAXC, prbs: PRBS, slots_per_subframe: 2, prb_bytes: 48, header: None };
const COMPRESSED: Carrier = Carrier { slots_per_subframe: 1, prb_bytes: 28, header: Some(0x91), ..PLAIN };

fn text(carrier: &Carrier) -> String {
    let rest = if carrier.header.is_some() { "iq=bfp9,header" } else { "iq=16" };
    let spacing = 15 * carrier.slots_per_subframe;
    format!("oran-reorder:eaxc=0x102+7,prbs={PRBS},scs={spacing},windows={WINDOWS},limit=1ms,{rest}")
}

type Prbs = BTreeMap<(usize, u8, u16), Vec<u8>>;

#[derive(Clone, Debug, PartialEq)]
struct Delivered {
    slot: u32,
    reason: DeliveryReason,
    prbs: Prbs,
}

/// A reference implementation of `oran-reorder`, written from its documentation.
struct Reference {
    carrier: Carrier,
    windows: [Option<(u32, bool, u64, Prbs)>; WINDOWS as usize],
    delivered: Vec<Delivered>,
    late: u64,
    duplicates: u64,
}

impl Reference {
    fn new(carrier: Carrier) -> Self {
        Self { carrier, windows: [None, None], delivered: Vec::new(), late: 0, duplicates: 0 }
    }

    fn deliver(&mut self, window: usize, reason: DeliveryReason, now: u64) {
        let (slot, open, since, prbs) = self.windows[window].as_mut().expect("open");
        (*open, *since) = (false, now);
        self.delivered.push(Delivered { slot: *slot, reason, prbs: prbs.clone() });
    }

    fn burst(&mut self, packets: &[UPlane], now: u64) {
        for window in 0..WINDOWS as usize {
            if self.windows[window]
                .as_ref()
                .is_some_and(|(_, open, since, _)| *open && now >= since + LIMIT_NS)
            {
                self.deliver(window, DeliveryReason::TimeUp, now);
            }
        }
        let mut slots: Vec<u32> = Vec::new();
        for packet in packets {
            if !slots.contains(&packet.slot) {
                slots.push(packet.slot);
            }
        }
        for slot in slots {
            self.slot(slot, packets.iter().filter(|packet| packet.slot == slot), now);
        }
    }

    fn slot<'a>(&mut self, slot: u32, packets: impl Iterator<Item = &'a UPlane>, now: u64) {
        let window = (slot % WINDOWS) as usize;
        let cycle = 2560 * self.carrier.slots_per_subframe;
        let newer = |than: u32| (1..cycle / 2).contains(&((slot + cycle - than) % cycle));
        match &self.windows[window] {
            Some((held, true, _, _)) if *held == slot => {}
            Some((held, true, _, _)) if newer(*held) => self.deliver(window, DeliveryReason::Overtaken, now),
            Some((_, true, _, _)) => return self.late += packets.count() as u64,
            Some((held, false, since, _))
                if !newer(*held)
                    && now <= since + if *held == slot { HALF_CYCLE_NS } else { 2 * LIMIT_NS } =>
            {
                return self.late += packets.count() as u64;
            }
            _ => {}
        }
        if !matches!(&self.windows[window], Some((held, true, _, _)) if *held == slot) {
            self.windows[window] = Some((slot, true, now, Prbs::new()));
        }
        let (_, _, _, prbs) = self.windows[window].as_mut().expect("open");
        for packet in packets {
            let mut symbol = packet.symbol;
            for section in &packet.sections {
                symbol += section.next_symbol as u8;
                for prb in section.prbs(&self.carrier) {
                    let place = (packet.stream, symbol, prb);
                    let samples = samples(&self.carrier, slot, packet.stream, symbol, prb);
                    self.duplicates += prbs.insert(place, samples).is_some() as u64;
                }
            }
        }
        if prbs.len() == EAXC.len() * 14 * PRBS as usize {
            self.deliver(window, DeliveryReason::Complete, now);
        }
    }

    /// Compares the delivered slots of function and reference from index `from` on, at most the last 64.
    fn compare(&self, instance: &Instance, from: usize) {
        for (n, expected) in
            self.delivered.iter().enumerate().skip(from.max(self.delivered.len().saturating_sub(64)))
        {
            let found = oran_slot(instance.output(), n as u64).expect("delivered");
            let (frame, subframe, slot) = found.time();
            let number =
                (frame as u32 * 10 + subframe as u32) * self.carrier.slots_per_subframe + slot as u32;
            assert_eq!((number, found.reason()), (expected.slot, expected.reason), "delivery {n}");
            let arrived = expected.prbs.len() as u32;
            assert_eq!(
                found.received_and_missing(),
                (arrived, EAXC.len() as u32 * 14 * PRBS as u32 - arrived)
            );
            let window = self.windows[(expected.slot % WINDOWS) as usize]
                .as_ref()
                .expect("the slot was in this window");
            if window.0 != expected.slot
                || window.1
                || self.delivered[n + 1..].iter().any(|later| later.slot == number)
            {
                continue;
            }
            for stream in 0..EAXC.len() {
                for symbol in 0..14u8 {
                    let of = expected.prbs.range((stream, symbol, 0)..(stream, symbol + 1, 0));
                    assert_eq!(found.received(stream, symbol.into()), of.clone().count() as u32);
                    let mut data = vec![0; PRBS as usize * self.carrier.prb_bytes];
                    for ((_, _, prb), samples) in of {
                        data[*prb as usize * self.carrier.prb_bytes..][..samples.len()]
                            .copy_from_slice(samples);
                    }
                    assert!(
                        found.symbol(stream, symbol.into(), PRBS.into()) == data,
                        "data of {stream}/{symbol}"
                    );
                }
            }
        }
        assert!(
            oran_slot(instance.output(), self.delivered.len() as u64).is_none(),
            "more slots were delivered than expected"
        );
    }
}

fn drive(carrier: Carrier, bursts: &[(Vec<UPlane>, u64)]) -> (Reference, Instance) {
    let mut reference = Reference::new(carrier);
    let mut instance = instance(&text(&carrier));
    for (packets, now) in bursts {
        let seen = reference.delivered.len();
        reference.burst(packets, *now);
        let frames: Vec<Vec<u8>> = packets.iter().map(|packet| packet.frame(&carrier)).collect();
        let fates = run_shaped(&mut instance, &frames, frames.len().max(1), true, 0, *now);
        if frames.is_empty() {
            instance.tick(*now);
        }
        assert!(fates.iter().all(|fate| *fate == Fate::Drop), "assembled packets are dropped");
        reference.compare(&instance, seen);
    }
    let report = instance.report();
    assert_eq!(report.counter("late_packets"), Some(reference.late));
    assert_eq!(report.counter("duplicate_prbs"), Some(reference.duplicates));
    assert_eq!(report.counter("malformed_packets"), Some(0));
    let missing = EAXC.len() * 14 * PRBS as usize * reference.delivered.len()
        - reference.delivered.iter().map(|slot| slot.prbs.len()).sum::<usize>();
    assert_eq!(report.counter("missing_prbs"), Some(missing as u64));
    (reference, instance)
}

fn section() -> impl Strategy<Value = Section> {
    (0..PRBS, 0..=PRBS, any::<bool>(), any::<bool>()).prop_map(|(start, count, every_second, next_symbol)| {
        let room = (PRBS - start).div_ceil(1 + every_second as u16);
        Section { start, count: count.min(room), every_second, next_symbol }
    })
}

fn packet() -> impl Strategy<Value = UPlane> {
    let sections = proptest::collection::vec(section(), 1..4);
    (0..6u32, 0..EAXC.len(), 0..11u8, any::<bool>(), sections).prop_map(
        |(slot, stream, symbol, tagged, sections)| UPlane { slot, stream, symbol, tagged, sections },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Compares the function with the reference for any sections, slots in any order, and any time steps.
    #[test]
    fn any_packets(
        bursts in proptest::collection::vec((proptest::collection::vec(packet(), 0..12), 0..LIMIT_NS), 1..24),
        compressed: bool,
    ) {
        let mut now = 1;
        let bursts: Vec<_> = bursts.into_iter().map(|(packets, step)| {
            now += step;
            (packets, now)
        }).collect();
        drive(if compressed { COMPRESSED } else { PLAIN }, &bursts);
    }

    /// Compares the function with the reference for complete slots. Packets are out of order by a limited
    /// distance, and some are lost or duplicated.
    #[test]
    fn slots_out_of_order(
        first in 0..5120u32,
        prbs_per_packet in 9..=PRBS,
        shuffle in any::<u64>(),
        distance in 1..80u64,
        lost in 0..4u64,
        burst in 1..40usize,
    ) {
        let mut random = shuffle | 1;
        let mut next = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        let mut packets = Vec::new();
        for slot in first..first + 5 {
            for packet in whole(&PLAIN, slot % 5120, prbs_per_packet) {
                let copies = if next() % 100 < lost { next() % 3 } else { 1 };
                for _ in 0..copies {
                    packets.push((packets.len() as u64 + next() % distance, packet.clone()));
                }
            }
        }
        packets.sort_by_key(|(order, _)| *order);
        let packets: Vec<UPlane> = packets.into_iter().map(|(_, packet)| packet).collect();
        let bursts: Vec<_> = packets.chunks(burst).enumerate().map(|(i, packets)| (packets.to_vec(), 1 + i as u64 * 3000)).collect();
        let (reference, _) = drive(PLAIN, &bursts);
        if lost == 0 && distance < 20 {
            prop_assert!(reference.delivered.iter().all(|slot| slot.reason == DeliveryReason::Complete));
            prop_assert_eq!(reference.delivered.len(), 5);
        }
    }

    /// Checks that packets with changed bytes, truncated to any length, are harmless: the function ends, and
    /// changes no byte outside the packets.
    #[test]
    fn hostile_packets(
        packets in proptest::collection::vec((packet(), proptest::collection::vec((0..40usize, any::<u8>()), 0..4), any::<prop::sample::Index>(), any::<bool>()), 1..20),
    ) {
        let mut instance = instance(&text(&COMPRESSED));
        let frames: Vec<Vec<u8>> = packets.into_iter().map(|(packet, changes, cut, whole)| {
            let mut frame = packet.frame(&COMPRESSED);
            for (at, byte) in changes {
                frame[at] = byte;
            }
            let length = if whole { frame.len() } else { cut.index(frame.len()) };
            frame.truncate(length);
            frame
        }).collect();
        for fate in run_shaped(&mut instance, &frames, 7, false, 1, 5) {
            prop_assert!(fate == Fate::Drop || matches!(&fate, Fate::Forward(bytes) if frames.contains(bytes)));
        }
        let report = instance.report();
        let counted = report.counter("uplane_packets").unwrap() + report.counter("other_packets").unwrap();
        prop_assert_eq!(counted, frames.len() as u64);
    }
}

#[test]
fn tick_delivers_a_slot_after_its_time_limit() {
    let mut packets = whole(&PLAIN, 8, 10);
    packets.truncate(5);
    let carrier = PLAIN;
    let frames: Vec<Vec<u8>> = packets.iter().map(|packet| packet.frame(&carrier)).collect();
    let mut instance = instance(&text(&carrier));
    assert!(instance.ticks());
    run_shaped(&mut instance, &frames, 5, true, 0, 1000);
    instance.tick(1000 + LIMIT_NS - 1);
    assert!(oran_slot(instance.output(), 0).is_none());
    instance.tick(1000 + LIMIT_NS);
    let slot = oran_slot(instance.output(), 0).expect("the time limit has passed");
    assert_eq!((slot.reason(), slot.times_ns()), (DeliveryReason::TimeUp, (1000, 1000 + LIMIT_NS)));
    assert_eq!((slot.received(0, 0), slot.received(0, 1), slot.received(0, 2)), (40, 10, 0));
    run_shaped(&mut instance, &frames, 5, true, 0, 1000 + LIMIT_NS + 5);
    assert_eq!(instance.report().counter("late_packets"), Some(5));
    // Send the packets twice more. Exactly half a cycle after the delivery of their slot, they are late. 1 ns
    // later, they belong to a new slot, because slot numbers repeat after a cycle.
    run_shaped(&mut instance, &frames, 5, true, 0, 1000 + LIMIT_NS + HALF_CYCLE_NS);
    assert_eq!(instance.report().counter("late_packets"), Some(10));
    run_shaped(&mut instance, &frames, 5, true, 0, 1001 + LIMIT_NS + HALF_CYCLE_NS);
    instance.finish();
    assert_eq!(instance.report().counter("late_packets"), Some(10));
    assert!(oran_slot(instance.output(), 1).is_some() && oran_slot(instance.output(), 2).is_none());
}

#[test]
fn a_wrong_slot_number_blocks_a_window_for_at_most_three_limits() {
    let carrier = PLAIN;
    let mut instance = instance(&text(&carrier));
    let send = |instance: &mut Instance, slot: u32, now: u64| {
        let frames: Vec<Vec<u8>> =
            whole(&PLAIN, slot, PRBS).iter().map(|packet| packet.frame(&carrier)).collect();
        run_shaped(instance, &frames, 32, true, 0, now);
        instance.report().counter("complete_slots").expect("the report has this counter")
    };
    assert_eq!(send(&mut instance, 0, 1), 1);
    let frame = whole(&PLAIN, 2000, PRBS)[0].frame(&carrier);
    run_shaped(&mut instance, &[frame], 1, true, 0, 2);
    assert_eq!(send(&mut instance, 2, 3), 1, "the packets of slot 2 seem late");
    instance.tick(2 + LIMIT_NS);
    assert_eq!(send(&mut instance, 4, 3 + 3 * LIMIT_NS), 2);
    assert_eq!(send(&mut instance, 5119, 4 + 3 * LIMIT_NS), 3, "the other window is not affected");
}

#[test]
fn packets_that_are_not_u_plane_are_forwarded() {
    let carrier = PLAIN;
    let mut frames = vec![whole(&PLAIN, 0, PRBS)[0].frame(&carrier); 4];
    frames[0][15] = 2; // real-time control
    frames[1][19] = 99; // another eAxC
    frames[2][14] = 0x11; // concatenated
    frames[3][12] = 8; // not eCPRI
    let mut instance = instance(&text(&carrier));
    let fates = run_shaped(&mut instance, &frames, 4, true, 0, 0);
    assert_eq!(fates, frames.into_iter().map(Fate::Forward).collect::<Vec<_>>());
    assert_eq!(instance.report().counter("other_packets"), Some(4));
}

#[test]
fn the_example_computes_the_power_of_symbols() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let (here, object) = (std::path::Path::new(env!("CARGO_MANIFEST_DIR")), folder.path().join("power.so"));
    let compiled = std::process::Command::new("c++")
        .args(["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-I"])
        .arg(here.join("include"))
        .arg("-o")
        .arg(&object)
        .arg("-xc++")
        .arg(here.join("../../examples/functions/oran_power.cu"))
        .status();
    assert!(compiled.expect("the compiler that built this crate").success());
    // SAFETY: the source declares the symbol with this type, and the output region is complete.
    let power = |output: &[u8], n: u64| unsafe {
        let library = libloading::Library::new(&object).expect("loads");
        let power =
            library.get::<unsafe extern "C" fn(*const u8, u64, u32, *mut u64) -> bool>(b"oran_power\0");
        let mut found = [0u64; 28];
        power.expect("the symbol is exported")(output.as_ptr(), n, 2, found.as_mut_ptr()).then_some(found)
    };
    let mut instance = instance(&text(&PLAIN));
    let frames: Vec<Vec<u8>> =
        whole(&PLAIN, 6, 11).iter().skip(3).map(|packet| packet.frame(&PLAIN)).collect();
    run_shaped(&mut instance, &frames, 32, true, 0, 1);
    assert_eq!(power(instance.output(), 0), None);
    instance.finish();
    let found = power(instance.output(), 0).expect("the slot was delivered");
    for (i, found) in found.into_iter().enumerate() {
        let prbs = (0..PRBS).filter(|prb| i > 0 || *prb >= 33);
        let samples =
            prbs.flat_map(|prb| samples(&PLAIN, 6, i / 14, (i % 14) as u8, prb)).collect::<Vec<u8>>();
        let words = samples.chunks(2).map(|pair| i16::from_be_bytes([pair[0], pair[1]]) as i64);
        assert_eq!(found, words.map(|word| (word * word) as u64).sum::<u64>(), "{i}");
    }
}
