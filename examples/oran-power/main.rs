//! Signal processing with `oran-reorder`. A simulated radio sends packets out of order and with losses. The
//! packet function `oran-reorder` assembles the packets in GPU memory. Meanwhile, a kernel of this example
//! computes the power of each symbol in that memory. The CPU checks every result.
//!
//! `cargo run --release -p inlane-forward --example oran-power` needs a GPU. Without a GPU, the example
//! prints what is missing.

use inlane_core::clock::Clock;
use inlane_core::{HeapPool, Pool, Port};
use inlane_cuda::{Gpu, LaunchConfig, Module, Source, argument, compile};
use inlane_forward::control::Control;
use inlane_forward::gpu::{self, Lane, Memory, Settings};
use inlane_forward::pipeline::{Pipeline, PipelineContext, PipelineSettings};
use inlane_function::{HEADERS, PacketFunction};
use inlane_ports::null::Null;
use inlane_ports::oran::{Plan, Radio};
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

const STREAMS: usize = 2;
const SYMBOLS: usize = 14;
const SLOTS: u64 = 400;
/// The port of a simulated radio, which sends each symbol at its time. A radio slot takes 0.5 ms. `REORDER`
/// has 16 windows of memory, so slot n + 16 reuses the memory of slot n.
const RADIO: &str = "gen:oran,eaxc=0+1,prbs=106,slots=400,shuffle=64,loss=0.5%,realtime";
const REORDER: &str = "oran-reorder:eaxc=0+1,prbs=106,windows=16,limit=2ms";

