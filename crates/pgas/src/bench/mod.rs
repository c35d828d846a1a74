//! The measurements of `inlane ntb bench`. Two PEs run the same cases in the same order.
//!
//! PE 0 starts the operations and measures the time. PE 1 answers and compares the bytes. If cases are
//! compared with each other, their repeats alternate, so that other load on the machine affects all of them.
//! As in ucx_perftest, all repeats use the same memory, so small sizes stay in caches.

mod cases;
mod figure;
mod measured;
mod note;
pub mod peer;
mod row;
mod series;
mod waits;

pub use figure::{figure, findings, results};
pub use note::Note;
pub use row::{CeilingOf, Delivery, WindowResult};

use crate::error::{Error, Result};
use crate::field::ONLY;
use crate::launch::{Membership, Session, processors};
use crate::transport::Transport;
use crate::transport::select::{AnyTransport, TransportKind};
use crate::transport::windows::layout::Layout;
use crate::transport::windows::{Settings, Windows};
use crate::world::{Symmetric, World};
use inlane_core::cores;
use inlane_core::mover::Mover;
use inlane_core::region::Region;
use inlane_ntb::device::Ntb;
use measured::Measured;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use waits::Moving;

/// A measured operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MeasuredOperation {
    /// One put after another, in batches. Each batch ends with a quiet, which waits until all puts are
    /// complete.
    Put,
    /// A memcpy between the memories that a put uses. Compare it with `Put` to see what the transport adds to
    /// the cost of a copy.
    PlainCopy,
    /// One put at a time. Each ends when the peer's answer says that the bytes have arrived.
    PutDelivered,
    /// One get at a time.
    Get,
    /// One atomic fetch-and-add at a time. It adds 1 to a word of 8 bytes.
    FetchAdd,
    /// A get by push: the PE asks the owner of the bytes to put them into the PE's memory.
    GetPushed,
    /// Puts by both PEs at the same time. Each batch ends with a quiet.
    PutBothWays,
    /// Both PEs put at the same time. Each PE then waits until the put of the other has arrived.
    Exchange,
    /// A series of messages. Each message is a put, and then a store to a word that tells the peer that the
    /// put is complete. The peer answers the last message.
    Messages,
    /// One transfer at a time by a mover.
    PutByMover,
    /// A doorbell to the peer, and the peer's doorbell back.
    Doorbell,
    /// Half of the round-trip time of 8 bytes to the peer and back, while both sides poll.
    OneWay,
    /// Half of the time in which a cache line travels to the peer's core and back, by plain stores and loads.
    CacheToCache,
    /// A put by another program, for comparison. The row's path names the program.
    PeerPut,
    /// A wait for a word that does not arrive, to measure the processor time of waiting.
    Idle,
}

impl MeasuredOperation {
    /// Returns the name of the operation in tables of results.
    pub fn name(self) -> &'static str {
        match self {
            MeasuredOperation::Put => "put, issued",
            MeasuredOperation::PlainCopy => "plain copy",
            MeasuredOperation::PutDelivered => "put, delivered",
            MeasuredOperation::Get => "get",
            MeasuredOperation::FetchAdd => "fetching add",
            MeasuredOperation::GetPushed => "get by push",
            MeasuredOperation::PutBothWays => "put both ways, issued",
            MeasuredOperation::Exchange => "put both ways, delivered",
            MeasuredOperation::Messages => "messages",
            MeasuredOperation::Idle => "idle",
            MeasuredOperation::PutByMover => "put by mover",
            MeasuredOperation::Doorbell => "doorbell round trip",
            MeasuredOperation::OneWay => "put one way",
            MeasuredOperation::CacheToCache => "cache to cache",
            MeasuredOperation::PeerPut => "peer's put, issued",
        }
    }
}

/// The settings of the bench: what to measure, and for how long.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Sizes in bytes.
    pub sizes: Vec<u64>,
    /// Duration of one batch in microseconds. A batch is one timed run of many operations.
    pub batch_us: u64,
    /// Number of batches of each case. Results show their median.
    pub repeats: u32,
    /// How to run ucx_perftest, UCX's benchmark, for comparison with inlane's puts. `None`: it is not run.
    pub ucx: Option<UcxPerftest>,
    /// The transport to measure. If `None`, environment variables and the launcher decide.
    pub transport: Option<TransportKind>,
    /// The only part to measure. `None` measures all parts.
    pub only: Option<Part>,
}

/// The smallest transfer by a mover that is measured, in bytes.
pub const LEAST_MOVED: u64 = 512;

/// A part of `inlane ntb bench` that can be measured alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Puts by stores, in turn with a plain copy and UCX's put.
    Puts,
    /// Puts by the mover.
    Mover,
}

