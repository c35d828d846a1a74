//! Continuous copies as a load: transfers between two memories, until the load is stopped.

mod uses;

use crate::cost::Cache;
use crate::device::Device;
use crate::endpoint::Endpoint;
use crate::explanation::PathTaken;
use crate::path_options::{PathChoice, PathOptions};
use crate::path_selector::PathSelector;
use crate::timing::{Account, Buffers, Next, Plan, Rotation, Transfers};
use inlane_core::clock::Clock;
use inlane_core::load::{self, Load, LoadError, Member, Meter, Pace, Pacer, Running, Use};
use inlane_core::mover::Mover;
use inlane_core::{CompletionMode, Error, Result};
use inlane_pci::Permission;
use inlane_result::ByteVerification;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// What a [`CopyLoad`] copies, and how.
#[derive(Clone, Debug)]
pub struct CopyLoadConfig {
    /// The source.
    pub from: Endpoint,
    /// The destination.
    pub to: Endpoint,
    /// The bytes of a transfer.
    pub size: usize,
    /// How the path is chosen.
    pub choice: PathChoice,
    /// The most transfers in flight for each thread. `None` selects it by the size.
    pub in_flight: Option<usize>,
    /// How the end of a transfer is detected.
    pub completion: CompletionMode,
    /// The bytes of memory at each end that the transfers of all threads rotate over.
    pub rotate: usize,
    /// The number of threads. Each has its own buffers and its own mover.
    pub threads: usize,
    /// The cores that the threads are bound to. Empty: they are not bound.
    pub cores: Vec<usize>,
    /// The permitted accesses to BARs.
    pub permission: Permission,
}

impl CopyLoadConfig {
    /// Creates the defaults for transfers of `size` bytes: one thread, the cheapest path, no limit of the rate.
    pub fn new(from: Endpoint, to: Endpoint, size: usize) -> Self {
        Self {
            from,
            to,
            size,
            choice: PathChoice::Auto,
            in_flight: None,
            completion: CompletionMode::Poll,
            rotate: 256 << 20,
            threads: 1,
            cores: Vec::new(),
            permission: Permission::default(),
        }
    }

    /// Checks that the settings fit each other.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the wrong setting.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: String, why: &str| Err(Error::invalid(what, why));
        if self.size == 0 {
            return wrong("a transfer of 0 bytes".into(), "there is nothing to copy; give at least one byte");
        }
        if !(1..=64).contains(&self.threads) {
            return wrong(format!("{} threads", self.threads), "give 1 to 64");
        }
        if self.in_flight == Some(0) {
            return wrong("0 transfers in flight".into(), "nothing would ever be copied; give at least 1");
        }
        if !self.cores.is_empty() && self.cores.len() < self.threads {
            let what = format!("{} cores for {} threads", self.cores.len(), self.threads);
            return wrong(what, "name a core for each thread");
        }
        match inlane_core::cores::refused(&self.cores) {
            Some((core, why)) => wrong(format!("core {core}"), &why),
            None => Ok(()),
        }
    }
}

/// Continuous copies between two memories as a load.
pub struct CopyLoad {
    // The movers are dropped before the buffers, which are the memory of their transfers.
    copiers: Vec<Copier>,
    config: CopyLoadConfig,
    pace: Arc<Pace>,
    path: PathTaken,
    twin: bool,
    /// Ends transfers by the CPU early.
    interrupt: Arc<AtomicBool>,
    verification: ByteVerification,
}

/// One thread of a load.
struct Copier {
    selector: PathSelector,
    buffers: Buffers,
    rotation: Rotation,
    in_flight: usize,
    meter: Arc<Meter>,
}

impl CopyLoad {
    /// Opens the devices, allocates the memory of the transfers, and opens their path. If the path is chosen by cost and
    /// no costs are stored, calibrates the paths.
    ///
    /// # Errors
    /// If the settings are wrong, a device or path cannot be opened, or memory is short.
    pub fn open(config: CopyLoadConfig) -> Result<Self> {
        config.check()?;
        let ends = [config.from.clone(), config.to.clone()];
        let devices = crate::measure::open(&ends, &config.permission)?;
        Self::between(&devices[0], &devices[1], config)
    }

