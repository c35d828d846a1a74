//! `--method auto`: tries methods, bursts and flush times for a moment each, and takes what meets the goal.
//!
//! A trial is the run itself, on the same ports, kept short. For throughput, the highest rate wins; where another comes within
//! 3 % of it and leaves the GPU's multiprocessors free while it waits, that one is taken. For a latency, each candidate runs flat out,
//! and then at the offered rate (or, without one, at a fifth of what it carries): with partial bursts sent at once, and waiting
//! for a quarter of the time there is. Of those whose 99th percentile keeps the limit (and that carry that rate, where any does) the
//! fastest is taken, and of its flush times the one with less latency.

use crate::config::{Config, Device, Method, Route};
use crate::control::Control;
use crate::error::{Error, Result};
use crate::measure;
use crate::open;
use crate::run::{RunOutcome, run};
use inlane_core::units::{self, Rate};
use std::time::{Duration, Instant};

/// How long a trial runs; on a GPU it takes up to 0.3 s more to begin and end.
const TRIAL: Duration = Duration::from_millis(150);
/// No candidate is begun after this time.
const LONGEST: Duration = Duration::from_secs(25);
/// What carries so much of the offered rate carries it: the rest is the ends of a short run.
const CARRIED: f64 = 0.95;
/// Rates this close are the same.
const SAME: f64 = 0.97;

/// What `auto` aims at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// The most packets a second.
    Throughput,
    /// 99 % of packets from received to sent within this time.
    Latency(Duration),
}

/// A candidate, and how it did.
#[derive(Clone, Debug)]
struct Trial {
    method: Method,
    burst: usize,
    /// How long a partial burst waited; `None` where every burst was full.
    flush: Option<Duration>,
    /// Flat out.
    packets_per_second: f64,
    p99: Option<Duration>,
    /// It carried the rate at which the latency was taken.
    carried: bool,
}

/// What all trials together came to.
#[derive(Default)]
struct Trials {
    done: Vec<Trial>,
    runs: usize,
    left_out: usize,
    took: Duration,
}

/// The configuration that meets `goal` best, and why it was taken.
///
/// # Errors
/// When the source cannot be asked twice, nothing ran, or nothing keeps the latency asked for.
pub fn choose(config: &Config, goal: Goal, control: &Control) -> Result<(Config, String)> {
    let repeatable = match &config.route {
        Route::OneWay { rx, .. } => ["null", "gen", "net_null"].contains(&open::kind(rx)),
        Route::Between(..) => false,
    };
    if !repeatable {
        return Err(Error::config(
            "--method auto",
            "tries methods on the source itself, which only null and gen can bear; name a method",
        ));
    }
    let bursts: &[usize] = match goal {
        Goal::Throughput => &[16, 32, 64, 128, 256],
        Goal::Latency(_) => &[1, 4, 16, 64],
    };
    let (mut trials, mut refused) = (Trials::default(), None);
    let begun = Instant::now();
    // Should time run out, every method was tried with some bursts.
    for &burst in bursts {
        for method in Method::ALL.into_iter().filter(|method| config.on != Device::Cpu || method.is_cpu()) {
            control.heed();
            if control.stopping() {
                return Err(Error::Interrupted(format!("--method auto, after {} trials", trials.runs)));
            }
            if begun.elapsed() >= LONGEST {
                trials.left_out += 1;
            } else if let Err(error) = trials.attempt(config, method, burst, goal) {
                refused = refused.or(Some(error));
            }
        }
    }
    control.heed();
    if control.stopping() {
        return Err(Error::Interrupted(format!("--method auto, after all {} trials", trials.runs)));
    }
    trials.took = begun.elapsed();
    // Where nothing ran at all, the first refusal says why: it may be the machine's, or another setting's.
    if let (true, Some(error)) = (trials.done.is_empty(), refused) {
        return Err(error);
    }
    let chosen = pick(&trials.done, goal).ok_or_else(|| {
        let best = trials.done.iter().filter_map(|trial| trial.p99).min();
        let found = best.map_or("nothing ran".into(), |p99| format!("the best p99 was {}", time(p99)));
        Error::config("--max-latency", format!("no method keeps it here: {found}; ask for more"))
    })?;
    let mut taken = config.clone();
    set(&mut taken, chosen.method, chosen.burst);
    taken.drive.flush = chosen.flush.unwrap_or(taken.drive.flush);
    Ok((taken, reason(chosen, &trials, goal)))
}

fn set(config: &mut Config, method: Method, burst: usize) {
    config.method = method;
    config.gpu.method = method;
    config.drive.burst = burst;
}

