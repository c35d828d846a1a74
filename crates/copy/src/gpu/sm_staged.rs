//! Staging by SMs: a mover with a kernel on each of two GPUs. One kernel pushes chunks into pinned host
//! memory, the other pulls them out. `staging.cu` describes how the kernels exchange chunks, and
//! `command_ring.rs` the memory shared with the host.
//!
//! Resident kernels keep running between transfers and occupy one block per channel on each GPU. Meanwhile,
//! allocating, freeing and loading code on these GPUs block. [`Mover::quiesce`] ends the kernels. A timer
//! also ends them after [`PARK_AFTER`] without a transfer.

use super::command_ring::{
    self, CHANNEL_BYTES, COMMANDS_BYTES, CommandRing, DEPTH, ENDED, Layout, ParkedWhenIdle, STUCK,
};
use super::kernels::Kernels;
use super::trace::Trace;
use crate::tuning::SmTuning;
use inlane_core::mover::{InFlight, Mover, Ticket, check_pair, out_of_reach};
use inlane_core::{CompletionMode, Error, Location, Region, Result};
use inlane_cuda::{
    Arguments, Gpu, Kernel, LaunchConfig, MemoryOperation, PendingCopies, Stream, WaitUntil, drain, finish,
};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// The size of a relay in bytes. A relay is a ring in GPU memory through which block 0 passes commands to the
/// other blocks. One more line of 64 bytes follows. A word in it tells the other blocks that block 0 has
/// left.
const RELAY_BYTES: usize = COMMANDS_BYTES + 64;
/// How long a resident kernel waits for a command before it ends by itself. Usually, a timer of the host ends
/// idle kernels earlier, after [`PARK_AFTER`]. The timer does not run while a signal has stopped the process.
const IDLE: Duration = Duration::from_secs(30);
/// The timer ends resident kernels after this time without a transfer.
pub const PARK_AFTER: Duration = Duration::from_secs(10);
/// The number of commands that resident kernels accept: more than will ever come.
const UNLIMITED: u64 = 1 << 62;

/// The kernel that pushes or pulls on one GPU of a staged path, and its stream.
struct Side {
    kernel: Kernel,
    stream: Stream,
    threads: u32,
    /// GPU memory with which block 0 of the kernel passes commands to the other blocks.
    relay: Region,
}

impl Side {
    fn new(gpu: &Arc<Gpu>, kernel: &Kernel, threads: u32) -> Result<Self> {
        Ok(Self { kernel: kernel.clone(), stream: gpu.stream()?, threads, relay: gpu.allocate(RELAY_BYTES)? })
    }
}

/// A mover that copies from one GPU's memory to another GPU's memory. The SMs of both GPUs execute the copy.
pub struct SmStaged {
    from: Arc<Gpu>,
    to: Arc<Gpu>,
    push: Side,
    pull: Side,
    /// Used by waits in completion mode `interrupt`. The stream waits for the end of a transfer. The event
    /// after that wait in the stream wakes the waiting thread.
    notice: (Stream, PendingCopies),
    memory: Region,
    layout: Layout,
    ring: ParkedWhenIdle,
    resident: bool,
    /// True once an error occurred. No further transfer is accepted.
    broken: bool,
    flight: InFlight,
    /// The transfers in flight. Each entry has the number of its command, and its regions, which must stay
    /// alive.
    entries: VecDeque<(u64, [Region; 2])>,
    trace: Option<Trace>,
}