fn main() {
    if let Err(error) = run() {
        eprintln!("oran-power: {error}");
        std::process::exit(1);
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let gpu = Gpu::open(0)?;
    let reorder = PacketFunction::parse(REORDER)?;
    let function = gpu::LoadedFunction::new(&gpu, &reorder, Memory::Pinned)?;
    let source = include_str!("../functions/oran_power.cu");
    let program = Source { name: "oran_power.cu", source, headers: &HEADERS, options: &["-default-device"] };
    let kernel = Module::load(&gpu, &compile(&program, &gpu.info().arch())?)?.kernel("oran_power")?;

    // Allocate everything before the persistent kernel runs, because allocation waits for running kernels.
    let clock = Clock::new();
    let mut radio = Radio::open(RADIO, &clock)?;
    let plan = radio.plan().clone();
    let room = plan.longest();
    let bytes = HeapPool::bytes(16384, room).ok_or("the pool size overflows")?;
    let pool: Arc<dyn Pool> = Arc::new(HeapPool::over(gpu.pinned(bytes)?, room)?);
    let mut null = Null::open("null", &clock)?;
    radio.configure(std::slice::from_ref(&pool), 0)?;
    null.configure(&[], 1)?;
    let (rx, txs) = (radio.take_rx(0)?, vec![null.take_tx(0, pool.clone())?]);
    let pipeline = Pipeline { rx, txs, pool: pool.clone(), instances: Vec::new() };
    let drive =
        PipelineSettings { burst: 32, flush: Duration::from_micros(50), ..PipelineSettings::default() };
    let mut lane = Lane::new(&function, &Settings::default(), &drive, &*pool, 1)?;
    let output = lane.output().ok_or("oran-reorder has an output region")?.clone();
    // Compute the sums in GPU memory and then copy them, because atomic operations on host memory may be
    // unsupported.
    let (sums, records) = (gpu.allocate(4096)?, output.slice(0, 4096)?);
    let answer = [gpu.pinned(4096)?, gpu.pinned(4096)?];
    let stream = gpu.stream()?;
    let take = |slot: u64| -> Result<_, Box<dyn Error>> {
        let (from, streams, power) = (output.address(), STREAMS as u32, sums.address());
        let found = power + 2048;
        let shape = LaunchConfig { blocks: 1, threads: 256, shared_bytes: 0, cooperative: false };
        let arguments =
            [argument(&from), argument(&slot), argument(&streams), argument(&power), argument(&found)];
        // SAFETY: the arguments are the kernel's parameters, and all regions outlive the wait below.
        unsafe {
            kernel.launch(&stream, shape, arguments)?;
            stream.copy(&sums, &answer[0])?;
            // Copy the records after the kernel has read the slot's data. From these records, a check below
            // finds out whether the data may have been overwritten while the kernel read it.
            stream.copy(&records, &answer[1])?;
        }
        stream.synchronize()?;
        // SAFETY: both are pinned memory of 4096 bytes, and the copies into them have ended.
        Ok(answer.each_ref().map(|page| unsafe { std::slice::from_raw_parts(page.as_ptr(), 4096) }))
    };
    // Use the stream once before the radio starts, because its first use takes milliseconds. Meanwhile the
    // radio would overwrite slots that were not read yet.
    take(0)?;
    radio.start()?;

    let (control, meters) = (Control::default(), [Arc::default()]);
    let shared = PipelineContext::new(&control, &meters, &clock, 0, &[]);
    let (mut complete, mut wrong, mut late, mut short, mut slots) = (0, 0, 0, 0, 0);
    let (tally, report) = std::thread::scope(|scope| -> Result<_, Box<dyn Error>> {
        let running = scope.spawn(|| gpu::run(pipeline, &mut lane, &drive, &shared));
        let mut last = Instant::now();
        while slots < SLOTS && last.elapsed() < Duration::from_secs(2) {
            let [answer, records] = take(slots)?;
            let word = |at: usize| u64::from_le_bytes(answer[at..at + 8].try_into().expect("eight bytes"));
            if word(2048) != slots + 1 {
                continue;
            }
            // The slot's record contains the number of received PRBs at offset 32, and the frame, subframe
            // and slot from offset 56 on. At offset 59 is the reason for the delivery; 0 means that the slot
            // is complete.
            let record = &answer[2048..2048 + 64];
            let number = |record: &[u8]| {
                let [frame, subframe, slot] = [56, 57, 58].map(|at| record[at] as u64);
                (frame * 10 + subframe) * plan.slots_per_subframe + slot
            };
            let mine = number(record);
            let (prbs, powers) = expected(&plan, mine);
            // Count the result as late if oran-reorder has already output the eighth slot after this slot, or
            // a later one. The sixteenth slot after this one reuses its memory, so a margin of eight slots
            // remains.
            if records.chunks(64).any(|record| number(record) >= mine + 8) {
                late += 1;
            } else if word(2048 + 32) as u32 != prbs {
                short += 1;
            } else {
                wrong += powers.iter().enumerate().filter(|&(i, power)| word(i * 8) != *power).count();
            }
            complete += (record[59] == 0) as u64;
            slots += 1;
            last = Instant::now();
        }
        control.stop();
        running.join().map_err(|_| "the pipeline panicked".into())
    })?;
    if let Some(error) = tally.errors.into_iter().next() {
        return Err(error.into());
    }
    let counted = report.ok_or("a run that ended well has a report")?.function;
    let behind = counted.counter("late_packets").unwrap_or(0);
    println!(
        "{} packets, {slots} slots: {complete} complete, {late} read too late, {short} with packets missing ({behind} packets were late); \
         power of {} symbols computed on {gpu}, {wrong} differ from the CPU's",
        tally.rx.packets,
        (slots - late - short) * (STREAMS * SYMBOLS) as u64
    );
    if slots == SLOTS && late + short < SLOTS / 4 && (short == 0 || behind > 0) && wrong == 0 {
        Ok(())
    } else {
        Err("slots are missing, or results differ from the CPU's; see the line above".into())
    }
}

/// Returns the expected result for a slot: the number of PRBs that arrive, and the power of each symbol.
/// Computes both from the radio's plan. Lost PRBs count as zeros.
fn expected(plan: &Plan, slot: u64) -> (u32, Vec<u64>) {
    let (mut prbs, mut power) = (0, vec![0; STREAMS * SYMBOLS]);
    let packets = plan.packets_per_symbol() * SYMBOLS as u64;
    for position in (slot * packets..(slot + 1) * packets).filter(|&position| !plan.is_lost(position)) {
        let packet = plan.packet(position);
        prbs += packet.prbs as u32;
        let samples =
            &plan.samples(packet.stream, packet.symbol)[packet.first_prb * 48..][..packet.prbs * 48];
        let squares = samples
            .chunks_exact(2)
            .map(|part| i64::from(i16::from_be_bytes([part[0], part[1]])).pow(2) as u64);
        power[packet.stream * SYMBOLS + packet.symbol as usize % SYMBOLS] += squares.sum::<u64>();
    }
    (prbs, power)
}
