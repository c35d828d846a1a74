//! A machine whose bottlenecks are known. It deals out quanta in time slices and shares no code with the model.
//!
//! It has effects that the model lacks: memory that slows work long before it is full, loads of unequal weight, time slices,
//! queues that are carried over, and threads that look busy because they poll.

use inlane_core::load::Resource;
use inlane_mix::verdict::Bottleneck;

/// The slices of a simulated phase, those in which rates settle, and the quanta of the fastest load in a slice.
const SLICES: usize = 50;
const SETTLE: usize = 20;
const QUANTA: f64 = 12.0;
/// The factor by which a limit is raised to see whether it was the bottleneck.
const RAISE: f64 = 1.25;
/// The factor by which a limit is reduced to see the same.
const REDUCE: f64 = 0.9;

/// A generator of pseudo-random numbers.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    /// Returns a number from 0 to 1.
    pub fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let mixed = (self.0 ^ (self.0 >> 29)).wrapping_mul(0xbf58476d1ce4e5b9);
        ((mixed ^ (mixed >> 32)) >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn from(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.next()
    }

    pub fn chance(&mut self, share: f64) -> bool {
        self.next() < share
    }

    /// Returns a normally distributed number.
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.next()).sum::<f64>() - 6.0
    }
}

/// Something that loads share.
#[derive(Clone, Debug)]
pub struct Pool {
    /// What a verdict calls it. `None` if no verdict can name it.
    pub name: Option<Bottleneck>,
    /// Units per second.
    pub capacity: f64,
}

/// A load as it really is.
#[derive(Clone, Debug)]
pub struct Worker {
    pub name: &'static str,
    /// Units of the pools for each byte.
    pub takes: Vec<(usize, f64)>,
    /// Seconds of a thread's time for each byte, while memory is idle.
    pub time: f64,
    /// The share of that time in which the thread waits for memory.
    pub stall: f64,
    pub threads: f64,
    /// Bytes in flight and seconds of a round trip while memory is idle.
    pub window: Option<(f64, f64)>,
    /// Bytes per second that the user asked for.
    pub pace: Option<f64>,
    /// Bytes per second that its source delivers.
    pub source: Option<f64>,
    pub weight: f64,
    /// Its threads count all time as busy.
    pub polls: bool,
    /// Its threads do not see when they wait for a pool: waiting counts as work.
    pub waits_busy: bool,
}

impl Worker {
    pub fn new(name: &'static str, takes: &[(usize, f64)]) -> Self {
        Self {
            name,
            takes: takes.to_vec(),
            time: 1e-12,
            stall: 0.0,
            threads: 1.0,
            window: None,
            pace: None,
            source: None,
            weight: 1.0,
            polls: false,
            waits_busy: false,
        }
    }

    /// Sets the rate that its own threads reach at most.
    pub fn own(mut self, rate: f64, stall: f64) -> Self {
        (self.time, self.stall) = (self.threads / rate, stall);
        self
    }

    pub fn weight(mut self, weight: f64) -> Self {
        self.weight = weight;
        self
    }

    pub fn pace(mut self, rate: f64) -> Self {
        self.pace = Some(rate);
        self
    }

    pub fn window(mut self, bytes: f64, latency: f64) -> Self {
        self.window = Some((bytes, latency));
        self
    }
}

#[derive(Clone, Debug)]
pub struct Machine {
    pub pools: Vec<Pool>,
    /// Loads of the user, and then antagonists.
    pub workers: Vec<Worker>,
    /// Seconds of processor time per second for all loads of the user.
    pub quota: Option<f64>,
    /// The pool that slows work before it is full, and how much.
    pub memory: Option<(usize, f64)>,
}

/// What a worker did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    pub rate: f64,
    pub busy: f64,
    pub blocked: f64,
    pub queued: f64,
    /// What stopped it in every slice. `None` if that differed.
    stopped: Option<Stopped>,
}

/// What stopped a worker in a slice.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stopped {
    Threads,
    Core(usize),
    Pool(usize),
    Window,
    Quota,
    Idle,
}

