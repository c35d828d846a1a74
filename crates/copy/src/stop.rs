//! Ending a run from outside: the flag, and transfers by the CPU cut into pieces between which it is looked at.
//!
//! A copy engine's transfer ends in milliseconds; the CPU's through a BAR can take minutes, and `submit` does not return before.

use inlane_core::mover::{CpuMover, Mover, Ticket, check_pair, check_ticket};
use inlane_core::{CompletionMode, Error, Region, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes between two looks: a third of a second by the slowest way there is (4-byte loads and stores through two BARs, 3 MB/s),
/// and a thousand times what a look costs by the fastest.
pub(crate) const PIECE: usize = 1 << 20;

/// Whether a run goes on.
///
/// # Errors
/// [`Error::Device`] when it is to end.
pub fn check_stop(stop: &AtomicBool) -> Result<()> {
    if !stop.load(Ordering::Relaxed) {
        return Ok(());
    }
    Err(Error::device_failed(
        "the run",
        "was interrupted; what was in flight was waited for, nothing of it is reported",
    ))
}

/// A synchronous mover whose transfers end early when the run is to end.
pub(crate) struct Pieces {
    mover: Box<dyn Mover>,
    /// What makes a transfer delivered, once, after its last piece.
    flush: Option<CpuMover>,
    stop: Arc<AtomicBool>,
    submitted: u64,
}

impl Pieces {
    /// By `mover`, which has copied when its `submit` returns; with `flush`, ends are those of [`CpuMover::flush`].
    pub(crate) fn new(mover: Box<dyn Mover>, flush: Option<CpuMover>, stop: &Arc<AtomicBool>) -> Self {
        Self { mover, flush, stop: stop.clone(), submitted: 0 }
    }
}

impl Mover for Pieces {
    fn name(&self) -> String {
        self.mover.name()
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
        self.submitted += 1;
        Ok(Ticket(self.submitted))
    }

    fn is_synchronous(&self) -> bool {
        true
    }

    fn set_completion_mode(&mut self, completion: CompletionMode) -> CompletionMode {
        self.mover.set_completion_mode(completion)
    }

    fn done(&mut self) -> Result<Ticket> {
        Ok(Ticket(self.submitted))
    }

    fn wait(&mut self, ticket: Ticket, _: CompletionMode) -> Result<()> {
        check_ticket(ticket, self.submitted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern;

    /// Stops the run at its third piece.
    struct Third(CpuMover, u32, Arc<AtomicBool>);

    impl Mover for Third {
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
    fn every_byte_is_copied_and_none_after_the_stop() {
        let bytes = 5 * PIECE + 1234;
        let [source, destination] = [(); 2].map(|()| Region::host(bytes).unwrap());
        // SAFETY: regions of this test's own; nothing is in flight between the calls.
        let [sent, arrived] = [&source, &destination].map(|region| unsafe { pattern::bytes_of(region) });
        pattern::fill(sent, 3);
        let mut whole = Pieces::new(Box::new(CpuMover::widest()), None, &Arc::default());
        let ticket = whole.submit(&source, &destination).unwrap();
        whole.wait(ticket, CompletionMode::Poll).unwrap();
        assert_eq!(pattern::count_wrong(arrived, 3), 0);
        assert!(whole.wait(Ticket(2), CompletionMode::Poll).is_err());
        let shifted = [source.slice(0, 2 * PIECE), source.slice(PIECE, 2 * PIECE)].map(Result::unwrap);
        assert!(whole.submit(&shifted[0], &shifted[1]).unwrap_err().to_string().contains("overlap"));

        arrived.fill(0);
        let stop = Arc::<AtomicBool>::default();
        let mut stopped = Pieces::new(Box::new(Third(CpuMover::widest(), 0, stop.clone())), None, &stop);
        let error = stopped.submit(&source, &destination).unwrap_err().to_string();
        assert!(error.contains("interrupted"), "{error}");
        assert_eq!(pattern::count_wrong(&arrived[..3 * PIECE], 3), 0);
        assert!(arrived[3 * PIECE..].iter().all(|byte| *byte == 0));
        assert!(stopped.submit(&source, &destination).is_err(), "until the flag is taken back");
    }
}
