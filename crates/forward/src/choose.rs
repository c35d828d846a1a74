//! `--method auto`: tries methods and bursts for a moment each, and takes what meets the goal.
//!
//! A trial is the run itself, on the same ports, kept short. For throughput, the highest rate wins; where another comes within
//! 3 % of it and leaves the GPU's multiprocessors free while it waits, that one is taken. For a latency, each candidate runs at the
//! offered rate (or, without one, at a fifth of what it carries), and of those whose 99th percentile keeps the limit the fastest
//! is taken.

use crate::config::{Config, Method, On, Route};
use crate::control::Control;
use crate::error::{Error, Result};
use crate::measure;
use crate::open;
use crate::run::{Outcome, run};
use inlane_core::units::{self, Rate};
use std::time::Duration;

/// How long a candidate runs.
const TRIAL: Duration = Duration::from_millis(150);
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
    packets_per_second: f64,
    p99: Option<Duration>,
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
    let (mut trials, mut refused) = (Vec::new(), None);
    for method in Method::ALL.into_iter().filter(|method| config.on != On::Cpu || method.is_cpu()) {
        for &burst in bursts {
            if control.stopping() {
                break;
            }
            match attempt(config, method, burst, goal) {
                Ok(trial) => trials.push(trial),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
    }
    // Where nothing ran at all, the first refusal says why: it may be the machine's, or another setting's.
    if let (true, Some(error)) = (trials.is_empty(), refused) {
        return Err(error);
    }
    let chosen = pick(&trials, goal).ok_or_else(|| {
        let best = trials.iter().filter_map(|trial| trial.p99).min();
        let found = best.map_or("nothing ran".into(), |p99| format!("the best p99 was {}", time(p99)));
        Error::config("--max-latency", format!("no method keeps it here: {found}; ask for more"))
    })?;
    let mut taken = config.clone();
    set(&mut taken, chosen.method, chosen.burst, goal);
    Ok((taken, reason(chosen, &trials, goal)))
}

fn set(config: &mut Config, method: Method, burst: usize, goal: Goal) {
    config.method = method;
    config.gpu.method = method;
    config.drive.burst = burst;
    // A partial burst may wait for a quarter of the time there is.
    config.drive.flush = match goal {
        Goal::Latency(limit) if burst > 1 => limit / 4,
        _ => Duration::ZERO,
    };
}

fn attempt(config: &Config, method: Method, burst: usize, goal: Goal) -> Result<Trial> {
    let mut trial = measure::shortened(config, TRIAL);
    set(&mut trial, method, burst, goal);
    let flat_out = ran(&trial)?;
    let packets_per_second = flat_out.result.tx.packets_per_second;
    let p99 = match goal {
        Goal::Throughput => None,
        Goal::Latency(_) => {
            trial.rate = Some(config.rate.unwrap_or(Rate::Packets(packets_per_second / 5.0)));
            trial.drive.stages = true;
            let total = ran(&trial)?.result.stages.and_then(|stages| stages.total);
            total.map(|total| Duration::from_nanos(total.p99_ns as u64))
        }
    };
    Ok(Trial { method, burst, packets_per_second, p99 })
}

/// A run that went well.
fn ran(config: &Config) -> Result<Outcome> {
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
    let faster = |a: &&Trial, b: &&Trial| a.packets_per_second.total_cmp(&b.packets_per_second);
    let best = trials.iter().filter(keeps).max_by(faster)?;
    // As good as the best, and no multiprocessor is held while there is nothing to do.
    let holds_nothing = |trial: &&Trial| trial.method != Method::Persistent;
    let enough = |trial: &&Trial| trial.packets_per_second >= best.packets_per_second * SAME;
    Some(trials.iter().filter(keeps).filter(enough).filter(holds_nothing).max_by(faster).unwrap_or(best))
}

fn reason(chosen: &Trial, trials: &[Trial], goal: Goal) -> String {
    let told = |trial: &Trial| {
        let rate = units::packets_per_second(trial.packets_per_second);
        let latency = trial.p99.map_or(String::new(), |p99| format!(", p99 {}", time(p99)));
        format!("{} at burst {}: {rate}{latency}", trial.method, trial.burst)
    };
    let mut others: Vec<String> = Vec::new();
    for method in Method::ALL.into_iter().filter(|&method| method != chosen.method) {
        let of_method: Vec<Trial> = trials.iter().filter(|trial| trial.method == method).cloned().collect();
        let best = pick(&of_method, goal).or_else(|| of_method.iter().min_by_key(|trial| trial.p99));
        others.extend(best.map(told));
    }
    let aim = match goal {
        Goal::Throughput => "the highest rate".to_string(),
        Goal::Latency(limit) => format!("the highest rate with a p99 within {}", time(limit)),
    };
    let others = if others.is_empty() { "nothing else ran".into() } else { others.join("; ") };
    format!("auto: {aim} of short trials, {}; others at their best: {others}", told(chosen))
}

fn time(span: Duration) -> String {
    units::nanoseconds(span.as_nanos() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(method: Method, rate: f64, p99_us: u64) -> Trial {
        Trial { method, burst: 16, packets_per_second: rate, p99: Some(Duration::from_micros(p99_us)) }
    }

    #[test]
    fn the_goal_decides() {
        let trials = [
            trial(Method::Persistent, 10e6, 9),
            trial(Method::Graph, 5e6, 30),
            trial(Method::Split, 4e6, 12),
        ];
        assert_eq!(pick(&trials, Goal::Throughput).unwrap().method, Method::Persistent);
        let within = |us| pick(&trials, Goal::Latency(Duration::from_micros(us))).map(|trial| trial.method);
        assert_eq!(within(20), Some(Method::Persistent));
        assert_eq!(within(8), None);
        assert!(reason(&trials[0], &trials, Goal::Throughput).contains("graph at burst 16"));
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
        config.route = Route::OneWay { rx: "pcap:x".into(), tx: vec!["null".into()] };
        assert!(choose(&config, Goal::Throughput, &Control::default()).is_err());
    }

    #[test]
    fn what_stops_every_trial_is_said() {
        let mut config = Config::new(Route::OneWay { rx: "null".into(), tx: vec!["null".into()] });
        config.room = 1;
        let error = choose(&config, Goal::Throughput, &Control::default()).unwrap_err().to_string();
        assert!(error.contains("--room"), "{error}");
    }
}