/// UCX's ucx_perftest, the program that inlane's puts are compared with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UcxPerftest {
    /// Path of the program.
    pub program: PathBuf,
    /// Number of repeats in which ucx_perftest is measured. Each repeat starts two processes.
    pub repeats: u32,
    /// If true, ucx_perftest uses the transports that UCX's environment variables select. If false, it uses
    /// shared memory.
    pub by_environment: bool,
}

/// A mover that was started for the bench, and a function that makes host memory reachable for the mover.
pub struct StartedMover {
    /// The mover.
    pub mover: Box<dyn Mover>,
    /// Converts a region of host memory to a region that the mover can access.
    pub reach: Box<dyn Fn(Region) -> Result<Region>>,
}

/// The measurements of one case, one value for each repeat.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Point {
    /// The operation.
    pub operation: MeasuredOperation,
    /// What copies the bytes: the mover's name, or for example `stores` or `memcpy`.
    pub path: String,
    /// Bytes of one operation.
    pub size_bytes: u64,
    /// The completion mode: `poll`, `interrupt` or `adaptive`.
    pub completion: String,
    /// The mean time of an operation in each repeat, in nanoseconds. This is a latency only if one operation
    /// runs at a time.
    pub latency_ns: Vec<f64>,
    /// Nanoseconds of single operations, each timed on its own, for percentiles.
    pub samples_ns: Vec<u64>,
    /// Bytes a second.
    pub bytes_per_second: Vec<f64>,
    /// Operations a second.
    pub operations_per_second: Vec<f64>,
    /// Processor time of the waiting thread, in seconds per 10^9 bytes.
    pub cpu_seconds_per_gigabyte: Option<f64>,
    /// Processor time of the process's other threads, in seconds per 10^9 bytes.
    pub mover_cpu_seconds_per_gigabyte: Option<f64>,
    /// The processor time of the waiting thread, as a fraction of the elapsed time.
    pub busy: Option<f64>,
    /// All bytes that were moved, compared or not.
    pub transferred_bytes: u64,
    /// Bytes that the receiver compared.
    pub verified_bytes: u64,
}

/// The results of the bench at one PE.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measurements {
    /// All measurements at PE 0. Empty at PE 1.
    pub points: Vec<Point>,
    /// The transport, and why the PEs communicate over it. `None` if they communicate over windows.
    pub network: Option<(TransportKind, String)>,
}

/// Runs this process as one of the two PEs of the bench. Uses `bridge` if it is given. Otherwise joins the
/// job that environment variables describe. PE 0 calls `start` to start the mover. Only a job over windows
/// has a mover.
///
/// # Errors
/// [`Error::Invalid`] if the job does not have exactly two PEs, or if bytes arrive altered. Also errors of
/// joining the job, and of the transport.
pub fn pe(
    plan: &Plan,
    bridge: Option<Arc<dyn Ntb>>,
    start: impl FnOnce() -> Result<StartedMover>,
) -> Result<Measurements> {
    // Give each measuring thread its own processor. If there are more processors, run service threads and the
    // mover's thread on the others. Bind the mover's thread to one processor, because a thread that changes
    // processors loses its cache. One spare processor is not enough: the PEs would announce that they share it.
    let processors = processors();
    let (spare, engines) = (processors.get(4..).unwrap_or(&[]), processors.get(2..).unwrap_or(&[]));
    let _ = cores::bind(if spare.len() < 2 { &processors } else { spare });
    let largest = largest(plan);
    let heap = 2 * largest.next_multiple_of(4096) + (1 << 20);
    let (windows, membership) = match bridge {
        Some(ntb) => {
            let settings = Settings { connect_timeout: Duration::from_secs(60), ..Settings::default() };
            let bytes = Layout::overhead(2) + World::<Windows>::symmetric_bytes(2, 0, heap);
            (Windows::connect(ntb, bytes, settings)?, None)
        }
        None => {
            let session = Session::over(plan.transport, heap)?;
            let (membership, yields, reason) =
                (session.membership(), session.yields(), session.reason().to_string());
            // SAFETY: there are no static objects.
            let transport = unsafe { session.connect(heap, None)? };
            needs_processors(yields)?;
            match transport {
                AnyTransport::Windows(windows) => (windows, Some(membership)),
                other => return over_network(plan, other, &membership, reason, &processors),
            }
        }
    };
    let own = windows.me() as usize;
    if let Some(engine) = engines.get(own % engines.len().max(1)) {
        let _ = cores::bind(&[*engine]);
    }
    // Start the mover at PE 0 only, because only PE 0 uses it.
    let mover = if own == 0 && plan.only != Some(Part::Puts) { Some(start()?) } else { None };
    if let Some(own) = processors.get(own) {
        let _ = cores::bind(&[*own]);
    }
    let bench = Bench::new(World::new(windows, 0, 0)?, plan.clone(), largest, &processors)?;
    let mut points = bench.run()?;
    points.extend(bench.moved(mover)?);
    bench.world.leave()?;
    membership.iter().for_each(|membership| membership.finish());
    Ok(Measurements { points: if bench.driver { points } else { Vec::new() }, network: None })
}

