//! The host's side of the ring through which staging kernels receive commands, and the timer that parks idle
//! kernels.
//!
//! ```text
//!  one span of pinned memory:
//!  | control 256 | ended: channels * 8 | commands: rings * DEPTH * 64 | channel words: channels * 256 |
//!  | chunks: channels * slots * chunk bytes | lines: channels * slots * line bytes |
//! ```
//!
//! The *pusher* is the kernel on the source GPU, the *puller* the kernel on the destination GPU. Both read
//! one ring of commands. If both run on one GPU, each reads its own ring with the same commands. A *channel*
//! is one block of the pusher together with one block of the puller. `staging.cu` has the same layout.

use super::staging_words::{Channel, Control, LEAVE};
use crate::tuning::SmTuning;
use inlane_core::{Error, Region, Result};
use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The most commands in flight; a power of two.
pub(super) const DEPTH: u64 = 64;
pub(super) const COMMAND_BYTES: usize = 64;
pub(super) const COMMANDS_BYTES: usize = DEPTH as usize * COMMAND_BYTES;
/// The size of one channel's words in the pinned span, in bytes.
pub(super) const CHANNEL_BYTES: usize = size_of::<Channel>();
/// The offset in bytes of the `ended` words. Each channel of the puller has one word. There it stores the
/// number of the newest command that it has ended.
pub(super) const ENDED: usize = size_of::<Control>();
/// The offset in bytes of the word for errors. A kernel that gives up stores the reason there.
const FAILED: usize = offset_of!(Control, failed);
/// The offset in bytes of the word with which the host makes all kernels leave at once.
const LEAVE_NOW: usize = offset_of!(Control, leave);
/// The offset in bytes of the field `seen` in [`Channel`]. On the source GPU, one thread block serves one
/// channel. The block stores in `seen` the number of the newest command that it has read.
const SEEN: usize = offset_of!(Channel, seen);
/// The value of `Control::failed` after a kernel waited too long for a command.
const NO_COMMAND: u64 = 1;
/// A kernel that gives up adds this value to the `ended` words of its channels. Waits for these channels then
/// return.
const GAVE_UP: u64 = 1 << 30;
/// How long a kernel waits for the other GPU before it gives up. The host waits equally long for the kernels
/// to read commands.
pub(super) const STUCK: Duration = Duration::from_secs(5);

/// The layout of the pinned span. Its methods return the offsets of the span's parts in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub tuning: SmTuning,
    /// The number of command rings: two if pusher and puller run on the same GPU, or else one. If both
    /// kernels read one ring, their reads of the same cache lines would queue behind each other.
    pub rings: usize,
}

impl Layout {
    fn channels(&self) -> usize {
        self.tuning.channels as usize
    }

    /// Returns the offset in the pinned span of the first ring of commands. The offset is a multiple of 128
    /// bytes, so the ring shares no cache line with the preceding `ended` words.
    pub fn commands(&self) -> usize {
        (ENDED + self.channels() * 8).next_multiple_of(128)
    }

    pub fn channel_words(&self) -> usize {
        self.commands() + self.rings * COMMANDS_BYTES
    }

    pub fn chunks(&self) -> usize {
        self.channel_words() + self.channels() * CHANNEL_BYTES
    }

    pub fn lines(&self) -> usize {
        self.chunks() + self.channels() * self.tuning.slots * self.tuning.chunk
    }

    fn lines_bytes(&self) -> usize {
        self.channels() * self.tuning.slots * self.tuning.line_bytes()
    }

    /// Returns the length in bytes of the pinned memory that is shared by the host and both kernels.
    pub fn bytes(&self) -> usize {
        self.lines() + self.lines_bytes()
    }
}

