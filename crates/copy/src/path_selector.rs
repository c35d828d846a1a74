//! A mover between two devices that picks the cheapest path for each transfer.

use crate::cost::PathCosts;
use crate::device::Device;
use crate::error::reason;
use crate::explanation::{Because, PathTaken, not_considered};
use crate::open_path::{no_path_error, open_path};
use crate::path::Path;
use crate::path_options::{PathChoice, PathOptions};
use inlane_core::mover::{Mover, Ticket, TicketCounter};
use inlane_core::{CompletionMode, Region, Result};
use inlane_result::{NotTaken, Reason};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A mover between two devices: over one path, or over the cheapest path for each transfer's size.
///
/// [`PathSelector::copy`] does one transfer and waits for it.
pub struct PathSelector {
    from: Arc<Device>,
    to: Arc<Device>,
    movers: Vec<(Path, Box<dyn Mover>)>,
    costs: Option<PathCosts>,
    both_ways: bool,
    refused: BTreeMap<Path, Reason>,
    /// The path that the caller preferred, and why it cannot be used.
    fallback: Option<(Path, String)>,
    /// True if the path is the one that the caller preferred or required. False if paths are chosen by cost.
    requested: bool,
    /// The index of the mover that took the newest transfer.
    current: usize,
    tickets: TicketCounter,
    /// The number to add to a ticket of the current mover to get this selector's ticket. Each mover counts
    /// from its own start, but the selector's tickets must go on counting when the path changes.
    offset: u64,
}

impl PathSelector {
    /// Opens the chosen path. For [`PathChoice::Auto`], opens every path that is the cheapest for some size.
    /// If the costs of the paths are needed and `costs` is `None`, measures them.
    ///
    /// Allocate the memory for transfers before this call: with [`PathOptions::resident`], a later allocation
    /// waits for running kernels.
    ///
    /// # Errors
    /// [`Error::Device`](inlane_core::Error::Device) if the chosen path or all paths cannot be opened; errors
    /// of the measurement of costs.
    pub fn open(
        from: &Arc<Device>,
        to: &Arc<Device>,
        choice: PathChoice,
        options: &PathOptions,
        costs: Option<PathCosts>,
    ) -> Result<Self> {
        let mut selector = Self {
            from: from.clone(),
            to: to.clone(),
            movers: Vec::new(),
            costs: None,
            both_ways: options.both_ways,
            refused: BTreeMap::new(),
            fallback: None,
            requested: false,
            current: 0,
            tickets: TicketCounter::default(),
            offset: 0,
        };
        if let PathChoice::Prefer(path) | PathChoice::Require(path) = choice {
            match open_path(path, from, to, options) {
                Ok(mover) => {
                    selector.movers.push((path, mover));
                    selector.costs = costs;
                    selector.requested = true;
                    return Ok(selector);
                }
                Err(error) if matches!(choice, PathChoice::Require(_)) => return Err(error),
                Err(error) => {
                    selector.fallback = Some((path, reason(&error)));
                    selector.refused.insert(path, Reason::unavailable(error.to_string()));
                }
            }
        }
        let costs = match costs {
            Some(costs) => costs,
            None => PathCosts::calibrate(from, to, options)?,
        };
        let refused = not_considered(from.endpoint(), to.endpoint(), options);
        selector.refused.extend(costs.reasons(refused));
        let mut errors = Vec::new();
        // Open every path that is the cheapest for some size now. Opening a path later would have to wait for
        // the resident kernels of the other paths.
        for path in costs.winners() {
            match open_path(path, from, to, options) {
                Ok(mover) => selector.movers.push((path, mover)),
                Err(error) => {
                    selector.refused.insert(path, Reason::unavailable(error.to_string()));
                    errors.push(error);
                }
            }
        }
        selector.costs = Some(costs);
        if selector.movers.is_empty() {
            return Err(no_path_error([from, to], &selector.refused, errors));
        }
        Ok(selector)
    }

    /// Returns the path that a transfer of `bytes` takes.
    pub fn path_for(&self, bytes: u64) -> Path {
        self.movers[self.pick(bytes)].0
    }

    /// Returns the costs by which paths are chosen. Returns `None` if they were neither given nor calibrated.
    /// Pass them to the opposite direction's selector so that both directions take the same paths.
    pub fn costs(&self) -> Option<&PathCosts> {
        self.costs.as_ref()
    }

    /// Returns the path of [`PathChoice::Prefer`] and why it is not used. `None` if it is used, or for another
    /// choice.
    pub fn fallback(&self) -> Option<(Path, &str)> {
        self.fallback.as_ref().map(|(path, why)| (*path, why.as_str()))
    }

    /// Sets the completion mode of the path for transfers of `bytes` bytes, and of that path's stages.
    /// Returns the mode in effect, which is `Poll` if the CPU copies.
    pub fn set_completion_mode_for(&mut self, bytes: u64, completion: CompletionMode) -> CompletionMode {
        let index = self.pick(bytes);
        self.movers[index].1.set_completion_mode(completion)
    }

    /// Returns true if transfers of `bytes` bytes are synchronous. [`Mover::submit`] then returns only after
    /// the copy, so one transfer is in flight at a time.
    pub fn is_synchronous_for(&self, bytes: u64) -> bool {
        self.movers[self.pick(bytes)].1.is_synchronous()
    }

    /// Predicts the time of a transfer of `bytes` bytes in nanoseconds, from the costs of its stages. Returns
    /// `None` if the costs are unknown.
    pub fn predicted_ns(&self, bytes: u64) -> Option<f64> {
        self.costs.as_ref()?.predict(self.path_for(bytes), bytes)
    }