/// Returns an error if `yields` is true, which means that there are more PEs than processors. The bench needs
/// a processor for each of its two PEs.
fn needs_processors(yields: bool) -> Result<()> {
    let why = "it needs a processor for each PE, and there are more PEs than processors; start it with 2 PEs on a \
               machine with at least 2 processors";
    if yields { Err(Error::invalid("the bench", why)) } else { Ok(()) }
}

/// Runs this process as one of the two PEs of a bench over a transport other than windows. `reason` says why the PEs
/// communicate over it.
fn over_network(
    plan: &Plan,
    transport: AnyTransport,
    membership: &Membership,
    reason: String,
    processors: &[usize],
) -> Result<Measurements> {
    if plan.only == Some(Part::Mover) {
        return Err(Error::invalid(
            ONLY.with("mover"),
            "only windows have a mover; leave it out, or measure windows",
        ));
    }
    if let Some(own) = processors.get(transport.me() as usize) {
        let _ = cores::bind(&[*own]);
    }
    let kind = transport.kind();
    let bench = Bench::new(World::new(transport, 0, 0)?, plan.clone(), largest(plan), processors)?;
    let points = bench.run()?;
    bench.world.leave()?;
    membership.finish();
    let points = if bench.driver { points } else { Vec::new() };
    Ok(Measurements { points, network: Some((kind, reason)) })
}

/// Returns the size in bytes of the memory that the bench transfers.
fn largest(plan: &Plan) -> usize {
    plan.sizes.iter().copied().max().unwrap_or(8).max(4096) as usize
}

/// An index in `Bench::words`. `agree` uses this word to send PE 0's value to PE 1. The indices of all words
/// are 16 words apart, so no two words share a cache line.
const BATCH: usize = 0;
/// Index of the word by which a PE tells the other PE that all puts to it have arrived.
const SIGNAL: usize = 16;
/// Index in `Bench::words` of the word in which PE 1 answers PE 0.
const ANSWER: usize = 32;
/// Index in `Bench::words` of the word by which the other PE sends its measured time.
const NANOSECONDS: usize = 48;
/// Index of the word by which PE 1 sends the result of its comparison: 1 if bytes are wrong.
const WRONG: usize = 64;
/// Index of a word of PE 1. PE 0's fetching additions increment this word.
const COUNTER: usize = 96;
/// Index of the word by which PE 0 tells PE 1 that a batch of gets by push has ended.
const DONE: usize = 80;

struct Bench<T: Measured> {
    world: World<T>,
    plan: Plan,
    source: Vec<u8>,
    inbox: Symmetric<u8>,
    words: Symmetric<u64>,
    driver: bool,
    other: u32,
    /// The processors of the measuring threads, one for each of the two PEs. The two processes of
    /// ucx_perftest also run on them.
    pair: Vec<usize>,
    /// The name in results of the mechanism that copies the bytes of puts, such as `stores`. `gets_by` is the
    /// name for gets, such as `loads`.
    puts_by: String,
    gets_by: String,
}

impl<T: Measured> Bench<T> {
    fn new(world: World<T>, plan: Plan, largest: usize, processors: &[usize]) -> Result<Self> {
        if world.pes() != 2 {
            return Err(Error::invalid(
                format!("a bench of {} PEs", world.pes()),
                "start it with exactly two",
            ));
        }
        let source = (0..largest).map(pattern).collect();
        let inbox = world.array(largest)?;
        let words = world.array(128)?;
        let (driver, other) = (world.me() == 0, 1 - world.me());
        // Exchange messages with the other PE before asking for names. UCX names its transports only for PEs
        // that it has reached.
        world.barrier_all()?;
        let [puts_by, gets_by] = world.transport().carriers(other);
        let pair = processors[..2.min(processors.len())].to_vec();
        Ok(Self { world, plan, source, inbox, words, driver, other, pair, puts_by, gets_by })
    }

