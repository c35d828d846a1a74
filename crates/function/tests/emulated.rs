//! Tests of the functions' GPU code without a GPU. CPU threads emulate the GPU's thread blocks
//! (`emulated/cuda.h`). One block alone, and several blocks on one state, must give the same results as the
//! CPU code.

#[path = "harness/dissect.rs"]
mod dissect;
mod harness;

use inlane_core::region::Region;
use inlane_core::ring::layout::{Descriptor, PacketVerdict};
use inlane_function::abi::CallContext;
use inlane_function::{DeliveryReason, HEADERS, PacketFunction, flows, oran_slot};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

type Run =
    unsafe extern "C" fn(u32, u64, *const Descriptor, u32, *mut PacketVerdict, *const CallContext) -> u32;

/// A packet function that is compiled for emulated blocks.
struct Emulated {
    function: PacketFunction,
    folder: tempfile::TempDir,
    object: PathBuf,
}

/// The state and the output region of one pipeline. All blocks of the pipeline share them.
struct Memory {
    state: Region,
    output: Region,
}

struct Block {
    run: Run,
    _library: libloading::Library,
}

impl Emulated {
    fn new(text: &str) -> Self {
        let function = PacketFunction::parse(text).expect(text);
        let folder = tempfile::tempdir().expect("a temporary directory");
        for (name, text) in HEADERS {
            std::fs::write(folder.path().join(name), text).expect("written");
        }
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/emulated");
        let source = folder.path().join("block.cpp");
        let unit = format!(
            "#include \"{}\"\n{}\n#include \"{}\"\n",
            here.join("cuda.h").display(),
            function.source().expect("C++").for_gpu(),
            here.join("block.h").display()
        );
        std::fs::write(&source, unit).expect("written");
        let object = folder.path().join("block.so");
        let compile = |more: &[&str]| {
            Command::new("c++")
                .args([
                    "-std=c++17",
                    "-O1",
                    "-g1",
                    "-fPIC",
                    "-shared",
                    "-fvisibility=hidden",
                    "-fno-strict-aliasing",
                ])
                .args(more)
                .arg("-I")
                .arg(folder.path())
                .arg("-o")
                .args([&object, &source])
                .output()
                .expect("the compiler that built this crate")
        };
        // Compile with -fno-gnu-unique. Each emulated block loads its own copy of the object, and the copies
        // must not share static variables. Without this flag, GCC makes some of these variables unique in the
        // process. If a compiler refuses the flag, call it again without the flag.
        let output = Some(compile(&["-fno-gnu-unique"])).filter(|output| output.status.success());
        let output = output.unwrap_or_else(|| compile(&[]));
        assert!(output.status.success(), "{text}:\n{}", String::from_utf8_lossy(&output.stderr));
        Self { function, folder, object }
    }

    fn memory(&self) -> Memory {
        let info = self.function.info().expect("the function compiles for the CPU");
        let state = Region::host(info.state_bytes as usize).expect("memory");
        let output = Region::host((info.output_bytes as usize).max(1)).expect("memory");
        let initial = self.function.initial_state(&info).expect("settings that fit");
        // SAFETY: the new region is at least as long as the settings.
        unsafe { state.as_ptr().copy_from_nonoverlapping(initial.as_ptr(), initial.len()) };
        Memory { state, output }
    }

    fn block(&self, index: usize) -> Block {
        let copy = self.folder.path().join(format!("block{index}.so"));
        std::fs::copy(&self.object, &copy).expect("copied");
        // SAFETY: the library was compiled from block.h. This header declares the symbol with the type `Run`.
        unsafe {
            let library = libloading::Library::new(&copy).expect("loads");
            let run = *library.get::<Run>(b"emulated_run\0").expect("block.h defines the symbol");
            Block { run, _library: library }
        }
    }
}

impl Memory {
    fn context(&self, now_ns: u64) -> CallContext {
        CallContext {
            state: self.state.address(),
            output: self.output.address(),
            output_bytes: self.output.len() as u64,
            now_ns,
            room: 0,
            reserved: 0,
        }
    }

    /// Returns the state. Call it only while no block runs.
    fn state(&self) -> &[u8] {
        // SAFETY: the region is initialized, and no block writes it now.
        unsafe { std::slice::from_raw_parts(self.state.as_ptr(), self.state.len()) }
    }

    /// Returns the output region. Call it only while no block runs.
    fn output(&self) -> &[u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.output.as_ptr(), self.output.len()) }
    }
}

impl Block {
    fn item(
        &self,
        threads: u32,
        seed: u64,
        packets: &[Descriptor],
        verdicts: &mut [PacketVerdict],
        context: &CallContext,
    ) -> u32 {
        // SAFETY: the slices have the passed length. The buffers and the context's memory outlive the call.
        unsafe {
            (self.run)(threads, seed, packets.as_ptr(), packets.len() as u32, verdicts.as_mut_ptr(), context)
        }
    }

    fn tick(&self, threads: u32, context: &CallContext) {
        // SAFETY: without packets, the function runs the tick and reads no packet memory.
        unsafe { (self.run)(threads, 1, std::ptr::null(), 0, std::ptr::null_mut(), context) };
    }
}

