//! A packet function at work on the CPU: one a pipeline, with its state and output.

use crate::abi::{CallContext, FunctionEntry};
use crate::packet_function::PacketFunction;
use crate::report::FunctionReport;
use crate::{Error, Result};
use inlane_core::packet::Packet;
use inlane_core::region::Region;
use inlane_core::ring::layout::{Descriptor, MAX_BURST, PacketVerdict};
use std::mem::size_of;

/// One pipeline's use of a function: the code, its state, its output region. Belongs to one thread at a time.
pub struct Instance {
    entry: *const FunctionEntry,
    function: PacketFunction,
    state: Region,
    output: Option<Region>,
    room: u32,
}

// SAFETY: the entry is constant for as long as `function` lives; state and output are reached through `&mut self` alone.
unsafe impl Send for Instance {}

impl Instance {
    pub(crate) fn new(function: PacketFunction, entry: *const FunctionEntry) -> Result<Self> {
        // SAFETY: `function` keeps the code loaded.
        let info = unsafe { (*entry).info };
        let size = |bytes: u64| {
            usize::try_from(bytes).map_err(|_| Error::Environment {
                what: format!("packet function {}", function.name()),
                why: format!("it wants {bytes} bytes of memory, more than this machine can address"),
            })
        };
        let state = Region::host(size(info.state_bytes)?.max(1))?;
        let initial = function.initial_state(&info)?;
        // SAFETY: fresh memory of at least as many bytes: `initial_state` fits them into the state.
        unsafe { state.as_ptr().copy_from_nonoverlapping(initial.as_ptr(), initial.len()) };
        let output = match size(info.output_bytes)? {
            0 => None,
            bytes => Some(Region::host(bytes)?),
        };
        Ok(Self { entry, function, state, output, room: 0 })
    }

    /// The function that it runs.
    pub fn function(&self) -> &PacketFunction {
        &self.function
    }

    /// Lets packets grow to `room` bytes from their address on (their pool's [`inlane_core::Pool::room`]); without it they
    /// only shrink.
    pub fn set_room(&mut self, room: u32) {
        self.room = room;
    }

    fn context(&self, now_ns: u64) -> CallContext {
        CallContext {
            state: self.state.address(),
            output: self.output.as_ref().map_or(0, Region::address),
            output_bytes: self.output.as_ref().map_or(0, |output| output.len() as u64),
            now_ns,
            room: self.room,
            reserved: 0,
        }
    }

    /// Runs it on `count` packets, a [`Descriptor`] every `stride` bytes from `packets` on. Returns
    /// [`UNCHANGED`](inlane_core::ring::layout::UNCHANGED), and `outcomes` is as it was, or
    /// [`VERDICTS`](inlane_core::ring::layout::VERDICTS), and it holds one for each packet.
    ///
    /// # Panics
    /// For a stride that is neither 16 (descriptors) nor 24 (packets), and more than [`MAX_BURST`] packets.
    ///
    /// # Safety
    /// `packets` is good for reads of `count * stride` bytes, `outcomes` for writes of `count` outcomes. The caller holds
    /// the packets; they lie in memory that the CPU maps, each as long as its descriptor says and with the room given
    /// to [`Instance::set_room`]; nobody else touches them meanwhile. A user's function is trusted to keep to its packets.
    #[inline]
    pub unsafe fn run(
        &mut self,
        packets: *const u8,
        stride: usize,
        count: usize,
        outcomes: *mut PacketVerdict,
        now_ns: u64,
    ) -> u32 {
        assert!(stride == size_of::<Descriptor>() || stride == size_of::<Packet>(), "no such stride");
        assert!(count <= MAX_BURST, "more packets than a burst has");
        let context = self.context(now_ns);
        // SAFETY: the entry's code is loaded, state and output are as its info wants them; the caller vouches for the rest.
        unsafe { ((*self.entry).run)(packets, stride as u32, count as u32, outcomes, &context) }
    }

    /// Runs it on packets as ports give them; see [`Instance::run`].
    ///
    /// # Panics
    /// When there are fewer outcomes than packets, or more packets than [`MAX_BURST`].
    ///
    /// # Safety
    /// As for [`Instance::run`], of what the packets point to.
    #[inline]
    pub unsafe fn run_packets(
        &mut self,
        packets: &[Packet],
        outcomes: &mut [PacketVerdict],
        now_ns: u64,
    ) -> u32 {
        assert!(outcomes.len() >= packets.len(), "fewer outcomes than packets");
        let stride = size_of::<Packet>();
        // SAFETY: both slices are long enough; the caller vouches for what packets point to.
        unsafe { self.run(packets.as_ptr().cast(), stride, packets.len(), outcomes.as_mut_ptr(), now_ns) }
    }

    /// Runs it on an item of the burst ring; see [`Instance::run`].
    ///
    /// # Panics
    /// When there are fewer outcomes than packets, or more packets than [`MAX_BURST`].
    ///
    /// # Safety
    /// As for [`Instance::run`], of what the descriptors point to.
    #[inline]
    pub unsafe fn run_descriptors(
        &mut self,
        packets: &[Descriptor],
        outcomes: &mut [PacketVerdict],
        now_ns: u64,
    ) -> u32 {
        assert!(outcomes.len() >= packets.len(), "fewer outcomes than packets");
        let stride = size_of::<Descriptor>();
        // SAFETY: both slices are long enough; the caller vouches for what descriptors point to.
        unsafe { self.run(packets.as_ptr().cast(), stride, packets.len(), outcomes.as_mut_ptr(), now_ns) }
    }

    /// True when the function wants [`Instance::tick`] now and then.
    pub fn ticks(&self) -> bool {
        // SAFETY: `function` keeps the code loaded.
        unsafe { (*self.entry).info.ticks() }
    }

    /// True when the function looks at the time that [`Instance::run`] is given; for others 0 will do.
    pub fn needs_time(&self) -> bool {
        // SAFETY: as in `ticks`.
        unsafe { (*self.entry).info.needs_time() }
    }

    /// Tells the function the time, without packets: for time limits. About once a millisecond is plenty.
    pub fn tick(&mut self, now_ns: u64) {
        let context = self.context(now_ns);
        // SAFETY: as in `run`.
        unsafe { ((*self.entry).tick)(&context) }
    }

    /// Says that no packets will come any more: time limits fall due, so what was half assembled is delivered.
    pub fn finish(&mut self) {
        if self.ticks() {
            self.tick(u64::MAX);
        }
    }

    /// Its state, for reports.
    pub fn state(&self) -> &[u8] {
        // SAFETY: initialized memory that only `&mut self` methods change.
        unsafe { std::slice::from_raw_parts(self.state.as_ptr(), self.state.len()) }
    }

    /// What it has to say after a run.
    pub fn report(&self) -> FunctionReport {
        self.function.report(self.state())
    }

    /// What it assembled.
    pub fn output(&self) -> &[u8] {
        match &self.output {
            // SAFETY: as in `state`.
            Some(output) => unsafe { std::slice::from_raw_parts(output.as_ptr(), output.len()) },
            None => &[],
        }
    }
}
