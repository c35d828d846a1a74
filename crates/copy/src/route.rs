//! Ways between two devices: their paths, and choosing among them for every transfer.

use crate::cost::Costs;
use crate::device::Device;
use crate::gpu::{staged as engines, staged_sm as sms};
use crate::opening::{none_left, open_path};
use crate::path::Path;
use inlane_core::mover::{Access, Mover, Ticket};
use inlane_core::result::{NotTaken, Path as Explanation};
use inlane_core::{CompletionMode, Error, Region, Result, units};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// How paths are opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// The largest transfer there will be: bounds the hybrid path's buffers.
    pub largest: usize,
    /// How the CPU loads and stores; chosen by the kind of memory when `None`.
    pub access: Option<Access>,
    /// CPU stores to a BAR end when they are delivered (a read came back), not when they are issued.
    pub delivered: bool,
    /// How legs within a path are awaited, where the CPU hands chunks on, until [`Mover::set_completion_mode`] says otherwise.
    pub legs: CompletionMode,
    /// Staging by copy engines; `None` for what suits the directions that run.
    pub engines: Option<engines::Tuning>,
    /// Staging by SMs.
    pub sms: sms::Tuning,
    /// Keep staging kernels running between transfers: the least latency, and SMs held meanwhile.
    pub resident: bool,
    /// Blocks of a copy by SMs.
    pub blocks: u32,
    /// The other direction runs at the same time: paths cost what they do then.
    pub both_ways: bool,
    /// Paths that [`Choice::Auto`] leaves out.
    pub without: Vec<Path>,
    /// Set from outside, it ends calibration, and transfers that the CPU makes, with an error.
    pub stop: Arc<AtomicBool>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            largest: 256 << 20,
            access: None,
            delivered: false,
            legs: CompletionMode::Poll,
            engines: None,
            sms: sms::Tuning::default(),
            resident: false,
            blocks: 16,
            both_ways: false,
            without: Vec::new(),
            stop: Arc::default(),
        }
    }
}

/// Which path to take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The one that takes the least time for the size, by calibrated cost.
    #[default]
    Auto,
    /// This one; the best other where it cannot be had, said aloud.
    Prefer(Path),
    /// This one, or an error.
    Require(Path),
}

/// A way between two devices: one path, or for each size the one that costs least.
///
/// A route is a [`Mover`]: submit transfers and wait for them, or [`Route::copy`] one and be done.
pub struct Route {
    from: Arc<Device>,
    to: Arc<Device>,
    movers: Vec<(Path, Box<dyn Mover>)>,
    costs: Option<Costs>,
    both_ways: bool,
    refused: BTreeMap<Path, String>,
    fallback: Option<String>,
    /// The path was asked for, not chosen.
    asked: bool,
    current: usize,
    submitted: u64,
    /// Added to the current mover's tickets to give the route's.
    offset: u64,
    newest: Ticket,
}

impl Route {
    /// Opens a route. [`Choice::Auto`] calibrates the paths of this pair, unless `costs` has them.
    ///
    /// # Errors
    /// When no path can be opened, or the one required cannot.
    pub fn open(
        from: &Arc<Device>,
        to: &Arc<Device>,
        choice: Choice,
        options: &Options,
        costs: Option<Costs>,
    ) -> Result<Self> {
        let mut route = Self {
            from: from.clone(),
            to: to.clone(),
            movers: Vec::new(),
            costs: None,
            both_ways: options.both_ways,
            refused: BTreeMap::new(),
            fallback: None,
            asked: false,
            current: 0,
            submitted: 0,
            offset: 0,
            newest: Ticket(0),
        };
        if let Choice::Prefer(path) | Choice::Require(path) = choice {
            match open_path(path, from, to, options) {
                Ok(mover) => {
                    route.movers.push((path, mover));
                    route.costs = costs;
                    route.asked = true;
                    return Ok(route);
                }
                Err(error) if matches!(choice, Choice::Require(_)) => return Err(error),
                Err(error) => {
                    route.fallback = Some(format!("{path} was asked for, but: {error}"));
                    route.refused.insert(path, error.to_string());
                }
            }
        }
        let costs = match costs {
            Some(costs) => costs,
            None => Costs::calibrate(from, to, options)?,
        };
        route.refused.extend(costs.refused.clone());
        let mut errors = Vec::new();
        // All that may win some size are opened now: once kernels are resident, opening would wait for them.
        for path in costs.winners() {
            match open_path(path, from, to, options) {
                Ok(mover) => route.movers.push((path, mover)),
                Err(error) => {
                    route.refused.insert(path, error.to_string());
                    errors.push(error);
                }
            }
        }
        route.costs = Some(costs);
        if route.movers.is_empty() {
            return Err(none_left([from, to], &route.refused, errors));
        }
        Ok(route)
    }

    /// The path that a transfer of `bytes` takes.
    pub fn path_for(&self, bytes: u64) -> Path {
        self.movers[self.pick(bytes)].0
    }

    /// What the paths cost, where that was measured or given: for the route back, whose path goes by the same costs.
    pub fn costs(&self) -> Option<&Costs> {
        self.costs.as_ref()
    }

    /// Why it is not the path that was asked for, where it is not.
    pub fn fallback(&self) -> Option<&str> {
        self.fallback.as_deref()
    }