/// Returns the word of the pinned span at `offset` bytes.
pub(super) fn word(memory: &Region, offset: usize) -> &AtomicU64 {
    assert!(offset + 8 <= memory.len() && offset.is_multiple_of(8));
    // SAFETY: the word is aligned and inside the memory that the region keeps alive. The CPU accesses the
    // word only atomically, and the GPUs by single 8-byte loads and stores.
    unsafe { &*memory.as_ptr().add(offset).cast::<AtomicU64>() }
}

/// Returns the number of the newest command that all channels have ended, if this number is at least
/// `oldest`. Otherwise, the result is any number below `oldest`, because the search stops at the first
/// channel that has not ended command `oldest`.
pub(super) fn ended(memory: &Region, channels: u32, oldest: u64) -> u64 {
    let mut ended = u64::MAX;
    for channel in 0..channels as usize {
        ended = ended.min(word(memory, ENDED + channel * 8).load(Ordering::Acquire));
        if ended < oldest {
            break;
        }
    }
    ended
}

/// Checks whether a kernel gave up. `name` names the transfer's GPUs.
///
/// # Errors
/// [`Error::Device`] if a kernel gave up. The error says what the kernel waited for.
pub(super) fn check_failed(memory: &Region, name: &dyn Fn() -> String) -> Result<()> {
    let waited_for = match word(memory, FAILED).load(Ordering::Relaxed) {
        0 => return Ok(()),
        NO_COMMAND => "a command",
        _ => "a chunk from the other GPU",
    };
    let why = format!(
        "a kernel gave up waiting for {waited_for}; transfers in flight count as not moved; open the path again"
    );
    Err(Error::device_failed(name(), why))
}

/// Makes all kernels end at once, even kernels that wait for a command or a chunk.
pub(super) fn leave_now(memory: &Region) {
    word(memory, LEAVE_NOW).store(1, Ordering::Release);
}

/// The host's end of a command ring. The host writes commands, and a pair of staging kernels reads them.
pub(super) struct CommandRing {
    memory: Region,
    layout: Layout,
    name: String,
    /// The number of the newest command.
    sequence: u64,
    /// The number of the newest command that all channels of the pushing kernel have read, as of the host's
    /// last check.
    read_by_all: u64,
    /// The upper 32 bits of the current commands' numbers. A line is 16 bytes of the ring: 12 bytes of data,
    /// and the lower 32 bits of the command's number (its lap). When the upper bits change, laps repeat. So
    /// the lines are cleared before the first command with new upper bits.
    epoch: u64,
    /// True while resident kernels run and wait for commands.
    running: bool,
    /// When the newest command was written or the kernels were last launched, whichever was later.
    newest: Instant,
    closing: bool,
}

impl CommandRing {
    pub fn new(memory: Region, layout: Layout, name: String) -> Self {
        Self {
            memory,
            layout,
            name,
            sequence: 0,
            read_by_all: 0,
            epoch: 0,
            running: false,
            newest: Instant::now(),
            closing: false,
        }
    }

    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    pub fn is_running(&self) -> bool {
        self.running
    }

    /// Records that no resident kernels wait for commands.
    pub fn set_stopped(&mut self) {
        self.running = false;
    }

    /// Writes the next command. Returns its number and the time at which it was written.
    ///
    /// A command consists of four values. The command's number follows each value, and is stored after the
    /// value. A GPU loads value and number by one access, so it never gets an old value with a new number.
    ///
    /// # Errors
    /// [`Error::Device`] if the kernels do not read their commands.
    pub fn publish(&mut self, fields: [u64; 4]) -> Result<(u64, Instant)> {
        let sequence = self.sequence + 1;
        self.make_room(sequence)?;
        self.sequence = sequence;
        for ring in 0..self.layout.rings {
            let line = ring * DEPTH as usize + (sequence % DEPTH) as usize;
            let line = self.layout.commands() + line * COMMAND_BYTES;
            for (index, value) in fields.into_iter().enumerate() {
                word(&self.memory, line + index * 16).store(value, Ordering::Relaxed);
                word(&self.memory, line + index * 16 + 8).store(sequence, Ordering::Release);
            }
        }
        self.newest = Instant::now();
        Ok((sequence, self.newest))
    }