/// Returns `count` values of a strategy, the same in each run.
fn sample<T: std::fmt::Debug>(strategy: impl Strategy<Value = T>, count: usize) -> Vec<T> {
    let mut runner = TestRunner::deterministic();
    (0..count).map(|_| strategy.new_tree(&mut runner).expect("nothing is rejected").current()).collect()
}

#[test]
fn a_block_gives_the_same_results_as_the_cpu() {
    let frames = sample(dissect::hostile(), 700);
    let example = |name: &str| format!("{}/../../examples/functions/{name}", env!("CARGO_MANIFEST_DIR"));
    let mut texts: Vec<String> =
        inlane_function::builtins().iter().map(|builtin| builtin.example.into()).collect();
    texts.retain(|text| !text.starts_with("oran"));
    texts.extend(
        [
            "truncate.cu:truncate:70",
            "sizes.cu",
            "vxlan.cu:only_network:5",
            "vlan.cu:push_vlan:5",
            "vlan.cu:pop_vlan",
        ]
        .map(example),
    );
    for text in &texts {
        let emulated = Emulated::new(text);
        let block = emulated.block(0);
        for (threads, burst, shift) in [(32, 20, 0), (64, 64, 5), (64, 150, 2), (128, 9, 0), (96, 128, 8)] {
            let memory = emulated.memory();
            let mut seed = shift as u64;
            let found = harness::run_by(&frames, burst, shift, |packets, verdicts| {
                seed += 1;
                block.item(threads, seed, packets, verdicts, &memory.context(5))
            });
            let mut instance = emulated.function.instance().expect("the function compiles for the CPU");
            let expected = harness::run_shaped(&mut instance, &frames, burst, false, shift, 5);
            assert!(found == expected, "{text} with {threads} threads, {burst} packets an item");
            if text == "flow-count" {
                assert_eq!(flows(memory.state()), flows(instance.state()));
            } else {
                assert!(memory.state() == instance.state(), "{text}: the states differ");
            }
        }
    }
}

#[test]
fn blocks_count_flows_together() {
    let emulated = Emulated::new("flow-count");
    let memory = emulated.memory();
    let frames = sample(dissect::well_formed(), 600);
    std::thread::scope(|scope| {
        for index in 0..4u64 {
            let (block, memory, frames) = (emulated.block(index as usize), &memory, &frames);
            scope.spawn(move || {
                for round in 0..5 {
                    harness::run_by(frames, 50, 0, |packets, verdicts| {
                        block.item(64, index * 100 + round, packets, verdicts, &memory.context(0))
                    });
                }
            });
        }
    });
    let mut instance = emulated.function.instance().expect("the function compiles for the CPU");
    harness::run(&mut instance, &frames);
    let counts = |state: &[u8], times: u64| -> HashMap<_, _> {
        let flows = flows(state).into_iter();
        flows
            .map(|flow| {
                let key =
                    (flow.source, flow.destination, flow.protocol, flow.source_port, flow.destination_port);
                (key, (flow.packets * times, flow.bytes * times))
            })
            .collect()
    };
    let found = flows(memory.state());
    assert_eq!(counts(memory.state(), 1), counts(instance.state(), 20));
    assert_eq!(found.len(), counts(memory.state(), 1).len(), "a flow has two places");
}

/// Returns a frame with `count` PRBs of a symbol. The samples depend only on the arguments.
fn uplane(slot: u32, eaxc: u16, symbol: u8, start: u16, count: u16) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0xae, 0xfe, 0x10, 0];
    frame.extend((12 + 48 * count).to_be_bytes());
    frame.extend(eaxc.to_be_bytes());
    frame.extend([0, 0x80]);
    let (subframes, slot_in) = (slot / 2, slot % 2);
    frame.extend([
        0x10,
        (subframes / 10) as u8,
        ((subframes % 10) << 4) as u8,
        (slot_in << 6) as u8 | symbol,
    ]);
    frame.extend(((start as u32) << 8 | count as u32).to_be_bytes());
    for prb in start..start + count {
        frame.extend(samples(slot, eaxc, symbol, prb));
    }
    frame
}

fn samples(slot: u32, eaxc: u16, symbol: u8, prb: u16) -> [u8; 48] {
    std::array::from_fn(|i| {
        (slot * 31 + eaxc as u32 * 17 + symbol as u32 * 7 + prb as u32 * 3 + i as u32) as u8 | 1
    })
}

const PRBS: u16 = 24;

/// Returns the packets of some slots, out of order. About `lost` per cent are missing.
fn fronthaul(slots: u32, lost: u32) -> Vec<Vec<u8>> {
    let mut random = 12345u32;
    let mut next = || {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        random >> 8
    };
    let mut frames = Vec::new();
    for slot in 0..slots {
        for eaxc in 0..2 {
            for symbol in 0..14 {
                for start in [0, 9, 18] {
                    let count = 9.min(PRBS - start);
                    if next() % 100 >= lost {
                        frames.push((
                            frames.len() as u32 + next() % 30,
                            uplane(slot, eaxc, symbol, start, count),
                        ));
                    }
                }
            }
        }
    }
    frames.sort_by_key(|(order, _)| *order);
    frames.into_iter().map(|(_, frame)| frame).collect()
}

