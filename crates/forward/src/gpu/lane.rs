//! What one pipeline has on a GPU: its ring in pinned memory, the function's state and output, room for payload.

use super::lane_report::LaneReport;
use super::loaded_function::LoadedFunction;
use super::settings::{Memory, Settings};
use crate::config::Method;
use crate::error::{Error, Result};
use crate::pipeline::PipelineSettings;
use inlane_core::ring::{Dispatcher, Ring, layout};
use inlane_core::{Location, Pool, Region};
use inlane_cuda::LaunchConfig;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// `inlane_lane` of `kernels/executor.cu`, passed to kernels by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Parameters {
    pub(super) submit: u64,
    pub(super) complete: u64,
    pub(super) control: u64,
    pub(super) stage: u64,
    pub(super) shadow: u64,
    pub(super) state: u64,
    pub(super) output: u64,
    pub(super) relay: u64,
    pub(super) output_bytes: u64,
    pub(super) orphan_ns: u64,
    pub(super) submit_stride: u32,
    pub(super) complete_stride: u32,
    pub(super) slot_shift: u32,
    pub(super) burst: u32,
    pub(super) room: u32,
    pub(super) pull: u32,
    pub(super) stage_stride: u32,
    pub(super) shadow_stride: u32,
    pub(super) writes: u32,
    pub(super) pause_ns: u32,
    pub(super) work_ns: u32,
    pub(super) reserved: u32,
}

impl Parameters {
    /// Returns C++ text that asserts that `inlane_lane` has this struct's layout. Append it to the kernels.
    pub(super) fn layout_assertions() -> String {
        inlane_function::struct_layout!(Parameters as "inlane_lane" {
            submit, complete, control, stage, shadow, state, output, relay, output_bytes, orphan_ns, submit_stride,
            complete_stride, slot_shift, burst, room, pull, stage_stride, shadow_stride, writes, pause_ns, work_ns, reserved
        })
    }
}

/// A host that gives no sign for so long is dead: a persistent kernel ends by itself.
const ORPHAN_AFTER: Duration = Duration::from_secs(10);

/// Bytes of a packet in `stage`, and in `shadow`: the sixteen-byte chunks that hold the most of it, wherever it begins; 0 where there is none.
pub(super) fn strides(pull: u32, room: u32, writes: u32) -> [u32; 2] {
    let chunks = |bytes: u32| (bytes + 15).next_multiple_of(16);
    match (pull, writes) {
        (0, _) => [0, 0],
        (_, 0) => [chunks(room.min(pull)).next_multiple_of(128), 0],
        _ => [chunks(room.min(pull)).next_multiple_of(128), chunks(writes.min(room))],
    }
}

/// One pipeline's share of a GPU.
pub struct Lane {
    pub(super) program: Arc<LoadedFunction>,
    pub(super) settings: Settings,
    pub(super) ring: Arc<Ring>,
    /// The ring's dispatcher, until the pipeline runs.
    pub(super) dispatcher: Option<Dispatcher>,
    pub(super) parameters: Parameters,
    pub(super) shape: LaunchConfig,
    control: Region,
    state: Region,
    output: Option<Region>,
    /// The packets' memory as registered, the blocks' words, what packets are pulled into.
    _memory: Vec<Region>,
    location: Location,
    /// It counts among those of its program that have not started, and its users.
    starting: AtomicBool,
    uses: AtomicBool,
}