    /// Has transfers of `bytes` awaited by `completion` from now on, within their path too, and gives how they really will be:
    /// by polling where the CPU copies.
    pub fn set_completion_mode_for(&mut self, bytes: u64, completion: CompletionMode) -> CompletionMode {
        let index = self.pick(bytes);
        self.movers[index].1.set_completion_mode(completion)
    }

    /// Transfers of `bytes` end with the call: one is in flight at a time.
    pub fn is_synchronous_for(&self, bytes: u64) -> bool {
        self.movers[self.pick(bytes)].1.is_synchronous()
    }

    /// What the costs say a transfer of `bytes` takes, in nanoseconds.
    pub fn predicted_ns(&self, bytes: u64) -> Option<f64> {
        self.costs.as_ref()?.predict(self.path_for(bytes), bytes)
    }

    /// The chain for `bytes`, why it was taken, and what was not, and why.
    pub fn explain(&self, bytes: u64) -> Explanation {
        let index = self.pick(bytes);
        let (path, mover) = &self.movers[index];
        let mut not_taken: Vec<NotTaken> = self
            .refused
            .iter()
            .map(|(path, why)| NotTaken { path: path.to_string(), why: why.clone() })
            .collect();
        let size = units::bytes(bytes);
        let time = |path: Path| self.costs.as_ref().and_then(|costs| costs.time(path, bytes));
        let reason = match (time(*path), self.movers.len()) {
            (Some(time), _) if self.fallback.is_none() && !self.asked => {
                for other in
                    self.costs.iter().flat_map(|costs| costs.paths.keys()).filter(|other| *other != path)
                {
                    let other_time = self.costs.as_ref().and_then(|costs| costs.time(*other, bytes));
                    let why = format!(
                        "{} for {size} by calibration, against {}",
                        units::nanoseconds(other_time.unwrap_or(f64::NAN)),
                        units::nanoseconds(time)
                    );
                    not_taken.push(NotTaken { path: other.to_string(), why });
                }
                let load = if self.both_ways { ", both directions at once" } else { "" };
                format!("{path}: least calibrated time for {size}, {}{load}", units::nanoseconds(time))
            }
            (_, _) => match &self.fallback {
                Some(fallback) => format!("{path} instead: {fallback}"),
                None => format!("{path}: asked for"),
            },
        };
        let hops = mover.name().split(" -> ").map(String::from).collect();
        Explanation { hops, reason, not_taken }
    }

    /// Copies, and waits until it is done (adaptively: long copies are slept through; legs within a path are awaited as
    /// [`Options::legs`] says).
    ///
    /// # Errors
    /// As [`Mover::submit`] and [`Mover::wait`].
    pub fn copy(&mut self, source: &Region, destination: &Region) -> Result<()> {
        let ticket = self.submit(source, destination)?;
        self.wait(ticket, CompletionMode::Adaptive)
    }

    /// Waits for everything submitted.
    ///
    /// # Errors
    /// As [`Mover::wait`].
    pub fn finish(&mut self) -> Result<()> {
        self.wait(self.newest, CompletionMode::Adaptive)
    }

    fn pick(&self, bytes: u64) -> usize {
        let cost = |path: Path| {
            self.costs.as_ref().and_then(|costs| costs.time(path, bytes)).unwrap_or(f64::INFINITY)
        };
        let best =
            (0..self.movers.len()).min_by(|a, b| cost(self.movers[*a].0).total_cmp(&cost(self.movers[*b].0)));
        best.expect("a route has a mover")
    }
}

impl Mover for Route {
    fn name(&self) -> String {
        self.movers[self.current].1.name()
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
            // Copies end in order, and two movers know nothing of each other.
            self.finish()?;
            self.movers[self.current].1.quiesce()?;
            self.current = index;
            let done = self.movers[index].1.done()?;
            self.offset = self.submitted - done.0;
        }
        let ticket = self.movers[index].1.submit(source, destination)?;
        self.submitted += 1;
        self.newest = Ticket(self.submitted);
        debug_assert_eq!(ticket.0 + self.offset, self.submitted);
        Ok(self.newest)
    }

    /// As the path of the newest transfer.
    fn is_synchronous(&self) -> bool {
        self.movers[self.current].1.is_synchronous()
    }

    /// Of all its paths; gives how the one of the newest transfer does.
    fn set_completion_mode(&mut self, completion: CompletionMode) -> CompletionMode {
        let current = self.current;
        let ways: Vec<_> =
            self.movers.iter_mut().map(|(_, mover)| mover.set_completion_mode(completion)).collect();
        ways[current]
    }

    fn done(&mut self) -> Result<Ticket> {
        let done = self.movers[self.current].1.done()?;
        Ok(Ticket(done.0 + self.offset))
    }

    fn wait(&mut self, ticket: Ticket, completion: CompletionMode) -> Result<()> {
        if ticket > self.newest {
            return Err(Error::invalid(format!("ticket {}", ticket.0), "was not given out by this route"));
        }
        match ticket.0.checked_sub(self.offset) {
            // Of an earlier mover, which was waited for when it was left.
            None | Some(0) => Ok(()),
            Some(own) => self.movers[self.current].1.wait(Ticket(own), completion),
        }
    }

    fn quiesce(&mut self) -> Result<()> {
        self.movers.iter_mut().try_for_each(|(_, mover)| mover.quiesce())
    }
}