impl SmStaged {
    /// Allocates pinned memory and streams, and launches both kernels once so that later launches need no
    /// set-up. If `resident` is true, the kernels keep running between transfers.
    ///
    /// # Errors
    /// [`Error::Device`] if the blocks do not fit on a GPU, too little memory can be pinned, or the driver
    /// refuses.
    pub fn new(
        from: (&Arc<Gpu>, &Kernels),
        to: (&Arc<Gpu>, &Kernels),
        tuning: SmTuning,
        resident: bool,
    ) -> Result<Self> {
        check_tuning(from.0, &from.1.push, &tuning)?;
        check_tuning(to.0, &to.1.pull, &tuning)?;
        let layout = Layout { tuning, rings: if from.0.index() == to.0.index() { 2 } else { 1 } };
        let memory = from.0.pinned(layout.bytes())?;
        let ring = CommandRing::new(memory.clone(), layout, short_name(from.0, to.0));
        let mut staged = Self {
            push: Side::new(from.0, &from.1.push, tuning.threads)?,
            pull: Side::new(to.0, &to.1.pull, tuning.threads)?,
            notice: (to.0.stream()?, PendingCopies::new()),
            ring: ParkedWhenIdle::new(ring, resident.then_some(PARK_AFTER))?,
            memory,
            layout,
            trace: from.1.traced.then(Trace::default),
            from: from.0.clone(),
            to: to.0.clone(),
            resident,
            broken: false,
            flight: InFlight::new(),
            entries: VecDeque::with_capacity(DEPTH as usize),
        };
        // Launch the kernels for 0 commands, because the first launch sets up the GPU, and a later set-up
        // would have to wait for resident kernels.
        staged.launch(1, 0)?;
        finish(&staged.push.stream)?;
        finish(&staged.pull.stream)?;
        // Use `notice` once now, because this creates its event. Later, creating the event would wait for
        // resident kernels.
        let (stream, notices) = &mut staged.notice;
        let first = notices.push(stream, [staged.memory.clone(), staged.memory.clone()])?;
        notices.wait(&String::new, first, CompletionMode::Poll, &[])?;
        Ok(staged)
    }

    /// Returns the ticket of the newest completed transfer.
    fn newest_done(&self) -> Result<Ticket> {
        let name = || short_name(&self.from, &self.to);
        newest_done(&self.memory, self.layout.tuning.channels, &self.entries, self.flight.done(), &name)
    }

    /// Drops the regions of transfers that are done.
    fn retire(&mut self) {
        while self.entries.len() > self.flight.in_flight() {
            self.entries.pop_front();
        }
    }

    /// Launches both kernels. They read `count` commands, beginning with command number `first`, and then
    /// end. If only the first launch succeeds, the launched kernel waits for commands until
    /// [`SmStaged::give_up`].
    fn launch(&self, first: u64, count: u64) -> Result<()> {
        let tuning = &self.layout.tuning;
        let at = |offset: usize| self.memory.address() + offset as u64;
        let pushers_ring = self.layout.commands() + (self.layout.rings - 1) * COMMANDS_BYTES;
        for (side, commands) in [(&self.pull, self.layout.commands()), (&self.push, pushers_ring)] {
            let config = LaunchConfig {
                blocks: tuning.channels,
                threads: side.threads,
                shared_bytes: 0,
                cooperative: false,
            };
            let arguments = Arguments([
                at(0),
                at(ENDED),
                at(commands),
                side.relay.address(),
                DEPTH,
                at(self.layout.channel_words()),
                at(self.layout.chunks()),
                at(self.layout.lines()),
                tuning.slots as u64,
                tuning.chunk as u64,
                tuning.line_bytes() as u64,
                first,
                count,
                IDLE.as_nanos() as u64,
                STUCK.as_nanos() as u64,
            ]);
            // SAFETY: these are the kernel's parameters. The memory lives until `drop` drained the stream.
            unsafe { side.kernel.launch(&side.stream, config, arguments)? };
        }
        Ok(())
    }

    /// Ends resident kernels after all commands, and waits until they ended.
    fn park(&mut self) -> Result<()> {
        self.ring.lock().leave()?;
        finish(&self.push.stream)?;
        finish(&self.pull.stream)
    }

    /// Makes the path usable again after the kernels left because no command came for [`IDLE`]. The timer
    /// parks kernels earlier, so this happens only if the process was stopped meanwhile.
    fn recover(&mut self) -> Result<()> {
        for side in [&self.push, &self.pull] {
            finish(&side.stream)?;
            let left = side.relay.slice(COMMANDS_BYTES, RELAY_BYTES - COMMANDS_BYTES)?;
            // SAFETY: no running kernel accesses the relay, and `finish` waits for the fill.
            unsafe { side.stream.fill(&left, 0)? };
            finish(&side.stream)?;
        }
        self.ring.lock().reset();
        Ok(())
    }