    /// Blocks until the slot for command `sequence` is free. It is free once every channel of the pusher has
    /// read the earlier command in the slot. Returns an error if the GPU is lost or stuck.
    fn make_room(&mut self, sequence: u64) -> Result<()> {
        let old = sequence.saturating_sub(DEPTH);
        let began = Instant::now();
        // Remember the result in `read_by_all`, because loading a channel's word is slow: it transfers a
        // cache line that a GPU wrote. One result serves many commands.
        while self.read_by_all < old {
            let seen = (0..self.layout.channels()).map(|channel| {
                let at = self.layout.channel_words() + channel * CHANNEL_BYTES + SEEN;
                word(&self.memory, at).load(Ordering::Acquire)
            });
            self.read_by_all = seen.min().unwrap_or(0);
            if self.read_by_all < old {
                check_failed(&self.memory, &|| self.name.clone())?;
                if began.elapsed() > STUCK {
                    let why = format!(
                        "its kernels have read no command for {STUCK:?}; the GPU is lost or stuck; transfers in flight count \
                         as not moved"
                    );
                    return Err(Error::device_failed(&self.name, why));
                }
            }
        }
        Ok(())
    }

    /// Tells resident kernels to leave after all earlier commands. Does not wait for their end.
    ///
    /// # Errors
    /// As for [`CommandRing::publish`].
    pub fn leave(&mut self) -> Result<()> {
        if self.running {
            self.publish([0, 0, LEAVE, 0])?;
            self.running = false;
        }
        Ok(())
    }

    /// Returns true if all commands ended.
    fn is_drained(&self) -> bool {
        ended(&self.memory, self.layout.tuning.channels, self.sequence) >= self.sequence
    }

    /// Returns true if the kernels left because no command came for a long time. [`CommandRing::reset`] makes
    /// the ring usable again.
    pub fn kernels_timed_out(&self) -> bool {
        word(&self.memory, FAILED).load(Ordering::Relaxed) == NO_COMMAND
    }

    /// Makes the ring usable again after the kernels left because no command came. The kernels must have
    /// ended.
    pub fn reset(&mut self) {
        for channel in 0..self.layout.channels() {
            word(&self.memory, ENDED + channel * 8).store(self.sequence, Ordering::Relaxed);
        }
        word(&self.memory, FAILED).store(0, Ordering::Release);
        self.running = false;
    }

    /// Lets every wait for a command's end return at once, including waits in a GPU's stream.
    pub fn release_waits(&self) {
        for channel in 0..self.layout.channels() {
            word(&self.memory, ENDED + channel * 8).store(self.sequence + GAVE_UP, Ordering::Release);
        }
    }

    /// Returns true if the laps in the lines must be cleared before the next command. A line's lap is the
    /// lower 32 bits of its command's number (see `staging.cu`). Laps therefore repeat after 2^32 commands,
    /// and a kernel could mistake old data for new data.
    pub fn needs_new_laps(&self) -> bool {
        (self.sequence + 1) >> 32 != self.epoch
    }

    /// Clears the laps of all lines. Otherwise an old lap could equal the lap of a later command. Call this
    /// while no kernel runs, because kernels access the lines.
    pub fn renew_laps(&mut self) {
        let lines =
            self.memory.slice(self.layout.lines(), self.layout.lines_bytes()).expect("inside the span");
        // SAFETY: the lines lie inside the pinned span, and no kernel runs that would access them.
        unsafe { std::ptr::write_bytes(lines.as_ptr(), 0, lines.len()) };
        self.epoch = (self.sequence + 1) >> 32;
        if (self.sequence + 1) as u32 == 0 {
            // Skip the number whose lap is 0, because cleared lines hold lap 0.
            self.sequence += 1;
        }
    }

