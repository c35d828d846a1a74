//! What windows carry: the measurements behind `inlane ntb bench`, run by two PEs that walk through the same plan.
//!
//! PE 0 drives and keeps the time; PE 1 answers and checks the bytes. All repeats of what is to be compared alternate (put with
//! plain copy), so that both meet the same machine. Source and destination are the same memory each time, as in
//! ucx_perftest, so sizes below the cache's stay there.

mod cases;
mod figure;
pub mod peer;
mod row;
mod series;
mod waits;

pub use figure::{figure, findings, results};
pub use row::{Delivery, WindowResult};

use crate::error::{Error, Result};
use crate::launch::{Session, bind, processors};
use crate::transport::layout::Layout;
use crate::transport::windows::{Settings, Windows};
use crate::world::{Symmetric, World};
use inlane_core::mover::Mover;
use inlane_core::region::Region;
use inlane_ntb::device::Ntb;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use waits::{Moving, WAYS};

/// What is done again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
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
    /// Asks the owner to push.
    GetPushed,
    /// Both PEs put at once; issued.
    PutBothWays,
    /// Both PEs put, and wait for the other's.
    Exchange,
    /// Trains of puts, each with a word behind it; the last of a train is answered.
    Messages,
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
    /// A wait while nothing arrives.
    Idle,
}

impl Operation {
    /// As tables name it.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Put => "put, issued",
            Operation::PlainCopy => "plain copy",
            Operation::PutDelivered => "put, delivered",
            Operation::Get => "get",
            Operation::GetPushed => "get by push",
            Operation::PutBothWays => "put both ways, issued",
            Operation::Exchange => "put both ways, delivered",
            Operation::Messages => "messages",
            Operation::Idle => "idle",
            Operation::PutByMover => "put by mover",
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
    /// The program to measure beside.
    pub ucx: Option<Ucx>,
    /// Only this part of it.
    pub only: Option<Part>,
}

/// The smallest transfer that a mover is measured with.
pub const LEAST_MOVED: u64 = 512;

/// A part of the bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Put, beside a plain copy and the peer's.
    Puts,
    /// Put by the mover.
    Mover,
}

/// UCX's ucx_perftest as the peer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ucx {
    /// The program.
    pub program: PathBuf,
    /// In how many of the repeats it takes part: each starts two processes.
    pub repeats: u32,
}

/// A mover, and what makes host memory reachable for it.
pub struct Started {
    /// Copies.
    pub mover: Box<dyn Mover>,
    /// Gives the same memory as a region that the mover reaches.
    pub reach: Box<dyn Fn(Region) -> Result<Region>>,
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
    /// Nanoseconds of single operations, for percentiles.
    pub samples_ns: Vec<u64>,
    /// Bytes a second.
    pub bytes_per_second: Vec<f64>,
    /// Operations a second.
    pub operations_per_second: Vec<f64>,
    /// Processor seconds of the waiting thread for each 10^9 bytes.
    pub cpu_seconds_per_gigabyte: Option<f64>,
    /// Processor seconds of the rest of the process for each 10^9 bytes.
    pub mover_cpu_seconds_per_gigabyte: Option<f64>,
    /// Processor time of the waiting thread as a share of the time that passed.
    pub busy: Option<f64>,
    /// All bytes that were moved, compared or not.
    pub transferred_bytes: u64,
    /// Bytes that the receiver compared.
    pub verified_bytes: u64,
}

