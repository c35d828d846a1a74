//! Tests of the executor's kernels without a GPU. A CPU thread emulates each block of GPU threads
//! (`crates/function/tests/emulated`). The results must equal the results of the function's CPU build.

use super::loaded_function::EXECUTOR;
use super::parameters::{LaneParameters, strides};
use inlane_core::ring::layout::{self, DROP, FORWARD, PacketVerdict};
use inlane_core::ring::{Dispatcher, Ring};
use inlane_core::{Packet, Region};
use inlane_function::{HEADERS, Instance, PacketFunction};
use std::collections::VecDeque;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The type of `emulated_launch` in `launch.h`: kernel, threads, seed, block, blocks, lane, and the kernel's
/// two parameters after the lane. Kernels with fewer parameters ignore the rest.
type LaunchBlock = unsafe extern "C" fn(u32, u32, u64, u32, u32, *const LaneParameters, u64, u32);

/// A kernel of `executor.cu`. The variants have the numbers by which `launch.h` selects kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kernel {
    Persistent,
    Items,
    Slots,
    Tick,
}

/// A block of GPU threads, which a CPU thread emulates. Each block has its own copy of the kernels.
struct Block {
    launch: LaunchBlock,
    _library: libloading::Library,
}

impl Block {
    #[expect(clippy::too_many_arguments, reason = "the launch has as many")]
    fn run(
        &self,
        kernel: Kernel,
        shape: &Shape,
        seed: u64,
        block: u32,
        lane: &LaneParameters,
        place: u64,
        more: u32,
    ) {
        // SAFETY: the arguments have the declared types, and the lane's memory outlives the call.
        unsafe { (self.launch)(kernel as u32, shape.threads, seed, block, shape.blocks, lane, place, more) }
    }
}

