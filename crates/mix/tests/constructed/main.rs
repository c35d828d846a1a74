//! Verdicts and predictions on constructed sessions. The bottlenecks follow from the machine behind a session: those whose raise
//! makes the load faster.

mod cases;
mod machine;
mod predictions;
mod session;

use inlane_mix::text;
use inlane_mix::verdict::{Finding, judge};
use machine::Random;
use session::Case;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The outcomes of verdicts.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    right: usize,
    open: usize,
    wrong: usize,
    /// Not determined, and rightly so, because no verdict can name what limits the load.
    unnameable: usize,
}

impl std::ops::AddAssign for Outcome {
    fn add_assign(&mut self, other: Self) {
        self.right += other.right;
        self.open += other.open;
        self.wrong += other.wrong;
        self.unnameable += other.unnameable;
    }
}

/// Judges a case, and compares each verdict with the truth. Appends what differs to `report`.
fn compare(case: &Case, report: &mut String) -> Outcome {
    let measured = case.measure();
    let mut outcome = Outcome::default();
    for verdict in judge(&measured).verdicts {
        let truth = case.machine.truth(verdict.load, &case.paces(verdict.when.phase(verdict.load)));
        let named = match &verdict.finding {
            Finding::Named(named) => Some(&named.bottleneck),
            Finding::NotDetermined(_) => None,
        };
        let (count, word) = match named {
            // Nothing that a verdict could name limits it.
            None if truth.iter().all(Option::is_none) => (&mut outcome.unnameable, "right"),
            None => (&mut outcome.open, "open"),
            Some(named) if truth.contains(&Some(named.clone())) => (&mut outcome.right, "right"),
            Some(_) => (&mut outcome.wrong, "WRONG"),
        };
        *count += 1;
        if word != "right" {
            let _ = writeln!(
                report,
                "{word}: {} ({}): {}\n    truth {truth:?}",
                case.kind,
                case.seed,
                text::sentence(&measured, &verdict)
            );
        }
        if word == "WRONG" || std::env::var_os("INLANE_LINES").is_some() && word == "open" {
            text::lines(&measured, &verdict).iter().for_each(|line| {
                let _ = writeln!(report, "        {line}");
            });
        }
    }
    outcome
}

#[test]
fn no_verdict_is_wrong() {
    let mut report = String::new();
    let mut kinds: BTreeMap<&str, Outcome> = BTreeMap::new();
    let mut cases = 0;
    for (kind, build) in cases::KINDS {
        for round in 0..3 {
            let seed = 1000 * round + 7;
            let case = build(&mut Random(seed ^ (kind.len() as u64 * 77)), seed);
            let outcome = compare(&case, &mut report);
            *kinds.entry(kind).or_default() += outcome;
            cases += 1;
        }
    }
    eprintln!("{report}");
    let mut all = Outcome::default();
    for (kind, of) in &kinds {
        eprintln!(
            "{kind:32} right {:3}, not determined {:3}, wrong {:3}, rightly open {:3}",
            of.right, of.open, of.wrong, of.unnameable
        );
        all += *of;
    }
    let share = all.right as f64 / (all.right + all.open + all.wrong) as f64;
    eprintln!("{cases} cases: {all:?}, right {:.1} %", share * 100.0);
    assert_eq!(all.wrong, 0);
    assert!(cases >= 59 && share >= 0.8, "{share}");
}

/// Random machines of which a verdict was wrong, with what the load was really limited by.
const ONCE_WRONG: &[(u64, &str)] = &[
    (880036, "a port: what its threads did while they waited counted as work"),
    (
        880064,
        "something unknown: it lost more than its share beside an antagonist that filled the rest of a link",
    ),
    (880096, "host memory, which copies in both directions cross, too"),
    (880155, "its own cores, on which memory slows it down, without an antagonist of memory"),
    (880366, "the answers to its operations, which memory makes slower"),
    (9100542, "a target, which it waited for all the time although it reached its pace"),
    (9100094, "a link, although a quota stopped its threads now and then"),
];

#[test]
fn machines_that_were_once_judged_wrong_are_not() {
    for (seed, really) in ONCE_WRONG {
        let mut report = String::new();
        let outcome = compare(&cases::random(*seed), &mut report);
        assert_eq!(outcome.wrong, 0, "{really}: {report}");
    }
}

#[test]
fn no_verdict_on_a_random_machine_is_wrong() {
    let mut report = String::new();
    let mut all = Outcome::default();
    let first = std::env::var("INLANE_FIRST_SEED").ok().and_then(|first| first.parse().ok()).unwrap_or(0);
    for seed in first..first + cases::random_count() {
        all += compare(&cases::random(seed), &mut report);
    }
    eprintln!("{report}");
    let share = all.right as f64 / (all.right + all.open + all.wrong) as f64;
    eprintln!("random machines: {all:?}, right {:.1} %", share * 100.0);
    assert_eq!(all.wrong, 0);
    assert!(share >= 0.5, "{share}");
}
