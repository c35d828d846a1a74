//! Staging by SMs: the host's side of `staging.cu`, which says how the two GPUs hand chunks over.
//!
//! ```text
//!  one span of pinned memory:
//!  | control 256 | ended: lanes * 8 | commands: DEPTH * 64, once or twice | lanes * 256 |
//!  | chunks: lanes * slots * chunk bytes | lines: lanes * slots * line bytes |
//!  on each GPU: DEPTH * 64, where block 0 passes commands on, and 64: that it has left
//! ```
//!
//! Resident, both kernels run until they are told to leave, and hold `lanes` blocks of each GPU meanwhile: allocating,
//! freeing and loading on these GPUs waits for them. Otherwise the two are launched for each transfer.

use super::kernels::Kernels;
use super::trace::Trace;
use crate::tuning::SmTuning;
use inlane_core::mover::{InFlight, Mover, Ticket, check_pair, out_of_reach};
use inlane_core::{CompletionMode, Error, Location, Region, Result};
use inlane_cuda::{
    Arguments, Gpu, Kernel, LaunchConfig, MemoryOperation, Pending, Stream, WaitUntil, drain, finish,
};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Commands in flight at most; a power of two.
const DEPTH: u64 = 64;
/// Offsets of the words of `Control`.
const FAILED: usize = 0;
const LEAVE_NOW: usize = 128;
/// Where the lanes' words of ended commands begin.
const ENDED: usize = 256;
const COMMAND_BYTES: usize = 64;
const COMMANDS_BYTES: usize = DEPTH as usize * COMMAND_BYTES;
/// A ring of commands, and a word that says that block 0 has left.
const RELAY_BYTES: usize = COMMANDS_BYTES + 64;
const LANE_BYTES: usize = 256;
/// A command's length that means: leave.
const LEAVE: u64 = u64::MAX;
/// How long a resident kernel waits for a command before it gives up: the host parks it long before.
const IDLE: Duration = Duration::from_secs(30);
/// How long after a command the host has resident kernels leave, when the next one comes.
const PARK_AFTER: Duration = Duration::from_secs(10);
/// How long a side waits for a chunk of the other before it gives up.
const STUCK: Duration = Duration::from_secs(5);

/// A mover from one GPU's memory to another's, by the SMs of both.
pub struct SmStaged {
    from: Arc<Gpu>,
    to: Arc<Gpu>,
    push: (Kernel, Stream),
    pull: (Kernel, Stream),
    /// Where an interrupt is waited for.
    notice: (Stream, Pending),
    /// One GPU on both sides would read each command twice, and reads of one line queue behind each other.
    command_rings: usize,
    /// Where each GPU's block 0 passes commands on: the pusher's, the puller's.
    relays: [Region; 2],
    memory: Region,
    tuning: SmTuning,
    resident: bool,
    running: bool,
    broken: bool,
    sequence: u64,
    /// The newest command that every lane of the pusher is known to have read.
    read_by_all: u64,
    newest: Instant,
    flight: InFlight,
    entries: VecDeque<(u64, [Region; 2])>,
    trace: Option<Trace>,
}

impl SmStaged {
    /// Allocates the ring and its streams. `resident` keeps the kernels running between transfers.
    ///
    /// # Errors
    /// When there is not enough memory to pin, the blocks do not all fit on a GPU, or the driver refuses.
    pub fn new(
        from: (&Arc<Gpu>, &Kernels),
        to: (&Arc<Gpu>, &Kernels),
        tuning: SmTuning,
        resident: bool,
    ) -> Result<Self> {
        for (gpu, kernel) in [(from.0, &from.1.push), (to.0, &to.1.pull)] {
            // Both directions, and both sides of one GPU, stay at once: blocks that wait for blocks that do not fit would wait
            // for ever.
            let fit = kernel.max_resident_blocks(tuning.threads, 0)? / 4;
            if tuning.channels == 0
                || tuning.channels > fit
                || !tuning.chunk.is_multiple_of(16)
                || !tuning.threads.is_multiple_of(32)
                || tuning.slots == 0
            {
                return Err(Error::device_usage(
                    format!("gpu:{}", gpu.index()),
                    format!(
                        "{tuning:?}: it holds 1 to {fit} lanes of {} threads, both directions at once; threads are \
                         multiples of 32, chunks of 16",
                        tuning.threads
                    ),
                ));
            }
        }
        let lanes = tuning.channels as usize;
        let command_rings = if from.0.index() == to.0.index() { 2 } else { 1 };
        let a_lane = LANE_BYTES + tuning.slots * (tuning.chunk + tuning.line_bytes());
        let bytes = commands_at(lanes) + command_rings * COMMANDS_BYTES + lanes * a_lane;
        let mut staged = Self {
            push: (from.1.push.clone(), from.0.stream()?),
            pull: (to.1.pull.clone(), to.0.stream()?),
            notice: (to.0.stream()?, Pending::new()),
            command_rings,
            relays: [from.0.allocate(RELAY_BYTES)?, to.0.allocate(RELAY_BYTES)?],
            memory: from.0.pinned(bytes)?,
            trace: from.1.traced.then(Trace::default),
            from: from.0.clone(),
            to: to.0.clone(),
            tuning,
            resident,
            running: false,
            broken: false,
            sequence: 0,
            read_by_all: 0,
            newest: Instant::now(),
            flight: InFlight::new(),
            entries: VecDeque::with_capacity(DEPTH as usize),
        };
        // For no command at all: what a first launch has to set up on a GPU would wait for kernels that stay.
        staged.launch(1, 0)?;
        finish(&staged.push.1)?;
        finish(&staged.pull.1)?;
        // So would an event that is made then.
        let (stream, notices) = &mut staged.notice;
        let first = notices.push(stream, [staged.memory.clone(), staged.memory.clone()])?;
        notices.wait(&String::new, first, CompletionMode::Poll, &[])?;
        Ok(staged)
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        word(&self.memory, offset)
    }

