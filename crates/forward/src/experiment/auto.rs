//! `--method auto`: tries methods, burst sizes and flush times in short runs, and chooses the best settings
//! for the user's goal.
//!
//! Each combination of method and burst size first runs at full speed. For the goal throughput, the highest
//! rate wins.
//!
//! For the goal latency, each combination also runs with each flush time at the offered rate. By default, the
//! offered rate is a fifth of the highest rate. Trials whose 99th percentile exceeds the limit are left out.
//! The others are ordered:
//!
//! 1. Trials in which packets arrived at the offered rate come first.
//! 2. Then the highest rate wins.
//! 3. At equal rates, the lowest latency wins.
//!
//! A method without a resident kernel is preferred if its rate is within 3 % of the winner's.

use super::baseline::shortened;
use crate::config::{Config, Method};
use crate::control::Control;
use crate::error::{Error, Result};
use crate::field;
use crate::result::{MethodChoice, MethodTrial};
use crate::run::{RunOutcome, run};
use inlane_core::units::{self, Rate};
use inlane_ports::spec::{Kind, PortSpec, Source};
use std::time::{Duration, Instant};

/// How long packets flow in a trial. On a GPU, its start and end take another 0.3 s.
const TRIAL: Duration = Duration::from_millis(150);
/// The time since the start of the search after which no further candidate is tried.
const LAST_START: Duration = Duration::from_secs(25);
/// The least share of the offered rate that must arrive for a method to count as able to carry that rate. The
/// share is below 1 because the start and end of a short run cost some packets.
const CARRIED: f64 = 0.95;
/// A rate counts as equal to the highest rate if it is at least this share of it.
const EQUAL: f64 = 0.97;

/// The goal of the choice of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// The most packets per second.
    Throughput,
    /// The most packets per second within a latency limit. Only those trials count in which 99 % of packets
    /// take at most this time from receiving to sending.
    Latency(Duration),
}

/// A candidate (method, burst size and flush time), and what its trial measured.
#[derive(Clone, Debug)]
struct Trial {
    method: Method,
    burst: usize,
    /// The flush time: how long a partial burst waits for more packets. `None` for bursts of one packet and
    /// at full speed.
    flush: Option<Duration>,
    /// The measured rate in the trial that offered packets as fast as possible.
    packets_per_second: f64,
    p99: Option<Duration>,
    /// True if packets arrived at [`CARRIED`] times the offered rate, or faster, while the latency was
    /// measured.
    carried: bool,
}

impl Trial {
    fn report(&self) -> MethodTrial {
        MethodTrial {
            method: self.method,
            burst: self.burst,
            flush_ns: self.flush.map(nanoseconds),
            packets_per_second: self.packets_per_second,
            p99_ns: self.p99.map(nanoseconds),
            carried: self.carried,
        }
    }
}

/// The trials of one search. The search chooses the best of them.
#[derive(Default)]
struct Trials {
    done: Vec<Trial>,
    runs: usize,
    left_out: usize,
    took: Duration,
}

