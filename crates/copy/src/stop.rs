//! Ends a run early when the caller sets a flag.
//!
//! A transfer by the CPU through a BAR can take minutes, so the transfer is cut into pieces and the flag is
//! checked between pieces.

use crate::error::Error;
use inlane_core::mover::{CpuMover, Mover, Ticket, TicketCounter, check_pair};
use inlane_core::{CompletionMode, Region, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The number of bytes to copy, fill or check between two checks of the flag. With 4-byte loads and stores
/// through two BARs, the slowest measured rate was 3 MB/s. At that rate, this takes a third of a second.
pub(crate) const PIECE: usize = 1 << 20;

/// Checks the flag that ends a run.
///
/// # Errors
/// [`Error::Interrupted`] if the flag is set.
pub fn check_stop(stop: &AtomicBool) -> Result<()> {
    if !stop.load(Ordering::Relaxed) {
        return Ok(());
    }
    Err(Error::Interrupted.into())
}

/// A synchronous mover whose transfers end early, with an error, when the stop flag is set.
pub(crate) struct Interruptible {
    mover: Box<dyn Mover>,
    /// Flushes the destination after the last piece of a transfer. The transfer is then complete only when
    /// its data is delivered. If `None`, transfers complete without a flush.
    flush: Option<CpuMover>,
    stop: Arc<AtomicBool>,
    tickets: TicketCounter,
}

impl Interruptible {
    /// Wraps the synchronous mover `mover`. With `flush`, a transfer is done when [`CpuMover::flush`] of its
    /// destination returned.
    pub(crate) fn new(mover: Box<dyn Mover>, flush: Option<CpuMover>, stop: &Arc<AtomicBool>) -> Self {
        Self { mover, flush, stop: stop.clone(), tickets: TicketCounter::default() }
    }
}

impl Mover for Interruptible {
    fn name(&self) -> String {
        self.mover.name()
    }

    fn hops(&self) -> Vec<String> {
        self.mover.hops()
    }

    fn is_twin(&self) -> bool {
        self.mover.is_twin()
    }

    fn reaches(&self, source: &Region, destination: &Region) -> bool {
        self.mover.reaches(source, destination)
    }

    fn submit(&mut self, source: &Region, destination: &Region) -> Result<Ticket> {
        check_stop(&self.stop)?;
        if source.len() <= PIECE {
            self.mover.submit(source, destination)?;
        } else {
            check_pair(source, destination)?;
            let mut offset = 0;
            while offset < source.len() {
                check_stop(&self.stop)?;
                let length = PIECE.min(source.len() - offset);
                self.mover.submit(&source.slice(offset, length)?, &destination.slice(offset, length)?)?;
                offset += length;
            }
        }
        if let Some(cpu) = &self.flush {
            cpu.flush(destination)?;
        }
        Ok(self.tickets.issue())
    }

    fn is_synchronous(&self) -> bool {
        true
    }

    fn set_completion_mode(&mut self, completion: CompletionMode) -> CompletionMode {
        self.mover.set_completion_mode(completion)
    }

    fn done(&mut self) -> Result<Ticket> {
        Ok(self.tickets.newest())
    }

    fn wait(&mut self, ticket: Ticket, _: CompletionMode) -> Result<()> {
        self.tickets.check(ticket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern;

    struct StopsAtThird(CpuMover, u32, Arc<AtomicBool>);

    impl Mover for StopsAtThird {
        fn name(&self) -> String {
            self.0.name()
        }
        fn reaches(&self, source: &Region, destination: &Region) -> bool {
            self.0.reaches(source, destination)
        }
        fn submit(&mut self, source: &Region, destination: &Region) -> Result<Ticket> {
            self.1 += 1;
            self.2.store(self.1 == 3, Ordering::Relaxed);
            self.0.submit(source, destination)
        }
        fn done(&mut self) -> Result<Ticket> {
            self.0.done()
        }
        fn wait(&mut self, ticket: Ticket, completion: CompletionMode) -> Result<()> {
            self.0.wait(ticket, completion)
        }
    }

    #[test]
    fn all_bytes_are_copied_and_none_after_the_stop() {
        let bytes = 5 * PIECE + 1234;
        let [source, destination] = [(); 2].map(|()| Region::host(bytes).unwrap());
        // SAFETY: only this test uses the regions. When it accesses the slices, no transfer is in flight.
        let [sent, arrived] = [&source, &destination].map(|region| unsafe { pattern::bytes_of(region) });
        pattern::fill(sent, 3);
        let mut whole = Interruptible::new(Box::new(CpuMover::widest()), None, &Arc::default());
        let ticket = whole.submit(&source, &destination).unwrap();
        whole.wait(ticket, CompletionMode::Poll).unwrap();
        assert_eq!(pattern::count_wrong(arrived, 3), 0);
        assert!(whole.wait(Ticket(2), CompletionMode::Poll).is_err(), "ticket 2 was not issued");
        let shifted = [source.slice(0, 2 * PIECE), source.slice(PIECE, 2 * PIECE)].map(Result::unwrap);
        assert!(whole.submit(&shifted[0], &shifted[1]).unwrap_err().to_string().contains("overlap"));

        arrived.fill(0);
        let stop = Arc::<AtomicBool>::default();
        let third = StopsAtThird(CpuMover::widest(), 0, stop.clone());
        let mut stopped = Interruptible::new(Box::new(third), None, &stop);
        let error = stopped.submit(&source, &destination).unwrap_err().to_string();
        assert!(error.contains("interrupted"), "{error}");
        assert_eq!(pattern::count_wrong(&arrived[..3 * PIECE], 3), 0);
        assert!(arrived[3 * PIECE..].iter().all(|byte| *byte == 0), "bytes were copied after the stop");
        assert!(stopped.submit(&source, &destination).is_err(), "the flag is still set");
    }
}