impl Machine {
    /// Runs a phase. `paces` has the highest rate of each worker: 0 for a parked one, infinity for no limit. Returns what
    /// the workers did, and the share of the time in which the quota stopped them.
    pub fn run(&self, paces: &[f64]) -> (Vec<Done>, f64) {
        let count = self.workers.len();
        let active: Vec<usize> = (0..count).filter(|worker| paces[*worker] > 0.0).collect();
        let slice = 1.0 / SLICES as f64;
        let quantum: Vec<f64> =
            (0..count).map(|of| self.alone_at_most(of, paces[of]) * slice / QUANTA).collect();
        let mut done = vec![Done::default(); count];
        let mut tokens = vec![0.0; self.pools.len()];
        let (mut pace, mut cpu, mut flight) = (vec![0.0; count], vec![0.0; count], vec![0.0; count]);
        let (mut quota, mut throttled) = (0.0, 0.0);
        let mut latency = 1.0;
        let mut random = Random(99);
        for turn in 0..SLICES {
            let add = |tokens: &mut f64, each: f64| *tokens = (*tokens + each).min(2.0 * each);
            for (tokens, pool) in tokens.iter_mut().zip(&self.pools) {
                add(tokens, pool.capacity * slice);
            }
            let before = tokens.clone();
            if let Some(of) = self.quota {
                add(&mut quota, of * slice);
            }
            for &of in &active {
                let worker = &self.workers[of];
                add(
                    &mut pace[of],
                    paces[of]
                        .min(worker.pace.unwrap_or(f64::INFINITY))
                        .min(worker.source.unwrap_or(f64::INFINITY))
                        * slice,
                );
                add(&mut cpu[of], worker.threads * slice);
                let loops = worker.window.map_or(f64::INFINITY, |(bytes, round)| bytes / (round * latency));
                add(&mut flight[of], loops * slice);
            }
            let mut stopped = vec![Stopped::Idle; count];
            let mut used = vec![0.0; count];
            let mut running = active.clone();
            let mut credit = vec![0.0; count];
            while !running.is_empty() {
                // A new order in each round, as arbiters that start where they ended.
                let start = (random.next() * running.len() as f64) as usize;
                let order: Vec<usize> =
                    (0..running.len()).map(|at| running[(at + start) % running.len()]).collect();
                for of in order {
                    let worker = &self.workers[of];
                    // Equal weights give equal bytes.
                    let largest = running.iter().map(|of| quantum[*of]).fold(0.0, f64::max);
                    credit[of] += worker.weight * largest;
                    while credit[of] >= quantum[of] {
                        credit[of] -= quantum[of];
                        let bytes = quantum[of];
                        let time = bytes * worker.time * (1.0 + worker.stall * (latency - 1.0));
                        let full = worker.takes.iter().find(|(pool, units)| tokens[*pool] < units * bytes);
                        let limited_by = match full {
                            Some((pool, _)) if self.is_core(*pool) => Some(Stopped::Core(*pool)),
                            Some((pool, _)) => Some(Stopped::Pool(*pool)),
                            None if cpu[of] < time => Some(Stopped::Threads),
                            None if pace[of] < bytes => Some(Stopped::Idle),
                            None if flight[of] < bytes => Some(Stopped::Window),
                            None if self.quota.is_some() && worker.weight > 0.0 && quota < time => {
                                Some(Stopped::Quota)
                            }
                            None => None,
                        };
                        if let Some(reason) = limited_by {
                            stopped[of] = reason;
                            running.retain(|other| *other != of);
                            break;
                        }
                        worker.takes.iter().for_each(|(pool, units)| tokens[*pool] -= units * bytes);
                        cpu[of] -= time;
                        pace[of] -= bytes;
                        flight[of] -= bytes;
                        quota -= if self.quota.is_some() { time } else { 0.0 };
                        used[of] += time;
                        if turn >= SETTLE {
                            done[of].rate += bytes;
                        }
                    }
                }
            }
            if let Some((pool, convexity)) = self.memory {
                let share = (1.0
                    - (tokens[pool] - (before[pool] - self.pools[pool].capacity * slice).max(0.0)).max(0.0)
                        / (self.pools[pool].capacity * slice))
                    .clamp(0.0, 1.0);
                let now = 1.0 + convexity * share.powi(4) / (1.1 - share);
                latency += 0.3 * (now - latency);
            }
            if turn < SETTLE {
                continue;
            }
            for &of in &active {
                let worker = &self.workers[of];
                let share = (used[of] / (worker.threads * slice)).min(1.0);
                let rest = 1.0 - share;
                let (busy, blocked, queued) = match stopped[of] {
                    Stopped::Threads => (1.0, 0.0, 0.0),
                    Stopped::Core(_) => (share, 0.0, rest),
                    Stopped::Quota => (share, 0.0, rest),
                    Stopped::Pool(_) if worker.waits_busy => (1.0, 0.0, 0.0),
                    Stopped::Pool(_) | Stopped::Window => (share, rest, 0.0),
                    Stopped::Idle => (share, 0.0, 0.0),
                };
                done[of].busy += if worker.polls { 1.0 - queued } else { busy };
                done[of].blocked += if worker.polls { 0.0 } else { blocked };
                done[of].queued += queued;
                let before = if turn == SETTLE { Some(stopped[of]) } else { done[of].stopped };
                done[of].stopped = before.filter(|before| *before == stopped[of]);
            }
            let hungry: Vec<usize> =
                active.iter().copied().filter(|of| stopped[*of] == Stopped::Quota).collect();
            if let (Some(of), false) = (self.quota, hungry.is_empty()) {
                let threads: f64 = hungry.iter().map(|of| self.workers[*of].threads).sum();
                throttled += (1.0 - of / threads).max(0.05);
            }
        }
        let slices = (SLICES - SETTLE) as f64;
        for done in &mut done {
            done.rate /= slices * slice;
            done.busy /= slices;
            done.blocked /= slices;
            done.queued /= slices;
        }
        (done, throttled / slices)
    }

