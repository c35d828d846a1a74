//! Measures the ceilings of GPU runs: the rate of bare kernels that move the same bytes, the rate of the
//! copy engine, and the round trip of a bare kernel. No other kernel may run during these functions.

use super::Memory;
use crate::error::{Error, Result};
use inlane_core::Region;
use inlane_core::clock::Clock;
use inlane_core::stats::{LatencyHistogram, Percentiles};
use inlane_cuda::{Event, EventKind, Gpu, LaunchConfig, Module, Source, Stream, argument, compile};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub(super) const SOURCE: &str = include_str!("kernels/bare.cu");

/// Compiles and loads `bare.cu`. Its kernels cause the memory traffic of a run but run no packet function.
/// Their rates are therefore the ceilings of a run.
pub(super) fn load(gpu: &Arc<Gpu>) -> Result<Arc<Module>> {
    let program = Source {
        name: "bare.cu",
        source: SOURCE,
        headers: &[inlane_cuda::SYSTEM_HEADER],
        options: &["-lineinfo"],
    };
    Ok(Module::load(gpu, &compile(&program, &gpu.info().arch())?)?)
}

/// The highest rates of one GPU and its PCIe link, measured on this machine.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct GpuCeilings {
    /// The rate of a large copy from pinned memory by the copy engine. `None` if packets are in GPU memory.
    pub copy_engine_bytes_per_second: Option<f64>,
    /// The rates of a bare kernel that copies packets into the GPU (pulls them) and writes 16 bytes of each
    /// packet back. One entry for each burst size.
    pub pull: Vec<Pull>,
}

/// The highest rate of a bare kernel for one burst size, and the shape of the launch that reached it.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Pull {
    /// The number of packets per item.
    pub burst: u32,
    /// The size of each packet in bytes.
    pub size: u32,
    /// The number of bytes that the kernel copied into the GPU from the front of each packet.
    pub moved: u32,
    /// The number of blocks in the fastest of the tried launches.
    pub blocks: u32,
    /// The number of threads per block of the fastest launch that was tried.
    pub threads: u32,
    /// The rate in bytes per second. Each packet counts with its full size, even if the kernel copied only
    /// its first bytes.
    pub bytes_per_second: f64,
    /// The rate in packets per second.
    pub packets_per_second: f64,
}

/// Measures the ceilings for packets of `size` bytes in `memory`. The kernel copies the first `moved` bytes
/// of each packet into the GPU. `bursts` lists numbers of packets per item. Each of them is measured, one
/// after another.
///
/// # Errors
/// If a driver call fails, or if there is not enough memory.
pub fn ceilings(
    gpu: &Arc<Gpu>,
    memory: Memory,
    size: u32,
    moved: u32,
    bursts: &[u32],
) -> Result<GpuCeilings> {
    const BUFFER: usize = 64 << 20;
    // The bytes of memory that the kernel reads again and again: as many as a default pool has. Fewer would
    // stay in caches.
    const FOOTPRINT: usize = 32 << 20;
    let module = load(gpu)?;
    let kernel = module.kernel("bare_pull")?;
    let stream = gpu.stream()?;
    // The distance between buffers in a pool: 128 bytes of headroom, and the packet rounded up to 128 bytes.
    let stride = size.next_multiple_of(128) + 128;
    let largest = bursts.iter().max().map_or(0, |&burst| burst as usize * stride as usize);
    let buffer = BUFFER.max(largest);
    let pooled = memory == Memory::Pool;
    let packets = if pooled { gpu.allocate(buffer)? } else { gpu.pinned(buffer)? };
    let device = gpu.allocate(buffer)?;
    let done = gpu.pinned(4096 * 128)?;
    let mut found = GpuCeilings::default();
    if !pooled {
        let copy = timed(gpu, &stream, 5, || {
            for _ in 0..4 {
                // SAFETY: both regions live until `timed` has waited for the stream.
                unsafe { stream.copy(&packets, &device)? };
            }
            Ok(())
        })?;
        found.copy_engine_bytes_per_second = Some(4.0 * buffer as f64 / copy);
    }
    for &burst in bursts {
        let period = (FOOTPRINT as u32 / stride / burst).clamp(1, 4096);
        let mut best: Option<Pull> = None;
        for (blocks, threads) in
            [(32, 512), (64, 512), (128, 512), (256, 512), (64, 256), (128, 256), (132, 1024)]
        {
            // Process enough items to run for some milliseconds, so that the cost of a launch is negligible.
            let items = ((1u64 << 28) / (burst as u64 * moved.max(64) as u64))
                .min((1 << 21) / burst as u64)
                .max(4096);
            let chunks = moved.div_ceil(16);
            let shape = LaunchConfig { blocks, threads, shared_bytes: 0, cooperative: false };
            let seconds = timed(gpu, &stream, 3, || {
                let (from, to, word) = (packets.address(), device.address(), done.address());
                let arguments = [
                    argument(&from),
                    argument(&to),
                    argument(&word),
                    argument(&items),
                    argument(&period),
                    argument(&burst),
                    argument(&chunks),
                    argument(&stride),
                ];
                // SAFETY: the arguments are the kernel's parameters. The buffers hold `period` items, and
                // `done` has a cache line for each.
                unsafe { kernel.launch(&stream, shape, arguments) }.map_err(Error::from)
            })?;
            let rate = items as f64 * burst as f64 / seconds;
            if best.as_ref().is_none_or(|best| rate > best.packets_per_second) {
                best = Some(Pull {
                    burst,
                    size,
                    moved,
                    blocks,
                    threads,
                    bytes_per_second: rate * size as f64,
                    packets_per_second: rate,
                });
            }
        }
        found.pull.extend(best);
    }
    Ok(found)
}