impl Trials {
    /// Tries a method with a burst: flat out, and for a latency at a rate with each flush time.
    fn attempt(&mut self, config: &Config, method: Method, burst: usize, goal: Goal) -> Result<()> {
        let mut trial = measure::shortened(config, TRIAL);
        set(&mut trial, method, burst);
        self.runs += 1;
        let packets_per_second = ran(&trial)?.result.tx.packets_per_second;
        let flat_out = Trial { method, burst, flush: None, packets_per_second, p99: None, carried: true };
        let Goal::Latency(limit) = goal else {
            self.done.push(flat_out);
            return Ok(());
        };
        let rate = config.rate.unwrap_or(Rate::Packets(packets_per_second / 5.0));
        trial.rate = Some(rate);
        trial.drive.stages = true;
        let flushes: &[Duration] = match (burst, config.drive.flush) {
            (1, _) => &[Duration::ZERO],
            (_, Duration::ZERO) => &[Duration::ZERO, limit / 4],
            (_, given) => &[given],
        };
        for &flush in flushes {
            trial.drive.flush = flush;
            self.runs += 1;
            let result = ran(&trial)?.result;
            let carried = match rate {
                Rate::Packets(rate) => result.tx.packets_per_second >= rate * CARRIED,
                Rate::Bits(rate) => result.tx.bits_per_second >= rate * CARRIED,
            };
            let total = result.stages.and_then(|stages| stages.total);
            let p99 = total.map(|total| Duration::from_nanos(total.p99_ns as u64));
            self.done.push(Trial { flush: (burst > 1).then_some(flush), p99, carried, ..flat_out.clone() });
        }
        Ok(())
    }
}

/// A run that went well.
fn ran(config: &Config) -> Result<RunOutcome> {
    let mut outcome = run(config, &Control::default(), &mut |_, _| ())?;
    match outcome.errors.is_empty() {
        true => Ok(outcome),
        false => Err(outcome.errors.swap_remove(0)),
    }
}

/// The best of what was tried.
fn pick(trials: &[Trial], goal: Goal) -> Option<&Trial> {
    let keeps = |trial: &&Trial| match goal {
        Goal::Throughput => true,
        Goal::Latency(limit) => trial.p99.is_some_and(|p99| p99 <= limit),
    };
    let faster = |a: &&Trial, b: &&Trial| {
        let rate = a.packets_per_second.total_cmp(&b.packets_per_second);
        a.carried.cmp(&b.carried).then(rate).then(b.p99.cmp(&a.p99))
    };
    let best = trials.iter().filter(keeps).max_by(faster)?;
    // As good as the best, and no multiprocessor is held while there is nothing to do.
    let holds_nothing = |trial: &&Trial| trial.method != Method::Persistent;
    let enough = |trial: &&Trial| {
        trial.carried == best.carried && trial.packets_per_second >= best.packets_per_second * SAME
    };
    Some(trials.iter().filter(keeps).filter(enough).filter(holds_nothing).max_by(faster).unwrap_or(best))
}

fn reason(chosen: &Trial, trials: &Trials, goal: Goal) -> String {
    let told = |trial: &Trial| {
        let rate = units::packets_per_second(trial.packets_per_second);
        let flush = trial.flush.map_or(String::new(), |flush| format!(", flush {}", time(flush)));
        let latency = trial.p99.map_or(String::new(), |p99| format!(", p99 {}", time(p99)));
        let short = if trial.carried { "" } else { " and less than the rate offered" };
        format!("{} at burst {}{flush}: {rate}{latency}{short}", trial.method, trial.burst)
    };
    let mut others: Vec<String> = Vec::new();
    for method in Method::ALL.into_iter().filter(|&method| method != chosen.method) {
        let of_method: Vec<Trial> =
            trials.done.iter().filter(|trial| trial.method == method).cloned().collect();
        let best = pick(&of_method, goal).or_else(|| of_method.iter().min_by_key(|trial| trial.p99));
        others.extend(best.map(told));
    }
    let (aim, unasked) = match goal {
        Goal::Throughput => {
            ("the highest rate".to_string(), " (flat out every burst is full: no flush time matters)")
        }
        Goal::Latency(limit) => (format!("the highest rate with a p99 within {}", time(limit)), ""),
    };
    let others = if others.is_empty() { "nothing else ran".into() } else { others.join("; ") };
    let left_out = match trials.left_out {
        0 => String::new(),
        left_out => format!("; {left_out} candidates were left out for want of time"),
    };
    format!(
        "auto: {aim} of {} short trials in {}, {}{unasked}; others at their best: {others}{left_out}",
        trials.runs,
        time(trials.took),
        told(chosen)
    )
}