    fn commands(&self) -> usize {
        commands_at(self.tuning.channels as usize)
    }

    fn lanes(&self) -> usize {
        self.commands() + self.command_rings * COMMANDS_BYTES
    }

    fn chunks(&self) -> usize {
        self.lanes() + self.tuning.channels as usize * LANE_BYTES
    }

    fn lines(&self) -> usize {
        self.chunks() + self.tuning.channels as usize * self.tuning.slots * self.tuning.chunk
    }

    /// The newest ticket that is done.
    fn look(&self) -> Result<Ticket> {
        look(&self.memory, self.tuning.channels, &self.entries, self.flight.done(), &|| self.short_name())
    }

    fn short_name(&self) -> String {
        short_name(&self.from, &self.to)
    }

    fn retire(&mut self) {
        while self.entries.len() > self.flight.in_flight() {
            self.entries.pop_front();
        }
    }

    /// Launches both kernels, for `count` commands from `first`.
    fn launch(&mut self, first: u64, count: u64) -> Result<()> {
        let base = self.memory.address();
        let at = |offset: usize| base + offset as u64;
        let shape = LaunchConfig {
            blocks: self.tuning.channels,
            threads: self.tuning.threads,
            shared_bytes: 0,
            cooperative: false,
        };
        let pushers = self.commands() + (self.command_rings - 1) * COMMANDS_BYTES;
        let [push_relay, pull_relay] = self.relays.each_ref().map(Region::address);
        let sides = [(&self.pull, self.commands(), pull_relay), (&self.push, pushers, push_relay)];
        for ((kernel, stream), commands, relay) in sides {
            let arguments = Arguments([
                base,
                at(ENDED),
                at(commands),
                relay,
                DEPTH,
                at(self.lanes()),
                at(self.chunks()),
                at(self.lines()),
                self.tuning.slots as u64,
                self.tuning.chunk as u64,
                self.tuning.line_bytes() as u64,
                first,
                count,
                IDLE.as_nanos() as u64,
                STUCK.as_nanos() as u64,
            ]);
            // SAFETY: these are the kernels' parameters; all memory lives until the streams are drained, in drop.
            unsafe { kernel.launch(stream, shape, arguments)? };
        }
        Ok(())
    }

    /// Writes a command's line. Each value goes before its number: a GPU that sees the number sees the value, for it reads
    /// both at once.
    fn publish(&mut self, fields: [u64; 4]) -> Result<()> {
        self.sequence += 1;
        let sequence = self.sequence;
        self.make_room(sequence)?;
        for ring in 0..self.command_rings {
            let line = ring * DEPTH as usize + (sequence % DEPTH) as usize;
            let line = self.commands() + line * COMMAND_BYTES;
            for (index, value) in fields.into_iter().enumerate() {
                self.word(line + index * 16).store(value, Ordering::Relaxed);
                self.word(line + index * 16 + 8).store(sequence, Ordering::Release);
            }
        }
        Ok(())
    }

