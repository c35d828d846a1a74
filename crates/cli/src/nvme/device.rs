//! Transfers between a namespace and the memory of a GPU or a twin.
//!
//! ```text
//!   read:   TCP -> buffer in host memory -> mover -> device
//!   write:  device -> mover -> buffer in host memory -> TCP
//! ```
//!
//! Commands and copies overlap: while the mover copies some buffers, further commands use the others. The
//! buffers are pinned if the device is a GPU. A digest of each MiB verifies the bytes.

use inlane_copy::cost::Cache;
use inlane_copy::{Device, Endpoint, PathChoice, PathOptions, PathSelector};
use inlane_core::mover::{Mover, Ticket};
use inlane_core::{CompletionMode, Region};
use inlane_nvme::initiator::{Buffer, Sink, Source, Supply};
use inlane_nvme::wire::pdu::RunningDigest;
use inlane_nvme::{Error, Result};
use inlane_pci::Permission;
use inlane_result::{ByteVerification, PathExplanation};
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The most buffers of a transfer: half for copies in flight, half for NVMe commands in flight.
const BUFFERS: usize = 32;
/// The number of bytes that each digest covers. Only the last digest may cover fewer.
const PIECE: usize = 1 << 20;

/// The digest of each MiB of a stream of bytes, computed as the bytes arrive.
#[derive(Default)]
struct Digests {
    whole: Vec<[u8; 4]>,
    last: RunningDigest,
    last_bytes: usize,
}

impl Digests {
    fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (part, rest) = bytes.split_at(bytes.len().min(PIECE - self.last_bytes));
            self.last.update(part);
            self.last_bytes += part.len();
            bytes = rest;
            if self.last_bytes == PIECE {
                self.whole.push(std::mem::take(&mut self.last).bytes());
                self.last_bytes = 0;
            }
        }
    }

    /// Compares the digests of all pieces (1 MiB each) with the digests of `other`. Both must have the same
    /// number of bytes. If the digest of a piece differs, all its bytes count as altered.
    fn check(&self, other: &Self, method: &str) -> ByteVerification {
        let wrong = self.whole.iter().zip(&other.whole).filter(|(a, b)| a != b).count();
        let last_is_wrong = self.last != other.last || self.last_bytes != other.last_bytes;
        let bytes = (self.whole.len() * PIECE + self.last_bytes) as u64;
        ByteVerification {
            method: method.into(),
            transferred_bytes: bytes,
            verified_bytes: bytes,
            altered_bytes: (wrong * PIECE + if last_is_wrong { self.last_bytes } else { 0 }) as u64,
        }
    }
}

/// Buffers in host memory, and the copies between them and the device.
struct Stage {
    host: Arc<Device>,
    selector: PathSelector,
    /// The memory of the device.
    memory: Region,
    /// The offset in the device's memory at which the next copy starts. All bytes before it are already
    /// copied, or their copies are in flight.
    copied: usize,
    free: Vec<Region>,
    allocated: usize,
    /// The copies in flight: the ticket, the buffer and its bytes in use.
    in_flight: VecDeque<(Ticket, Region, usize)>,
}

impl Stage {
    /// Returns an unused buffer. Allocates one if none is free. Returns `None` if all `BUFFERS` are in use.
    fn free_buffer(&mut self, bytes: usize) -> Result<Option<Region>> {
        if let Some(region) = self.free.pop() {
            return Ok(Some(region));
        }
        if self.allocated == BUFFERS {
            return Ok(None);
        }
        self.allocated += 1;
        Ok(Some(self.host.allocate(bytes)?))
    }

    /// Waits for the oldest copy. Returns the copy's buffer and its bytes in use, or `None` if no copy is in
    /// flight.
    fn oldest(&mut self) -> Result<Option<(Region, usize)>> {
        let Some((ticket, region, bytes)) = self.in_flight.pop_front() else { return Ok(None) };
        self.selector.wait(ticket, CompletionMode::Adaptive)?;
        Ok(Some((region, bytes)))
    }

    fn reset(&mut self, selector: PathSelector) {
        self.selector = selector;
        self.copied = 0;
    }
}

/// Device memory that is the source or the destination of a transfer.
pub struct DeviceMemory {
    host: Arc<Device>,
    device: Arc<Device>,
    memory: Region,
    options: PathOptions,
}

impl DeviceMemory {
    /// Allocates `bytes` bytes of the device's memory. If `stop` becomes true, the calibration of paths ends
    /// with an error.
    ///
    /// # Errors
    /// If the device does not exist or has too little free memory.
    pub fn allocate(endpoint: &Endpoint, bytes: u64, stop: &Arc<AtomicBool>) -> Result<Self> {
        let opened = inlane_copy::open(&[Endpoint::Host, endpoint.clone()], &Permission::default())?;
        let [host, device] = <[Arc<Device>; 2]>::try_from(opened).expect("one device for each endpoint");
        let memory = device.allocate(usize::try_from(bytes).unwrap_or(usize::MAX))?;
        let options = PathOptions { stop: stop.clone(), ..PathOptions::default() };
        Ok(Self { host, device, memory, options })
    }