    /// If the kernels have been idle for `limit` at time `now`, parks them: tells them to leave. Returns how
    /// long to wait before the next call; `None` if no kernels run.
    fn park_if_idle(&mut self, now: Instant, limit: Duration) -> Option<Duration> {
        if !self.running {
            return None;
        }
        let idle = now.saturating_duration_since(self.newest);
        if idle < limit {
            return Some(limit - idle);
        }
        if !self.is_drained() {
            return Some(limit);
        }
        match self.leave() {
            Ok(()) => None,
            Err(error) => {
                tracing::warn!("idle kernels are not parked: {error}");
                Some(limit)
            }
        }
    }
}

struct TimerState {
    ring: Mutex<CommandRing>,
    started: Condvar,
}

/// A command ring with a timer thread. If no command came for some time, the timer parks the resident
/// kernels: it makes them end. Parked kernels do not occupy SMs or block allocations. The next transfer
/// launches the kernels again.
pub(super) struct ParkedWhenIdle {
    shared: Arc<TimerState>,
    timer: Option<JoinHandle<()>>,
}

impl ParkedWhenIdle {
    /// Wraps `ring` and starts the timer thread. It tells resident kernels to end after they have been idle for
    /// `limit`. If `limit` is `None`, starts no timer, and kernels stay resident.
    ///
    /// # Errors
    /// [`Error::Os`] if the system refuses a thread.
    pub fn new(ring: CommandRing, limit: Option<Duration>) -> Result<Self> {
        let shared = Arc::new(TimerState { ring: Mutex::new(ring), started: Condvar::new() });
        let start = |limit| {
            let shared = shared.clone();
            std::thread::Builder::new()
                .name("park-staging".into())
                .spawn(move || run_timer(&shared, limit))
                .map_err(|source| Error::Os { what: "starting the timer of resident kernels".into(), source })
        };
        Ok(Self { timer: limit.map(start).transpose()?, shared })
    }

    /// Locks the ring. This rarely blocks, because the timer takes the lock only once every few seconds.
    pub fn lock(&self) -> MutexGuard<'_, CommandRing> {
        self.shared.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that resident kernels were launched, and wakes the timer. The idle time of the kernels starts
    /// now.
    pub fn set_running(&self, ring: &mut CommandRing) {
        ring.running = true;
        ring.newest = Instant::now();
        self.shared.started.notify_one();
    }
}

impl Drop for ParkedWhenIdle {
    fn drop(&mut self) {
        self.lock().closing = true;
        self.shared.started.notify_one();
        if let Some(timer) = self.timer.take() {
            let _ = timer.join();
        }
    }
}

