//! The sentences of a verdict: one that says what limits a load, and one for each piece of evidence.

use crate::observation::Measured;
use crate::verdict::{
    Bottleneck, Evidence, Experiment, Fact, Finding, Named, NotDetermined, Reason, Says, Verdict, When,
};
use inlane_core::load::Resource;

/// The most candidates that a sentence lists.
const LISTED: usize = 3;

/// Returns the name of a resource, such as "the link from host memory to gpu:0".
pub fn resource(resource: &Resource) -> String {
    match resource {
        Resource::Core(core) => format!("core {core}"),
        Resource::Processors => "the processors".to_owned(),
        Resource::HostMemory => "host memory".to_owned(),
        Resource::LinkToDevice(device) => format!("the link from host memory to {device}"),
        Resource::LinkFromDevice(device) => format!("the link from {device} to host memory"),
        Resource::DeviceMemory(device) => format!("the memory of {device}"),
        Resource::CopyEngine(device) => format!("the copy engine of {device}"),
        Resource::Port(port) => format!("port {port}"),
        Resource::Peer(peer) => peer.clone(),
    }
}

/// Returns the name of a bottleneck for the middle of a sentence.
pub fn bottleneck(of: &Bottleneck) -> String {
    match of {
        Bottleneck::Resource(of) => resource(of),
        Bottleneck::BothDirections(device) => format!("both directions of the link of {device} together"),
        Bottleneck::OwnCores => "its own cores".to_owned(),
        Bottleneck::Quota => "the processor quota of the control group".to_owned(),
        Bottleneck::Pace => "the pace that was asked for".to_owned(),
        Bottleneck::Source => "its source".to_owned(),
        Bottleneck::ClosedLoop => "the answers to its operations in flight".to_owned(),
    }
}

/// Returns what limits a load, in one sentence without a full stop.
pub fn sentence(measured: &Measured, verdict: &Verdict) -> String {
    let load = measured.name(verdict.load);
    let (when, what) = match verdict.when {
        When::Alone => ("Alone, ", "what"),
        When::Together => ("", "What"),
    };
    match &verdict.finding {
        Finding::Named(named) => {
            let reasons = reasons(measured, verdict.load, named);
            format!(
                "{when}{load} is limited by {}: {}",
                bottleneck(&named.bottleneck),
                reasons.join(", and ")
            )
        }
        Finding::NotDetermined(open) => {
            let mut candidates: Vec<String> = open
                .candidates
                .iter()
                .take(LISTED)
                .map(|candidate| bottleneck(&candidate.bottleneck))
                .collect();
            let last = candidates.pop();
            let listed = match last {
                None => String::new(),
                Some(last) if candidates.is_empty() => format!("; it may be {last}"),
                Some(last) => format!("; it may be {} or {last}", candidates.join(", ")),
            };
            format!(
                "{when}{what} limits {load} is not determined: {}{listed}; to decide, {}",
                reason(open),
                experiment(measured, &open.experiment)
            )
        }
    }
}

/// Returns the evidence of a verdict, one line for each fact.
pub fn lines(measured: &Measured, verdict: &Verdict) -> Vec<String> {
    let of = |(about, _, evidence): (&Bottleneck, Option<f64>, &[Evidence])| -> Vec<String> {
        let about = bottleneck(about);
        evidence.iter().filter_map(|of| line(measured, verdict.load, &about, of)).collect()
    };
    verdict.finding.candidates().into_iter().flat_map(of).collect()
}

/// Returns a line of text about a piece of evidence for or against the bottleneck `about` of a load. `None` if the evidence has no
/// numbers to show.
pub fn line(loads: &dyn Loads, load: usize, about: &str, evidence: &Evidence) -> Option<String> {
    let says = match evidence.says {
        Says::For => "for",
        Says::Against => "against",
        Says::Neither => "neither",
    };
    Some(format!("{about}: {} ({says})", fact(loads, load, evidence)?))
}

/// What the texts of a session need to know about its loads, which have the numbers that observations use.
pub trait Loads {
    /// Returns the name of a load.
    fn name(&self, load: usize) -> &str;

    /// Returns true if a load moves no bytes, so its rates count operations.
    fn counts_operations(&self, load: usize) -> bool;
}

impl Loads for Measured {
    fn name(&self, load: usize) -> &str {
        self.loads.get(load).map_or("?", |load| &load.name)
    }

