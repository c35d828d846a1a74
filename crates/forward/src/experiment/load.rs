//! Finds the highest packet rate without loss, and measures the latency at fractions of that rate.

use super::Measurement;
use super::ceiling::Ceilings;
use super::limit::limit;
use crate::config::Config;
use crate::control::Control;
use crate::error::{Error, Result};
use crate::field;
use crate::result::{FailedRate, Note, PacketResult, TrialFailure};
use crate::run::{Reading, RunOutcome, run};
use inlane_core::units::Rate;
use inlane_ports::spec::Kind;
use inlane_result::Quantity;
use std::sync::Arc;
use std::time::Duration;

/// The name of the parameter for the offered rate, which is the rate at which packets were due to be sent.
pub const OFFERED: &str = "offered";

/// The duration of a trial if the settings have none.
const TRIAL: Duration = Duration::from_secs(2);
/// The shortest trial that RFC 2544 (section 24) accepts for measuring the throughput.
const RFC_2544_TRIAL: Duration = Duration::from_secs(60);
/// The resolution of the search, as a fraction of the fastest rate that it tries. The search ends when the
/// highest passed rate and the lowest failed rate differ by at most this fraction.
const RESOLUTION: f64 = 0.005;
/// The lowest rate of the search, as a share of the fastest rate. If a trial fails below this rate, the
/// search gives up.
const LOWEST: f64 = 0.01;
/// The share of a trial's due packets that may still be unprocessed when the trial ends. [`TAIL`] may allow
/// more.
const TOLERANCE: f64 = 0.002;
/// A trial may end while packets are still in flight. Packets that became due less than this time before the
/// end of a trial may be unprocessed.
const TAIL: Duration = Duration::from_millis(1);

/// Returns why a trial at `offered` packets per second failed. `None` if nothing was lost, missed or altered,
/// and every due packet was processed. Packets that the packet function dropped count as processed.
fn failure(outcome: &RunOutcome, burst: usize, offered: f64) -> Option<TrialFailure> {
    let result = &outcome.result;
    if let Some(error) = outcome.errors.first() {
        return Some(TrialFailure::Error { why: error.to_string() });
    }
    let lost = result.rx.missed
        + result.rx.errors
        + result.tx.errors
        + result.dropped_overload
        + result.dropped_invalid
        + result.dropped_unsent;
    if lost > 0 {
        return Some(TrialFailure::Lost { packets: lost });
    }
    if let Some(found) = result.verification.as_ref().filter(|found| found.failed()) {
        let packets = found.lost + found.duplicated + found.reordered + found.altered;
        return Some(TrialFailure::Wrong { packets });
    }
    let due = offered * result.duration_ns as f64 / 1e9;
    let processed = (result.tx.packets + result.dropped_verdict) as f64;
    let tolerated = (due * TOLERANCE).max(burst as f64 + offered * TAIL.as_secs_f64());
    (due - processed > tolerated).then(|| TrialFailure::Late { share: (due - processed) / due })
}

/// The state of the search for the highest rate without loss.
struct Search {
    fastest: f64,
    passed: f64,
    failed: f64,
}

impl Search {
    fn new(fastest: f64) -> Self {
        Self { fastest, passed: 0.0, failed: f64::INFINITY }
    }

    /// Returns the next rate to try: first the fastest, then the middle of the highest passed rate and the
    /// lowest failed rate. Returns `None` when the search is over.
    fn next(&self) -> Option<f64> {
        if self.failed.is_infinite() {
            return (self.passed == 0.0).then_some(self.fastest);
        }
        let open = self.failed - self.passed > self.fastest * RESOLUTION;
        (open && self.failed >= self.fastest * LOWEST).then_some((self.passed + self.failed) / 2.0)
    }

    fn record(&mut self, rate: f64, passed: bool) {
        *(if passed { &mut self.passed } else { &mut self.failed }) = rate;
    }
}

