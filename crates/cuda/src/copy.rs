//! A mover over the GPU's copy engines.

use crate::device::Gpu;
use crate::error::{Error, Result};
use crate::stream::{Event, EventKind, Stream};
use inlane_core::completion::Expectation;
use inlane_core::mover::{Mover, Ticket};
use inlane_core::{Completion, Place, Region};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest wait for a copy: a device that takes longer is lost.
const LOST_AFTER: Duration = Duration::from_secs(30);

/// Copies by a GPU's DMA engines: one stream, an event a copy.
///
/// ```text
/// submit: | copy | event | copy | event | ...      done: events passed, oldest first
/// ```
///
/// The driver decides which engine runs a stream's copies; two movers, one for each direction, use two engines.
pub struct CopyEngine {
    stream: Stream,
    submitted: u64,
    done: u64,
    pending: VecDeque<Pending>,
    free: Vec<Event>,
    expectation: Expectation,
}

struct Pending {
    event: Event,
    bytes: u64,
    start: Instant,
    // Memory that a queued copy touches must not be freed, whatever the caller does.
    _regions: [Region; 2],
}

impl CopyEngine {
    /// A mover on `gpu`.
    ///
    /// # Errors
    /// When the driver refuses a stream.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        Ok(Self {
            stream: gpu.stream()?,
            submitted: 0,
            done: 0,
            pending: VecDeque::new(),
            free: Vec::new(),
            expectation: Expectation::default(),
        })
    }

    /// Its stream, to order other work with its copies.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Has all copies submitted from now on wait for `event`, without the CPU.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn after(&mut self, event: &Event) -> Result<()> {
        self.stream.wait_for(event)
    }

    fn retire(&mut self) -> Result<()> {
        while let Some(oldest) = self.pending.front() {
            if !oldest.event.is_passed()? {
                break;
            }
            self.retire_oldest();
        }
        Ok(())
    }

    fn retire_oldest(&mut self) {
        if let Some(Pending { event, .. }) = self.pending.pop_front() {
            self.free.push(event);
            self.done += 1;
        }
    }

    fn wait_inner(&mut self, ticket: Ticket, completion: Completion) -> Result<()> {
        if ticket.0 > self.submitted {
            return Err(Error::invalid(
                format!("waiting for copy {} of {}", ticket.0, self.submitted),
                "it was not submitted yet",
            ));
        }
        if ticket.0 <= self.done {
            return Ok(());
        }
        let index = (ticket.0 - self.done - 1) as usize;
        let Pending { event, bytes, start, .. } = &self.pending[index];
        match completion {
            Completion::Interrupt => event.synchronize()?,
            Completion::Poll => poll(event, *start)?,
            Completion::Adaptive => {
                let asked = self.expectation.sleep(*bytes).saturating_sub(start.elapsed());
                if !asked.is_zero() {
                    let before = Instant::now();
                    std::thread::sleep(asked);
                    self.expectation.learn_overshoot(before.elapsed().saturating_sub(asked));
                }
                poll(event, *start)?;
                self.expectation.learn(*bytes, start.elapsed().as_nanos() as u64);
            }
        }
        while self.done < ticket.0 {
            self.retire_oldest();
        }
        Ok(())
    }
}

fn poll(event: &Event, start: Instant) -> Result<()> {
    let mut rounds = 0u32;
    while !event.is_passed()? {
        std::hint::spin_loop();
        rounds = rounds.wrapping_add(1);
        if rounds.is_multiple_of(1 << 16) && start.elapsed() > LOST_AFTER {
            return Err(Error::invalid(
                "a copy by a copy engine",
                format!(
                    "not done after {} s: the device is lost; see 'dmesg | grep NVRM'",
                    LOST_AFTER.as_secs()
                ),
            ));
        }
    }
    Ok(())
}

impl Mover for CopyEngine {
    fn name(&self) -> String {
        format!("gpu:{} copy engine", self.stream.gpu().index())
    }

    fn reaches(&self, source: &Region, destination: &Region) -> bool {
        let mine = Place::Gpu(self.stream.gpu().index());
        let gpu = |region: &Region| matches!(region.place(), Place::Gpu(_));
        let reachable = |region: &Region| gpu(region) || *region.place() == Place::Pinned;
        // One end is this GPU's; the other may be pinned or any GPU's (the driver stages what has no direct way).
        // Ordinary host memory would make the call synchronous.
        reachable(source)
            && reachable(destination)
            && (*source.place() == mine || *destination.place() == mine)
    }

    fn submit(&mut self, source: &Region, destination: &Region) -> inlane_core::Result<Ticket> {
        if !self.reaches(source, destination) || source.overlaps(destination) {
            return Err(Error::invalid(
                format!("{} from {source:?} to {destination:?}", self.name()),
                "both ends must be pinned or GPU memory, one of them this GPU's, and must not overlap",
            )
            .into());
        }
        self.retire()?;
        let event = match self.free.pop() {
            Some(event) => event,
            None => Event::new(self.stream.gpu(), EventKind::Completion)?,
        };
        let start = Instant::now();
        // SAFETY: the regions are kept in `pending` until the copy has run; that nobody touches them is the trait's contract.
        unsafe { self.stream.copy(source, destination)? };
        self.stream.record(&event)?;
        self.submitted += 1;
        self.pending.push_back(Pending {
            event,
            bytes: source.len() as u64,
            start,
            _regions: [source.clone(), destination.clone()],
        });
        Ok(Ticket(self.submitted))
    }

    fn done(&mut self) -> inlane_core::Result<Ticket> {
        self.retire()?;
        Ok(Ticket(self.done))
    }

    fn wait(&mut self, ticket: Ticket, completion: Completion) -> inlane_core::Result<()> {
        Ok(self.wait_inner(ticket, completion)?)
    }
}

impl Drop for CopyEngine {
    fn drop(&mut self) {
        // The regions may be freed after this: nothing may still copy to or from them.
        if self.pending.is_empty() || self.stream.gpu().is_abandoned() {
            return;
        }
        if let Err(error) = self.stream.synchronize() {
            tracing::warn!("copies given up: {error}");
        }
    }
}