    /// Returns the path for transfers of `bytes` bytes and why it was chosen. Also returns why each other
    /// path was not chosen.
    pub fn explain(&self, bytes: u64) -> PathTaken {
        let (path, mover) = &self.movers[self.pick(bytes)];
        let path = *path;
        let refused = self.refused.iter().map(|(path, why)| NotTaken { path: *path, why: why.clone() });
        let mut not_taken: Vec<NotTaken<Path>> = refused.collect();
        let time = |path: Path| self.costs.as_ref().and_then(|costs| costs.time(path, bytes));
        let reason = match (&self.fallback, time(path)) {
            (Some((requested, why)), _) => {
                Because::Fallback { path, requested: *requested, why: why.clone() }
            }
            (None, Some(chosen_ns)) if !self.requested => {
                let others = self.costs.iter().flat_map(|costs| &costs.paths);
                not_taken.extend(others.filter(|(other, _)| **other != path).map(|(other, curve)| {
                    let calibrated_ns = curve.time(bytes).unwrap_or(f64::NAN);
                    NotTaken {
                        path: *other,
                        why: Reason::Slower { size_bytes: bytes, calibrated_ns, chosen_ns },
                    }
                }));
                let both_directions = self.both_ways;
                Because::LeastTime { path, size_bytes: bytes, calibrated_ns: chosen_ns, both_directions }
            }
            _ => Because::Requested { path },
        };
        PathTaken { name: path, hops: vec![mover.hops()], reason, not_taken }
    }

    /// Copies `source` to `destination` and blocks until all bytes have arrived. Waits adaptively: sleeps
    /// through most of a long transfer, then polls. [`PathOptions::stages`] sets how the stages of a staged
    /// path wait.
    ///
    /// # Errors
    /// As for [`Mover::submit`] and [`Mover::wait`].
    pub fn copy(&mut self, source: &Region, destination: &Region) -> Result<()> {
        let ticket = self.submit(source, destination)?;
        self.wait(ticket, CompletionMode::Adaptive)
    }

    /// Blocks until no transfer is in flight.
    ///
    /// # Errors
    /// As for [`Mover::wait`].
    pub fn drain(&mut self) -> Result<()> {
        self.wait(self.tickets.newest(), CompletionMode::Adaptive)
    }

    /// Replaces the mover of the first path, for tests.
    #[cfg(test)]
    pub(crate) fn replace_mover(&mut self, replace: impl FnOnce(Box<dyn Mover>) -> Box<dyn Mover>) {
        let (path, mover) = self.movers.remove(0);
        self.movers.insert(0, (path, replace(mover)));
    }

    /// Returns the index of the mover with the least cost for `bytes`.
    fn pick(&self, bytes: u64) -> usize {
        let cost = |path: Path| {
            self.costs.as_ref().and_then(|costs| costs.time(path, bytes)).unwrap_or(f64::INFINITY)
        };
        let best =
            (0..self.movers.len()).min_by(|a, b| cost(self.movers[*a].0).total_cmp(&cost(self.movers[*b].0)));
        best.expect("an open selector has a mover")
    }
}

impl Mover for PathSelector {
    fn name(&self) -> String {
        self.movers[self.current].1.name()
    }

    fn hops(&self) -> Vec<String> {
        self.movers[self.current].1.hops()
    }

    fn is_twin(&self) -> bool {
        self.movers.iter().any(|(_, mover)| mover.is_twin())
            || self.from.endpoint().is_twin()
            || self.to.endpoint().is_twin()
    }

    fn reaches(&self, source: &Region, destination: &Region) -> bool {
        self.movers.iter().all(|(_, mover)| mover.reaches(source, destination))
    }

    fn submit(&mut self, source: &Region, destination: &Region) -> Result<Ticket> {
        let index = self.pick(source.len() as u64);
        if index != self.current {
            // Drain the old path, because two movers would not complete their transfers in order of
            // submission.
            self.drain()?;
            self.movers[self.current].1.quiesce()?;
            self.current = index;
            let done = self.movers[index].1.done()?;
            self.offset = self.tickets.newest().0 - done.0;
        }
        let ticket = self.movers[index].1.submit(source, destination)?;
        let issued = self.tickets.issue();
        debug_assert_eq!(ticket.0 + self.offset, issued.0);
        Ok(issued)
    }

    /// Returns true if the path of the newest transfer is synchronous.
    fn is_synchronous(&self) -> bool {
        self.movers[self.current].1.is_synchronous()
    }

    /// Sets the completion mode of all paths. Returns the mode in effect for the path of the newest transfer.
    fn set_completion_mode(&mut self, completion: CompletionMode) -> CompletionMode {
        let current = self.current;
        let modes: Vec<_> =
            self.movers.iter_mut().map(|(_, mover)| mover.set_completion_mode(completion)).collect();
        modes[current]
    }

    fn done(&mut self) -> Result<Ticket> {
        let done = self.movers[self.current].1.done()?;
        Ok(Ticket(done.0 + self.offset))
    }

    fn wait(&mut self, ticket: Ticket, completion: CompletionMode) -> Result<()> {
        self.tickets.check(ticket)?;
        match ticket.0.checked_sub(self.offset) {
            // Return at once if the ticket belongs to the mover of an earlier path. That mover was drained
            // when the path changed.
            None | Some(0) => Ok(()),
            Some(own) => self.movers[self.current].1.wait(Ticket(own), completion),
        }
    }

    fn quiesce(&mut self) -> Result<()> {
        self.movers.iter_mut().try_for_each(|(_, mover)| mover.quiesce())
    }
}
