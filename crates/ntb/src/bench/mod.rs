//! What windows carry: the measurements behind `inlane ntb bench`, run by two PEs that walk through the same plan.
//!
//! PE 0 drives and keeps the time; PE 1 answers and checks the bytes. All repeats of what is to be compared alternate (put with
//! plain copy), so that both meet the same machine. Source and destination are the same memory each time, as in
//! ucx_perftest, so sizes below the cache's stay there.

mod cases;
mod figure;
pub mod peer;

pub use figure::{figure, findings, results};

use crate::device::Ntb;
use crate::error::{Error, Result};
use crate::launch::{Session, bind, processors};
use crate::shmem::{Symmetric, World};
use crate::transport::layout::Layout;
use crate::transport::windows::Windows;
use inlane_core::completion::Completion;
use inlane_twin::{DmaCosts, DmaEngine};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// What is done again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Stores into the peer's memory; issued, a quiet at the end of each batch.
    Put,
    /// An ordinary copy between the same two memories.
    PlainCopy,
    /// One put at a time, until the peer has answered that it is there.
    PutDelivered,
    /// Reads through the window.
    Get,
    /// Both PEs put at once.
    PutBothWays,
    /// One transfer at a time by a DMA engine.
    PutByMover,
    /// A doorbell and one back.
    Doorbell,
    /// 8 bytes and 8 back, polled; half of it.
    OneWay,
    /// A cache line passed between the two processors and back by plain stores and loads; half of it.
    CacheToCache,
    /// Another program's put, named by the path.
    PeerPut,
}

impl Operation {
    /// As tables name it.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Put => "put, issued",
            Operation::PlainCopy => "plain copy",
            Operation::PutDelivered => "put, delivered",
            Operation::Get => "get",
            Operation::PutBothWays => "put both ways, issued",
            Operation::PutByMover => "put by DMA",
            Operation::Doorbell => "doorbell round trip",
            Operation::OneWay => "put one way",
            Operation::CacheToCache => "cache to cache",
            Operation::PeerPut => "peer's put, issued",
        }
    }
}

/// What to measure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Sizes in bytes.
    pub sizes: Vec<u64>,
    /// Time of one batch.
    pub batch_us: u64,
    /// Batches of which the median is taken.
    pub repeats: u32,
}

/// One measurement: a value a repeat.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Point {
    /// What was done.
    pub operation: Operation,
    /// By what.
    pub path: String,
    /// With how many bytes.
    pub size_bytes: u64,
    /// How the end was learnt: `poll`, `interrupt` or `adaptive`.
    pub completion: String,
    /// Nanoseconds of one operation, where they go one at a time.
    pub latency_ns: Vec<f64>,
    /// Bytes a second.
    pub bytes_per_second: Vec<f64>,
    /// Operations a second.
    pub operations_per_second: Vec<f64>,
    /// Processor seconds of the waiting thread for each 10^9 bytes.
    pub cpu_seconds_per_gigabyte: Option<f64>,
    /// Processor seconds of the rest of the process for each 10^9 bytes.
    pub mover_cpu_seconds_per_gigabyte: Option<f64>,
    /// Bytes that the receiver compared.
    pub verified_bytes: u64,
}

/// The part of one PE. PE 0 gives the points, the other one nothing.
///
/// # Errors
/// Those of the session and of the library; [`Error::Invalid`] for another number of PEs than two, and when bytes arrive
/// wrong.
pub fn pe(plan: &Plan) -> Result<Vec<Point>> {
    // The two that measure have a processor each; their service threads and the DMA engine go elsewhere where there is room.
    let processors = processors();
    let elsewhere = if processors.len() >= 4 { &processors[2..] } else { &processors };
    bind(elsewhere);
    let session = Session::from_environment()?;
    let twin = Arc::new(session.twin);
    let largest = plan.sizes.iter().copied().max().unwrap_or(8).max(4096) as usize;
    let heap = 2 * largest.next_multiple_of(4096) + (1 << 20);
    let bytes = Layout::overhead(2) + World::<Windows>::symmetric_bytes(2, 0, heap);
    let yields = session.settings.yields;
    let windows = Windows::connect(twin.clone(), bytes, session.settings)?;
    if yields {
        return Err(Error::invalid("the bench", "it needs a processor for each of its two processes"));
    }
    let mut engine = DmaEngine::new("dma twin", DmaCosts::unlimited())?;
    if let Some(own) = processors.get(twin.port() as usize) {
        bind(&[*own]);
    }
    let bench = Bench::new(World::new(windows, 0, 0)?, plan.clone(), largest)?;
    let points = bench.run(&mut engine)?;
    bench.world.leave()?;
    twin.finished();
    // The other side may still be leaving the barrier.
    std::thread::sleep(Duration::from_millis(20));
    Ok(points)
}