/// Chooses method, burst size and flush time for `goal`. Returns the settings and the outcome of the trials.
///
/// # Errors
/// - The source cannot be run repeatedly.
/// - Every method fails, or no candidate stays within the latency limit.
/// - `control` is stopped.
pub fn choose(config: &Config, goal: Goal, control: &Control) -> Result<(Config, MethodChoice)> {
    let makes_packets = |rx: &PortSpec| rx.properties().source == Source::Made;
    if !config.route.source().is_some_and(makes_packets) {
        let why = format!(
            "it runs the port of {} repeatedly, which only {} allow; name a method",
            field::RX,
            Kind::list(|row| row.source == Source::Made)
        );
        return Err(Error::config(field::METHOD.with("auto"), why));
    }
    config.check_repeatable()?;
    let interrupted = |runs: usize| {
        control.follow_parent();
        match control.stopping() {
            true => Err(Error::Interrupted(format!("{} after {runs} trials", field::METHOD.with("auto")))),
            false => Ok(()),
        }
    };
    let bursts: &[usize] = match goal {
        Goal::Throughput => &[16, 32, 64, 128, 256],
        Goal::Latency(_) => &[1, 4, 16, 64],
    };
    let (mut trials, mut refused) = (Trials::default(), None);
    let begun = Instant::now();
    // Try all methods with one burst size before the next size. If time runs out, every method was still
    // tried with the first sizes.
    for &burst in bursts {
        for executor in Method::ALL.into_iter().filter_map(|method| config.executor.with_method(method)) {
            interrupted(trials.runs)?;
            if begun.elapsed() >= LAST_START {
                trials.left_out += 1;
                continue;
            }
            let mut candidate = Config { executor, ..config.clone() };
            candidate.per_pipeline.burst = burst;
            if let Err(error) = trials.attempt(&candidate, goal) {
                refused = refused.or(Some(error));
            }
        }
    }
    interrupted(trials.runs)?;
    trials.took = begun.elapsed();
    // If no candidate ran, return the first error, which names what is wrong.
    if let (true, Some(error)) = (trials.done.is_empty(), refused) {
        return Err(error);
    }
    let chosen = pick(&trials.done, goal).ok_or_else(|| {
        let best = trials.done.iter().filter_map(|trial| trial.p99).min();
        let found = best.map_or("nothing ran".into(), |p99| format!("the best p99 is {}", time(p99)));
        let limit = match goal {
            Goal::Latency(limit) => time(limit),
            Goal::Throughput => String::new(),
        };
        Error::TooSlow { setting: field::MAX_LATENCY.with(limit), found }
    })?;
    let mut taken = config.clone();
    taken.executor = config.executor.with_method(chosen.method).unwrap_or(taken.executor);
    taken.per_pipeline.burst = chosen.burst;
    taken.per_pipeline.flush = chosen.flush.unwrap_or(taken.per_pipeline.flush);
    Ok((taken, outcome(chosen, &trials, goal)))
}

impl Trials {
    /// Runs a candidate at full speed and, for a latency goal, at the offered rate with each flush time.
    fn attempt(&mut self, candidate: &Config, goal: Goal) -> Result<()> {
        let (method, burst) = (candidate.executor.method(), candidate.per_pipeline.burst);
        let mut trial = shortened(candidate, TRIAL);
        self.runs += 1;
        let packets_per_second = run_to_the_end(&trial)?.result.tx.packets_per_second;
        let fastest = Trial { method, burst, flush: None, packets_per_second, p99: None, carried: true };
        let Goal::Latency(limit) = goal else {
            self.done.push(fastest);
            return Ok(());
        };
        let rate = candidate.rate.unwrap_or(Rate::Packets(packets_per_second / 5.0));
        trial.rate = Some(rate);
        trial.per_pipeline.stages = true;
        let flushes: &[Duration] = match (burst, candidate.per_pipeline.flush) {
            (1, _) => &[Duration::ZERO],
            (_, Duration::ZERO) => &[Duration::ZERO, limit / 4],
            (_, given) => &[given],
        };
        for &flush in flushes {
            trial.per_pipeline.flush = flush;
            self.runs += 1;
            let result = run_to_the_end(&trial)?.result;
            let carried = match rate {
                Rate::Packets(rate) => result.tx.packets_per_second >= rate * CARRIED,
                Rate::Bits(rate) => result.tx.bits_per_second >= rate * CARRIED,
                Rate::Line(rate) => result.tx.line_bits_per_second() >= rate * CARRIED,
            };
            let total = result.stages.and_then(|stages| stages.total);
            let p99 = total.map(|total| Duration::from_nanos(total.p99_ns as u64));
            self.done.push(Trial { flush: (burst > 1).then_some(flush), p99, carried, ..fastest.clone() });
        }
        Ok(())
    }
}