    /// Creates a load between opened devices: see [`CopyLoad::open`].
    ///
    /// # Errors
    /// As for [`CopyLoad::open`].
    pub fn between(from: &Arc<Device>, to: &Arc<Device>, config: CopyLoadConfig) -> Result<Self> {
        config.check()?;
        let interrupt = Arc::<AtomicBool>::default();
        // A resident kernel would run until the load ends, and block the allocations of others.
        let options = PathOptions {
            largest: config.size,
            resident: false,
            stop: interrupt.clone(),
            ..PathOptions::default()
        };
        let by_cost = config.choice == PathChoice::Auto;
        let mut costs = match by_cost {
            true => Some(Cache::load().get_or_calibrate(from, to, &options)?),
            false => None,
        };
        let plan = Plan { in_flight: config.in_flight, ..Plan::default() };
        let in_flight = plan.in_flight_for(config.size);
        // Allocate all memory before the first path is opened, because a path may start kernels.
        let buffers = || Buffers::new(from, to, config.size, config.rotate / config.threads);
        let buffers = (0..config.threads).map(|_| buffers()).collect::<Result<Vec<_>>>()?;
        let mut copiers = Vec::new();
        for buffers in buffers {
            let mut selector = PathSelector::open(from, to, config.choice, &options, costs.clone())?;
            selector.set_completion_mode_for(config.size as u64, config.completion);
            costs = selector.costs().cloned();
            let rotation = buffers.rotation(config.size, in_flight);
            copiers.push(Copier { selector, buffers, rotation, in_flight, meter: Arc::default() });
        }
        let path = copiers[0].selector.explain(config.size as u64);
        let twin = copiers[0].selector.is_twin();
        let verification =
            ByteVerification { method: copiers[0].buffers.method().into(), ..Default::default() };
        Ok(Self { copiers, config, pace: Arc::default(), path, twin, interrupt, verification })
    }

    /// The path of the transfers, and why it was chosen.
    pub fn path(&self) -> &PathTaken {
        &self.path
    }

    /// Returns true if a software stand-in for a device takes part.
    pub fn is_twin(&self) -> bool {
        self.twin
    }

    /// The bytes that were transferred, and those that were checked. Complete when the load has ended.
    pub fn verification(&self) -> &ByteVerification {
        &self.verification
    }

    /// Fills the buffers, and makes one transfer, because first transfers take longer and may have to wait for the kernels
    /// of other loads.
    fn warm_up(&mut self) -> Result<()> {
        for copier in &mut self.copiers {
            let Copier { selector, buffers, rotation, .. } = copier;
            let rotation = *rotation;
            let prepared = buffers.prepare(rotation, &self.interrupt);
            let mut transfers = 0;
            let completion = self.config.completion;
            let once =
                Transfers { mover: selector, buffers, rotation, in_flight: 1, completion, account: None };
            prepared.and_then(|()| {
                once.run(&mut transfers, |made| Ok(if made == 0 { Next::Submit } else { Next::End }))
            })?;
            selector.quiesce()?;
            buffers.verify(rotation, transfers, &self.interrupt)?;
            buffers.prepare(rotation, &self.interrupt)?;
        }
        Ok(())
    }
}