/// Returns the seconds that the GPU takes for the work that `queue` puts on `stream`. Measures `repeats`
/// times and returns the median.
fn timed(
    gpu: &Arc<Gpu>,
    stream: &Stream,
    repeats: usize,
    mut queue: impl FnMut() -> Result<()>,
) -> Result<f64> {
    let start = Event::new(gpu, EventKind::Timing)?;
    let end = Event::new(gpu, EventKind::Timing)?;
    let mut times = Vec::new();
    for round in 0..=repeats {
        stream.record(&start)?;
        queue()?;
        stream.record(&end)?;
        end.synchronize()?;
        // Skip the time of the first round, because that round only warms up the GPU.
        if round > 0 {
            times.push(end.since_ns(&start)? / 1e9);
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// The round-trip time between the host and a minimal GPU kernel, for items of one packet.
#[derive(Clone, Debug, serde::Serialize)]
pub struct RoundTrip {
    /// The time from the host's write of the flag until the host sees the answer. The GPU reads flag,
    /// descriptor and packet, changes the packet, and answers. `None` if nothing was measured.
    pub nanoseconds: Option<Percentiles>,
}

/// Measures the latency of a bare kernel `rounds` times, from the host's write of a flag to the kernel's
/// answer. Leaves out the first tenth, the warm-up.
///
/// # Errors
/// [`Error::Stuck`] if the kernel does not answer within 2 s, or if a driver call fails.
pub fn round_trip(gpu: &Arc<Gpu>, rounds: u64) -> Result<RoundTrip> {
    let module = load(gpu)?;
    let kernel = module.kernel("bare_round_trip")?;
    let stream = gpu.stream()?;
    let memory = gpu.pinned(4096)?;
    let (line, answer, packet) = (memory.slice(0, 128)?, memory.slice(512, 128)?, memory.slice(1024, 2048)?);
    let word = |region: &Region, index: usize| {
        // SAFETY: the word is aligned and lies inside the region. The CPU accesses it only as an atomic.
        unsafe { AtomicU64::from_ptr(region.as_ptr().cast::<u64>().add(index)) }
    };
    word(&line, 2).store(packet.address(), Ordering::Relaxed);
    word(&line, 3).store(1024, Ordering::Relaxed);
    let shape = LaunchConfig { blocks: 1, threads: 1, shared_bytes: 0, cooperative: false };
    let (from, to) = (line.address(), answer.address());
    // SAFETY: the arguments are the kernel's parameters. The memory lives until the wait for the stream
    // below.
    unsafe { kernel.launch(&stream, shape, [argument(&from), argument(&to), argument(&rounds)])? };
    let clock = Clock::new();
    let mut histogram = LatencyHistogram::default();
    for round in 1..=rounds {
        let start = clock.raw();
        word(&line, 0).store(round, Ordering::Release);
        let begun = Instant::now();
        let mut polls = 0u32;
        while word(&answer, 0).load(Ordering::Acquire) != round {
            std::hint::spin_loop();
            polls += 1;
            if polls.is_multiple_of(1 << 20) && begun.elapsed() > Duration::from_secs(2) {
                gpu.abandon();
                return Err(Error::Stuck { function: "bare_round_trip".into(), item: round, seconds: 2.0 });
            }
        }
        if round > rounds / 10 {
            histogram.record(clock.between_ns(start, clock.raw()), 1);
        }
    }
    stream.synchronize()?;
    Ok(RoundTrip { nanoseconds: histogram.percentiles() })
}