    /// Waits until the line that `sequence` will overwrite was read by every lane of both sides.
    fn make_room(&mut self, sequence: u64) -> Result<()> {
        let old = sequence.saturating_sub(DEPTH);
        let began = Instant::now();
        // The pusher's words are looked at once in many commands: each look is a line that a GPU wrote.
        while self.read_by_all < old {
            let lanes = (0..self.tuning.channels as usize).map(|lane| self.lanes() + lane * LANE_BYTES + 8);
            let seen = lanes.map(|word| self.word(word).load(Ordering::Acquire)).min();
            self.read_by_all = seen.unwrap_or(0);
            if self.read_by_all < old {
                self.look()?;
                if began.elapsed() > STUCK {
                    return Err(self.flight.lost(&self.short_name()));
                }
            }
        }
        Ok(())
    }

    /// A command's word that says in which pieces, and how.
    fn pieces(&self, bytes: usize) -> u64 {
        self.tuning.chunk_field(bytes, self.flight.in_flight() == 0)
    }

    /// Has resident kernels leave, once all commands are done.
    fn park(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.running) {
            return Ok(());
        }
        self.publish([0, 0, LEAVE, 0])?;
        finish(&self.push.1)?;
        finish(&self.pull.1)
    }

    /// The lap in a line has 32 bits: before it comes round, no line may hold an old one.
    fn renew_laps(&mut self) -> Result<()> {
        self.quiesce()?;
        let length = self.tuning.channels as usize * self.tuning.slots * self.tuning.line_bytes();
        let lines = self.memory.slice(self.lines(), length)?;
        // SAFETY: inside the pinned span; no kernel runs.
        unsafe { std::ptr::write_bytes(lines.as_ptr(), 0, length) };
        self.sequence += 1;
        Ok(())
    }

    /// After an error: nothing more goes this way, and kernels that stayed leave. Gives what a GPU says of itself, where that
    /// explains more than that nothing came.
    fn give_up(&mut self, error: Error) -> Error {
        self.broken = true;
        self.word(LEAVE_NOW).store(1, Ordering::Release);
        alive(&self.push.1, &self.pull.1, false).err().unwrap_or(error)
    }

    fn wait_interrupt(&mut self, ticket: Ticket) -> Result<()> {
        let Some(index) = ticket.0.checked_sub(self.flight.done().0 + 1) else { return Ok(()) };
        let sequence = self.entries[index as usize].0;
        let waits: Vec<_> = (0..u64::from(self.tuning.channels))
            .map(|lane| MemoryOperation::Wait {
                address: self.memory.address() + ENDED as u64 + lane * 8,
                value: sequence as u32,
                until: WaitUntil::Reached,
            })
            .collect();
        let name = self.short_name();
        let (stream, notices) = &mut self.notice;
        // SAFETY: the words are pinned memory that lives as long as the stream; the kernels write them when the command ends,
        // or move them ahead when they give up.
        unsafe { stream.memory_operations(&waits)? };
        let notice = notices.push(stream, [self.memory.clone(), self.memory.clone()])?;
        notices.wait(&|| name.clone(), notice, CompletionMode::Interrupt, &[])?;
        let seen = self.look()?;
        self.flight.complete(seen, false);
        Ok(())
    }
}

/// Where the commands begin: after the lanes' words, on a line of their own.
fn commands_at(lanes: usize) -> usize {
    (ENDED + lanes * 8).next_multiple_of(128)
}

/// A word of the pinned span.
fn word(memory: &Region, offset: usize) -> &AtomicU64 {
    debug_assert!(offset + 8 <= memory.len());
    // SAFETY: inside the pinned span, aligned; every access by the CPU is atomic, and the GPUs' are ordered by their
    // releases and acquires.
    unsafe { &*memory.as_ptr().add(offset).cast::<AtomicU64>() }
}

fn short_name(from: &Gpu, to: &Gpu) -> String {
    format!("staging by SMs from gpu:{} to gpu:{}", from.index(), to.index())
}

/// The newest ticket that is done, where the oldest entry is that after `first`.
fn look(
    memory: &Region,
    lanes: u32,
    entries: &VecDeque<(u64, [Region; 2])>,
    first: Ticket,
    name: &dyn Fn() -> String,
) -> Result<Ticket> {
    let Some((oldest, _)) = entries.front() else { return Ok(first) };
    // Each lane's word grows; the first that is behind the oldest command tells that nothing new has ended.
    let mut done = u64::MAX;
    for lane in 0..lanes as usize {
        done = done.min(word(memory, ENDED + lane * 8).load(Ordering::Acquire));
        if done < *oldest {
            break;
        }
    }
    let why = word(memory, FAILED).load(Ordering::Relaxed);
    if why != 0 {
        let what = if why == 1 { "no command" } else { "no chunk from the other GPU" };
        return Err(Error::device_failed(
            name(),
            format!(
                "a kernel gave up: {what} came in time; transfers in flight count as not moved; open it again"
            ),
        ));
    }
    let ended = entries.iter().take_while(|(sequence, _)| *sequence <= done).count();
    Ok(Ticket(first.0 + ended as u64))
}

