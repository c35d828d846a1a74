//! The loop of an engine's thread: receives, serves, sends, and sleeps.

use super::shared::Inbox;
use super::{CLIENT, CONTROL, Engine, INBOX, INTERFACE, PORT, threads};
use crate::error::{Error, Result};
use crate::stack::arena::Key;
use crate::stack::packet::Arrival;
use crate::trace::Observer;
use inlane_core::packet::Packet;
use rustix::event::epoll;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The most packets that one round of the engine's loop receives before it serves sockets.
const BURST: usize = 64;
/// The longest sleep, in nanoseconds. A request to stop is noticed at most this late.
const LONGEST_SLEEP_NS: u64 = 200_000_000;
/// If epoll cannot watch the port, packets do not wake the engine, so its sleeps are short. This is the
/// length of the first sleep in nanoseconds. While there is no work, each further sleep is twice as long.
const FIRST_POLLED_SLEEP_NS: u64 = 10_000;
/// The length of the longest sleep in nanoseconds, if epoll cannot watch the port.
const LONGEST_POLLED_SLEEP_NS: u64 = 1_000_000;
/// The most consecutive rounds with work in which the engine does not ask epoll for events.
const MOST_ROUNDS: u32 = 4;
/// The nanoseconds for which the engine polls shared memory without asking epoll for events. Applies if the
/// engine has connections with slots but no work. The system call for epoll takes longer than a poll, so it would delay bytes
/// that arrive in shared memory during the call.
const UNASKED_NS: u64 = 4000;
/// The most events that one call of epoll returns.
const MOST_EVENTS: usize = 256;
/// Waits at most `sleep` nanoseconds for events of an epoll instance, and stores them in `events`.
///
/// # Errors
/// Errors of the system; `Interrupted` if a signal arrived.
fn wait_for_events(epoll: &OwnedFd, sleep: u64, events: &mut Vec<libc::epoll_event>) -> std::io::Result<()> {
    events.clear();
    let (fd, room) = (epoll.as_raw_fd(), events.capacity().min(MOST_EVENTS) as i32);
    let count = if sleep == 0 {
        // SAFETY: the kernel writes at most `room` events into the vector's memory.
        unsafe { libc::epoll_wait(fd, events.as_mut_ptr(), room, 0) }
    } else {
        let timeout = libc::timespec {
            tv_sec: (sleep / 1_000_000_000) as i64,
            tv_nsec: (sleep % 1_000_000_000) as i64,
        };
        // SAFETY: the kernel writes at most `room` events into the vector's memory. The timeout outlives the
        // call.
        let count = unsafe {
            let mask = std::ptr::null::<libc::sigset_t>();
            let events = events.as_mut_ptr();
            libc::syscall(libc::SYS_epoll_pwait2, fd, events, room, &raw const timeout, mask, 0)
        };
        match std::io::Error::last_os_error().raw_os_error() {
            // Linux before 5.11 lacks `epoll_pwait2`, and some containers forbid it. Use `epoll_wait`
            // instead, which sleeps for whole milliseconds.
            Some(libc::ENOSYS | libc::EPERM) if count < 0 => {
                let milliseconds = sleep.div_ceil(1_000_000) as i32;
                // SAFETY: as above.
                unsafe { libc::epoll_wait(fd, events.as_mut_ptr(), room, milliseconds) }
            }
            _ => count as i32,
        }
    };
    match usize::try_from(count) {
        Ok(count) => {
            // SAFETY: the kernel has written the first `count` events, at most the capacity.
            unsafe { events.set_len(count) };
            Ok(())
        }
        Err(_) => Err(std::io::Error::last_os_error()),
    }
}

/// Returns true if the event reports packets of the port. An event with EPOLLERR reports an error instead.
fn is_rung_by_port(event: &libc::epoll_event) -> bool {
    event.u64 == PORT && event.events & libc::EPOLLERR as u32 == 0
}