/// Compiles the kernels together with a packet function. Loads a separate copy for each of `count` emulated
/// blocks.
fn blocks(function: &PacketFunction, pulls: bool, count: u32) -> Vec<Block> {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("written");
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let cuda = here.join("../function/tests/emulated/cuda.h");
    HEADERS.iter().for_each(|(name, text)| write(name, text));
    write("system.cuh", "");
    write("kernels.h", include_str!("kernels.h"));
    write("launch.h", include_str!("launch.h"));
    let kernels = EXECUTOR
        .replace("extern __shared__ uint4 inlane_shared[]", "alignas(16) static uint4 inlane_shared[5 * 512]")
        .replace(r#"asm volatile("mov.u32 %0, %%tid.x;" : "=r"(me))"#, "me = threadIdx.x");
    assert!(!kernels.contains("asm"), "a CPU cannot run inline PTX");
    let parts = [
        format!("#include \"{}\"\n#include \"kernels.h\"", cuda.display()),
        function.source().expect("C++").for_gpu(),
        kernels,
        "#include \"launch.h\"".into(),
    ];
    write("block.cpp", &parts.join("\n"));
    let object = folder.path().join("block.so");
    let compile = |more: &[&str]| {
        Command::new("c++")
            .args(["-std=c++17", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-strict-aliasing"])
            .args(["-DINLANE_MOST_THREADS=512", &format!("-DINLANE_PULLS={}", pulls as u32)])
            .args(more)
            .arg("-o")
            .args([&object, &folder.path().join("block.cpp")])
            .arg("-I")
            .arg(folder.path())
            .output()
            .expect("the compiler that built this crate")
    };
    // Each block needs its own static variables. Without this option, GCC would let the loaded copies share
    // some.
    let output = Some(compile(&["-fno-gnu-unique"])).filter(|output| output.status.success());
    let output = output.unwrap_or_else(|| compile(&[]));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let load = |index: u32| {
        let copy = folder.path().join(format!("block{index}.so"));
        std::fs::copy(&object, &copy).expect("copied");
        // SAFETY: the library was compiled from launch.h. This header declares the symbol with the type
        // `LaunchBlock`.
        unsafe {
            let library = libloading::Library::new(&copy).expect("loads");
            let launch =
                *library.get::<LaunchBlock>(b"emulated_launch\0").expect("launch.h defines the symbol");
            Block { launch, _library: library }
        }
    };
    (0..count).map(load).collect()
}

/// The size of a buffer in bytes. It is odd, so packets begin at any address. They share 16-byte chunks with
/// neighbouring packets.
const ROOM: usize = 331;
/// The number of bytes before and after all buffers. These bytes must stay unchanged, because a change shows
/// a write outside the buffers.
const EDGE: usize = 32;
/// The length of a guard area in bytes. The area follows the memory into which blocks of threads copy
/// packets. If a byte in the area has changed, a block has written beyond that memory.
const GUARD: usize = 4096;

#[derive(Clone, Copy, Debug)]
struct Shape {
    kernel: Kernel,
    burst: usize,
    slots: usize,
    threads: u32,
    blocks: u32,
    /// The number of leading bytes of each packet that the kernel copies into GPU memory (pulls) before it
    /// processes the packet. If 0, the kernel processes packets in place.
    pull: u32,
    /// The length of the longest packet in bytes.
    longest: usize,
}

/// A lane in host memory, and an instance of the function on the CPU that gives the expected results.
struct TestLane {
    shape: Shape,
    lane: LaneParameters,
    /// Keeps the ring's memory allocated. Blocks use this memory until they end.
    _ring: Arc<Ring>,
    dispatcher: Option<Dispatcher>,
    packets: Region,
    state: Region,
    /// Two regions, each with the number of bytes that blocks may write. The first is the memory of the
    /// lane's `stage`, into which packets are pulled. The second is the memory of `shadow`, the copies that
    /// reveal changes.
    pulled: [(Region, usize); 2],
    /// The memory of `lane.control` and of `lane.relay`. The host writes control words to `lane.control`.
    /// Block 0 copies them to `lane.relay` for the other blocks.
    words: [Region; 2],
    instance: Instance,
    random: RandomNumbers,
}

/// Random numbers (xorshift).
struct RandomNumbers(u64);

impl RandomNumbers {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % sides
    }
}

/// Returns `count` bytes at `address`.
///
/// # Safety
/// The bytes are valid, and nothing writes them while the result is used.
unsafe fn bytes<'a>(address: u64, count: usize) -> &'a [u8] {
    // SAFETY: the caller guarantees that the `count` bytes are valid and that nothing writes them while the
    // result is used.
    unsafe { std::slice::from_raw_parts(address as *const u8, count) }
}

/// A packet in flight, and a copy of its buffer's content from before it was submitted.
type SubmittedPacket = (Packet, Vec<u8>);

impl TestLane {
    fn new(function: &PacketFunction, shape: Shape, seed: u64) -> Self {
        let Shape { burst, slots, pull, .. } = shape;
        let info = function.info().expect("the function compiles for the CPU");
        let region = |bytes: usize, fill: u8| {
            let region = Region::host(bytes).expect("memory");
            // SAFETY: the region is new and has this length.
            unsafe { region.as_ptr().write_bytes(fill, bytes) };
            region
        };
        let (count, room) = (slots * burst, ROOM as u32);
        let [stage, shadow] = strides(pull, room, info.writes);
        let pulled = [stage, shadow].map(|stride| {
            let end = count * stride as usize;
            (region(end + GUARD, 0xee), end)
        });
        let address = |index: usize, stride: u32| if stride == 0 { 0 } else { pulled[index].0.address() };
        let [submit, complete] = [layout::submit_bytes(slots, burst), layout::complete_bytes(slots, burst)]
            .map(|size| region(size, 0));
        let (words, state) = ([region(256, 0), region(128, 0)], region(info.state_bytes as usize, 0));
        let lane = LaneParameters {
            submit: submit.address(),
            complete: complete.address(),
            control: words[0].address(),
            stage: address(0, stage),
            shadow: address(1, shadow),
            state: state.address(),
            output: 0,
            relay: words[1].address(),
            output_bytes: 0,
            orphan_ns: u64::MAX,
            submit_stride: layout::submit_stride(burst) as u32,
            complete_stride: layout::complete_stride(burst) as u32,
            slot_shift: slots.trailing_zeros(),
            burst: burst as u32,
            room,
            pull,
            stage_stride: stage,
            shadow_stride: shadow,
            writes: info.writes,
            pause_ns: 0,
            work_ns: 0,
            reserved: 0,
        };
        let mut instance = function.instance().expect("the function compiles for the CPU");
        instance.set_room(room);
        // SAFETY: the regions are this test's, and blocks write only the completion half.
        let dispatcher = unsafe { Ring::to_device(slots, burst, submit, complete) }.expect("a ring");
        Self {
            shape,
            lane,
            _ring: dispatcher.ring().clone(),
            dispatcher: Some(dispatcher),
            packets: region(count * ROOM + 2 * EDGE, 0x77),
            state,
            pulled,
            words,
            instance,
            random: RandomNumbers(seed | 1),
        }
    }

    /// Takes one of the `free` buffers and creates a packet of random length and content in it.
    fn packet(&mut self, free: &mut Vec<u64>) -> SubmittedPacket {
        let random = &mut self.random;
        let cookie = free.swap_remove(random.roll(free.len()));
        let address = self.packets.address() + EDGE as u64 + cookie * ROOM as u64;
        // SAFETY: the buffer is free, so nothing else uses it.
        let buffer = unsafe { std::slice::from_raw_parts_mut(address as *mut u8, ROOM) };
        buffer.fill_with(|| random.roll(256) as u8);
        let length = 1 + random.roll(self.shape.longest) as u32;
        (Packet { address, length, port: 0, cookie }, buffer.to_vec())
    }

    /// Runs the function's CPU build on copies of an item's packets. Checks that the emulated blocks have
    /// produced the same verdicts and packet bytes.
    fn compare(&mut self, item: &[SubmittedPacket], found: &[PacketVerdict]) {
        let shape = self.shape;
        let mut copies: Vec<Vec<u8>> = item.iter().map(|(_, before)| before.clone()).collect();
        let at_copy = |((packet, _), copy): (&SubmittedPacket, &mut Vec<u8>)| Packet {
            address: copy.as_mut_ptr() as u64,
            ..*packet
        };
        let packets: Vec<Packet> = item.iter().zip(&mut copies).map(at_copy).collect();
        let unchanged = |packet: &Packet| PacketVerdict { length: packet.length, verdict: FORWARD };
        let mut expected: Vec<PacketVerdict> = packets.iter().map(unchanged).collect();
        // SAFETY: the buffers belong to this test and have the room that was set.
        unsafe { self.instance.run_packets(&packets, &mut expected, 0) };
        assert_eq!(found, expected, "{shape:?}");
        for (((packet, before), copy), outcome) in item.iter().zip(&copies).zip(expected) {
            // SAFETY: the item is complete, so no block uses the packet.
            let after = unsafe { bytes(packet.address, ROOM) };
            let (new, end) = (outcome.length as usize, outcome.length.max(packet.length) as usize);
            assert!(
                outcome.verdict == DROP || after[..new] == copy[..new],
                "{packet:?}, {outcome:?}, {shape:?}"
            );
            assert!(after[end..] == before[end..], "written after {packet:?}, {outcome:?}, {shape:?}");
        }
    }

    /// Submits `items` items of random packets, lets the blocks process them, and checks the results.
    fn drive(&mut self, blocks: &[Block], items: u64) {
        let (shape, lane) = (self.shape, self.lane);
        let (kernel, slots) = (shape.kernel, shape.slots as u64);
        let seed = self.random.0;
        std::thread::scope(|scope| {
            // If an assertion fails, this variable is dropped. This closes the ring and ends the blocks.
            // Otherwise the scope would wait for the blocks forever.
            let mut dispatcher = self.dispatcher.take().expect("a stage is driven once");
            for (index, block) in blocks.iter().enumerate().filter(|_| kernel == Kernel::Persistent) {
                let index = index as u32;
                scope.spawn(move || block.run(kernel, &shape, seed + index as u64, index, &lane, 0, 0));
            }
            let mut free: Vec<u64> = (0..slots * shape.burst as u64).collect();
            let mut out: VecDeque<Vec<SubmittedPacket>> = VecDeque::new();
            let (mut submitted, mut progress) = (0, Instant::now());
            while submitted < items || !out.is_empty() {
                if submitted < items && dispatcher.has_room() && self.random.roll(3) > 0 {
                    let count = 1 + self.random.roll(shape.burst);
                    let item: Vec<SubmittedPacket> = (0..count).map(|_| self.packet(&mut free)).collect();
                    let packets: Vec<Packet> = item.iter().map(|(packet, _)| *packet).collect();
                    assert!(dispatcher.submit(&packets));
                    out.push_back(item);
                    let odd = (submitted / slots + 1) as u32 & 1;
                    match kernel {
                        Kernel::Items => blocks[0].run(
                            kernel,
                            &shape,
                            seed ^ submitted,
                            0,
                            &lane,
                            submitted,
                            shape.burst as u32,
                        ),
                        Kernel::Slots => {
                            blocks[0].run(kernel, &shape, seed ^ submitted, 0, &lane, submitted % slots, odd)
                        }
                        _ => {}
                    }
                    submitted += 1;
                }
                let Some(back) = dispatcher.poll() else {
                    assert!(progress.elapsed() < Duration::from_secs(60), "no progress: {shape:?}");
                    std::thread::yield_now();
                    continue;
                };
                progress = Instant::now();
                let item = out.pop_front().expect("an item is in flight");
                let unchanged = |(i, (packet, _)): (usize, &SubmittedPacket)| match back.changed() {
                    true => back.verdict(i),
                    false => PacketVerdict { length: packet.length, verdict: FORWARD },
                };
                let found: Vec<PacketVerdict> = item.iter().enumerate().map(unchanged).collect();
                back.free();
                self.compare(&item, &found);
                free.extend(item.iter().map(|(packet, _)| packet.cookie));
            }
        });
        // SAFETY: the blocks have ended.
        unsafe {
            assert!(
                bytes(self.state.address(), self.state.len()) == self.instance.state(),
                "{shape:?}: the states differ"
            );
            let end = self.packets.address() + (self.packets.len() - EDGE) as u64;
            let edges = [(self.packets.address(), EDGE, 0x77), (end, EDGE, 0x77)];
            let guards =
                self.pulled.each_ref().map(|(region, end)| (region.address() + *end as u64, GUARD, 0xee));
            for (address, count, fill) in edges.into_iter().chain(guards) {
                assert!(bytes(address, count).iter().all(|byte| *byte == fill), "{shape:?}: written outside");
            }
        }
    }
}

/// Returns the path of a packet function in this directory.
fn local_function(name: &str) -> String {
    format!("{}/src/gpu/emulated/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn kernels_give_the_same_results_as_the_cpu() {
    for (name, pull) in
        [(local_function("mangle.cu").as_str(), u32::MAX), ("l3-decrement", 96), ("checksum", u32::MAX)]
    {
        let function = PacketFunction::parse(name).expect(name);
        for pull in [0, pull] {
            let blocks = blocks(&function, pull != 0, 4);
            for (seed, (burst, slots, threads)) in
                [(1, 8, 32), (2, 4, 32), (7, 8, 64), (8, 4, 64), (33, 4, 32), (50, 8, 128), (1024, 4, 128)]
                    .into_iter()
                    .enumerate()
            {
                for kernel in [Kernel::Persistent, Kernel::Items, Kernel::Slots] {
                    let count = 1 + seed % blocks.len();
                    let longest = [ROOM, 17][(burst == 1024) as usize];
                    let shape = Shape { kernel, burst, slots, threads, blocks: count as u32, pull, longest };
                    let items = (1200 / burst).clamp(6, 150) as u64;
                    TestLane::new(&function, shape, seed as u64 + 77).drive(&blocks[..count], items);
                }
            }
        }
    }
}

#[test]
fn all_threads_of_a_block_get_the_same_time() {
    let function = PacketFunction::parse(&local_function("clocks.cu")).expect("a function");
    for pull in [0, u32::MAX] {
        let blocks = blocks(&function, pull != 0, 2);
        for kernel in [Kernel::Persistent, Kernel::Items] {
            let shape = Shape { kernel, burst: 8, slots: 4, threads: 64, blocks: 2, pull, longest: 60 };
            let mut stage = TestLane::new(&function, shape, 5);
            stage.drive(&blocks, 30);
            for seed in 0..20 {
                blocks[0].run(Kernel::Tick, &shape, seed, 0, &stage.lane, 0, 0);
            }
            // SAFETY: the blocks have ended.
            let differing = unsafe { bytes(stage.state.address(), 8) };
            assert_eq!(differing, [0; 8], "ticks in which threads got different times");
        }
    }
}

#[test]
fn an_order_to_stop_ends_blocks_with_a_full_ring() {
    let function = PacketFunction::parse("macswap").expect("a function");
    let blocks = blocks(&function, false, 3);
    for burst in [2, 64] {
        let shape = Shape {
            kernel: Kernel::Persistent,
            burst,
            slots: 64,
            threads: 32,
            blocks: 3,
            pull: 0,
            longest: 60,
        };
        let mut stage = TestLane::new(&function, shape, 9);
        let mut dispatcher = stage.dispatcher.take().expect("a stage is driven once");
        let mut free: Vec<u64> = (0..64).collect();
        while !free.is_empty() {
            let (packet, _) = stage.packet(&mut free);
            assert!(dispatcher.submit(&[packet]));
        }
        // SAFETY: no block runs yet. The first control word is the order to stop.
        unsafe { stage.words[0].as_ptr().cast::<u64>().write(1) };
        let lane = stage.lane;
        std::thread::scope(|scope| {
            for (index, block) in blocks.iter().enumerate() {
                scope.spawn(move || block.run(Kernel::Persistent, &shape, 1, index as u32, &lane, 0, 0));
            }
        });
    }
}