    /// Refuses all further transfers and makes running kernels leave. Returns the GPU's own error if there is
    /// one, else `error`.
    fn give_up(&mut self, error: Error) -> Error {
        self.broken = true;
        self.ring.lock().set_stopped();
        command_ring::leave_now(&self.memory);
        check_alive(&self.push.stream, &self.pull.stream, false).err().unwrap_or(error)
    }

    /// Launches the kernels if none wait for commands, and publishes the command of a transfer.
    fn start(&mut self, source: &Region, destination: &Region) -> Result<Ticket> {
        let idle = self.flight.in_flight() == 0;
        let chunk = self.layout.tuning.chunk_field(source.len(), idle);
        let fields = [source.address(), destination.address(), source.len() as u64, chunk];
        let mut ring = self.ring.lock();
        if self.resident && idle && ring.kernels_timed_out() {
            drop(ring);
            self.recover()?;
            ring = self.ring.lock();
        }
        if ring.needs_new_laps() {
            drop(ring);
            self.quiesce()?;
            ring = self.ring.lock();
            ring.renew_laps();
        }
        let sequence = ring.sequence() + 1;
        if !self.resident {
            self.launch(sequence, 1)?;
        } else if !ring.is_running() {
            self.launch(sequence, UNLIMITED)?;
            self.ring.set_running(&mut ring);
        }
        // Keep the regions alive before the command is visible, because the kernels access them from then on.
        self.entries.push_back((sequence, [source.clone(), destination.clone()]));
        let ticket = self.flight.submit(source.len());
        let (sequence, published) = ring.publish(fields)?;
        if let Some(trace) = &mut self.trace {
            trace.published(sequence, published);
        }
        Ok(ticket)
    }

    /// Sleeps until the transfer is done. A stream waits for the channels' `ended` words, and the driver then
    /// wakes this thread.
    fn wait_interrupt(&mut self, ticket: Ticket) -> Result<()> {
        let Some(index) = ticket.0.checked_sub(self.flight.done().0 + 1) else { return Ok(()) };
        let sequence = self.entries[index as usize].0;
        let waits: Vec<_> = (0..u64::from(self.layout.tuning.channels))
            .map(|channel| MemoryOperation::Wait {
                address: self.memory.address() + ENDED as u64 + channel * 8,
                value: sequence as u32,
                until: WaitUntil::Reached,
            })
            .collect();
        let name = short_name(&self.from, &self.to);
        let (stream, notices) = &mut self.notice;
        // SAFETY: the words are in pinned memory that outlives the stream. The waits end: the kernels advance
        // the words when they end the transfer's command, and also when they give up.
        unsafe { stream.memory_operations(&waits)? };
        let notice = notices.push(stream, [self.memory.clone(), self.memory.clone()])?;
        notices.wait(&|| name.clone(), notice, CompletionMode::Interrupt, &[])?;
        let seen = self.newest_done()?;
        self.flight.complete(seen, false);
        Ok(())
    }
}

/// Checks that the kernel's blocks fit in a quarter of the GPU. If one GPU is both endpoints, it runs four
/// staging kernels at once, two for each direction. If the blocks of one kernel did not fit, the other kernel
/// of the same direction would wait for them forever.
fn check_tuning(gpu: &Gpu, kernel: &Kernel, tuning: &SmTuning) -> Result<()> {
    let fit = kernel.max_resident_blocks(tuning.threads, 0)? / 4;
    let valid = (1..=fit).contains(&tuning.channels)
        && tuning.chunk.is_multiple_of(16)
        && tuning.threads.is_multiple_of(32)
        && tuning.slots > 0;
    if valid {
        return Ok(());
    }
    let why = format!(
        "{tuning:?} does not fit: give 1 to {fit} channels of {} threads, threads in multiples of 32, and chunks in multiples \
         of 16 bytes",
        tuning.threads
    );
    Err(Error::device_usage(format!("gpu:{}", gpu.index()), why))
}

fn short_name(from: &Gpu, to: &Gpu) -> String {
    format!("staging by SMs from gpu:{} to gpu:{}", from.index(), to.index())
}