impl Lane {
    /// Allocates it, before any kernel runs: `pool` is where the pipeline's packets come from, `lanes` how many share the GPU.
    /// All of a program must be run at the same time, or dropped: none starts before the others are ready, and none is freed while
    /// another runs.
    ///
    /// # Panics
    /// When packets are to be pulled and the program was not made for it.
    ///
    /// # Errors
    /// When the GPU cannot reach the pool's memory, the shape does not fit the GPU, or memory is short.
    pub fn new(
        program: &Arc<LoadedFunction>,
        settings: &Settings,
        drive: &PipelineSettings,
        pool: &dyn Pool,
        lanes: u32,
    ) -> Result<Self> {
        let gpu = &program.gpu;
        let settings = &settings.among(lanes, program.info.ticks())?;
        let packets = match pool.region().location() {
            Location::Host => gpu.register(pool.region())?,
            Location::Pinned => pool.region().clone(),
            Location::Gpu(index) if *index == gpu.index() => pool.region().clone(),
            location => {
                let why = format!("{gpu} cannot reach packets in {location}; use pinned memory");
                return Err(Error::config("--memory", why));
            }
        };
        let location = packets.location().clone();
        let burst = drive.burst;
        let slots = settings.slots_for(drive.slots, burst);
        // The two halves apart: each has one writer.
        let submit = gpu.pinned(layout::submit_bytes(slots, burst))?;
        let complete = gpu.pinned(layout::complete_bytes(slots, burst))?;
        let control = gpu.pinned(2 * layout::LINE)?;
        let info = &program.info;
        let relay = gpu.allocate(layout::LINE)?;
        let state = gpu.allocate(info.state_bytes.max(1) as usize)?;
        gpu.write(&state, &program.function.initial_state(info)?)?;
        let output = match info.output_bytes {
            0 => None,
            bytes => Some(gpu.allocate(bytes as usize)?),
        };
        let room = pool.room() as u32;
        let pull = if location == Location::Pinned { settings.memory.pull() } else { 0 };
        assert!(pull == 0 || program.pulls, "a program for packets that stay where they are");
        if pull < info.reads.max(info.writes).min(room) && pull != 0 {
            let needs = info.reads.max(info.writes);
            return Err(Error::config(
                format!("--header-split {pull}"),
                format!(
                    "function {} touches {needs} bytes of a packet; split there or later",
                    program.function.name()
                ),
            ));
        }
        let mut memory = vec![packets, relay.clone()];
        let mut room_for = |stride: u32| -> Result<u64> {
            let region = gpu.allocate(slots * burst * stride as usize)?;
            memory.push(region.clone());
            Ok(region.address())
        };
        let [stage_stride, shadow_stride] = strides(pull, room, info.writes);
        let stage = if stage_stride == 0 { 0 } else { room_for(stage_stride)? };
        let shadow = if shadow_stride == 0 { 0 } else { room_for(shadow_stride)? };
        let parameters = Parameters {
            submit: submit.address(),
            complete: complete.address(),
            control: control.address(),
            stage,
            shadow,
            state: state.address(),
            output: output.as_ref().map_or(0, Region::address),
            relay: relay.address(),
            output_bytes: info.output_bytes,
            orphan_ns: ORPHAN_AFTER.as_nanos() as u64,
            submit_stride: layout::submit_stride(burst) as u32,
            complete_stride: layout::complete_stride(burst) as u32,
            slot_shift: slots.trailing_zeros(),
            burst: burst as u32,
            room,
            pull,
            stage_stride,
            shadow_stride,
            writes: info.writes,
            pause_ns: settings.pause.as_nanos().min(1_000_000) as u32,
            work_ns: drive.work.as_nanos().min(1_000_000_000) as u32,
            reserved: 0,
        };
        let shared_bytes = program.shared_for(burst, pull != 0)?;
        let persistent = settings.method == Method::Persistent;
        let threads = settings.threads_for(burst, info.kind());
        let blocks = match settings.blocks {
            _ if !persistent => 1,
            0 => {
                let share = program.room_for_blocks(threads, shared_bytes)? / lanes.max(1);
                settings.blocks_for(burst).min(share.max(1))
            }
            blocks => blocks,
        };
        let shape = LaunchConfig { blocks, threads, shared_bytes, cooperative: persistent };
        // SAFETY: the regions are this lane's, and kernels write only the complete half.
        let dispatcher = unsafe { Ring::to_device(slots, burst, submit, complete) }?;
        program.starting.fetch_add(1, Ordering::Relaxed);
        program.users.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            program: program.clone(),
            settings: settings.clone(),
            ring: dispatcher.ring().clone(),
            dispatcher: Some(dispatcher),
            parameters,
            shape,
            control,
            state,
            output,
            _memory: memory,
            location,
            starting: AtomicBool::new(true),
            uses: AtomicBool::new(true),
        })
    }

    /// All that this lane allocates is there; waits until the others' is, too. What allocates or frees waits for the whole device: for
    /// what other lanes have posted for packets to come, while these need the driver, which is locked meanwhile, to go on.
    pub(super) fn start_together(&self) {
        self.meet(&self.starting, &self.program.starting);
        self.program.began.get_or_init(Instant::now);
    }

    /// What it runs.
    pub(crate) fn program(&self) -> &Arc<LoadedFunction> {
        &self.program
    }

    /// This lane's work is over; waits until the others' is, too, before anything is freed.
    pub(super) fn leave_together(&self) {
        sign_off(&self.starting, &self.program.starting);
        self.meet(&self.uses, &self.program.users);
    }

    /// Signs off, and waits until all have, or the GPU was given up: then nothing is freed any more.
    fn meet(&self, counted: &AtomicBool, count: &AtomicU32) {
        sign_off(counted, count);
        while count.load(Ordering::Acquire) > 0 && !self.program.gpu.is_abandoned() {
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Checks that the persistent kernels of `lanes` fit the GPU together: their blocks must all be resident.
    ///
    /// # Errors
    /// With how many blocks there is room for.
    pub fn check_residence<'a>(lanes: impl IntoIterator<Item = &'a Lane>) -> Result<()> {
        let lanes: Vec<_> = lanes.into_iter().collect();
        let Some(lane) = lanes.iter().find(|lane| lane.settings.method == Method::Persistent) else {
            return Ok(());
        };
        let room = lane.program.room_for_blocks(lane.shape.threads, lane.shape.shared_bytes)?;
        let wanted: u64 = lanes.iter().map(|lane| lane.shape.blocks as u64).sum();
        if wanted > room as u64 {
            return Err(Error::config(
                format!("--blocks {}", lane.shape.blocks),
                format!(
                    "{} pipelines need {wanted} blocks of {} threads resident at once, {} holds {room}; ask for fewer",
                    lanes.len(),
                    lane.shape.threads,
                    lane.program.gpu
                ),
            ));
        }
        Ok(())
    }

    /// Items of its ring.
    pub fn slots(&self) -> usize {
        1 << self.parameters.slot_shift
    }

    /// The function's output region in GPU memory, for consumers there.
    pub fn output(&self) -> Option<&Region> {
        self.output.as_ref()
    }

    fn control_word(&self, index: usize) -> &AtomicU64 {
        // SAFETY: inside the region (two lines), aligned, pinned memory that the CPU only accesses so.
        unsafe { AtomicU64::from_ptr(self.control.as_ptr().cast::<u64>().add(index)) }
    }

    /// Tells blocks to end at once, whatever the ring holds.
    pub(super) fn order_exit(&self) {
        self.control_word(0).store(1, Ordering::Release);
    }

    /// Shows blocks that the host lives, by another number than the last.
    pub(super) fn heartbeat(&self, beat: u64) {
        self.control_word(16).store(beat, Ordering::Relaxed);
    }

    /// How many items there ever were, once the producer has said that no more will come.
    #[inline]
    pub(super) fn closed_at(&self) -> Option<u64> {
        self.ring.closed_at()
    }

    /// How many packets the item at `position` has, if it was submitted and its slot not reused.
    #[inline]
    pub(super) fn submitted(&self, position: u64) -> Option<u32> {
        self.ring.submitted(position)
    }

    /// Bytes that cross PCIe for `items` items with `packets` packets of `bytes` in all, both ways, counted in the 32-byte
    /// sectors that a GPU reads and the bytes it writes; without what polling costs.
    fn pcie_bytes(&self, items: u64, packets: u64, bytes: u64) -> u64 {
        let info = &self.program.info;
        let mean = bytes.checked_div(packets).unwrap_or(0);
        let sectors = |bytes: u64| bytes.next_multiple_of(32);
        let read = match (&self.location, self.parameters.pull) {
            (Location::Gpu(_), _) => 0,
            (_, 0) => sectors(mean.min(info.reads as u64)),
            (_, pull) => sectors(mean.min(pull as u64)),
        };
        let written = if self.location == Location::Pinned { mean.min(info.writes as u64) } else { 0 };
        items * (32 + 8) + packets * (16 + read + written)
    }

    /// What a result says of it, after `items` items with `packets` packets of `bytes` in all.
    ///
    /// # Errors
    /// When the GPU cannot be read any more.
    pub(super) fn report(&self, items: u64, packets: u64, bytes: u64) -> Result<LaneReport> {
        let info = &self.program.info;
        let memory = match (&self.location, self.settings.memory) {
            (Location::Gpu(_), _) => "buffers in GPU memory; no payload crosses PCIe".to_string(),
            (_, Memory::Gpu) => {
                "pinned buffers, whole packets pulled into GPU memory by the SMs, changed chunks of 16 B \
                                 written back"
                    .into()
            }
            (_, Memory::Split(n)) => {
                format!("pinned buffers, first {n} B pulled into GPU memory, the rest stays in the host's")
            }
            _ if info.reads == u32::MAX => "pinned buffers, read in place over PCIe".into(),
            _ => format!(
                "pinned buffers, read in place over PCIe: the function reads {} B of each packet; the rest of the payload \
                 stays in the host's memory",
                info.reads
            ),
        };
        let threads = self.shape.threads;
        let shape = match self.settings.method {
            Method::Persistent => format!("{} blocks of {threads} threads", self.shape.blocks),
            Method::Graph => format!(
                "graphs of {} items in {} chains, {} streams, a block of {threads} threads an item",
                self.settings.graph_items_for(),
                self.settings.graph_branches_for(),
                self.settings.streams_for()
            ),
            _ => format!("{} streams, a block of {threads} threads an item", self.settings.streams_for()),
        };
        Ok(LaneReport {
            flags: "both words in pinned host memory (GDRCopy is not supported yet)".into(),
            memory,
            shape,
            pcie_bytes: self.pcie_bytes(items, packets, bytes),
            state: self.program.gpu.read(&self.state)?,
        })
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        sign_off(&self.starting, &self.program.starting);
        sign_off(&self.uses, &self.program.users);
    }
}

/// Takes one that is counted out of a count, once.
fn sign_off(counted: &AtomicBool, count: &AtomicU32) {
    if counted.swap(false, Ordering::Relaxed) {
        count.fetch_sub(1, Ordering::Release);
    }
}