    /// Measures all cases of the plan, except puts by a mover.
    fn run(&self) -> Result<Vec<Point>> {
        let mut points = Vec::new();
        let all = self.plan.only.is_none();
        if all {
            points.extend(self.one_way()?);
            points.extend(self.idle()?);
            points.extend(self.fetch_add()?);
            points.extend(T::own_cases(self)?);
        }
        for &size in &self.plan.sizes {
            let size = size as usize;
            if self.plan.only != Some(Part::Mover) {
                points.extend(self.put_and_plain_copy(size)?);
            }
            if all {
                points.extend(self.get(size)?);
                points.extend(T::own_transfers(self, size)?);
                points.extend(self.both_ways(size)?);
                points.extend(self.exchanged(size)?);
                points.extend(self.delivered(size)?);
                // Measure up to 1 MiB, because a series of larger messages would take seconds.
                if size <= 1 << 20 {
                    points.extend(self.messages(size)?);
                }
            }
        }
        Ok(points)
    }
}

impl Bench<Windows> {
    /// Measures puts by PE 0's `mover`. At PE 1, `mover` is `None`.
    fn moved(&self, mover: Option<StartedMover>) -> Result<Vec<Point>> {
        let mut points = Vec::new();
        // A mover reaches only windows that the processor can use as memory. Both PEs have the same kind of
        // window, so this check has the same result at both.
        let reached = self.world.direct(self.words.as_ptr() as usize, self.other).is_some();
        if self.plan.only == Some(Part::Mover) && !reached {
            return Err(Error::invalid(
                ONLY.with("mover"),
                "no mover reaches this bridge's windows; leave the option out",
            ));
        }
        if self.plan.only != Some(Part::Puts) && reached {
            let mut moving = mover.map(|mover| self.moving(mover)).transpose()?;
            for &size in self.plan.sizes.iter().filter(|size| **size >= LEAST_MOVED) {
                points.extend(self.by_mover(&mut moving, size as usize)?);
            }
        }
        Ok(points)
    }

    /// Prepares a copy by a mover. Returns the mover, a new source region that holds the pattern, and the
    /// peer's inbox as the destination region.
    fn moving(&self, StartedMover { mover, reach }: StartedMover) -> Result<Moving> {
        let transport = self.world.transport();
        let length = self.source.len();
        let at =
            transport.layout().symmetric() + self.world.offset_of(self.inbox.as_ptr() as usize, length)?;
        let source = Region::host(length)?;
        // SAFETY: both have `length` bytes, and `source` is a new region.
        unsafe { std::ptr::copy_nonoverlapping(self.source.as_ptr(), source.as_ptr(), length) };
        let destination = transport.window(self.other)?.region().slice(at, length)?;
        Ok(Moving { mover, source: reach(source)?, destination: reach(destination)? })
    }
}

impl<T: Measured> Bench<T> {
    /// Sends PE 0's `value` to PE 1. Returns that value at both PEs.
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

    /// Returns how many operations fill a batch, if each takes `nanoseconds`.
    fn count(&self, nanoseconds: f64) -> u64 {
        (self.plan.batch_us as f64 * 1e3 / nanoseconds.max(1.0)).max(1.0) as u64
    }

    /// At PE 0, compares the first `size` bytes of `got` with the pattern. `got` holds the result of a get.
    /// Returns an error if the bytes differ. At PE 1, does nothing.
    fn compare(&self, got: &[u8], size: usize) -> Result<()> {
        match self.driver && got[..size] != self.source[..size] {
            true => Err(Error::invalid(
                format!("a get of {size} bytes"),
                "bytes arrived altered; do not trust this path",
            )),
            false => Ok(()),
        }
    }

    /// PE 1 compares its first `size` received bytes with the pattern, and sends the result to both PEs. Both
    /// PEs must call this function. Both get `size`, or an error if the bytes differ.
    fn verify(&self, size: usize) -> Result<u64> {
        self.world.barrier_all()?;
        if !self.driver {
            // SAFETY: the bytes are this PE's copy of the array. No thread writes to it between the two
            // barriers.
            let received = unsafe { std::slice::from_raw_parts(self.inbox.as_ptr(), size) };
            let wrong = received != &self.source[..size];
            self.world.put(self.words, WRONG, &[wrong as u64], 0)?;
            self.world.put(self.words, WRONG, &[wrong as u64], 1)?;
            // Overwrite the bytes. Otherwise the next case could pass with old bytes. SAFETY: the bytes are
            // this PE's copy of the array. No other thread accesses them between the two barriers.
            unsafe { std::ptr::write_bytes(self.inbox.as_ptr(), 0xA5, size) };
        }
        self.world.barrier_all()?;
        match self.world.load(self.words, WRONG)? {
            0 => Ok(size as u64),
            _ => Err(Error::invalid(
                format!("verification of {size} bytes"),
                "bytes arrived altered; do not trust this path",
            )),
        }
    }
}

/// Returns byte `index` of the pattern. The period of the pattern is not a power of two, so the check finds a
/// misplaced block.
fn pattern(index: usize) -> u8 {
    (index % 251) as u8 ^ (index / 251 % 241) as u8 | 1
}