/// Returns the ticket of the newest completed transfer in `entries`. Returns `first` if none has completed.
/// The tickets of `entries` are the successive numbers after `first`.
fn newest_done(
    memory: &Region,
    channels: u32,
    entries: &VecDeque<(u64, [Region; 2])>,
    first: Ticket,
    name: &dyn Fn() -> String,
) -> Result<Ticket> {
    let Some((oldest, _)) = entries.front() else { return Ok(first) };
    let ended = command_ring::ended(memory, channels, *oldest);
    command_ring::check_failed(memory, name)?;
    let count = entries.iter().take_while(|(sequence, _)| *sequence <= ended).count();
    Ok(Ticket(first.0 + count as u64))
}

/// Checks both GPUs' streams for errors. If `running` is set, a kernel that ended is an error too.
fn check_alive(push: &Stream, pull: &Stream, running: bool) -> Result<()> {
    for stream in [push, pull] {
        if stream.is_idle()? && running {
            return Err(Error::device_failed(
                format!("gpu:{}", stream.gpu().index()),
                "its staging kernel ended by itself; transfers in flight count as not moved; open the path again",
            ));
        }
    }
    Ok(())
}

impl Mover for SmStaged {
    fn name(&self) -> String {
        self.hops().join(" -> ")
    }

    fn hops(&self) -> Vec<String> {
        let SmTuning { channels, threads, chunk, slots, .. } = self.layout.tuning;
        let (from, to, chunk) = (self.from.index(), self.to.index(), inlane_core::units::bytes(chunk as u64));
        let kernels = if self.resident { "resident" } else { "launched for each transfer" };
        vec![
            format!("gpu:{from} SMs"),
            format!("{channels} rings of {slots} pinned chunks of up to {chunk}"),
            format!("gpu:{to} SMs ({channels} blocks of {threads} threads each, {kernels})"),
        ]
    }

    fn reaches(&self, source: &Region, destination: &Region) -> bool {
        *source.location() == Location::Gpu(self.from.index())
            && *destination.location() == Location::Gpu(self.to.index())
    }

    fn submit(&mut self, source: &Region, destination: &Region) -> Result<Ticket> {
        check_pair(source, destination)?;
        if !self.reaches(source, destination) {
            return Err(out_of_reach(self, source, destination));
        }
        if self.broken {
            let why = "failed before; open the path again";
            return Err(Error::device_failed(short_name(&self.from, &self.to), why));
        }
        if self.flight.in_flight() as u64 >= DEPTH - 2 {
            let oldest = Ticket(self.flight.done().0 + 1);
            self.wait(oldest, CompletionMode::Poll)?;
        }
        if let Some(trace) = &mut self.trace {
            trace.begin(source.len());
        }
        self.start(source, destination).map_err(|error| self.give_up(error))
    }

    fn done(&mut self) -> Result<Ticket> {
        let done = self.newest_done().map_err(|error| self.give_up(error))?;
        self.flight.complete(done, false);
        self.retire();
        Ok(done)
    }

    fn wait(&mut self, ticket: Ticket, completion: CompletionMode) -> Result<()> {
        self.flight.check(ticket)?;
        let first = self.flight.done();
        let outcome = match completion {
            CompletionMode::Interrupt => self.wait_interrupt(ticket),
            _ => {
                // Borrow each field separately, because `poll` reads some fields while `flight` is changed.
                // `entries` does not change during the wait. So the ticket of its oldest transfer is always
                // the one after `first`.
                let Self { flight, memory, entries, from, to, layout, push, pull, ring, .. } = self;
                let name = || short_name(from, to);
                let mut looks = 0u32;
                let poll = || {
                    let done = newest_done(memory, layout.tuning.channels, entries, first, &name)?;
                    looks = looks.wrapping_add(1);
                    // Check the GPUs for errors from time to time, because a kernel that died writes no word.
                    if looks.is_multiple_of(1 << 15) && done < ticket {
                        check_alive(&push.stream, &pull.stream, ring.lock().is_running())?;
                    }
                    Ok(done)
                };
                match completion {
                    CompletionMode::Adaptive => flight.wait_adaptive(&name, ticket, poll),
                    _ => flight.wait_polling(&name, ticket, poll),
                }
            }
        };
        if first < ticket && ticket == self.flight.newest() && outcome.is_ok() {
            let length = self.layout.tuning.channels as usize * CHANNEL_BYTES;
            if let Some(trace) = &mut self.trace {
                trace.ended(&self.memory.slice(self.layout.channel_words(), length)?);
            }
        }
        self.retire();
        outcome.map_err(|error| self.give_up(error))
    }

