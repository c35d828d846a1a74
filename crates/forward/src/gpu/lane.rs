//! One pipeline's resources on a GPU: the ring, the function's state and output region, and packet buffers.

use super::lane_report::LaneReport;
use super::loaded_function::LoadedFunction;
use super::parameters::{LaneParameters, strides};
use super::settings::{Memory, Settings};
use crate::error::{Error, Result};
use crate::method::Method;
use crate::pipeline::PipelineSettings;
use crate::result::LaunchShape;
use inlane_core::ring::{Dispatcher, Ring, layout};
use inlane_core::{Location, Pool, Region};
use inlane_cuda::{GraphExec, LaunchConfig, Stream};
use inlane_function::abi::WHOLE_PACKET;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A persistent kernel without a heartbeat for this time ends, because the host process must be dead.
const ORPHAN_AFTER: Duration = Duration::from_secs(10);

/// The graphs for a stretch. A stretch is a number of consecutive slots whose kernels are launched by one
/// graph. In each array, element 0 is for even laps of the ring and element 1 for odd laps.
pub(super) struct Stretch {
    /// The graphs for even and for odd laps, whose waits need different values. A graph has a wait and a
    /// kernel for each slot. It is launched if at least one slot has no submitted item yet.
    pub(super) waiting: [GraphExec; 2],
    /// The graphs to launch if all slots of the stretch hold submitted items: one graph for even laps and one
    /// for odd laps. Each graph has one kernel with a block per item, and no waits.
    pub(super) ready: [GraphExec; 2],
}

/// One pipeline's share of a GPU.
pub struct Lane {
    /// The graphs and streams of a pipeline that has run. They are dropped first, because they use the memory. The mutex
    /// is never locked. It makes the lane usable from several threads, which graphs are not.
    kept: Mutex<(Vec<Stretch>, Vec<Stream>, Option<Stream>)>,
    pub(super) loaded: Arc<LoadedFunction>,
    pub(super) settings: Settings,
    /// The longest time that an item may take.
    pub(super) watchdog: Duration,
    pub(super) ring: Arc<Ring>,
    /// The ring's dispatcher. `None` once the pipeline runs.
    pub(super) dispatcher: Option<Dispatcher>,
    pub(super) parameters: LaneParameters,
    pub(super) shape: LaunchConfig,
    control: Region,
    state: Region,
    output: Option<Region>,
    /// Regions that must stay allocated: the registered packet memory, the words that block 0 passes on to
    /// the other blocks, and the buffers into which packets are copied.
    _memory: Vec<Region>,
    location: Location,
    /// The address of the memory that belongs to the pipeline's packet pool.
    pub(super) packets: u64,
}

