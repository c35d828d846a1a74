//! Tests of the ring: against a model queue, with threads, and with a hostile consumer.

use super::layout::{DROP, Descriptor, FORWARD, PacketVerdict, UNCHANGED, VERDICTS};
use super::protocol::Word;
use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

fn packet(id: u64) -> Packet {
    Packet { address: 0x1000 + id, cookie: id, length: 64 + (id % 1000) as u32, port: 0 }
}

/// Returns the test consumer's verdict on packet `id`: drops every third, shortens every fifth by 4 bytes.
fn verdict(id: u64, length: u32) -> PacketVerdict {
    match id {
        id if id % 3 == 1 => PacketVerdict { length, verdict: DROP },
        id if id % 5 == 1 => PacketVerdict { length: length - 4, verdict: FORWARD },
        _ => PacketVerdict { length, verdict: FORWARD },
    }
}

fn process(item: &mut SubmittedItem<'_>, change: bool) -> u32 {
    let (descriptors, verdicts) = item.parts();
    for (descriptor, place) in descriptors.iter().zip(verdicts) {
        let id = descriptor.address - 0x1000;
        let lap = descriptors[0].lap;
        assert_eq!(*descriptor, Descriptor { address: 0x1000 + id, length: packet(id).length, lap });
        *place = verdict(id, descriptor.length);
    }
    if change { VERDICTS } else { UNCHANGED }
}

fn take_back(completed: CompletedItem<'_>, item: &mut [Packet]) -> VerdictCounts {
    let counts = match completed.changed() {
        true => apply_verdicts(item, |i| completed.verdict(i), 2048),
        false => VerdictCounts { forwarded: item.len(), ..VerdictCounts::default() },
    };
    completed.free();
    counts
}

/// Creates a ring for a device. Returns its dispatcher and its two regions. A test acts as the device through
/// these regions.
fn to_device(slots: usize, burst: usize) -> (Dispatcher, Region, Region) {
    let submit = Region::host(layout::submit_bytes(slots, burst)).unwrap();
    let complete = Region::host(layout::complete_bytes(slots, burst)).unwrap();
    // SAFETY: the test acts as the device, on the same thread.
    let dispatcher = unsafe { Ring::to_device(slots, burst, submit.clone(), complete.clone()) }.unwrap();
    (dispatcher, submit, complete)
}

fn write_as_device(complete: &Region, offset: usize, value: u64) {
    assert!(offset + 8 <= complete.len() && offset.is_multiple_of(8));
    // SAFETY: the word is inside the region and aligned, and only this thread accesses the region.
    unsafe { complete.as_ptr().add(offset).cast::<u64>().write_volatile(value) };
}

#[derive(Clone, Debug)]
enum Step {
    Submit(usize),
    Process(u32, bool),
    TakeBack,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0usize..5).prop_map(Step::Submit),
        (0u32..3, any::<bool>()).prop_map(|(index, change)| Step::Process(index, change)),
        Just(Step::TakeBack),
    ]
}