/// Searches for the highest rate without loss by bisection, to 0.5 % (RFC 2544, section 26.1). Then measures
/// the latency at each of `loads`, in per cent of that rate. If no trial passed without loss, the measurement has no
/// results and a failure.
///
/// Each trial lasts `config.duration`. The RFC requires at least 60 s.
///
/// # Errors
/// The source cannot be paced, several runs are impossible, or a trial cannot start.
pub(super) fn against_load(
    config: &Config,
    loads: &[f64],
    control: &Arc<Control>,
    ceilings: &mut Ceilings,
    watch: &mut dyn FnMut(Duration, &Reading),
) -> Result<Measurement> {
    if !config.route.source().is_some_and(|rx| rx.properties().paces_itself) {
        let [generator, null] = [Kind::Generator, Kind::Null].map(|kind| kind.properties().name);
        let source = field::RX.with(format_args!("{generator}:SIZE"));
        let why = format!("needs a source that can be paced: {source} or {null}:SIZE");
        return Err(Error::config(field::ZERO_LOSS, why));
    }
    config.check_repeatable()?;
    let duration = config.duration.unwrap_or(TRIAL);
    let mut trial = |rate: Option<f64>| -> Result<(Config, RunOutcome)> {
        let mut paced = config.clone();
        paced.rate = rate.map(Rate::Packets);
        paced.duration = Some(duration);
        let mut outcome = run(&paced, &Control::child_of(control), watch)?;
        if let Some(rate) = rate {
            outcome.result.parameters.set(OFFERED, Quantity::Rate(Rate::Packets(rate)));
        }
        Ok((paced, outcome))
    };
    let (_, unpaced) = trial(None)?;
    let ceiling = ceilings.of(config, unpaced.link_bits_per_second, &unpaced.result);
    let explained = |(paced, mut outcome): (Config, RunOutcome)| -> PacketResult {
        outcome.result.ceiling = ceiling.clone();
        outcome.result.limit = limit(&paced, &outcome);
        outcome.result
    };
    let mut found =
        Measurement { twin: unpaced.twin, devices: unpaced.devices.clone(), ..Measurement::default() };
    let processed = unpaced.result.tx.packets + unpaced.result.dropped_verdict;
    let mut search = Search::new(processed as f64 * 1e9 / unpaced.result.duration_ns.max(1) as f64);
    let (mut best, mut last_failure): (Option<PacketResult>, Option<FailedRate>) = (None, None);
    while let Some(rate) = search.next().filter(|_| !control.stopping()) {
        let (paced, outcome) = trial(Some(rate))?;
        let failure = failure(&outcome, config.per_pipeline.burst, rate);
        search.record(rate, failure.is_none());
        match failure {
            None => best = Some(explained((paced, outcome))),
            Some(why) => last_failure = Some(FailedRate { packets_per_second: rate, why }),
        }
    }
    let Some(best) = best else {
        if control.stopping() {
            found.notes.push(Note::SearchStopped);
            found.results.push(explained((config.clone(), unpaced)));
        } else {
            found.failure = Some(Error::NoRate { last: last_failure });
        }
        return Ok(found);
    };
    found.notes.push(Note::HighestRate {
        packets_per_second: search.passed,
        unpaced_packets_per_second: search.fastest,
    });
    found.notes.extend(last_failure.map(Note::NextRateFailed));
    let follows_rfc_2544 = duration >= RFC_2544_TRIAL;
    found.notes.push(Note::Trials { duration_ns: duration.as_nanos() as f64, follows_rfc_2544 });
    if loads.is_empty() {
        found.results.push(best);
    }
    for load in loads {
        if control.stopping() {
            break;
        }
        let mut result = explained(trial(Some(search.passed * load / 100.0))?);
        result.parameters.set("load", Quantity::Percent(*load));
        found.results.push(result);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Route;
    use crate::result::PacketTotals;

    /// Returns the outcome of a trial that lasted `duration` and sent `processed` packets.
    fn outcome(duration: Duration, processed: u64) -> RunOutcome {
        let flow = PacketTotals { packets: processed, ..PacketTotals::default() };
        let result = PacketResult {
            duration_ns: duration.as_nanos() as u64,
            rx: flow,
            tx: flow,
            ..PacketResult::default()
        };
        RunOutcome::of(result)
    }

    #[test]
    fn a_short_trial_passes_if_only_its_tail_is_missing() {
        // A trial of 50 ms at 1 Mpps, so 50,000 packets are due.
        let trial = |processed| failure(&outcome(Duration::from_millis(50), processed), 64, 1e6);
        assert_eq!(trial(50_000), None);
        assert_eq!(trial(49_000), None, "a burst and 1 ms are not yet sent");
        assert_eq!(trial(48_900), Some(TrialFailure::Late { share: 0.022 }));
        // In a 10 s trial, [`TOLERANCE`] allows 20,000 missing packets. [`TAIL`] allows fewer, so
        // [`TOLERANCE`] decides.
        let long = |processed| failure(&outcome(Duration::from_secs(10), processed), 64, 1e6);
        assert_eq!(long(9_980_000), None);
        assert!(long(9_979_000).is_some());
    }

    #[test]
    fn packets_that_the_function_drops_are_processed() {
        let mut dropping = outcome(Duration::from_secs(1), 0);
        dropping.result.dropped_verdict = 1_000_000;
        assert_eq!(failure(&dropping, 64, 1e6), None);
        dropping.result.rx.missed = 3;
        assert_eq!(failure(&dropping, 64, 1e6), Some(TrialFailure::Lost { packets: 3 }));
    }

    #[test]
    fn the_search_finds_the_highest_rate_that_passes() {
        for threshold in [0.003, 0.02, 0.3, 0.777, 0.9995, 2.0] {
            let mut search = Search::new(10e6);
            let mut trials = 0;
            while let Some(rate) = search.next() {
                search.record(rate, rate <= 10e6 * threshold);
                trials += 1;
            }
            let expected = if threshold < LOWEST { 0.0 } else { threshold.min(1.0) * 10e6 };
            assert!(
                search.passed <= expected && expected - search.passed <= 10e6 * RESOLUTION,
                "{threshold}"
            );
            assert!(trials <= 10, "{threshold}: {trials} trials");
        }
    }

    /// Checks that the search finds a rate in short trials, and with a function that drops packets.
    #[test]
    fn a_dropping_function_has_a_rate_without_loss() {
        let mut config = Config::new(Route::one_way("gen:64", ["null"]).unwrap());
        config.function = "drop-rule:all".into();
        config.duration = Some(Duration::from_millis(20));
        config.cores = Some(Vec::new());
        // Extra work lowers the rate, so the generator keeps up even on a busy machine.
        config.per_pipeline.work = Duration::from_micros(20);
        let mut ceilings = Ceilings::default();
        let found = against_load(&config, &[], &Arc::default(), &mut ceilings, &mut |_, _| ()).unwrap();
        assert!(found.failure.is_none(), "{:?}", found.failure);
        assert!(found.results[0].dropped_verdict > 0);
        assert!(
            found.notes.iter().any(|note| note.to_string().contains("duration=60s")),
            "{:?}",
            found.notes
        );
    }
}
