//! A program with a GPU kernel of its own that serves the burst ring. The program submits bursts from a port
//! and takes them back. The kernel adds up the bytes of the packets in these bursts.
//!
//! `cargo run --release -p inlane-forward --example own-kernel` needs a GPU. Without a GPU, the example
//! prints what is missing.

use inlane_core::clock::Clock;
use inlane_core::ring::{Ring, layout};
use inlane_core::{HeapPool, Packet, Pool, Port};
use inlane_cuda::{Arguments, Gpu, LaunchConfig, Module, Source, compile};
use inlane_ports::generate::Generator;
use std::collections::VecDeque;
use std::error::Error;
use std::sync::Arc;

const SLOTS: usize = 64;
const BURST: usize = 32;
const PACKETS: u64 = 100_000;

fn main() {
    if let Err(error) = run() {
        eprintln!("own-kernel: {error}");
        std::process::exit(1);
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let gpu = Gpu::open(0)?;
    let program = Source {
        name: "kernel.cu",
        source: include_str!("kernel.cu"),
        headers: &inlane_function::HEADERS,
        options: &["-default-device"],
    };
    let kernel = Module::load(&gpu, &compile(&program, &gpu.info().arch())?)?.kernel("add_up")?;

    // Memory that the CPU and the GPU access: packets, the two halves of the ring, and the kernel's sum.
    // Allocate all of it before the kernel runs, because an allocation may wait until the kernel ends.
    let bytes = HeapPool::bytes(4 * SLOTS * BURST, 2048).ok_or("the pool is too large")?;
    let pool: Arc<dyn Pool> = Arc::new(HeapPool::over(gpu.pinned(bytes)?, 2048)?);
    let submit = gpu.pinned(layout::submit_bytes(SLOTS, BURST))?;
    let complete = gpu.pinned(layout::complete_bytes(SLOTS, BURST))?;
    let total = gpu.allocate(8)?;
    let arguments = [submit.address(), complete.address(), SLOTS as u64, BURST as u64, total.address()];
    // SAFETY: only the ring and the kernel access the two regions, and the kernel writes only the second.
    let mut dispatcher = unsafe { Ring::to_device(SLOTS, BURST, submit, complete)? };

    let mut port = Generator::open("gen:imix,flows=8", &Clock::new())?;
    port.configure(std::slice::from_ref(&pool), 0)?;
    let mut rx = port.take_rx(0)?;
    port.start()?;

    let stream = gpu.stream()?;
    let shape = LaunchConfig { blocks: 1, threads: 128, shared_bytes: 0, cooperative: false };
    // SAFETY: these are the kernel's parameters, in order. The ring and the sum live until the stream has
    // ended.
    unsafe { kernel.launch(&stream, shape, Arguments(arguments))? };

    let (mut expected, mut submitted) = (0u64, 0u64);
    let mut received: Vec<Packet> = Vec::new();
    // The packets of the items in flight, oldest first.
    let mut in_flight: VecDeque<Vec<Packet>> = VecDeque::new();
    let mut kernel_ended = false;
    while submitted < PACKETS || !in_flight.is_empty() {
        if received.is_empty() && submitted < PACKETS {
            let mut burst = [Packet::EMPTY; BURST];
            let count = rx.receive(&mut burst)?;
            received.extend_from_slice(&burst[..count]);
            // SAFETY: the packets were just received, and lie in pinned memory.
            let sum =
                |packet: &Packet| unsafe { packet.bytes() }.iter().map(|&byte| byte as u64).sum::<u64>();
            expected += received.iter().map(sum).sum::<u64>();
        }
        if !received.is_empty() && dispatcher.submit(&received) {
            submitted += received.len() as u64;
            in_flight.push_back(std::mem::take(&mut received));
            if submitted >= PACKETS {
                dispatcher.close();
            }
        }
        if let Some(item) = dispatcher.poll() {
            item.free();
            let packets = in_flight.pop_front().expect("a completed item was submitted");
            // SAFETY: the packets are held here, are from this pool, and are not used again.
            unsafe { pool.free(&packets) };
        } else if kernel_ended {
            return Err("the kernel ended early: it got no item for two seconds".into());
        } else {
            // After the end of the kernel, poll once more to find the items that it completed last.
            kernel_ended = !in_flight.is_empty() && stream.is_idle()?;
        }
    }
    stream.synchronize()?;
    let sum = gpu.read(&total)?;
    let sum = u64::from_le_bytes(sum.as_slice().try_into()?);
    println!("{submitted} packets, their bytes add up to {sum} on {gpu} and to {expected} on the CPU");
    if sum == expected { Ok(()) } else { Err("the sums differ".into()) }
}