#[test]
fn a_block_assembles_the_same_slots_as_the_cpu() {
    let emulated = Emulated::new("oran-reorder:eaxc=0+1,prbs=24,windows=4,limit=100us");
    let block = emulated.block(0);
    let mut frames = fronthaul(12, 2);
    frames.push(vec![1; 70]);
    for (threads, burst) in [(32, 7), (64, 50), (128, 150)] {
        let memory = emulated.memory();
        let (mut now, mut seed) = (1, 0);
        let found = harness::run_by(&frames, burst, 0, |packets, verdicts| {
            (now, seed) = (now + 2000, seed + 1);
            block.item(threads, seed, packets, verdicts, &memory.context(now))
        });
        block.tick(threads, &memory.context(u64::MAX));
        let mut instance = emulated.function.instance().expect("the function compiles for the CPU");
        let mut now = 1;
        let expected: Vec<_> = frames
            .chunks(burst)
            .flat_map(|frames| {
                now += 2000;
                harness::run_shaped(&mut instance, frames, burst, false, 0, now)
            })
            .collect();
        instance.finish();
        assert!(found == expected);
        assert_eq!(emulated.function.report(memory.state(), &[]), instance.report());
        assert!(memory.output() == instance.output(), "{threads} threads: the outputs differ");
    }
}

#[test]
fn blocks_assemble_together() {
    const BLOCKS: usize = 4;
    const SLOTS: u32 = 40;
    // `windows` is the number of slots that can be assembled at the same time. With a small number, several
    // emulated blocks need the same window.
    for (windows, lost) in [(8, 0), (8, 3), (1, 0), (2, 0), (2, 3)] {
        let emulated = Emulated::new(&format!("oran-reorder:eaxc=0+1,prbs=24,windows={windows},limit=1s"));
        let blocks: Vec<Block> = (0..BLOCKS).map(|index| emulated.block(index)).collect();
        let frames = fronthaul(SLOTS, lost);
        let memory = emulated.memory();
        let items: Vec<&[Vec<u8>]> = frames.chunks(16).collect();
        std::thread::scope(|scope| {
            for (index, block) in blocks.iter().enumerate() {
                let (memory, items) = (&memory, &items);
                scope.spawn(move || {
                    for (at, frames) in items.iter().enumerate().skip(index).step_by(BLOCKS) {
                        harness::run_by(frames, 16, 0, |packets, verdicts| {
                            block.item(64, at as u64, packets, verdicts, &memory.context(1 + at as u64))
                        });
                    }
                });
            }
        });
        blocks[0].tick(64, &memory.context(u64::MAX));
        let report = emulated.function.report(memory.state(), &[]);
        let count = |name: &str| report.counter(name).expect(name);
        assert_eq!((count("malformed_packets"), count("duplicate_prbs")), (0, 0));
        assert_eq!(count("uplane_packets"), frames.len() as u64);
        let delivered: Vec<_> = (0..).map_while(|n| oran_slot(memory.output(), n)).collect();
        let whole = 2 * 14 * PRBS as u32;
        let received: u64 = delivered.iter().map(|slot| slot.received_and_missing().0 as u64).sum();
        assert_eq!(received, count("received_prbs"), "PRBs were assembled that no delivered slot counts");
        // Every slot must be complete, unless packets were lost or late. Packets become late if a block runs
        // far ahead: a later slot then takes over the buffer of the packets' slot. The packets' slot is
        // delivered incomplete.
        if lost == 0 && count("late_packets") == 0 {
            assert!(delivered.iter().all(|slot| slot.reason() == DeliveryReason::Complete));
            assert_eq!(delivered.len(), SLOTS as usize);
        }
        // Compare the data of a slot only if no later slot has begun to overwrite it.
        let mut checked = 0;
        for (n, slot) in delivered.iter().enumerate() {
            let number = |slot: &inlane_function::OranSlot<'_>| {
                let (frame, subframe, of) = slot.time();
                (frame as u32 * 10 + subframe as u32) * 2 + of as u32
            };
            let mine = number(slot);
            if delivered[n + 1..].iter().any(|later| number(later) % windows == mine % windows) {
                continue;
            }
            checked += 1;
            let mut arrived = 0;
            for stream in 0..2u16 {
                for symbol in 0..14u8 {
                    let data = slot.symbol(stream.into(), symbol.into(), PRBS.into());
                    for (prb, found) in data.chunks(48).enumerate() {
                        let expected = samples(mine, stream, symbol, prb as u16);
                        assert!(found == expected || found == [0; 48], "slot {mine} {stream}/{symbol}/{prb}");
                        arrived += (found == expected) as u32;
                    }
                }
            }
            assert_eq!(slot.received_and_missing(), (arrived, whole - arrived));
        }
        assert!(checked >= windows.min(4), "the last slots must still be there");
    }
}