/// Runs `config`. Returns an error if the run cannot start or an error occurs in it.
fn run_to_the_end(config: &Config) -> Result<RunOutcome> {
    let mut outcome = run(config, &Control::default(), &mut |_, _| ())?;
    match outcome.errors.is_empty() {
        true => Ok(outcome),
        false => Err(outcome.errors.swap_remove(0)),
    }
}

/// Returns the best trial, or `None` if none meets the goal.
fn pick(trials: &[Trial], goal: Goal) -> Option<&Trial> {
    let meets = |trial: &&Trial| match goal {
        Goal::Throughput => true,
        Goal::Latency(limit) => trial.p99.is_some_and(|p99| p99 <= limit),
    };
    let better = |a: &&Trial, b: &&Trial| {
        let rate = a.packets_per_second.total_cmp(&b.packets_per_second);
        a.carried.cmp(&b.carried).then(rate).then(b.p99.cmp(&a.p99))
    };
    let best = trials.iter().filter(meets).max_by(better)?;
    // A resident kernel occupies multiprocessors even if no packets arrive. So prefer a method without a
    // resident kernel if it is as fast.
    let not_resident = |trial: &&Trial| trial.method != Method::Persistent;
    let equal = |trial: &&Trial| {
        trial.carried == best.carried && trial.packets_per_second >= best.packets_per_second * EQUAL
    };
    Some(trials.iter().filter(meets).filter(equal).filter(not_resident).max_by(better).unwrap_or(best))
}

/// Returns the outcome of the search: the choice, the number of trials, and the best result of each other method.
fn outcome(chosen: &Trial, trials: &Trials, goal: Goal) -> MethodChoice {
    let mut others = Vec::new();
    for method in Method::ALL.into_iter().filter(|&method| method != chosen.method) {
        let of_method: Vec<Trial> =
            trials.done.iter().filter(|trial| trial.method == method).cloned().collect();
        let best = pick(&of_method, goal).or_else(|| of_method.iter().min_by_key(|trial| trial.p99));
        others.extend(best.map(Trial::report));
    }
    MethodChoice {
        latency_limit_ns: match goal {
            Goal::Throughput => None,
            Goal::Latency(limit) => Some(nanoseconds(limit)),
        },
        trials: trials.runs,
        duration_ns: nanoseconds(trials.took),
        chosen: chosen.report(),
        others,
        left_out: trials.left_out,
    }
}

fn nanoseconds(span: Duration) -> f64 {
    span.as_nanos() as f64
}