    fn is_core(&self, pool: usize) -> bool {
        matches!(self.pools[pool].name, Some(Bottleneck::Resource(Resource::Core(_))))
    }

    /// Returns a rate that the worker cannot exceed.
    fn alone_at_most(&self, of: usize, pace: f64) -> f64 {
        let worker = &self.workers[of];
        let pools = worker.takes.iter().map(|(pool, units)| self.pools[*pool].capacity / units);
        let loops = worker.window.map_or(f64::INFINITY, |(bytes, round)| bytes / round);
        let own = [
            worker.threads / worker.time,
            worker.pace.unwrap_or(f64::INFINITY),
            worker.source.unwrap_or(f64::INFINITY),
            pace,
            loops,
        ];
        pools.chain(own).fold(f64::INFINITY, f64::min)
    }

    /// Returns what limits a worker: every limit whose raise helps it at least half as much as the best raise does, and every
    /// limit whose reduction harms it nearly as much as the worst one does. These differ if two limits are nearly
    /// equal: then only both raises together help. And the full pool or the quota for which it waits all the time: another load
    /// may take most of what a raise gives, and a change of another limit helps most if it slows that load down. `None` stands for
    /// limits without a name.
    pub fn truth(&self, of: usize, paces: &[f64]) -> Vec<Option<Bottleneck>> {
        let mut truth = self.responses(of, paces, RAISE, 1.0, 0.5);
        truth.extend(self.responses(of, paces, REDUCE, -1.0, 0.4));
        truth.extend(match self.run(paces).0[of].stopped {
            Some(Stopped::Pool(pool) | Stopped::Core(pool)) => self.names(of, pool, self.is_own(paces, pool)),
            Some(Stopped::Quota) => vec![Some(Bottleneck::Quota)],
            _ => Vec::new(),
        });
        truth
    }

    /// Returns true if only one of the running workers uses `pool`.
    fn is_own(&self, paces: &[f64], pool: usize) -> bool {
        self.users(paces, pool).count() == 1
    }

