//! The twin of a DMA engine. Its thread copies bytes, completes each transfer at the time that its model
//! computes, and raises interrupts.
//!
//! ```text
//! submit -> queue -> thread: copy | wait until start + cost + bytes/rate | done = n | interrupt if requested
//! ```
//!
//! Transfers run one after another, as on one DMA channel. If this machine copies more slowly than the model,
//! transfers complete late.

use crate::costs::DmaCosts;
use crate::fault::Faults;
use crate::interrupt::Interrupt;
use inlane_core::completion::{CompletionMode, Wait, WaitPlan};
use inlane_core::mover::{CpuMover, InFlight, Mover, Ticket, check_pair, out_of_reach};
use inlane_core::{Error, Location, Region, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The number of bytes to copy before the thread checks again. It checks whether a fault is due, and whether
/// the engine is being dropped.
const STEP: usize = 256 << 10;
/// The longest time that a thread waits for an interrupt. Then it checks the number of completed transfers,
/// because the interrupt may be lost.
const BACKSTOP: Duration = Duration::from_millis(50);

/// State that the engine shares with its thread.
struct EngineState {
    done: AtomicU64,
    lost: AtomicBool,
    stop: AtomicBool,
    /// True if the next completed transfer must raise the interrupt, because a thread waits for it.
    interrupt_wanted: AtomicBool,
    interrupt: Interrupt,
    faults: Faults,
    recovered: AtomicU64,
}

/// A software DMA engine. It reaches host, pinned and twin memory, and mapped windows.
pub struct DmaEngine {
    name: String,
    shared: Arc<EngineState>,
    queue: Option<Sender<(Region, Region)>>,
    thread: Option<JoinHandle<()>>,
    flight: InFlight,
}

impl DmaEngine {
    /// Starts an engine. Results and errors name it `name`.
    ///
    /// # Errors
    /// [`Error::Os`] if the system refuses a thread or a file descriptor.
    pub fn new(name: impl Into<String>, costs: DmaCosts) -> Result<Self> {
        let name = name.into();
        let shared = Arc::new(EngineState {
            done: AtomicU64::new(0),
            lost: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            interrupt_wanted: AtomicBool::new(false),
            interrupt: Interrupt::new()?,
            faults: Faults::default(),
            recovered: AtomicU64::new(0),
        });
        let (queue, requests) = channel();
        let worker = Worker { shared: shared.clone(), costs, copier: CpuMover::widest() };
        let thread = std::thread::Builder::new()
            .name("twin-dma".into())
            .spawn(move || worker.run(&requests))
            .map_err(|source| Error::Os { what: format!("starting the thread of {name}"), source })?;
        Ok(Self { name, shared, queue: Some(queue), thread: Some(thread), flight: InFlight::new() })
    }

    /// Returns the faults that can be injected.
    pub fn faults(&self) -> &Faults {
        &self.shared.faults
    }

    /// Returns how often a wait found a completed transfer although no interrupt came, because the interrupt
    /// was lost.
    pub fn recovered_interrupts(&self) -> u64 {
        self.shared.recovered.load(Ordering::Relaxed)
    }

    /// Sets how long a wait for a transfer lasts before the device counts as lost.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.flight.timeout = timeout;
    }

    /// Returns the ticket of the newest completed transfer.
    ///
    /// # Errors
    /// [`Error::Device`] if the device is lost.
    fn newest_done(shared: &EngineState, name: &str) -> Result<Ticket> {
        let done = Ticket(shared.done.load(Ordering::Acquire));
        if shared.lost.load(Ordering::Acquire) {
            return Err(Error::device_failed(
                name,
                format!(
                    "was lost after transfer {}; later transfers count as not moved; open the device again",
                    done.0
                ),
            ));
        }
        Ok(done)
    }

    fn wait_interrupt(&mut self, ticket: Ticket) -> Result<()> {
        self.flight.check(ticket)?;
        let Self { shared, flight, name, .. } = self;
        InterruptWait { shared, flight, name, ticket, seen: Ticket(0) }.run()?;
        self.shared.interrupt_wanted.store(false, Ordering::Relaxed);
        Ok(())
    }
}

/// A wait for a transfer that sleeps until the engine's interrupt.
struct InterruptWait<'a> {
    shared: &'a EngineState,
    flight: &'a mut InFlight,
    name: &'a str,
    ticket: Ticket,
    /// The newest ticket that the last poll found done.
    seen: Ticket,
}