/// The part of one PE: over `bridge`, or as the launcher's environment says, with the mover that `start` starts. PE 0 gives the points, the other one nothing.
///
/// # Errors
/// Those of the session and of the library; [`Error::Invalid`] for another number of PEs than two, and when bytes arrive
/// wrong.
pub fn pe(
    plan: &Plan,
    bridge: Option<Arc<dyn Ntb>>,
    start: impl FnOnce() -> Result<Started>,
) -> Result<Vec<Point>> {
    // The two that measure have a processor each; their service threads and the DMA engine go elsewhere where there is room.
    // The engine keeps one, as hardware would: a thread that moves leaves its cache behind.
    let processors = processors();
    let (spare, engines) = (processors.get(4..).unwrap_or(&[]), processors.get(2..).unwrap_or(&[]));
    bind(if spare.is_empty() { &processors } else { spare });
    let (ntb, settings, twin): (Arc<dyn Ntb>, _, _) = match bridge {
        Some(ntb) => {
            (ntb, Settings { connect_timeout: Duration::from_secs(60), ..Settings::default() }, None)
        }
        None => {
            let session = Session::from_environment()?;
            let twin = Arc::new(session.twin);
            (twin.clone(), session.settings, Some(twin))
        }
    };
    let largest = plan.sizes.iter().copied().max().unwrap_or(8).max(4096) as usize;
    let heap = 2 * largest.next_multiple_of(4096) + (1 << 20);
    let bytes = Layout::overhead(2) + World::<Windows>::symmetric_bytes(2, 0, heap);
    let (yields, own) = (settings.yields, ntb.port() as usize);
    let windows = Windows::connect(ntb, bytes, settings)?;
    if yields {
        return Err(Error::invalid("the bench", "it needs a processor for each of its two processes"));
    }
    if let Some(engine) = engines.get(own % engines.len().max(1)) {
        bind(&[*engine]);
    }
    // PE 0 drives.
    let mover = if own == 0 && plan.only != Some(Part::Puts) { Some(start()?) } else { None };
    if let Some(own) = processors.get(own) {
        bind(&[*own]);
    }
    let mut bench = Bench::new(World::new(windows, 0, 0)?, plan.clone(), largest)?;
    bench.pair = processors[..2.min(processors.len())].to_vec();
    let points = bench.run(mover)?;
    bench.world.leave()?;
    if let Some(twin) = &twin {
        twin.report_finished();
    }
    Ok(points)
}

/// Words that the two sides keep for each other.
const BATCH: usize = 0;
const SIGNAL: usize = 16;
const ANSWER: usize = 32;
const NANOSECONDS: usize = 48;
const WRONG: usize = 64;
const DONE: usize = 80;

struct Bench {
    world: World<Windows>,
    plan: Plan,
    source: Vec<u8>,
    inbox: Symmetric<u8>,
    words: Symmetric<u64>,
    driver: bool,
    other: u32,
    /// The processors of the two.
    pair: Vec<usize>,
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
        Ok(Self { world, plan, source, inbox, words, driver, other, pair: Vec::new() })
    }

    fn run(&self, mover: Option<Started>) -> Result<Vec<Point>> {
        let mut points = Vec::new();
        let all = self.plan.only.is_none();
        if all {
            points.extend(self.one_way()?);
            points.extend(self.idle()?);
            for completion in WAYS {
                points.extend(self.doorbell(completion)?);
            }
        }
        for &size in &self.plan.sizes {
            let size = size as usize;
            if self.plan.only != Some(Part::Mover) {
                points.extend(self.put_and_plain_copy(size)?);
            }
            if all {
                points.extend(self.get(size)?);
                points.extend(self.pushed(size)?);
                points.extend(self.both_ways(size)?);
                points.extend(self.exchanged(size)?);
                points.extend(self.delivered(size)?);
                // A train of the largest would take seconds, and is no message.
                if size <= 1 << 20 {
                    points.extend(self.messages(size)?);
                }
            }
        }
        // Both sides see the same kind of window: one that is no memory to the processor is none to its movers.
        let reached = self.world.direct(self.words.as_ptr() as usize, self.other).is_some();
        if self.plan.only == Some(Part::Mover) && !reached {
            return Err(Error::invalid(
                "--only mover",
                "no mover reaches this bridge's windows yet; leave it out",
            ));
        }
        if self.plan.only != Some(Part::Puts) && reached {
            let mut moving = mover.map(|mover| self.moving(mover)).transpose()?;
            for &size in self.plan.sizes.iter().filter(|size| **size >= LEAST_MOVED) {
                points.extend(self.by_mover(&mut moving, size as usize)?);
            }
        }
        Ok(if self.driver { points } else { Vec::new() })
    }

    /// The mover with memory to move: what is sent, and the peer's inbox.
    fn moving(&self, Started { mover, reach }: Started) -> Result<Moving> {
        let transport = self.world.transport();
        let length = self.source.len();
        let at =
            transport.layout().symmetric() + self.world.offset_of(self.inbox.as_ptr() as usize, length)?;
        let source = Region::host(length)?;
        // SAFETY: a fresh region of that length.
        unsafe { std::ptr::copy_nonoverlapping(self.source.as_ptr(), source.as_ptr(), length) };
        let destination = transport.window(self.other)?.region().slice(at, length)?;
        Ok(Moving { mover, source: reach(source)?, destination: reach(destination)? })
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

    /// PE 0 compares what it got with what PE 1 keeps for it.
    fn compare(&self, got: &[u8], size: usize) -> Result<()> {
        match self.driver && got[..size] != self.source[..size] {
            true => Err(Error::invalid(
                format!("a get of {size} bytes"),
                "they arrived altered; do not trust this path",
            )),
            false => Ok(()),
        }
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
