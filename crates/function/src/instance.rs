//! One CPU thread's use of a packet function, with the function's state and output region.

use crate::abi::CallContext;
use crate::packet_function::{PacketFunction, Processor};
use crate::report::FunctionReport;
use crate::rust_function::FunctionPacket;
use crate::{Error, Result};
use inlane_core::packet::Packet;
use inlane_core::region::Region;
use inlane_core::ring::layout::{Descriptor, MAX_BURST, PacketVerdict, VERDICTS};
use std::mem::size_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts the calls of an instance, so that a watchdog finds a call that never returns.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Calls(AtomicU64);

impl Calls {
    /// Returns the number of the call that runs now, or `None` between calls.
    pub fn running(&self) -> Option<u64> {
        let count = self.0.load(Relaxed);
        (count % 2 == 1).then_some(count / 2)
    }

    /// Records that a call begins or ends. Only the instance's thread calls it.
    #[inline]
    fn step(&self) {
        self.0.store(self.0.load(Relaxed).wrapping_add(1), Relaxed);
    }
}

/// A packet function with a state and an output region. One thread at a time uses it.
pub struct Instance {
    processor: Processor,
    function: PacketFunction,
    state: Region,
    output: Option<Region>,
    /// The arguments of a call besides the packets. Stored here, because only the time changes between calls.
    context: CallContext,
    calls: Arc<Calls>,
}

// SAFETY: `function` keeps the entry loaded. Only `&mut self` changes state and output.
unsafe impl Send for Instance {}

impl PacketFunction {
    /// Creates an instance for one CPU thread. Compiles and loads a user's function if necessary. The
    /// function's code has all rights of the process, so drop privileges before this call.
    ///
    /// # Errors
    /// [`Error::Core`] if there is no memory for the state. For users' functions, also the errors of
    /// [`PacketFunction::info`].
    pub fn instance(&self) -> Result<Instance> {
        Instance::new(self.clone(), self.processor()?)
    }
}

impl Instance {
    pub(crate) fn new(function: PacketFunction, processor: Processor) -> Result<Self> {
        let info = function.info()?;
        let size = |bytes: u64| {
            usize::try_from(bytes).map_err(|_| Error::Environment {
                what: format!("packet function {}", function.name()),
                why: format!("it needs {bytes} bytes of memory, more than this machine can address"),
                source: None,
            })
        };
        let state = Region::host(size(info.state_bytes)?.max(1))?;
        let initial = function.initial_state(&info)?;
        // SAFETY: `initial_state` returns at most `state_bytes` bytes. Nothing else uses the new region.
        unsafe { state.as_ptr().copy_from_nonoverlapping(initial.as_ptr(), initial.len()) };
        let output = match size(info.output_bytes)? {
            0 => None,
            bytes => Some(Region::host(bytes)?),
        };
        let context = CallContext {
            state: state.address(),
            output: output.as_ref().map_or(0, Region::address),
            output_bytes: output.as_ref().map_or(0, |output| output.len() as u64),
            now_ns: 0,
            room: 0,
            reserved: 0,
        };
        Ok(Self { processor, function, state, output, context, calls: Arc::default() })
    }

    /// Returns the function that the instance runs.
    pub fn function(&self) -> &PacketFunction {
        &self.function
    }

    /// Returns the count of calls, which other threads may read while the instance runs.
    pub fn calls(&self) -> Arc<Calls> {
        self.calls.clone()
    }

    /// Sets the most bytes to which packets may grow, usually [`inlane_core::Pool::room`]. Without this call,
    /// packets can only shrink.
    pub fn set_room(&mut self, room: u32) {
        self.context.room = room;
    }

    /// Runs the function on `count` packets. `packets` points to the first [`Descriptor`]. Each further
    /// descriptor is `stride` bytes after the previous one.
    ///
    /// If every packet is forwarded with its length unchanged, returns
    /// [`UNCHANGED`](inlane_core::ring::layout::UNCHANGED) and does not write `verdicts`. If not, returns
    /// [`VERDICTS`](inlane_core::ring::layout::VERDICTS) and writes a verdict for each packet.
    ///
    /// # Panics
    /// If `stride` is neither 16 (descriptors) nor 24 (packets), or `count` exceeds [`MAX_BURST`].
    ///
    /// # Safety
    /// * `packets` is valid for reads of `count * stride` bytes, and `verdicts` for writes of `count`
    ///   verdicts.
    /// * The caller owns the packets. They are in memory that the CPU can access, with the lengths in their
    ///   descriptors and the room given to [`Instance::set_room`]. Nothing else accesses them during the
    ///   call.
    /// * A user's function is trusted to access only its packets, state and output region.
    #[inline]
    pub unsafe fn run(
        &mut self,
        packets: *const u8,
        stride: usize,
        count: usize,
        verdicts: *mut PacketVerdict,
        now_ns: u64,
    ) -> u32 {
        assert!(
            stride == size_of::<Descriptor>() || stride == size_of::<Packet>(),
            "the stride must be 16 or 24"
        );
        assert!(count <= MAX_BURST, "a burst has at most MAX_BURST packets");
        self.context.now_ns = now_ns;
        self.calls.step();
        let info = match &mut self.processor {
            // SAFETY: the code is loaded, and state and output have the declared sizes. The caller promises the
            // rest.
            Processor::Compiled(entry) => unsafe {
                ((**entry).run)(packets, stride as u32, count as u32, verdicts, &self.context)
            },
            Processor::Rust(function) => {
                for index in 0..count {
                    // SAFETY: the caller promises `count` descriptors, `stride` bytes apart, and as many verdicts. Both kinds
                    // of packet begin with a descriptor's address and length.
                    let (address, length) = unsafe {
                        let descriptor = packets.add(index * stride).cast::<Descriptor>();
                        ((*descriptor).address, (*descriptor).length)
                    };
                    let room = self.context.room.max(length) as usize;
                    // SAFETY: the caller owns the packet, whose buffer has this room, and nothing else accesses it.
                    let room = unsafe { std::slice::from_raw_parts_mut(address as *mut u8, room) };
                    let mut packet = FunctionPacket::new(room, length as usize);
                    let verdict = function.process(&mut packet);
                    // SAFETY: as above, the verdict's place is valid.
                    unsafe { verdicts.add(index).write(packet.verdict(verdict)) };
                }
                VERDICTS
            }
        };
        self.calls.step();
        info
    }