fn time(span: Duration) -> String {
    units::nanoseconds(span.as_nanos() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(method: Method, rate: f64, p99_us: u64) -> Trial {
        let p99 = Some(Duration::from_micros(p99_us));
        Trial { method, burst: 16, flush: Some(Duration::ZERO), packets_per_second: rate, p99, carried: true }
    }

    fn within(trials: &[Trial], us: u64) -> Option<&Trial> {
        pick(trials, Goal::Latency(Duration::from_micros(us)))
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
        let why = reason(&trials[0], &all, Goal::Throughput);
        assert!(why.contains("graph at burst 16") && why.contains("9 short trials in 3.00 s"), "{why}");
        assert!(why.contains("2 candidates were left out"), "{why}");
    }

    #[test]
    fn of_flush_times_the_one_with_less_latency_that_carries_the_rate() {
        let at = |flush_us, p99_us, carried| Trial {
            flush: Some(Duration::from_micros(flush_us)),
            carried,
            ..trial(Method::Stream, 10e6, p99_us)
        };
        let chosen = |trials: &[Trial]| within(trials, 50).and_then(|trial| trial.flush);
        assert_eq!(chosen(&[at(0, 20, true), at(12, 30, true)]), Some(Duration::ZERO));
        assert_eq!(chosen(&[at(0, 40, true), at(12, 30, true)]), Some(Duration::from_micros(12)));
        assert_eq!(chosen(&[at(0, 20, false), at(12, 30, true)]), Some(Duration::from_micros(12)));
        assert_eq!(chosen(&[at(0, 20, false), at(12, 60, true)]), Some(Duration::ZERO), "for want of better");
        assert_eq!(chosen(&[at(0, 51, true)]), None);
    }

    #[test]
    fn of_equals_the_one_that_holds_no_multiprocessor() {
        let trials = [trial(Method::Persistent, 10e6, 9), trial(Method::Graph, 9.8e6, 30)];
        assert_eq!(pick(&trials, Goal::Throughput).unwrap().method, Method::Graph);
    }

    #[test]
    fn it_runs_on_the_cpu() {
        let mut config = Config::new(Route::OneWay { rx: "null".into(), tx: vec!["null".into()] });
        config.cores = Some(Vec::new());
        let (taken, why) = choose(&config, Goal::Throughput, &Control::default()).unwrap();
        assert!(taken.method.is_cpu() && why.starts_with("auto: "), "{why}");
        assert!(why.contains("of 10 short trials"), "two methods, five bursts: {why}");
        config.route = Route::OneWay { rx: "pcap:x".into(), tx: vec!["null".into()] };
        assert!(choose(&config, Goal::Throughput, &Control::default()).is_err());
    }

    #[test]
    fn for_a_latency_flush_times_are_tried_unless_one_is_given() {
        let mut config = Config::new(Route::OneWay { rx: "null".into(), tx: vec!["null".into()] });
        config.cores = Some(Vec::new());
        config.rate = Some(Rate::Packets(10e3));
        let tried = |config: &Config, burst, goal| {
            let mut trials = Trials::default();
            trials.attempt(config, Method::Single, burst, goal).unwrap();
            (trials.runs, trials.done.iter().map(|trial| trial.flush).collect::<Vec<_>>())
        };
        let us = |us| Some(Duration::from_micros(us));
        let goal = Goal::Latency(Duration::from_micros(400));
        assert_eq!(tried(&config, 16, goal), (3, vec![us(0), us(100)]));
        assert_eq!(tried(&config, 1, goal), (2, vec![None]), "a burst of one is never partial");
        assert_eq!(tried(&config, 16, Goal::Throughput), (1, vec![None]));
        config.drive.flush = Duration::from_micros(20);
        assert_eq!(tried(&config, 16, goal), (2, vec![us(20)]));
    }

    #[test]
    fn who_interrupts_it_gets_no_result_of_nothing() {
        let config = Config::new(Route::OneWay { rx: "null".into(), tx: vec!["null".into()] });
        let control = Control::default();
        control.stop();
        let error = choose(&config, Goal::Throughput, &control).unwrap_err().to_string();
        assert!(error.contains("interrupted") && error.contains("after 0 trials"), "{error}");
    }

    #[test]
    fn what_stops_every_trial_is_said() {
        let mut config = Config::new(Route::OneWay { rx: "null".into(), tx: vec!["null".into()] });
        config.room = 1;
        let error = choose(&config, Goal::Throughput, &Control::default()).unwrap_err().to_string();
        assert!(error.contains("--room"), "{error}");
    }
}