    fn counts_operations(&self, load: usize) -> bool {
        self.counts_operations(load)
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Returns the two strongest reasons for a name: an intervention and an observation, if there are both.
fn reasons(measured: &Measured, load: usize, named: &Named) -> Vec<String> {
    let fact = |evidence| fact(measured, load, evidence);
    let speaking = |intervention: bool| {
        let mut speaking = named.evidence.iter().filter(move |evidence| {
            evidence.says == Says::For && evidence.fact.kind().is_intervention() == intervention
        });
        speaking.find_map(fact)
    };
    let mut reasons: Vec<String> = [speaking(true), speaking(false)].into_iter().flatten().collect();
    if reasons.len() < 2 {
        let mut others = named.evidence.iter().filter(|evidence| evidence.says == Says::For).rev();
        reasons.extend(others.find_map(|evidence| fact(evidence).filter(|fact| !reasons.contains(fact))));
    }
    reasons
}

/// A quota, before the share of its periods.
const STOPPED: &str = "the quota stopped the process in";

/// Returns the text of a fact about a load. `None` if the fact has no numbers to show.
fn fact(loads: &dyn Loads, load: usize, evidence: &Evidence) -> Option<String> {
    let changed = |share: f64| match share {
        _ if share.abs() < 0.01 => "did not change".to_owned(),
        _ if share < 0.0 => format!("lost {}", percent(-share)),
        _ => format!("gained {}", percent(share)),
    };
    Some(match &evidence.fact {
        Fact::Ceiling { used, capacity } => {
            format!("the running loads take {} of the most that was measured of it", percent(used / capacity))
        }
        Fact::Threads { busy, blocked, queued, throttled, .. } => {
            let share = |text: &str, share: &Option<f64>| Some(format!("{text} {}", percent((*share)?)));
            let shares: Vec<String> = [
                share("its threads had work for", busy),
                share("waited for a full port or queue for", blocked),
                share("waited for a processor for", queued),
            ]
            .into_iter()
            .flatten()
            .collect();
            let times = (!shares.is_empty()).then(|| format!("{} of the time", shares.join(", ")));
            let stopped = throttled.map(|share| format!("{STOPPED} {} of its periods", percent(share)));
            let texts: Vec<String> = times.into_iter().chain(stopped).collect();
            if texts.is_empty() {
                return None;
            }
            texts.join(", ")
        }
        Fact::Pace { asked, reached } => format!("it reached {} of the pace", percent(reached / asked)),
        Fact::Exchange { slowed, gain, per_unit, in_units, .. } => {
            let units = |load| match loads.counts_operations(load) {
                _ if *in_units => ("unit", "units"),
                true => ("operation", "operations"),
                false => ("byte", "bytes"),
            };
            let ((one, several), (other, others), name) = (units(load), units(*slowed), loads.name(*slowed));
            let of_it = if *in_units { " of it" } else { "" };
            if !gain.is_significant() || gain.median <= 0.0 {
                format!("it gained nothing when {name} was slowed")
            } else if *per_unit < 0.1 {
                // Two decimals would show a small gain as 0.00.
                format!(
                    "it gained one {one}{of_it} for each {:.0} {others} that {name} gave up",
                    1.0 / per_unit
                )
            } else {
                format!("it gained {per_unit:.2} {several}{of_it} for each {other} that {name} gave up")
            }
        }
        Fact::Slowed { rate, busy, blocked, throttled } => {
            let pair = |text: &str, of: &str, pair: &Option<(f64, f64)>| {
                let (before, then) = (*pair)?;
                Some(format!("{text} {} of {of} instead of {}", percent(then), percent(before)))
            };
            let shares: Vec<String> = [
                pair("its threads had work for", "the time", busy),
                pair("waited for a full port or queue for", "the time", blocked),
                pair(STOPPED, "its periods", throttled),
            ]
            .into_iter()
            .flatten()
            .collect();
            if shares.is_empty() {
                return None;
            }
            format!("slowed to {}, {}", percent(*rate), shares.join(", "))
        }
        Fact::Antagonist { resource: of, share, change, .. } => {
            format!(
                "it {} beside a load that took {} of {}",
                changed(change.median),
                percent(*share),
                resource(of)
            )
        }
        Fact::Unaffected { tried, largest } if evidence.says == Says::For => {
            let times = if *tried == 1 { "change".to_owned() } else { format!("{tried} changes") };
            format!("{times} of other loads changed its rate by at most {:.1} %", largest * 100.0)
        }
        Fact::Unaffected { largest, .. } => {
            format!("other loads changed its rate by up to {:.1} %", largest * 100.0)
        }
    })
}

fn reason(open: &NotDetermined) -> String {
    match open.reason {
        Reason::TooFewRepeats => "too few observations count".to_owned(),
        Reason::NoProgress => "it did not move anything".to_owned(),
        Reason::EqualPhasesDiffer(by) => format!("phases that should be equal differ by {}", percent(by)),
        Reason::TooLittleEvidence => "there is not enough evidence of two kinds".to_owned(),
        Reason::Contradiction => "the evidence contradicts itself".to_owned(),
        Reason::SeveralCandidates => "several explanations fit".to_owned(),
        Reason::Unexplained => {
            "another load slows it down, but nothing that was measured explains that".to_owned()
        }
    }
}

fn experiment(measured: &Measured, of: &Experiment) -> String {
    match of {
        Experiment::Repeat => "measure more blocks on a quieter machine".to_owned(),
        Experiment::LoadResource(of) => format!("measure beside a load that takes part of {}", resource(of)),
        Experiment::Slow(load) => format!("measure while {} is slowed", measured.name(*load)),
        Experiment::SeparateCores(load) => {
            format!("measure while {} has physical cores of its own", measured.name(*load))
        }
        Experiment::WatchThreads(load) => {
            format!(
                "measure where the kernel reports how long the threads of {} run and wait",
                measured.name(*load)
            )
        }
        Experiment::RaiseInFlight(load) => {
            format!("measure with more operations in flight of {}", measured.name(*load))
        }
    }
}