impl Copier {
    /// Copies until the run is stopped or the load has failed. Then checks the bytes. Returns the bytes that were
    /// transferred and checked, and the error that ended the copies.
    fn run(
        &mut self,
        run: &Running,
        member: Member<'_>,
        mut pacer: Pacer,
        completion: CompletionMode,
        failed: &AtomicBool,
    ) -> (u64, u64, Result<()>) {
        if member.ready().is_none() {
            return (0, 0, Ok(()));
        }
        let Self { selector, buffers, rotation, in_flight, meter } = self;
        let (rotation, clock) = (*rotation, Clock::new());
        let mut submitted = 0;
        let transfers = Transfers {
            mover: selector,
            buffers,
            rotation,
            in_flight: *in_flight,
            completion,
            account: Some(Account::new(meter)),
        };
        let outcome = transfers.run(&mut submitted, |_| {
            if run.stopping() || failed.load(Relaxed) {
                return Ok(Next::End);
            }
            let now = if pacer.is_unlimited() { 0 } else { clock.now_ns() };
            if pacer.due(now, 1) == 0 {
                return Ok(Next::Wait(Duration::from_nanos(pacer.wait_ns(now))));
            }
            pacer.did(1);
            Ok(Next::Submit)
        });
        let quiesced = selector.quiesce();
        // A stop interrupts transfers by the CPU. Nothing has failed then.
        let interrupted = outcome.is_err() && run.stopping();
        let outcome = if interrupted { quiesced } else { outcome.and(quiesced) };
        if outcome.is_err() {
            failed.store(true, Relaxed);
            meter.add_error();
        }
        let transferred = meter.read().bytes;
        let checked = match &outcome {
            Ok(()) => buffers.verify_but_broken(rotation, submitted, interrupted, &AtomicBool::new(false)),
            Err(_) => Ok(0),
        };
        match checked {
            Ok(verified) => (transferred, verified, outcome),
            Err(error) => (transferred, 0, outcome.and(Err(error))),
        }
    }
}

impl Load for CopyLoad {
    fn name(&self) -> String {
        format!("copy {} to {} by {}", self.config.from, self.config.to, self.path.name)
    }

    fn meters(&self) -> Vec<Arc<Meter>> {
        self.copiers.iter().map(|copier| copier.meter.clone()).collect()
    }

    fn pace(&self) -> Arc<Pace> {
        self.pace.clone()
    }

    fn uses(&self) -> Vec<Use> {
        uses::uses(self.path.name, &self.config)
    }

    fn threads(&self) -> usize {
        self.copiers.len()
    }

    fn prepare(&mut self) -> Result<(), LoadError> {
        Ok(self.warm_up()?)
    }

    fn run(&mut self, run: &Running) -> Result<(), LoadError> {
        let members = run.start.members(self.copiers.len());
        let interrupt = self.interrupt.clone();
        run.at_stop(move || interrupt.store(true, Relaxed));
        let (failed, share) = (AtomicBool::new(false), 1.0 / self.copiers.len() as f64);
        let (failed, completion) = (&failed, self.config.completion);
        let (pace, cores) = (&self.pace, &self.config.cores);
        let outcomes: Vec<(u64, u64, Result<()>)> = std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (index, (copier, member)) in self.copiers.iter_mut().zip(members).enumerate() {
                let (pacer, meter) = (Pacer::new(pace.clone(), share), copier.meter.clone());
                let body = move || copier.run(run, member, pacer, completion, failed);
                threads.push(load::spawn(
                    scope,
                    format!("copy-{index}"),
                    cores.get(index).copied(),
                    &meter,
                    body,
                ));
            }
            let join = |thread: std::io::Result<std::thread::ScopedJoinHandle<'_, _>>| match thread {
                Ok(thread) => thread.join().unwrap_or_else(|panic| {
                    failed.store(true, Relaxed);
                    std::panic::resume_unwind(panic)
                }),
                Err(source) => {
                    failed.store(true, Relaxed);
                    (0, 0, Err(Error::Os { what: "start the threads of a copy".into(), source }))
                }
            };
            threads.into_iter().map(join).collect()
        });
        let mut ended = Ok(());
        for (transferred, verified, outcome) in outcomes {
            self.verification.transferred_bytes += transferred;
            self.verification.verified_bytes += verified;
            if let Err(Error::Altered { wrong, .. }) = &outcome {
                self.verification.altered_bytes += wrong;
            }
            ended = ended.and(outcome);
        }
        Ok(ended?)
    }
}

#[cfg(test)]
mod tests;