/// An item of the model queue. `processed` is `None` until the consumer has processed the item. Afterwards it
/// is true if the item has verdicts.
struct Item {
    packets: Vec<Packet>,
    processed: Option<bool>,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 256 }, failure_persistence: None, ..Default::default() })]

    #[test]
    fn behaves_as_a_queue(consumers in 1u32..4, slots_log in 1u32..4, steps in prop::collection::vec(step(), 0..if cfg!(miri) { 60 } else { 400 })) {
        let slots = 1usize << slots_log;
        let (mut dispatcher, mut workers) = Ring::between_threads(slots, 4, consumers).unwrap();
        let ring = dispatcher.ring().clone();
        let mut model: VecDeque<Item> = VecDeque::new();
        let (mut next_id, mut freed) = (0u64, 0u64);
        let mut processed = vec![0u64; consumers as usize];
        let position_of = |processed: &[u64], index: u32| processed[index as usize] * consumers as u64 + index as u64;
        for step in steps {
            match step {
                Step::Submit(count) => {
                    let packets: Vec<_> = (next_id..next_id + count as u64).map(packet).collect();
                    prop_assert_eq!(dispatcher.has_room(), model.len() < slots);
                    let accepted = dispatcher.submit(&packets);
                    prop_assert_eq!(accepted, model.len() < slots);
                    if accepted {
                        next_id += count as u64;
                        model.push_back(Item { packets, processed: None });
                        prop_assert_eq!(ring.submitted(freed + model.len() as u64 - 1), Some(count as u32));
                    }
                    prop_assert_eq!(dispatcher.in_flight(), model.len() as u64);
                }
                Step::Process(index, change) => {
                    let index = index % consumers;
                    let position = position_of(&processed, index);
                    let submitted = position < freed + model.len() as u64;
                    match workers[index as usize].poll() {
                        NextItem::Item(mut item) => {
                            prop_assert!(submitted);
                            let info = process(&mut item, change);
                            item.complete(info);
                            prop_assert!(ring.is_completed(position));
                            model[(position - freed) as usize].processed = Some(change);
                            processed[index as usize] += 1;
                        }
                        NextItem::Empty => prop_assert!(!submitted),
                        NextItem::Closed => prop_assert!(false, "the ring is open"),
                    }
                }
                Step::TakeBack => match dispatcher.poll() {
                    Some(completed) => {
                        let Item { mut packets, processed } = model.pop_front().unwrap();
                        let change = processed.expect("only processed items are completed");
                        let ids: Vec<u64> = packets.iter().map(|packet| packet.cookie).collect();
                        let counts = take_back(completed, &mut packets);
                        freed += 1;
                        prop_assert_eq!(ring.freed(), freed);
                        let forwarded: Vec<_> = ids.iter().copied().filter(|id| !change || id % 3 != 1).collect();
                        prop_assert_eq!(counts.forwarded, forwarded.len());
                        prop_assert_eq!(counts.dropped, ids.len() - forwarded.len());
                        for (forwarded, id) in packets.iter().zip(&forwarded) {
                            let length = packet(*id).length;
                            let length = if change { verdict(*id, length).length } else { length };
                            prop_assert_eq!((forwarded.cookie, forwarded.length), (*id, length));
                        }
                        let mut all: Vec<_> = packets.iter().map(|packet| packet.cookie).collect();
                        all.sort_unstable();
                        prop_assert_eq!(all, ids, "each packet is in the item once");
                    }
                    None => prop_assert!(model.front().is_none_or(|item| item.processed.is_none())),
                },
            }
        }
        // Close the ring. Each consumer must then get its remaining items, and end after the last one.
        prop_assert_eq!(ring.closed_at(), None);
        dispatcher.close();
        let published = freed + model.len() as u64;
        prop_assert_eq!(ring.closed_at(), Some(published));
        for index in 0..consumers {
            let mut left = 0;
            while let NextItem::Item(item) = workers[index as usize].poll() {
                item.complete(UNCHANGED);
                left += 1;
            }
            let expected = (position_of(&processed, index)..published).step_by(consumers as usize).count();
            prop_assert_eq!(left, expected);
            prop_assert!(matches!(workers[index as usize].poll(), NextItem::Closed));
        }
    }
}

