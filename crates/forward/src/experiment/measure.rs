//! The explained run: runs a configuration, and puts baseline, ceiling, limit and verification beside its result.
//!
//! [`measure`] does all of this in one call. A [`Session`] makes several measurements that share ceilings. It reports
//! their progress and can stop them.

use super::Measurement;
use super::auto::{Goal, choose};
use super::baseline::baseline;
use super::ceiling::Ceilings;
use super::limit::{limit, missed_rate};
use super::load::against_load;
use crate::config::{Config, Route};
use crate::control::Control;
use crate::error::{Error, Result};
use crate::result::{MethodReason, Note};
use crate::run::{Reading, run};
use crate::verify;
use inlane_core::verification::Verification;
use inlane_ports::spec::{Kind, PortSpec};
use inlane_result::Quantity;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// What to measure, besides one run of the configuration.
#[derive(Clone, Debug)]
pub struct MeasureOptions {
    /// If set, short trials first choose the method, the burst size and the flush time for this goal.
    pub goal: Option<Goal>,
    /// If set, searches for the highest rate without loss, then measures at each of these percentages of that rate.
    /// If the list is empty, the result is the run at the highest rate.
    pub loads: Option<Vec<f64>>,
    /// True to measure the baseline, which takes 0.3 s.
    pub baseline: bool,
}

impl Default for MeasureOptions {
    fn default() -> Self {
        Self { goal: None, loads: None, baseline: true }
    }
}

/// Measures a configuration: see [`Session::measure`].
///
/// # Errors
/// As for [`Session::measure`].
pub fn measure(config: &Config) -> Result<Measurement> {
    Session::default().measure(config, &MeasureOptions::default())
}

/// Called about once a second during a run, with the time since its start and the counters.
pub type Watch<'a> = Box<dyn FnMut(Duration, &Reading) + 'a>;

/// Makes measurements one after another.
pub struct Session<'a> {
    /// Stops the current measurement, and all later ones.
    pub control: Arc<Control>,
    /// The ceilings of earlier measurements.
    pub ceilings: Ceilings,
    /// Watches the progress of runs.
    pub watch: Watch<'a>,
}

impl Default for Session<'_> {
    fn default() -> Self {
        Self { control: Arc::default(), ceilings: Ceilings::default(), watch: Box::new(|_, _| ()) }
    }
}

impl Session<'_> {
    /// Measures a configuration, and explains each result.
    ///
    /// # Errors
    /// If a run cannot start, or `options` demand what the source cannot do. If a run fails later, the error is in
    /// [`Measurement::failure`].
    pub fn measure(&mut self, config: &Config, options: &MeasureOptions) -> Result<Measurement> {
        match &options.loads {
            Some(loads) => against_load(config, loads, &self.control, &mut self.ceilings, &mut *self.watch),
            None => self.once(config, options),
        }
    }

    fn once(&mut self, config: &Config, options: &MeasureOptions) -> Result<Measurement> {
        let (mut chosen, mut reason) = (config.clone(), None);
        if let Some(goal) = options.goal {
            let (taken, why) = choose(config, goal, &self.control)?;
            (chosen, reason) = (taken, Some(why));
        }
        let (config, control) = (&chosen, &*self.control);
        let baseline = || options.baseline.then(|| baseline(config, control)).flatten();
        // If the run's ports need privileges, measure the baseline after the run, because measuring the
        // baseline may make the process drop its privileges.
        let needs_privileges = config.drops_needed_privileges();
        let before = (!needs_privileges).then(baseline).flatten();
        let mut outcome = run(config, control, &mut *self.watch)?;
        let baseline = before.or_else(|| needs_privileges.then(baseline).flatten());
        if let Some(why) = reason {
            outcome.result.path.reason = MethodReason::Chosen(why);
            if outcome.result.parameters.get("flush").is_none() {
                outcome.result.parameters.set("flush", Quantity::Time(0.0));
            }
        }
        outcome.result.ceiling = self.ceilings.of(config, outcome.link_bits_per_second, &outcome.result);
        outcome.result.limit = limit(config, &outcome);
        outcome.result.baseline = baseline;
        let mut notes = outcome.notes;
        notes.extend(self.ceilings.round_trip_note(config));
        let mut result = outcome.result;
        if result.verification.is_none() && !control.stopping() {
            result.verification = verify::captures(config)?;
        }
        let mut failure = outcome.errors.into_iter().next();
        // Do not count a closed pipe as a failure. Standard output is often a pipe to a program that reads
        // only the first packets.
        if sends_to_stdout(config) && failure.as_ref().is_some_and(closed_by_reader) {
            notes.push(Note::PipeClosed);
            failure = None;
        }
        notes.extend(missed_rate(config, &result));
        if result.rx.packets == 0 && config.faults.is_none() && failure.is_none() {
            notes.extend(why_no_packets(config));
        }
        let wrong = |found: &&Verification| found.failed() || found.received_nothing();
        if let Some(found) = result.verification.as_ref().filter(wrong) {
            failure.get_or_insert_with(|| Error::Verification(Box::new(found.clone())));
        }
        if result.leaked_buffers > 0 {
            failure.get_or_insert(Error::Leaked { buffers: result.leaked_buffers });
        }
        let results = vec![result];
        Ok(Measurement { results, devices: outcome.devices, twin: outcome.twin, notes, failure })
    }
}