fn time(span: Duration) -> String {
    units::nanoseconds(nanoseconds(span))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Route;

    fn trial(method: Method, rate: f64, p99_us: u64) -> Trial {
        let p99 = Some(Duration::from_micros(p99_us));
        Trial { method, burst: 16, flush: Some(Duration::ZERO), packets_per_second: rate, p99, carried: true }
    }

    fn within(trials: &[Trial], us: u64) -> Option<&Trial> {
        pick(trials, Goal::Latency(Duration::from_micros(us)))
    }

    fn null_to_null() -> Config {
        Config::new(Route::one_way("null", ["null"]).unwrap())
    }

    #[test]
    fn the_goal_decides() {
        let trials = [
            trial(Method::Persistent, 10e6, 9),
            trial(Method::Graph, 5e6, 30),
            trial(Method::Split, 4e6, 12),
        ];
        assert_eq!(pick(&trials, Goal::Throughput).unwrap().method, Method::Persistent);
        assert_eq!(within(&trials, 20).map(|trial| trial.method), Some(Method::Persistent));
        assert!(within(&trials, 8).is_none());
        let all = Trials { done: trials.to_vec(), runs: 9, left_out: 2, took: Duration::from_secs(3) };
        let why = outcome(&trials[0], &all, Goal::Throughput).to_string();
        assert!(why.contains("graph at burst 16") && why.contains("9 short trials in 3.00 s"), "{why}");
        assert!(why.contains("2 candidates were not tried"), "{why}");
    }

    #[test]
    fn a_flush_time_that_carries_the_rate_wins_then_the_lower_latency() {
        let at = |flush_us, p99_us, carried| Trial {
            flush: Some(Duration::from_micros(flush_us)),
            carried,
            ..trial(Method::Stream, 10e6, p99_us)
        };
        let chosen = |trials: &[Trial]| within(trials, 50).and_then(|trial| trial.flush);
        assert_eq!(chosen(&[at(0, 20, true), at(12, 30, true)]), Some(Duration::ZERO));
        assert_eq!(chosen(&[at(0, 40, true), at(12, 30, true)]), Some(Duration::from_micros(12)));
        assert_eq!(chosen(&[at(0, 20, false), at(12, 30, true)]), Some(Duration::from_micros(12)));
        assert_eq!(
            chosen(&[at(0, 20, false), at(12, 60, true)]),
            Some(Duration::ZERO),
            "the only one in time"
        );
        assert_eq!(chosen(&[at(0, 51, true)]), None);
    }

    #[test]
    fn of_equal_methods_the_one_without_a_resident_kernel_wins() {
        let trials = [trial(Method::Persistent, 10e6, 9), trial(Method::Graph, 9.8e6, 30)];
        assert_eq!(pick(&trials, Goal::Throughput).unwrap().method, Method::Graph);
    }

    #[test]
    fn auto_chooses_on_the_cpu() {
        let mut config = null_to_null();
        config.cores = Some(Vec::new());
        let (taken, why) = choose(&config, Goal::Throughput, &Control::default()).unwrap();
        let why = why.to_string();
        assert!(taken.executor.method().is_cpu() && why.starts_with("auto: "), "{why}");
        // A busy machine may not try all 10 candidates in time. So also accept a search that ran out of time.
        let tried = why.contains("of 10 short trials") || why.contains("were not tried");
        assert!(tried, "two methods, five bursts: {why}");
        config.route = Route::one_way("pcap:x", ["null"]).unwrap();
        assert!(choose(&config, Goal::Throughput, &Control::default()).is_err());
    }

    #[test]
    fn for_a_latency_flush_times_are_tried_unless_one_is_given() {
        let mut config = null_to_null();
        config.cores = Some(Vec::new());
        config.rate = Some(Rate::Packets(10e3));
        let tried = |config: &Config, burst, goal| {
            let mut candidate = config.clone();
            candidate.per_pipeline.burst = burst;
            let mut trials = Trials::default();
            trials.attempt(&candidate, goal).unwrap();
            (trials.runs, trials.done.iter().map(|trial| trial.flush).collect::<Vec<_>>())
        };
        let us = |us| Some(Duration::from_micros(us));
        let goal = Goal::Latency(Duration::from_micros(400));
        assert_eq!(tried(&config, 16, goal), (3, vec![us(0), us(100)]));
        assert_eq!(tried(&config, 1, goal), (2, vec![None]), "a burst of one is never partial");
        assert_eq!(tried(&config, 16, Goal::Throughput), (1, vec![None]));
        config.per_pipeline.flush = Duration::from_micros(20);
        assert_eq!(tried(&config, 16, goal), (2, vec![us(20)]));
    }

    #[test]
    fn a_stopped_choice_is_an_error() {
        let control = Control::default();
        control.stop();
        let error = choose(&null_to_null(), Goal::Throughput, &control).unwrap_err().to_string();
        assert!(error.contains("interrupted") && error.contains("after 0 trials"), "{error}");
    }

    #[test]
    fn an_error_of_every_trial_is_reported() {
        let mut config = null_to_null();
        config.room = 1;
        let error = choose(&config, Goal::Throughput, &Control::default()).unwrap_err().to_string();
        assert!(error.contains("room"), "{error}");
    }
}