#[test]
fn items_come_back_from_threads_in_order() {
    const ITEMS: u64 = if cfg!(miri) { 40 } else { 20_000 };
    let (mut dispatcher, consumers) = Ring::between_threads(8, 4, 3).unwrap();
    std::thread::scope(|scope| {
        for mut consumer in consumers {
            scope.spawn(move || {
                loop {
                    match consumer.poll() {
                        NextItem::Item(mut item) => {
                            let info = process(&mut item, true);
                            item.complete(info);
                        }
                        NextItem::Empty => std::thread::yield_now(),
                        NextItem::Closed => return,
                    }
                }
            });
        }
        let (mut submitted, mut taken_back) = (0, 0);
        while taken_back < ITEMS {
            let burst: Vec<_> = (submitted * 4..submitted * 4 + 4).map(packet).collect();
            if submitted < ITEMS && dispatcher.submit(&burst) {
                submitted += 1;
            } else if let Some(completed) = dispatcher.poll() {
                for i in 0..4 {
                    let id = taken_back * 4 + i;
                    assert_eq!(completed.verdict(i as usize), verdict(id, packet(id).length));
                }
                completed.free();
                taken_back += 1;
            } else {
                std::thread::yield_now();
            }
        }
        assert_eq!((dispatcher.in_flight(), dispatcher.poll().is_none()), (0, true));
        drop(dispatcher);
    });
}

#[test]
fn an_item_that_is_not_handed_on_is_returned_again() {
    let (mut dispatcher, mut consumers) = Ring::between_threads(2, 4, 1).unwrap();
    assert!(dispatcher.submit(&[packet(0)]));
    for _ in 0..2 {
        let NextItem::Item(mut item) = consumers[0].poll() else { panic!("an item was submitted") };
        assert_eq!(item.parts().0[0].address, packet(0).address);
    }
    let NextItem::Item(item) = consumers[0].poll() else { panic!("an item was submitted") };
    item.complete(UNCHANGED);
    for _ in 0..2 {
        assert!(!dispatcher.poll().expect("a completed item").changed());
    }
    assert_eq!(dispatcher.in_flight(), 1);
    dispatcher.poll().unwrap().free();
    assert_eq!(dispatcher.in_flight(), 0);
}

#[test]
fn a_hostile_consumer_completes_nothing_that_was_not_submitted() {
    let (mut dispatcher, _, complete) = to_device(2, 4);
    let stride = layout::complete_stride(4);
    write_as_device(&complete, 0, 1);
    assert!(dispatcher.poll().is_none());
    // The device writes a wrong lap for the first item and the right lap for the second. The first is not
    // completed, so the poll returns nothing.
    assert!(dispatcher.submit(&[packet(0)]) && dispatcher.submit(&[packet(1)]));
    write_as_device(&complete, 0, 2);
    write_as_device(&complete, stride, 1);
    assert!(dispatcher.poll().is_none());
    write_as_device(&complete, 0, 1);
    dispatcher.poll().expect("the first item is completed").free();
    dispatcher.poll().expect("the second item is completed").free();
    assert!(dispatcher.poll().is_none());
}

#[test]
fn invalid_verdicts_drop_packets() {
    let (mut dispatcher, mut consumers) = Ring::between_threads(2, 4, 1).unwrap();
    let mut packets = [packet(0), packet(2), packet(3)];
    assert!(dispatcher.submit(&packets));
    let NextItem::Item(mut item) = consumers[0].poll() else { panic!("an item was submitted") };
    item.parts().1.copy_from_slice(&[
        PacketVerdict { length: u32::MAX, verdict: FORWARD },
        PacketVerdict { length: 0, verdict: FORWARD },
        PacketVerdict { length: 64, verdict: u32::MAX },
    ]);
    item.complete(VERDICTS);
    let counts = take_back(dispatcher.poll().unwrap(), &mut packets);
    assert_eq!((counts.forwarded, counts.dropped, counts.invalid), (0, 3, 3));
}

#[test]
fn waits_for_items_that_never_come_are_released() {
    let (mut dispatcher, _, complete) = to_device(2, 4);
    let ring = dispatcher.ring().clone();
    assert!(dispatcher.submit(&[packet(0)]));
    ring.release_waits(4);
    assert_eq!(ring.submitted(1), None, "the ring is open");
    dispatcher.close();
    assert!(!dispatcher.has_room() && !dispatcher.submit(&[packet(1)]), "a closed ring takes no items");
    // Item 0 is in flight, so `release_waits` must not write into the slot of item 0.
    ring.release_waits(4);
    assert_eq!((ring.closed_at(), ring.submitted(0), ring.submitted(1)), (Some(1), Some(1), Some(0)));
    write_as_device(&complete, 0, 1);
    dispatcher.poll().unwrap().free();
    ring.release_waits(3);
    assert_eq!((ring.submitted(0), ring.submitted(2)), (None, Some(0)));
}