/// Returns true if the run writes packets to standard output.
pub fn sends_to_stdout(config: &Config) -> bool {
    let sends =
        matches!(&config.route, Route::OneWay { tx, .. } if tx.iter().any(PortSpec::is_standard_stream));
    sends || config.capture.as_deref() == Some(Path::new("-"))
}

/// Returns a note for a run that received no packets, if its source may have been empty. Only a capture, or a
/// ring without packets at the start, can be empty. Returns `None` for all other sources.
fn why_no_packets(config: &Config) -> Option<Note> {
    let rx = config.route.source()?;
    let is_ring = rx.kind() == Kind::Ring;
    let may_be_empty = rx.kind() == Kind::Capture || is_ring && !rx.starts_with_packets();
    may_be_empty.then(|| Note::NoPackets { source: rx.to_string(), is_ring })
}

/// Returns true if the run ended because the reader of a capture closed the pipe.
fn closed_by_reader(error: &Error) -> bool {
    matches!(error, Error::Core(error) if inlane_ports::pcap::is_closed_by_reader(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::LimitKind;
    use inlane_ports::null::Null;
    use inlane_ports::spec::{OwnPort, Properties};

    fn short(route: Route) -> Config {
        let mut config = Config::new(route);
        config.cores = Some(Vec::new());
        config.duration = Some(Duration::from_millis(30));
        config
    }

    #[test]
    fn one_call_explains_a_run() {
        let mut config = short(Route::one_way("gen:64", ["check"]).unwrap());
        config.function = "macswap".into();
        let found = measure(&config).unwrap();
        assert!(found.failure.is_none(), "{:?}", found.failure);
        let [row] = &found.results[..] else { panic!("{} rows", found.results.len()) };
        assert!(row.verification.as_ref().unwrap().passed());
        assert!(row.baseline.is_some());
        assert_eq!(row.ceiling, None, "no port's link is known");
        assert_ne!(row.limit.as_ref().unwrap().kind, LimitKind::Offered);
    }

    #[test]
    fn a_library_users_own_port_is_measured_with_its_baseline() {
        let own = PortSpec::Own(OwnPort {
            name: "mine".into(),
            properties: Properties { name: "mine", ..*Kind::Null.properties() },
            open: Arc::new(|clock| Ok(Box::new(Null::open("null:100", clock)?))),
        });
        let config = short(Route::OneWay { rx: own, tx: vec![PortSpec::parse("null").unwrap()] });
        let found = measure(&config).unwrap();
        assert_eq!(found.results[0].ports, ["mine", "null"]);
        assert_eq!(found.results[0].rx.bytes, found.results[0].rx.packets * 100);
        assert!(found.results[0].baseline.is_some(), "a port that makes packets can be opened again");
    }

    #[test]
    fn lost_packets_fail_the_measurement_and_keep_its_result() {
        let mut config = short(Route::one_way("gen:64,packets=1000", ["check"]).unwrap());
        config.faults = Some("drop=50%".into());
        let found = measure(&config).unwrap();
        let error = found.failure.unwrap().to_string();
        assert!(error.starts_with("verification failed: ") && error.contains(" lost"), "{error}");
        assert!(found.results[0].verification.as_ref().unwrap().lost > 0);
    }

    #[test]
    fn a_session_searches_the_rate_without_loss() {
        let mut config = short(Route::one_way("gen:64", ["null"]).unwrap());
        config.per_pipeline.work = Duration::from_micros(20);
        let options = MeasureOptions { loads: Some(vec![50.0]), ..MeasureOptions::default() };
        let found = Session::default().measure(&config, &options).unwrap();
        assert_eq!(found.results.len(), usize::from(found.failure.is_none()));
        config.route = Route::one_way("pcap:-", ["null"]).unwrap();
        assert!(Session::default().measure(&config, &options).is_err(), "a pipe cannot be paced");
    }
}