impl Lane {
    /// Allocates a lane: a pipeline's ring, buffers, kernels and streams on a GPU. Call it before any kernel
    /// runs. `pool` provides the pipeline's packets; `lanes` lanes share the GPU.
    ///
    /// Drop lanes only when all kernels on the GPU have ended, because freeing memory waits for them.
    ///
    /// # Panics
    /// If packets are to be copied into GPU memory, but the function was loaded for packets that are
    /// processed in place.
    ///
    /// # Errors
    /// - The GPU cannot access the pool's memory.
    /// - The settings do not fit the GPU or the packet function.
    /// - Memory is short.
    pub fn new(
        loaded: &Arc<LoadedFunction>,
        settings: &Settings,
        pipeline: &PipelineSettings,
        pool: &dyn Pool,
        lanes: u32,
    ) -> Result<Self> {
        let gpu = &loaded.gpu;
        let settings = &settings.for_lanes(lanes, loaded.info.ticks())?;
        let packets = match pool.region().location() {
            Location::Host => gpu.register(pool.region())?,
            Location::Pinned => pool.region().clone(),
            Location::Gpu(index) if *index == gpu.index() => pool.region().clone(),
            location => {
                let why = format!("{gpu} cannot access packets in {location}; use pinned memory");
                return Err(Error::config(crate::field::MEMORY, why));
            }
        };
        let location = packets.location().clone();
        let packets_address = packets.address();
        let burst = pipeline.burst;
        let slots = settings.slots_for(pipeline.slots, burst);
        // Allocate the two halves of the ring separately: only the host writes the submission half, and only
        // the GPU writes the completion half.
        let submit = gpu.pinned(layout::submit_bytes(slots, burst))?;
        let complete = gpu.pinned(layout::complete_bytes(slots, burst))?;
        let control = gpu.pinned(2 * layout::LINE)?;
        let info = &loaded.info;
        let relay = gpu.allocate(layout::LINE)?;
        let state = gpu.allocate(info.state_bytes.max(1) as usize)?;
        gpu.write(&state, &loaded.function.initial_state(info)?)?;
        let output = match info.output_bytes {
            0 => None,
            bytes => Some(gpu.allocate(bytes as usize)?),
        };
        let room = pool.room() as u32;
        let pull = if location == Location::Pinned { settings.memory.pull() } else { 0 };
        assert!(pull == 0 || loaded.pulls, "the function was loaded for packets that are processed in place");
        if pull < info.reads.max(info.writes).min(room) && pull != 0 {
            let needs = info.reads.max(info.writes);
            return Err(Error::config(
                crate::field::HEADER_SPLIT.with(pull),
                format!(
                    "function {} accesses {needs} bytes of a packet; pull at least that many",
                    loaded.function.name()
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
        let parameters = LaneParameters {
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
            work_ns: pipeline.work.as_nanos().min(1_000_000_000) as u32,
            reserved: 0,
        };
        let shared_bytes = loaded.shared_for(burst, pull != 0)?;
        let persistent = settings.method == Method::Persistent;
        let threads = settings.threads_for(burst, info.kind());
        let blocks = match settings.blocks {
            _ if !persistent => 1,
            0 => {
                let share = loaded.room_for_blocks(threads, shared_bytes)? / lanes.max(1);
                settings.blocks_for(burst).min(share.max(1))
            }
            blocks => blocks,
        };
        let shape = LaunchConfig { blocks, threads, shared_bytes, cooperative: persistent };
        // SAFETY: the regions are this lane's, and kernels write only the completion half.
        let dispatcher = unsafe { Ring::to_device(slots, burst, submit, complete) }?;
        Ok(Self {
            loaded: loaded.clone(),
            settings: settings.clone(),
            watchdog: pipeline.watchdog,
            ring: dispatcher.ring().clone(),
            dispatcher: Some(dispatcher),
            parameters,
            shape,
            control,
            state,
            output,
            _memory: memory,
            location,
            packets: packets_address,
            kept: Default::default(),
        })
    }

    /// Keeps what the pipeline used on the GPU, until the lane is dropped.
    pub(super) fn keep(&mut self, streams: Vec<Stream>, tick_stream: Option<Stream>, graphs: Vec<Stretch>) {
        self.kept = Mutex::new((graphs, streams, tick_stream));
    }

    /// Checks that the GPU can hold the blocks of all lanes' persistent kernels at the same time.
    ///
    /// # Errors
    /// If it cannot. The message contains the number of blocks that the GPU can hold.
    pub fn check_residence<'a>(lanes: impl IntoIterator<Item = &'a Lane>) -> Result<()> {
        let lanes: Vec<_> = lanes.into_iter().collect();
        let Some(lane) = lanes.iter().find(|lane| lane.settings.method == Method::Persistent) else {
            return Ok(());
        };
        let room = lane.loaded.room_for_blocks(lane.shape.threads, lane.shape.shared_bytes)?;
        let wanted: u64 = lanes.iter().map(|lane| lane.shape.blocks as u64).sum();
        if wanted > room as u64 {
            return Err(Error::config(
                crate::field::BLOCKS.with(lane.shape.blocks),
                format!(
                    "{} pipelines need {wanted} blocks of {} threads at the same time, but {} holds {room}; ask for fewer",
                    lanes.len(),
                    lane.shape.threads,
                    lane.loaded.gpu
                ),
            ));
        }
        Ok(())
    }

    /// Returns the number of the ring's slots.
    pub fn slots(&self) -> usize {
        1 << self.parameters.slot_shift
    }

    /// Returns the output region of the packet function in GPU memory, or `None` if the function has none.
    pub fn output(&self) -> Option<&Region> {
        self.output.as_ref()
    }

    /// Returns a word by which the host controls running kernels. Index 0 is the order to stop, index 16 the
    /// heartbeat.
    fn control_word(&self, index: usize) -> &AtomicU64 {
        // SAFETY: the word is aligned and lies inside the region, which has two cache lines. The CPU accesses
        // it only as an atomic.
        unsafe { AtomicU64::from_ptr(self.control.as_ptr().cast::<u64>().add(index)) }
    }

    /// Makes persistent blocks end at once, even if the ring still holds items.
    pub(super) fn order_exit(&self) {
        self.control_word(0).store(1, Ordering::Release);
    }

    /// Sends the heartbeat. `count` must differ from the count of the previous call.
    pub(super) fn heartbeat(&self, count: u64) {
        self.control_word(16).store(count, Ordering::Relaxed);
    }

    /// Returns the number of items that were submitted in the whole run. Returns `None` until the ring is
    /// closed.
    #[inline]
    pub(super) fn closed_at(&self) -> Option<u64> {
        self.ring.closed_at()
    }

    /// Returns the number of packets of the item at `position` in the ring. Returns `None` if the item was
    /// not submitted, or if its slot was reused.
    #[inline]
    pub(super) fn submitted(&self, position: u64) -> Option<u32> {
        self.ring.submitted(position)
    }

    /// Estimates the number of bytes over PCIe, for both directions together. `items` items have `packets`
    /// packets of `bytes` bytes in total. Each read counts as whole sectors of 32 bytes. Polling does not
    /// count.
    fn pcie_bytes(&self, items: u64, packets: u64, bytes: u64) -> u64 {
        let info = &self.loaded.info;
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

    /// Returns the lane's report for `items` items with `packets` packets of `bytes` bytes in total.
    ///
    /// # Errors
    /// If the state cannot be read from the GPU.
    pub(super) fn report(&self, items: u64, packets: u64, bytes: u64) -> Result<LaneReport> {
        let info = &self.loaded.info;
        let memory = match (&self.location, self.settings.memory) {
            (Location::Gpu(_), _) => "in GPU memory; no payload crosses PCIe".to_string(),
            (_, Memory::Gpu) => {
                "pinned; the SMs pull whole packets into GPU memory and write changed chunks of 16 B back"
                    .into()
            }
            (_, Memory::Split(n)) => {
                format!("pinned; the SMs pull the first {n} B into GPU memory, the rest stays in host memory")
            }
            _ if info.reads == WHOLE_PACKET => "pinned, processed in place over PCIe".into(),
            _ => format!(
                "pinned, processed in place over PCIe; the function reads {} B of each packet, the rest stays in host memory",
                info.reads
            ),
        };
        let threads_per_block = self.shape.threads;
        let streams = self.settings.streams_for();
        let shape = match self.settings.method {
            Method::Persistent => LaunchShape::Resident { blocks: self.shape.blocks, threads_per_block },
            Method::Graph => LaunchShape::Graphs {
                items: self.settings.graph_items_for(),
                chains: self.settings.graph_branches_for(),
                streams,
                threads_per_block,
            },
            _ => LaunchShape::Streams { streams, threads_per_block },
        };
        Ok(LaneReport {
            flags: "in pinned host memory: the words by which the CPU and the GPU hand over items".into(),
            memory,
            shape,
            pcie_bytes: self.pcie_bytes(items, packets, bytes),
            function: self.loaded.function.report(&self.loaded.gpu.read(&self.state)?, &self.loaded.counters),
        })
    }
}