    /// Waits for all transfers and ends resident kernels. The next transfer launches them again.
    fn quiesce(&mut self) -> Result<()> {
        self.wait(self.flight.newest(), CompletionMode::Poll)?;
        if self.resident {
            self.park()?;
        }
        if let Some(trace) = &mut self.trace {
            trace.report();
        }
        Ok(())
    }
}

impl Drop for SmStaged {
    fn drop(&mut self) {
        if self.from.is_abandoned() || self.to.is_abandoned() {
            return;
        }
        if let Err(error) = self.ring.lock().leave() {
            tracing::warn!("resident kernels are told to leave at once: {error}");
            command_ring::leave_now(&self.memory);
        }
        // Wait for the kernels. They end, because every wait inside a kernel has a limit.
        drain(&[&self.push.stream, &self.pull.stream]);
        self.ring.lock().release_waits();
        drain(&[&self.notice.0]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Device, Kind, open};
    use std::time::Instant;

    fn staged(test: &str, resident: bool) -> Option<(Arc<Device>, SmStaged)> {
        if let Err(error) = inlane_cuda::device_count() {
            eprintln!("SKIPPED {test}: {error}");
            return None;
        }
        let device = open(&["gpu:0".parse().unwrap()], &Default::default()).unwrap().remove(0);
        let Kind::Gpu(memory) = device.kind() else { unreachable!("gpu:0 is a GPU") };
        let side = (memory.gpu(), memory.kernels());
        let staged = SmStaged::new(side, side, SmTuning::default(), resident).unwrap();
        Some((device.clone(), staged))
    }

    #[test]
    fn a_kernel_whose_peer_cannot_be_launched_ends_soon() {
        let test = "a_kernel_whose_peer_cannot_be_launched_ends_soon";
        for resident in [true, false] {
            let Some((device, mut staged)) = staged(test, resident) else { return };
            let (source, destination) =
                (device.allocate(1 << 20).unwrap(), device.allocate(1 << 20).unwrap());
            // A submission launches the pull kernel and then the push kernel. Set more threads than a block
            // can have, so that the driver refuses the push kernel.
            staged.push.threads = 1 << 20;
            staged.submit(&source, &destination).unwrap_err();
            let failed = Instant::now();
            finish(&staged.pull.stream).unwrap();
            assert!(failed.elapsed() < STUCK, "the other kernel waited {:?}", failed.elapsed());
            let error = staged.submit(&source, &destination).unwrap_err().to_string();
            assert!(error.contains("open the path again"), "{error}");
        }
    }

    #[test]
    fn transfers_go_on_after_idle_kernels_timed_out() {
        let Some((device, mut staged)) = staged("transfers_go_on_after_idle_kernels_timed_out", true) else {
            return;
        };
        let (source, destination) = (device.allocate(1 << 20).unwrap(), device.allocate(1 << 20).unwrap());
        device.fill(&source, 3).unwrap();
        for size in [4096, 1 << 20] {
            let [from, to] = [&source, &destination].map(|region| region.slice(0, size).unwrap());
            let ticket = staged.submit(&from, &to).unwrap();
            staged.wait(ticket, CompletionMode::Poll).unwrap();
            // End the kernels as if they had waited for a command for too long. They then record a timeout.
            command_ring::leave_now(&staged.memory);
            finish(&staged.push.stream).unwrap();
            finish(&staged.pull.stream).unwrap();
            assert!(staged.ring.lock().kernels_timed_out());
            staged.memory.slice(128, 8).map(|word| clear(&word)).unwrap();
        }
        let ticket = staged.submit(&source, &destination).unwrap();
        staged.wait(ticket, CompletionMode::Poll).unwrap();
        staged.quiesce().unwrap();
        assert_eq!(device.count_wrong(&destination, 3).unwrap(), 0);
    }

    /// Clears the word that [`command_ring::leave_now`] has set. Otherwise new kernels would end at once.
    fn clear(word: &Region) {
        command_ring::word(word, 0).store(0, std::sync::atomic::Ordering::Release);
    }
}