    /// Opens the cheapest path from host memory to the device if `into` is true, otherwise from the device to
    /// host memory. If no costs of paths are in this machine's cache, calibrates the paths.
    fn selector(&self, into: bool) -> Result<PathSelector> {
        let (from, to) = if into { (&self.host, &self.device) } else { (&self.device, &self.host) };
        let costs = Cache::load().get_or_calibrate(from, to, &self.options)?;
        Ok(PathSelector::open(from, to, PathChoice::Auto, &self.options, Some(costs))?)
    }

    fn stage(&self, into: bool) -> Result<Stage> {
        Ok(Stage {
            host: self.host.clone(),
            selector: self.selector(into)?,
            memory: self.memory.clone(),
            copied: 0,
            free: Vec::new(),
            allocated: 0,
            in_flight: VecDeque::new(),
        })
    }

    /// Returns a destination that stores the data of read commands in the device's memory.
    ///
    /// # Errors
    /// If no path leads to the device.
    pub fn sink(&self) -> Result<DeviceSink<'_>> {
        Ok(DeviceSink { device: self, stage: self.stage(true)?, received: Digests::default(), largest: 0 })
    }

    /// Copies `input` to the device's memory. Calls `idle` before each read of `input`. Returns a source
    /// that supplies write commands with data from this memory.
    ///
    /// # Errors
    /// If no path leads to or from the device, or a copy, `input` or `idle` fails.
    pub fn source(
        &self,
        input: &mut dyn std::io::Read,
        idle: &mut dyn FnMut() -> Result<()>,
    ) -> Result<DeviceSource> {
        let mut stage = self.stage(true)?;
        let mut loaded = Digests::default();
        let buffer = self.host.allocate(PIECE)?;
        let total = self.memory.len();
        for at in (0..total).step_by(PIECE) {
            let part = buffer.slice(0, PIECE.min(total - at))?;
            // SAFETY: only this function uses the region. The last copy from or to the region has ended.
            let mut bytes = unsafe { Buffer::from_region(part.clone()) }?;
            let mut rest = bytes.bytes_mut();
            while !rest.is_empty() {
                // Call `idle` before each read, because a slow pipe may give a few bytes at a time.
                idle()?;
                match input.read(rest) {
                    Ok(0) => {
                        let why =
                            format!("it ended before the {total} bytes of --length; nothing was written");
                        return Err(Error::Incomplete { what: "the input".into(), why });
                    }
                    Ok(count) => rest = &mut rest[count..],
                    Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                    Err(source) => return Err(Error::Os { what: "cannot read the input".into(), source }),
                }
            }
            loaded.update(bytes.bytes());
            stage.selector.copy(&part, &self.memory.slice(at, part.len())?)?;
        }
        stage.reset(self.selector(false)?);
        Ok(DeviceSource { stage, loaded, sent: Digests::default(), chunk: 0 })
    }

    /// Returns true if the device is a twin.
    pub fn is_twin(&self) -> bool {
        self.device.endpoint().is_twin()
    }
}

/// Returns the whole path of the data: the hops of TCP, and the hops with which `selector` copies `bytes`
/// bytes. If `into` is set, the path leads from the target to the device. Otherwise it leads from the device
/// to the target.
fn path(selector: &PathSelector, bytes: usize, tcp_hops: [String; 2], into: bool) -> PathExplanation {
    let explained = selector.explain(bytes as u64).into_text();
    let tcp = tcp_hops.to_vec();
    let copied = explained.hops.concat();
    let hops = if into { [tcp, copied].concat() } else { [copied, tcp].concat() };
    PathExplanation { hops: vec![hops], ..explained }
}

/// A destination for the data of read commands: memory of a GPU or a twin.
pub struct DeviceSink<'a> {
    device: &'a DeviceMemory,
    stage: Stage,
    received: Digests,
    largest: usize,
}