/// Words that the two sides keep for each other.
const BATCH: usize = 0;
const SIGNAL: usize = 16;
const ANSWER: usize = 32;
const NANOSECONDS: usize = 48;
const WRONG: usize = 64;

struct Bench {
    world: World<Windows>,
    plan: Plan,
    source: Vec<u8>,
    inbox: Symmetric<u8>,
    words: Symmetric<u64>,
    driver: bool,
    other: u32,
}

impl Bench {
    fn new(world: World<Windows>, plan: Plan, largest: usize) -> Result<Self> {
        if world.pes() != 2 {
            return Err(Error::invalid(format!("a bench of {} PEs", world.pes()), "it takes two"));
        }
        let source = (0..largest).map(pattern).collect();
        let inbox = world.array(largest)?;
        let words = world.array(128)?;
        let (driver, other) = (world.me() == 0, 1 - world.me());
        Ok(Self { world, plan, source, inbox, words, driver, other })
    }

    fn run(&self, engine: &mut DmaEngine) -> Result<Vec<Point>> {
        let mut points = Vec::new();
        let all = [Completion::Poll, Completion::Adaptive, Completion::Interrupt];
        points.extend(self.one_way()?);
        for completion in all {
            points.extend(self.doorbell(completion)?);
        }
        for &size in &self.plan.sizes {
            let size = size as usize;
            points.extend(self.put_and_plain_copy(size)?);
            points.extend(self.get(size)?);
            points.extend(self.both_ways(size)?);
            for completion in all {
                points.extend(self.delivered(size, completion)?);
            }
        }
        points.extend(self.by_mover(engine, &all)?);
        Ok(if self.driver { points } else { Vec::new() })
    }

    /// PE 0's number, known to both after it.
    fn agree(&self, value: u64) -> Result<u64> {
        if self.driver {
            self.world.put(self.words, BATCH, &[value], self.other)?;
            self.world.put(self.words, BATCH, &[value], 0)?;
        }
        self.world.barrier_all()?;
        let value = self.world.load(self.words, BATCH)?;
        self.world.barrier_all()?;
        Ok(value)
    }

    /// How often to do what takes `nanoseconds` to fill a batch.
    fn count(&self, nanoseconds: f64) -> u64 {
        (self.plan.batch_us as f64 * 1e3 / nanoseconds.max(1.0)).clamp(1.0, 1e7) as u64
    }

    /// PE 1 compares what it received with what PE 0 sent; both learn whether it was right, and how much was compared.
    fn verify(&self, size: usize) -> Result<u64> {
        self.world.barrier_all()?;
        if !self.driver {
            // SAFETY: the own copy of the array, which nobody writes between the two barriers.
            let received = unsafe { std::slice::from_raw_parts(self.inbox.as_ptr(), size) };
            let wrong = received != &self.source[..size];
            self.world.put(self.words, WRONG, &[wrong as u64], 0)?;
            self.world.put(self.words, WRONG, &[wrong as u64], 1)?;
            // Poison for the next one.
            // SAFETY: as above, and this side alone writes.
            unsafe { std::ptr::write_bytes(self.inbox.as_ptr(), 0xA5, size) };
        }
        self.world.barrier_all()?;
        match self.world.load(self.words, WRONG)? {
            0 => Ok(size as u64),
            _ => Err(Error::invalid(
                format!("verification of {size} bytes"),
                "they arrived altered; do not trust this path",
            )),
        }
    }
}

/// Byte `index` of what is sent: no power of two repeats.
fn pattern(index: usize) -> u8 {
    (index % 251) as u8 ^ (index / 251 % 241) as u8 | 1
}