/// That both kernels run, where they are to; else what their GPUs say.
fn alive(push: &Stream, pull: &Stream, running: bool) -> Result<()> {
    for stream in [push, pull] {
        if stream.is_idle()? && running {
            return Err(Error::device_failed(
                format!("gpu:{}", stream.gpu().index()),
                "its staging kernel has ended by itself; transfers in flight count as not moved; open it again",
            ));
        }
    }
    Ok(())
}

impl Mover for SmStaged {
    fn name(&self) -> String {
        let SmTuning { channels: lanes, threads, chunk, slots, .. } = self.tuning;
        format!(
            "gpu:{} SMs -> {lanes} rings of {slots} pinned chunks of up to {} -> gpu:{} SMs ({lanes} blocks of {threads} \
             threads each, {})",
            self.from.index(),
            inlane_core::units::bytes(chunk as u64),
            self.to.index(),
            if self.resident { "resident" } else { "launched for each transfer" },
        )
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
            return Err(Error::device_failed(self.short_name(), "failed before; open it again"));
        }
        if self.resident && self.newest.elapsed() > PARK_AFTER {
            self.park()?;
        }
        if self.flight.in_flight() as u64 >= DEPTH - 2 {
            let oldest = Ticket(self.flight.done().0 + 1);
            self.wait(oldest, CompletionMode::Poll)?;
        }
        if (self.sequence + 1) as u32 == 0 {
            self.renew_laps()?;
        }
        if let Some(trace) = &mut self.trace {
            trace.begin(source.len());
        }
        let fields =
            [source.address(), destination.address(), source.len() as u64, self.pieces(source.len())];
        if !self.resident {
            self.launch(self.sequence + 1, 1)?;
        } else if !self.running {
            self.launch(self.sequence + 1, 1 << 62)?;
            self.running = true;
        }
        // Kept before the command can be seen: the kernels may run from then on.
        self.entries.push_back((self.sequence + 1, [source.clone(), destination.clone()]));
        let ticket = self.flight.submit(source.len());
        if let Err(error) = self.publish(fields) {
            return Err(self.give_up(error));
        }
        self.newest = Instant::now();
        if let Some(trace) = &mut self.trace {
            trace.published(self.sequence, self.newest);
        }
        Ok(ticket)
    }

    fn done(&mut self) -> Result<Ticket> {
        let done = self.look().map_err(|error| self.give_up(error))?;
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
                // The entries stay until `retire`, so they are counted from where the flight stands now.
                let Self { flight, memory, entries, from, to, tuning, push, pull, running, .. } = self;
                let name = || short_name(from, to);
                let mut looks = 0u32;
                let poll = || {
                    // A kernel that died writes no word: its GPU is asked now and then.
                    looks = looks.wrapping_add(1);
                    if looks.is_multiple_of(1 << 15) {
                        let done = look(memory, tuning.channels, entries, first, &name)?;
                        return if done >= ticket {
                            Ok(done)
                        } else {
                            alive(&push.1, &pull.1, *running).map(|()| done)
                        };
                    }
                    look(memory, tuning.channels, entries, first, &name)
                };
                match completion {
                    CompletionMode::Adaptive => flight.wait_adaptive(&name, ticket, poll),
                    _ => flight.wait_polling(&name, ticket, poll),
                }
            }
        };
        if first < ticket && ticket == self.flight.newest() && outcome.is_ok() {
            let (offset, length) = (self.lanes(), self.tuning.channels as usize * LANE_BYTES);
            if let Some(trace) = &mut self.trace {
                trace.ended(&self.memory.slice(offset, length)?);
            }
        }
        self.retire();
        outcome.map_err(|error| self.give_up(error))
    }

    fn quiesce(&mut self) -> Result<()> {
        self.wait(self.flight.newest(), CompletionMode::Poll)?;
        self.park()?;
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
        if let Err(error) = self.park() {
            tracing::warn!("resident kernels are told to leave what they wait for: {error}");
            self.word(LEAVE_NOW).store(1, Ordering::Release);
        }
        // The kernels' waits are bounded, so this ends; a wait for an interrupt is let go.
        drain(&[&self.push.1, &self.pull.1]);
        for lane in 0..self.tuning.channels as usize {
            self.word(ENDED + lane * 8).store(self.sequence + (1 << 30), Ordering::Release);
        }
        drain(&[&self.notice.0]);
    }
}