impl DeviceSink<'_> {
    /// Waits until all received bytes are in the device's memory.
    ///
    /// # Errors
    /// If a copy fails.
    pub fn finish(&mut self) -> Result<()> {
        while let Some((region, _)) = self.stage.oldest()? {
            self.stage.free.push(region);
        }
        Ok(())
    }

    /// Returns the path from the target at `peer` to the device.
    pub fn path(&self, peer: &str) -> PathExplanation {
        path(&self.stage.selector, self.largest, [peer.into(), "kernel TCP sockets".into()], true)
    }

    /// Copies the device's memory back to the host. Compares these bytes with the received ones, and passes
    /// them to `out`. Call this after [`DeviceSink::finish`].
    ///
    /// # Errors
    /// If a copy or `out` fails.
    pub fn read_back(&self, mut out: impl FnMut(&[u8]) -> Result<()>) -> Result<ByteVerification> {
        let DeviceMemory { host, memory, .. } = self.device;
        let mut selector = self.device.selector(false)?;
        let buffer = host.allocate(PIECE)?;
        let mut found = Digests::default();
        for at in (0..memory.len()).step_by(PIECE) {
            let part = buffer.slice(0, PIECE.min(memory.len() - at))?;
            selector.copy(&memory.slice(at, part.len())?, &part)?;
            // SAFETY: only this function uses the region. The last copy into the region has ended.
            let bytes = unsafe { Buffer::from_region(part) }?;
            found.update(bytes.bytes());
            out(bytes.bytes())?;
        }
        Ok(self.received.check(&found, "CRC-32C of each MiB, received and read back from the device"))
    }
}

impl Sink for DeviceSink<'_> {
    fn buffer(&mut self, bytes: usize) -> Result<Option<Buffer>> {
        let region = match self.stage.free_buffer(bytes)? {
            Some(region) => region,
            // Wait for the oldest copy, which frees its buffer. A copy must be in flight: all buffers are in
            // use, and the commands in flight use only some of them.
            None => self.stage.oldest()?.expect("a copy in flight").0,
        };
        // SAFETY: only one user at a time has the region: first the returned buffer, then the copy to the
        // device.
        Ok(Some(unsafe { Buffer::from_region(region) }?))
    }

    fn take(&mut self, buffer: Buffer, data: Range<usize>) -> Result<()> {
        self.received.update(&buffer.bytes()[data.clone()]);
        let region = buffer.into_region();
        let (from, to) =
            (region.slice(data.start, data.len())?, self.stage.memory.slice(self.stage.copied, data.len())?);
        let ticket = self.stage.selector.submit(&from, &to)?;
        self.stage.copied += data.len();
        self.largest = self.largest.max(data.len());
        self.stage.in_flight.push_back((ticket, region, data.len()));
        Ok(())
    }
}

/// A source of the data of write commands: memory of a GPU or a twin.
pub struct DeviceSource {
    stage: Stage,
    loaded: Digests,
    sent: Digests,
    /// The number of bytes that each copy moves. The last one may move fewer.
    chunk: usize,
}

impl DeviceSource {
    /// Returns the path from the device to the target at `peer`.
    pub fn path(&self, peer: &str) -> PathExplanation {
        path(&self.stage.selector, self.chunk, ["kernel TCP sockets".into(), peer.into()], false)
    }

    /// Compares the digests of the sent bytes with the digests of the bytes that were copied to the device.
    pub fn verification(&self) -> ByteVerification {
        self.loaded.check(&self.sent, "CRC-32C of each MiB, copied to the device and sent from there")
    }
}

impl Source for DeviceSource {
    fn next(&mut self, most: usize) -> Result<Supply> {
        self.chunk = self.chunk.max(most);
        let total = self.stage.memory.len();
        // Start copies from the device before the write commands that will send the bytes. These copies may
        // use at most half of the buffers, because the commands in flight use the others.
        while self.stage.copied < total && self.stage.in_flight.len() < BUFFERS / 2 {
            let Some(region) = self.stage.free_buffer(self.chunk)? else { break };
            let bytes = self.chunk.min(total - self.stage.copied);
            let from = self.stage.memory.slice(self.stage.copied, bytes)?;
            let ticket = self.stage.selector.submit(&from, &region.slice(0, bytes)?)?;
            self.stage.copied += bytes;
            self.stage.in_flight.push_back((ticket, region, bytes));
        }
        let Some((region, bytes)) = self.stage.oldest()? else { return Ok(Supply::End) };
        // SAFETY: the copy into the region has ended, and from now on only the buffer uses the region.
        let mut buffer = unsafe { Buffer::from_region(region) }?;
        buffer.set_len(bytes);
        self.sent.update(buffer.bytes());
        Ok(Supply::Data(buffer))
    }

    fn recycle(&mut self, buffer: Buffer) {
        self.stage.free.push(buffer.into_region());
    }
}

/// Parses the endpoint of a transfer: the memory of a GPU or a twin.
pub fn parse_endpoint(text: &str) -> inlane_core::Result<Endpoint> {
    match text.parse()? {
        endpoint @ (Endpoint::Gpu(_) | Endpoint::Twin(_)) => Ok(endpoint),
        other => Err(inlane_core::Error::invalid(
            format!("endpoint '{other}'"),
            "give the memory of a GPU or a twin: gpu:0 or twin:0",
        )),
    }
}