fn laps(ring: &Ring, slot: u32) -> (u32, Vec<u32>) {
    let word = Word::load(RingWords(ring).submitted(slot));
    // SAFETY: the slot has `burst` descriptors, and nothing writes them now.
    let descriptor = |i| unsafe { ring.descriptors(slot).add(i).read() };
    (word as u32, (0..ring.burst).map(|i| descriptor(i).lap).collect())
}

#[test]
fn descriptors_have_the_lap_of_their_item_and_never_one_of_2_32_laps_ago() {
    let burst = layout::DESCRIPTORS_WITH_WORD;
    let (mut dispatcher, _, _) = to_device(2, burst);
    let ring = dispatcher.ring().clone();
    // Begin in the last lap before the 32-bit lap number wraps. Each `submit` uses slot 0 of the next lap.
    // Slot 1 stays unused.
    let mut position = (u32::MAX as u64 - 1) * 2;
    let mut submit = |count: u64| {
        dispatcher.cursor = protocol::DispatcherCursor::new(&RingWords(&ring), position);
        assert!(dispatcher.submit(&(0..count).map(packet).collect::<Vec<_>>()));
        position += 2;
        laps(&ring, 0)
    };
    assert_eq!(submit(burst as u64), (u32::MAX, vec![u32::MAX; burst]));
    assert_eq!(submit(1), (0, vec![0; burst]));
    assert_eq!(submit(2).1[..3], [1, 1, 0]);
    assert_eq!(submit(1).1[..3], [2, 1, 0], "descriptors beyond the item's packets keep their lap");
    assert!(!protocol::belongs(0, 0), "fresh memory belongs to no lap");
}

#[test]
fn impossible_rings_are_refused() {
    for (slots, burst) in [(0, 32), (1, 32), (3, 32), (1 << 17, 32), (8, 0), (8, 1025)] {
        assert!(Ring::between_threads(slots, burst, 1).is_err(), "{slots} slots of {burst}");
    }
    let small = Region::host(128).unwrap();
    let large = Region::host(1 << 20).unwrap();
    let part = |offset| large.slice(offset, 65536).unwrap();
    for (submit, complete, why) in [
        (small, large.clone(), "too small"),
        (large.clone(), large.clone(), "overlap"),
        (part(8), part(131_072), "aligned"),
    ] {
        // SAFETY: `to_device` returns an error, so nothing accesses the regions.
        let error = unsafe { Ring::to_device(8, 32, submit, complete) }.err().unwrap().to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "starts a compiler")]
fn the_c_header_compiles_and_agrees() {
    let directory = std::env::temp_dir().join(format!("inlane-ring-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("ring.h"), layout::c_header()).unwrap();
    let strides = [1usize, 7, 8, 16, 32, 64, 128, 1024]
        .map(|b| {
            format!(
                "static_assert(INLANE_SUBMIT_STRIDE({b}u) == {} && INLANE_COMPLETE_STRIDE({b}u) == {}, \"\");",
                layout::submit_stride(b),
                layout::complete_stride(b)
            )
        })
        .join("\n");
    std::fs::write(directory.join("check.cpp"), format!("#include \"ring.h\"\n{strides}\n")).unwrap();
    let status = std::process::Command::new("c++")
        .args(["-std=c++17", "-fsyntax-only", "check.cpp"])
        .current_dir(&directory)
        .status();
    std::fs::remove_dir_all(&directory).unwrap();
    assert!(status.expect("a C++ compiler (apt-get install g++)").success());
}