fn run_timer(shared: &TimerState, limit: Duration) {
    let mut ring = shared.ring.lock().unwrap_or_else(PoisonError::into_inner);
    while !ring.closing {
        ring = match ring.park_if_idle(Instant::now(), limit) {
            None => shared.started.wait(ring).unwrap_or_else(PoisonError::into_inner),
            Some(wait) => shared.started.wait_timeout(ring, wait).unwrap_or_else(PoisonError::into_inner).0,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TUNING: SmTuning =
        SmTuning { channels: 2, threads: 32, chunk: 1024, slots: 2, turns: 1, lines: 1024 };

    fn ring() -> CommandRing {
        let layout = Layout { tuning: TUNING, rings: 1 };
        CommandRing::new(Region::host(layout.bytes()).unwrap(), layout, "test".into())
    }

    /// Simulates kernels that have read and ended all commands: writes the words `seen` and `ended` of each
    /// channel, as the kernels would.
    fn end_all(ring: &CommandRing) {
        for channel in 0..2 {
            let seen = ring.layout.channel_words() + channel * CHANNEL_BYTES + SEEN;
            word(&ring.memory, seen).store(ring.sequence, Ordering::Release);
            word(&ring.memory, ENDED + channel * 8).store(ring.sequence, Ordering::Release);
        }
    }

    fn newest_length_field(ring: &CommandRing) -> u64 {
        let line = ring.layout.commands() + (ring.sequence % DEPTH) as usize * COMMAND_BYTES;
        word(&ring.memory, line + 32).load(Ordering::Relaxed)
    }

    #[test]
    fn idle_kernels_are_parked_and_busy_ones_are_not() {
        let limit = Duration::from_secs(10);
        let mut ring = ring();
        assert_eq!(ring.park_if_idle(Instant::now(), limit), None, "no kernels run");
        ring.running = true;
        let (_, published) = ring.publish([1, 2, 3, 4]).unwrap();
        assert_eq!(
            ring.park_if_idle(published + Duration::from_secs(4), limit),
            Some(Duration::from_secs(6))
        );
        assert_eq!(ring.park_if_idle(published + limit, limit), Some(limit), "a transfer is in flight");
        assert!(ring.is_running());
        end_all(&ring);
        assert_eq!(ring.park_if_idle(published + limit, limit), None);
        assert!(!ring.is_running());
        assert_eq!(newest_length_field(&ring), LEAVE);
    }

    #[test]
    fn the_timer_parks_idle_kernels_without_a_call_of_the_user() {
        let parked = ParkedWhenIdle::new(ring(), Some(Duration::from_millis(1))).unwrap();
        for _ in 0..3 {
            let mut ring = parked.lock();
            ring.publish([1, 2, 3, 4]).unwrap();
            end_all(&ring);
            parked.set_running(&mut ring);
            drop(ring);
            while parked.lock().is_running() {
                std::thread::yield_now();
            }
            assert_eq!(newest_length_field(&parked.lock()), LEAVE);
            // Act as kernels do on the command LEAVE: report that the command was read and has ended. The
            // next round then finds an idle ring.
            end_all(&parked.lock());
        }
    }

    #[test]
    fn a_ring_works_again_after_its_idle_kernels_timed_out() {
        let mut ring = ring();
        ring.running = true;
        ring.publish([1, 2, 3, 4]).unwrap();
        end_all(&ring);
        // Simulate a kernel that gives up.
        word(&ring.memory, FAILED).store(NO_COMMAND, Ordering::Release);
        ring.release_waits();
        assert!(ring.kernels_timed_out() && check_failed(&ring.memory, &String::new).is_err());
        ring.reset();
        assert!(!ring.kernels_timed_out() && !ring.is_running());
        check_failed(&ring.memory, &String::new).unwrap();
        ring.publish([5, 6, 7, 8]).unwrap();
        assert!(!ring.is_drained(), "the new command has not ended");
    }

    #[test]
    fn laps_are_renewed_once_in_two_to_the_32_commands() {
        let mut ring = ring();
        // Start before command 2^32 - 1. This command has the highest lap, and the next one would have lap 0.
        // `sequence += 1` below stands for sending command 2^32 - 1.
        ring.sequence = (1 << 32) - 2;
        ring.read_by_all = ring.sequence;
        assert!(!ring.needs_new_laps());
        ring.sequence += 1;
        assert!(ring.needs_new_laps());
        let first_line = word(&ring.memory, ring.layout.lines());
        first_line.store(7, Ordering::Relaxed);
        ring.renew_laps();
        assert_eq!(word(&ring.memory, ring.layout.lines()).load(Ordering::Relaxed), 0);
        assert_eq!(ring.sequence, 1 << 32, "lap 0 is skipped");
        assert!(!ring.needs_new_laps());
        ring.sequence = (2 << 32) + 5;
        assert!(ring.needs_new_laps(), "also if the boundary was crossed by a command to leave");
    }

    #[test]
    fn a_full_ring_whose_kernels_gave_up_is_an_error() {
        let mut ring = ring();
        for _ in 0..DEPTH {
            ring.publish([0; 4]).unwrap();
        }
        word(&ring.memory, FAILED).store(2, Ordering::Release);
        let error = ring.publish([0; 4]).unwrap_err().to_string();
        assert!(error.contains("a chunk from the other GPU"), "{error}");
    }
}