impl Wait for InterruptWait<'_> {
    type Error = Error;
    const FIRST_POLLS: u32 = 1;
    const POLLS: u32 = 1;

    /// Requests the interrupt, and only then checks for completed transfers. If a transfer completes after
    /// the check, it raises the interrupt.
    fn poll(&mut self, _watched: bool) -> Result<bool> {
        self.shared.interrupt_wanted.store(true, Ordering::SeqCst);
        self.seen = DmaEngine::newest_done(self.shared, self.name)?;
        self.flight.complete(self.seen, false);
        Ok(self.seen >= self.ticket)
    }

    fn plan(&mut self) -> WaitPlan {
        WaitPlan::BLOCK
    }

    fn check(&mut self, waited: Duration) -> Result<()> {
        if waited > self.flight.timeout {
            return Err(self.flight.lost(self.name));
        }
        Ok(())
    }

    fn block(&mut self) -> Result<()> {
        let interrupted = self.shared.interrupt.wait(BACKSTOP);
        if !interrupted && DmaEngine::newest_done(self.shared, self.name)? > self.seen {
            self.shared.recovered.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Mover for DmaEngine {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn is_twin(&self) -> bool {
        true
    }

    fn reaches(&self, source: &Region, destination: &Region) -> bool {
        let mapped =
            |location: &Location| location.is_cpu_memory() || matches!(location, Location::Window { .. });
        mapped(source.location()) && mapped(destination.location())
    }

    fn submit(&mut self, source: &Region, destination: &Region) -> Result<Ticket> {
        check_pair(source, destination)?;
        if !self.reaches(source, destination) {
            return Err(out_of_reach(self, source, destination));
        }
        Self::newest_done(&self.shared, &self.name)?;
        let queue = self.queue.as_ref().expect("the queue is open until drop");
        let ticket = self.flight.submit(source.len());
        queue
            .send((source.clone(), destination.clone()))
            .map_err(|_| Error::device_failed(&self.name, "its thread ended; open the device again"))?;
        Ok(ticket)
    }

    fn done(&mut self) -> Result<Ticket> {
        let done = Self::newest_done(&self.shared, &self.name)?;
        self.flight.complete(done, false);
        Ok(done)
    }

    fn wait(&mut self, ticket: Ticket, completion: CompletionMode) -> Result<()> {
        let (shared, name) = (self.shared.clone(), self.name.clone());
        let mut turns = 0u32;
        let poll = || {
            // A thread does the engine's work. On a machine with few cores, it needs the core of the polling
            // thread. So the polling thread yields once in 64 polls.
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(64) {
                std::thread::yield_now();
            }
            Self::newest_done(&shared, &name)
        };
        let device = || name.clone();
        match completion {
            CompletionMode::Poll => self.flight.wait_polling(&device, ticket, poll),
            CompletionMode::Adaptive => self.flight.wait_adaptive(&device, ticket, poll),
            CompletionMode::Interrupt => self.wait_interrupt(ticket),
        }
    }
}

impl Drop for DmaEngine {
    /// Cancels transfers in flight. No byte is written after this returns.
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Worker {
    shared: Arc<EngineState>,
    costs: DmaCosts,
    copier: CpuMover,
}

impl Worker {
    fn run(mut self, requests: &Receiver<(Region, Region)>) {
        let mut free = Instant::now();
        while let Ok((source, destination)) = requests.recv() {
            if self.stopped() {
                return;
            }
            let to_device = !matches!(source.location(), Location::Twin(_));
            free = free.max(Instant::now()) + self.costs.time(source.len(), to_device);
            if !self.copy(&source, &destination) {
                return self.fail();
            }
            if !self.wait_until(free) {
                return self.fail();
            }
            self.shared.done.fetch_add(1, Ordering::Release);
            self.interrupt();
        }
    }

    fn stopped(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
    }

    /// Copies `source` to `destination` in steps of `STEP` bytes. Returns false if the device was lost, the
    /// engine dropped, or a copy failed.
    fn copy(&mut self, source: &Region, destination: &Region) -> bool {
        let mut offset = 0;
        while offset < source.len() {
            let step = STEP.min(source.len() - offset);
            let alive = self.shared.faults.take_bytes(step);
            if alive > 0 {
                let slices = source
                    .slice(offset, alive)
                    .and_then(|from| Ok((from, destination.slice(offset, alive)?)));
                if slices.and_then(|(from, to)| self.copier.submit(&from, &to)).is_err() {
                    return false;
                }
            }
            if alive < step || self.stopped() {
                return false;
            }
            offset += step;
        }
        if self.shared.faults.take_flip() {
            let middle = destination.as_ptr().wrapping_add(destination.len() / 2);
            // SAFETY: the address is inside the destination. Only the engine writes the destination until the
            // transfer ends.
            unsafe { middle.write_volatile(middle.read_volatile() ^ 0x10) };
        }
        true
    }

    /// Waits until `end`, and longer while the engine is stalled. Returns false if the engine was dropped.
    fn wait_until(&self, end: Instant) -> bool {
        while self.shared.faults.is_stalled() {
            if self.stopped() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            if self.stopped() {
                return false;
            }
            if left > Duration::from_micros(200) {
                let sleep = (left - Duration::from_micros(150)).min(Duration::from_millis(20));
                inlane_core::completion::sleep_precisely(sleep);
            } else {
                std::thread::yield_now();
            }
        }
    }

    fn interrupt(&self) {
        if self.shared.interrupt_wanted.swap(false, Ordering::SeqCst) && !self.shared.faults.take_interrupt()
        {
            if !self.costs.interrupt.is_zero() {
                self.wait_until(Instant::now() + self.costs.interrupt);
            }
            self.shared.interrupt.raise();
        }
    }

    fn fail(&self) {
        self.shared.lost.store(true, Ordering::Release);
        self.shared.interrupt.raise();
    }
}

#[cfg(test)]
mod tests;