    /// Runs the function on packets from a port.
    ///
    /// # Panics
    /// If there are fewer verdicts than packets, or more packets than [`MAX_BURST`].
    ///
    /// # Safety
    /// As for [`Instance::run`], for the memory that the packets refer to.
    #[inline]
    pub unsafe fn run_packets(
        &mut self,
        packets: &[Packet],
        verdicts: &mut [PacketVerdict],
        now_ns: u64,
    ) -> u32 {
        assert!(verdicts.len() >= packets.len(), "fewer verdicts than packets");
        let stride = size_of::<Packet>();
        // SAFETY: both slices are long enough. The caller promises that the memory behind them is valid.
        unsafe { self.run(packets.as_ptr().cast(), stride, packets.len(), verdicts.as_mut_ptr(), now_ns) }
    }

    /// Runs the function on the descriptors of an item of the burst ring.
    ///
    /// # Panics
    /// If there are fewer verdicts than packets, or more packets than [`MAX_BURST`].
    ///
    /// # Safety
    /// The conditions of [`Instance::run`] hold for the memory that the descriptors refer to.
    #[inline]
    pub unsafe fn run_descriptors(
        &mut self,
        packets: &[Descriptor],
        verdicts: &mut [PacketVerdict],
        now_ns: u64,
    ) -> u32 {
        assert!(verdicts.len() >= packets.len(), "fewer verdicts than packets");
        let stride = size_of::<Descriptor>();
        // SAFETY: both slices are long enough. The caller promises that the memory behind them is valid.
        unsafe { self.run(packets.as_ptr().cast(), stride, packets.len(), verdicts.as_mut_ptr(), now_ns) }
    }

    /// Returns true if [`Instance::tick`] must be called while no packets arrive.
    pub fn ticks(&self) -> bool {
        match self.processor {
            // SAFETY: `function` keeps the code loaded.
            Processor::Compiled(entry) => unsafe { (*entry).info.ticks() },
            Processor::Rust(_) => false,
        }
    }

    /// Returns true if the function reads the time passed to [`Instance::run`]. For others, pass 0.
    pub fn needs_time(&self) -> bool {
        match self.processor {
            // SAFETY: as in `ticks`.
            Processor::Compiled(entry) => unsafe { (*entry).info.needs_time() },
            Processor::Rust(_) => false,
        }
    }

    /// Calls the function's `tick` with the time in nanoseconds. Call it at least every millisecond while no
    /// packets arrive.
    pub fn tick(&mut self, now_ns: u64) {
        self.context.now_ns = now_ns;
        if let Processor::Compiled(entry) = self.processor {
            self.calls.step();
            // SAFETY: as in `run`.
            unsafe { ((*entry).tick)(&self.context) }
            self.calls.step();
        }
    }

    /// Ends the run. Calls `tick` with the greatest time, so that the function delivers everything that it
    /// has assembled.
    pub fn finish(&mut self) {
        if self.ticks() {
            self.tick(u64::MAX);
        }
    }

    /// Returns the function's state.
    pub fn state(&self) -> &[u8] {
        // SAFETY: the region is initialized, and only `&mut self` methods change it.
        unsafe { std::slice::from_raw_parts(self.state.as_ptr(), self.state.len()) }
    }

    /// Makes the function's report from its state.
    pub fn report(&self) -> FunctionReport {
        match &self.processor {
            Processor::Compiled(_) => self.function.report(self.state(), &self.function.cpu_counters()),
            Processor::Rust(function) => function.report(),
        }
    }

    /// Returns the output region. Empty if the function has none.
    pub fn output(&self) -> &[u8] {
        match &self.output {
            // SAFETY: as in `state`.
            Some(output) => unsafe { std::slice::from_raw_parts(output.as_ptr(), output.len()) },
            None => &[],
        }
    }
}
