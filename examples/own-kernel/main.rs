//! A program of one's own: its kernel takes bursts from a port through the burst ring, its loop feeds and drains the ring.
//!
//! `cargo run --release -p inlane-forward --example own-kernel` (needs a GPU; without one it says what is missing)

use inlane_core::clock::Clock;
use inlane_core::ring::{Next, Ring, Stamps, layout};
use inlane_core::{HeapPool, Packet, Pool, Port};
use inlane_cuda::{Arguments, Gpu, LaunchConfig, Module, Source, compile};
use inlane_ports::generate::Generator;
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

    // Memory that both sides reach, all of it before the kernel runs: packets, the two halves of the ring, the kernel's sum.
    let bytes = HeapPool::bytes(4 * SLOTS * BURST, 2048).ok_or("no such pool")?;
    let pool: Arc<dyn Pool> = Arc::new(HeapPool::over(gpu.pinned(bytes)?, 2048)?);
    let submit = gpu.pinned(layout::submit_bytes(SLOTS, BURST))?;
    let complete = gpu.pinned(layout::complete_bytes(SLOTS, BURST))?;
    let total = gpu.allocate(8)?;
    let arguments = [submit.address(), complete.address(), SLOTS as u64, BURST as u64, total.address()];
    let (mut producer, _, mut sender) = Ring::over(SLOTS, BURST, submit, complete)?.split(0);

    let mut port = Generator::open("gen:imix,flows=8", &Clock::new())?;
    port.configure(std::slice::from_ref(&pool), 0)?;
    let mut rx = port.take_rx(0)?;
    port.start()?;

    let stream = gpu.stream()?;
    let shape = LaunchConfig { blocks: 1, threads: 128, shared_bytes: 0, cooperative: false };
    // SAFETY: the kernel's parameters, in order; ring and sum live until the stream was waited for.
    unsafe { kernel.launch(&stream, shape, Arguments(arguments))? };

    let mut expected = 0u64;
    let mut sent = 0u64;
    let mut held = Vec::new();
    let mut packets = [Packet::EMPTY; BURST];
    let mut over = false;
    loop {
        if held.is_empty() && sent < PACKETS {
            let got = rx.receive(&mut packets)?;
            // SAFETY: just received, in pinned memory.
            let sum =
                |packet: &Packet| unsafe { packet.bytes() }.iter().map(|&byte| byte as u64).sum::<u64>();
            expected += packets[..got].iter().map(sum).sum::<u64>();
            held.extend_from_slice(&packets[..got]);
        }
        if !held.is_empty() && producer.submit(&held, Stamps::default()) {
            sent += held.len() as u64;
            held.clear();
        }
        if sent >= PACKETS && held.is_empty() {
            producer.close();
        }
        match sender.poll(&mut packets, 0) {
            // Here they would go to a port that sends; this program only looked at them.
            Next::Item(done) => {
                // SAFETY: these packets are held here, are of this pool, and are not used again.
                unsafe { pool.free(&packets[..done.forwarded]) }
            }
            Next::Empty if over => {
                return Err("the kernel left before the end: nothing came for two seconds".into());
            }
            // It waits for items no longer than that. What it did until then is seen by one more look.
            Next::Empty => over = stream.is_idle()?,
            Next::Closed => break,
        }
    }
    stream.synchronize()?;
    let sum = gpu.read(&total)?;
    let sum = u64::from_le_bytes(sum.as_slice().try_into()?);
    println!("{sent} packets, their bytes add up to {sum} on {gpu} and to {expected} on the CPU");
    if sum == expected { Ok(()) } else { Err("the sums differ".into()) }
}