    /// Returns the running workers that use `pool`.
    fn users(&self, paces: &[f64], pool: usize) -> impl Iterator<Item = usize> {
        let takes = move |worker: &usize| self.workers[*worker].takes.iter().any(|(of, _)| *of == pool);
        (0..paces.len()).filter(move |at| paces[*at] > 0.0).filter(takes)
    }

    /// Returns the limits whose change by `factor` changes the rate of a worker most. `sign` is that of the change. An
    /// effect counts if it is at least the fraction `least` of the largest one.
    fn responses(
        &self,
        of: usize,
        paces: &[f64],
        factor: f64,
        sign: f64,
        least: f64,
    ) -> Vec<Option<Bottleneck>> {
        let before = self.run(paces).0[of].rate;
        let with = |change: &dyn Fn(&mut Machine)| {
            let mut machine = self.clone();
            change(&mut machine);
            sign * (machine.run(paces).0[of].rate / before - 1.0)
        };
        let mut effects: Vec<(Option<Bottleneck>, f64)> = Vec::new();
        for pool in 0..self.pools.len() {
            // A faster core gives more time to each thread on it.
            let on_it: Vec<usize> = self.users(paces, pool).filter(|_| self.is_core(pool)).collect();
            let change = |machine: &mut Machine| {
                machine.pools[pool].capacity *= factor;
                on_it.iter().for_each(|at| machine.workers[*at].threads *= factor);
            };
            let effect = with(&change);
            let names = self.names(of, pool, self.is_own(paces, pool));
            effects.extend(names.into_iter().map(|name| (name, effect)));
        }
        if !self.workers[of].takes.iter().any(|(pool, _)| self.is_core(*pool)) {
            effects
                .push((Some(Bottleneck::OwnCores), with(&|machine| machine.workers[of].threads *= factor)));
        }
        let quota = |machine: &mut Machine| machine.quota.iter_mut().for_each(|of| *of *= factor);
        let pace = |machine: &mut Machine| machine.workers[of].pace.iter_mut().for_each(|of| *of *= factor);
        let source =
            |machine: &mut Machine| machine.workers[of].source.iter_mut().for_each(|of| *of *= factor);
        let window =
            |machine: &mut Machine| machine.workers[of].window.iter_mut().for_each(|of| of.0 *= factor);
        effects.push((Some(Bottleneck::Quota), with(&quota)));
        effects.push((Some(Bottleneck::Pace), with(&pace)));
        effects.push((Some(Bottleneck::Source), with(&source)));
        effects.push((Some(Bottleneck::ClosedLoop), with(&window)));
        let best = effects.iter().map(|effect| effect.1).fold(0.0, f64::max);
        effects.retain(|effect| best > 0.02 && effect.1 >= least * best);
        effects.into_iter().map(|effect| effect.0).collect()
    }

    /// Returns what a verdict about worker `of` may call a pool. `is_own` if no other running worker uses the pool.
    fn names(&self, of: usize, pool: usize, is_own: bool) -> Vec<Option<Bottleneck>> {
        let worker = &self.workers[of];
        let name = &self.pools[pool].name;
        let is_port =
            |pool: usize| matches!(self.pools[pool].name, Some(Bottleneck::Resource(Resource::Port(_))));
        let remote = matches!(name, None | Some(Bottleneck::Resource(Resource::Peer(_) | Resource::Port(_))));
        match name {
            Some(Bottleneck::Resource(Resource::Core(_))) if is_own => vec![Some(Bottleneck::OwnCores)],
            // A delay and a queue on the way to an answer look the same.
            _ if remote && is_own && worker.window.is_some() => {
                vec![name.clone(), Some(Bottleneck::ClosedLoop)]
            }
            // What lies behind a port looks like the port.
            None if is_own => {
                let port = worker.takes.iter().find(|(pool, _)| is_port(*pool));
                vec![port.and_then(|(pool, _)| self.pools[*pool].name.clone())]
            }
            name => vec![name.clone()],
        }
    }
}