impl Engine {
    /// Runs this thread until `stop` is set. Calls `observer` at each point that a message passes.
    ///
    /// # Errors
    /// If the port fails.
    pub(super) fn run(&mut self, stop: &Arc<AtomicBool>, observer: &impl Observer) -> Result<()> {
        threads::pin(&self.settings.cores, self.stack.thread)?;
        let pool = self.stack.network.pool.clone();
        let _owner = pool.own();
        let wakes = !self.link.wait_descriptors().is_empty();
        let longest = if wakes { LONGEST_SLEEP_NS } else { LONGEST_POLLED_SLEEP_NS };
        let shortest = if wakes { LONGEST_SLEEP_NS } else { FIRST_POLLED_SLEEP_NS };
        let mut pause = shortest;
        let spin_ns = self.settings.spin.as_nanos() as u64;
        let mut events = Vec::with_capacity(MOST_EVENTS);
        // Reduce the timer slack. The default of 50 us would prolong short sleeps.
        // SAFETY: the call changes only the slack of this thread's timers.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
        let mut packets = [Packet::EMPTY; BURST];
        let mut last_work = self.clock.now_ns();
        let (mut rounds, mut asked_at) = (0, 0);
        while !stop.load(Ordering::Relaxed) {
            let mut now = self.clock.now_ns();
            let mut worked = self.receive(now, &mut packets)?;
            observer.processed();
            worked |= self.receive_own(now);
            worked |= self.empty_inbox(now);
            let asked = self.poll_slots(now);
            observer.asked(asked);
            worked |= asked;
            let idle = !worked && self.stack.changed.is_empty() && !self.owes_reply();
            let may_sleep = idle
                && now >= last_work + spin_ns
                && !self.stack.release_all_acknowledgments()
                && self.stack.network.flush();
            let falls_asleep = may_sleep && self.falls_asleep_beside_programs() && self.falls_asleep();
            // Ask the port last, because it then wakes this thread for each packet.
            let sleep = match falls_asleep && self.link.rx.begin_sleep() {
                true => self.sleep_ns(now, pause),
                false => 0,
            };
            // Serve up to `MOST_ROUNDS` rounds of received packets before asking epoll for events of socket
            // pairs. Asking is a system call and would delay the packets.
            let asks = match worked {
                true => rounds == MOST_ROUNDS,
                false => may_sleep || !self.has_slots() || now >= asked_at + UNASKED_NS,
            };
            rounds += u32::from(worked);
            if worked && asks {
                // Send the results of this round first, because asking epoll would delay them.
                self.expire(now);
                self.serve_changed(now);
                observer.served();
                self.stack.network.flush();
            }
            if asks {
                (rounds, asked_at) = (0, now);
                let asked = self.wait(now, sleep, &mut events)?;
                observer.asked(asked);
                worked |= asked;
            }
            // After a report of the port, the sleep of its queue has ended already.
            if falls_asleep && !events.iter().any(is_rung_by_port) {
                self.link.rx.end_sleep();
            }
            if may_sleep {
                self.leaves_sleep();
                self.inbox().into_iter().for_each(Inbox::wakes_up);
            }
            now = self.clock.now_ns();
            worked |= self.expire(now);
            worked |= !self.stack.changed.is_empty();
            self.serve_changed(now);
            observer.served();
            self.stack.network.flush();
            if worked {
                (last_work, pause) = (now, shortest);
            } else if sleep > 0 {
                pause = longest.min(2 * pause);
            }
        }
        Ok(())
    }

    /// Receives packets from the port. Returns true if there were any.
    pub(super) fn receive(&mut self, now: u64, packets: &mut [Packet]) -> Result<bool> {
        let (rx, stack) = (&mut self.link.rx, &mut self.stack);
        let visited = rx.receive_in_place(packets.len(), &mut |address, len| {
            // SAFETY: the queue guarantees the memory of the frame during this call.
            unsafe { stack.on_frame_in_place(now, address, len) }
        })?;
        if visited.is_some_and(|frames| frames > 0) {
            return Ok(true);
        }
        let count = self.link.rx.receive(packets)?;
        for packet in &packets[..count] {
            // SAFETY: the packet was received, is not freed before the loop has ended, and nobody else writes
            // it.
            let bytes = unsafe { packet.bytes() };
            self.on_frame(now, bytes);
        }
        if count > 0 {
            // SAFETY: the packets are from a queue of this pool and not used afterwards.
            unsafe { self.stack.network.pool.free(&packets[..count]) };
        }
        Ok(count > 0)
    }

    /// Processes the packets that the engine sent to itself. Returns true if there were any.
    pub(super) fn receive_own(&mut self, now: u64) -> bool {
        let count = self.stack.network.own.len().min(BURST);
        for _ in 0..count {
            if let Some(bytes) = self.stack.network.own.pop_front() {
                self.on_ip(now, &bytes, Arrival::OWN);
                self.stack.network.recycle(bytes);
            }
        }
        count > 0
    }

    /// Returns how long the engine may sleep, in nanoseconds: `longest`, or less if a timer is due earlier.
    fn sleep_ns(&self, now: u64, longest: u64) -> u64 {
        let mut sleep = longest;
        if self.stack.network.has_timer() {
            sleep = sleep.min(50_000_000);
        }
        self.stack.next_timer().map_or(sleep, |next| sleep.min(next.saturating_sub(now).max(1)))
    }

    /// Waits at most `sleep` nanoseconds for epoll events and processes them. Returns true if there were any.
    pub(super) fn wait(&mut self, now: u64, sleep: u64, events: &mut Vec<libc::epoll_event>) -> Result<bool> {
        match wait_for_events(&self.epoll, sleep, events) {
            Err(error) if error.kind() != std::io::ErrorKind::Interrupted => {
                return Err(Error::os("epoll_wait")(error));
            }
            _ => {}
        }
        let now = if sleep > 0 { self.clock.now_ns() } else { now };
        let mut worked = false;
        for event in events.iter() {
            let (token, flags) = (event.u64, epoll::EventFlags::from_bits_retain(event.events));
            match token {
                // A queue may have rung late, after this thread has been woken by another event.
                PORT if is_rung_by_port(event) => self.link.rx.end_sleep(),
                PORT => self.link.clear_errors(),
                INTERFACE => self.check_interface()?,
                INBOX => self.inbox().into_iter().for_each(Inbox::clear_wake),
                CONTROL => self.accept_clients(),
                token if token & CLIENT != 0 => self.serve_client(now, Key::from_u64(token & !CLIENT)),
                token => self.on_pair_event(Key::from_u64(token), flags),
            }
            worked = true;
        }
        self.retry_early(now);
        self.report_next(now);
        Ok(worked || self.owes_reply())
    }
}
