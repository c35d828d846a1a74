//! The text of a result: what limits each load, its rates alone and together, who gained when one was slowed, each load
//! beside antagonists, and the prediction.

use inlane_core::units;
use inlane_mix::observation::Cut;
use inlane_mix::result::{LoadResult, MixResult, PredictionResult, RateResult, VerdictResult, WhenResult};
use inlane_mix::statistics::Estimate;
use inlane_mix::text::{self, Loads};
use inlane_mix::verdict::Says;
use inlane_report::{Lines, grid};
use inlane_result::Document;
use std::io::{self, Write};

/// Writes all sessions.
pub(super) fn document(out: &mut dyn Write, document: &Document<MixResult>) -> io::Result<()> {
    for (index, row) in document.results.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        if !row.swept.is_empty() {
            let swept: Vec<String> = row.swept.iter().map(|(key, value)| format!("{key}={value}")).collect();
            writeln!(out, "{}:", swept.join(", "))?;
        }
        session(out, row)?;
    }
    let notes = document.notes.iter().map(|note| format!("note: {note}"));
    notes.into_iter().try_for_each(|note| writeln!(out, "{note}"))
}

fn session(out: &mut dyn Write, row: &MixResult) -> io::Result<()> {
    if let Some(error) = &row.error {
        return writeln!(out, "failed: {error}");
    }
    let (together, alone): (Vec<_>, Vec<_>) =
        row.verdicts.iter().partition(|verdict| verdict.when == WhenResult::Together);
    let first = if together.is_empty() { &alone } else { &together };
    for verdict in first {
        writeln!(out, "{}.", verdict.sentence)?;
    }
    if !first.is_empty() {
        writeln!(out)?;
    }
    let header = ["load", "alone", "together", "kept", "busy", "queued"];
    write!(out, "{}", grid(&header, &row.loads.iter().map(load_cells).collect::<Vec<_>>()))?;
    if !row.exchange.is_empty() {
        writeln!(out, "\nGained when another load was slowed:")?;
        let names = row.loads.iter().map(|load| load.name.as_str());
        let header: Vec<&str> = ["slowed", "freed"].into_iter().chain(names).collect();
        let rows: Vec<_> = row
            .exchange
            .iter()
            .map(|slowed| {
                let freed = amount(&slowed.freed_per_second, slowed.freed_operations);
                let cells = row.loads.iter().map(|load| {
                    let gain = slowed.gains.iter().find(|gain| gain.load == load.name);
                    gain.map_or("-".into(), |gain| {
                        let per_freed = match gain.operations == slowed.freed_operations {
                            true => gain.per_freed.map(|ratio| format!(" ({:.0} %)", ratio * 100.0)),
                            false => None,
                        };
                        amount(&gain.gain_per_second, gain.operations) + &per_freed.unwrap_or_default()
                    })
                });
                let slowed = format!("{} to {:.0} %", slowed.slowed, slowed.share * 100.0);
                [slowed, freed].into_iter().chain(cells).collect()
            })
            .collect();
        write!(out, "{}", grid(&header, &rows))?;
    }
    let beside: Vec<_> = row
        .antagonists
        .iter()
        .flat_map(|antagonist| {
            antagonist.beside.iter().map(|beside| {
                vec![
                    beside.load.clone(),
                    antagonist.resource.as_ref().map(text::resource).unwrap_or_default(),
                    format!("{:.0} %", beside.share * 100.0),
                    beside.antagonist.as_ref().map_or("-".into(), rate),
                    beside.rate.as_ref().map_or("-".into(), rate),
                    percent(beside.kept_share),
                ]
            })
        })
        .collect();
    if !beside.is_empty() {
        writeln!(out, "\nBeside a load of inlane's own that takes part of one resource:")?;
        let header = ["load", "resource", "at", "it took", "load's rate", "kept"];
        write!(out, "{}", grid(&header, &beside))?;
    }
    if !row.predictions.is_empty() {
        writeln!(out, "\nPredicted from each load alone and beside these:")?;
        let header = ["mix", "load", "predicted", "measured", "residual", "no interference", "equal split"];
        write!(out, "{}", grid(&header, &row.predictions.iter().map(prediction_cells).collect::<Vec<_>>()))?;
        let header = ["mix", "load", "", "rate in relation to the load alone"];
        write!(out, "\n{}", grid(&header, &row.predictions.iter().flat_map(bars).collect::<Vec<_>>()))?;
    }
    for verdict in &row.verdicts {
        let lines = evidence(row, verdict);
        if lines.is_empty() {
            continue;
        }
        let when = if verdict.when == WhenResult::Alone { "alone" } else { "together" };
        writeln!(out, "\nEvidence about {} {when}:", verdict.load)?;
        if !first.contains(&verdict) {
            writeln!(out, "  {}", verdict.sentence)?;
        }
        lines.iter().try_for_each(|line| writeln!(out, "  {line}"))?;
    }
    let mut lines = Lines::default();
    if let Some(of) = &row.accuracy {
        let percent = |error: f64| format!("{:.1} %", error * 100.0);
        let text = format!(
            "{}; without interference {}; equal split {}; {} in which a load lost 10 % or more",
            percent(of.predicted),
            percent(of.no_interference),
            percent(of.equal_split),
            if of.mixes == 1 { "1 mix".into() } else { format!("{} mixes", of.mixes) }
        );
        lines.line("prediction's error", text);
    }
    let blocks = row.observations.iter().map(|it| it.block + 1).max().unwrap_or(0);
    let phases = units::counted(row.observations.len() as u64, "observation");
    lines.line("measured", format!("{phases} in {}", units::counted(blocks as u64, "block")));
    if let Some(difference) = row.equal_phases_differ {
        lines.line("equal phases", format!("differ by {:.1} %", difference * 100.0));
    }
    match &row.cut {
        None => {}
        Some(Cut::Interrupted) => lines.line("incomplete", "the session was interrupted"),
        Some(Cut::TimeLimit) => {
            let text = format!(
                "the time limit was reached before all intervals were narrower than {:.1} %",
                row.plan.precision * 100.0
            );
            lines.line("incomplete", text);
        }
        Some(Cut::LoadFailed { load, error }) => {
            lines.line("incomplete", format!("load {} failed: {error}", row.name(*load)));
        }
    }
    row.notes.iter().for_each(|note| lines.line("note", note));
    write!(out, "\n{}", lines.render())
}

fn load_cells(load: &LoadResult) -> Vec<String> {
    let of = |value: fn(&RateResult) -> Option<f64>| {
        percent(load.together.as_ref().or(load.alone.as_ref()).and_then(value))
    };
    vec![
        load.name.clone(),
        load.alone.as_ref().map_or("-".into(), rate),
        load.together.as_ref().map_or("-".into(), rate),
        percent(load.kept_share),
        of(|rate| rate.busy),
        of(|rate| rate.queued),
    ]
}

fn prediction_cells(row: &PredictionResult) -> Vec<String> {
    let shown = |rate: f64| if row.operations { operations(rate) } else { units::bytes_per_second(rate) };
    let signed = |residual: Option<f64>| residual.map_or("-".into(), |it| format!("{:+.1} %", it * 100.0));
    let interval = match (row.low_per_second, row.high_per_second) {
        (Some(low), Some(high)) => format!(" ({} to {})", shown(low), shown(high)),
        _ => String::new(),
    };
    vec![
        row.mix.join(" + "),
        row.load.clone(),
        shown(row.predicted_per_second) + &interval,
        row.measured_per_second.as_ref().map_or("-".into(), |it| shown(it.median)),
        signed(row.residual),
        signed(row.no_interference_residual),
        signed(row.equal_split_residual),
    ]
}

/// The width of a bar that shows the rate of a load alone, in characters.
const BAR: f64 = 40.0;
/// The width of the longest bar. A load rarely runs faster beside others.
const LONGEST: f64 = 1.25 * BAR;

/// Returns the rows with the bars of a predicted and a measured rate.
fn bars(row: &PredictionResult) -> [Vec<String>; 2] {
    let bar = |rate: f64| {
        let share = rate / row.no_interference_per_second;
        let length = (share * BAR).round().clamp(0.0, LONGEST) as usize;
        format!("{} {}", "#".repeat(length), percent(Some(share)))
    };
    let measured = row.measured_per_second.as_ref().map_or("-".into(), |it| bar(it.median));
    [
        vec![row.mix.join(" + "), row.load.clone(), "predicted".into(), bar(row.predicted_per_second)],
        vec![String::new(), String::new(), "measured".into(), measured],
    ]
}

/// Returns the lines about what may limit a load. Facts that speak neither for a bottleneck nor against it are in the JSON
/// document only.
fn evidence(row: &MixResult, verdict: &VerdictResult) -> Vec<String> {
    let load = row.loads.iter().position(|load| load.name == verdict.load).unwrap_or_default();
    let mut lines = Vec::new();
    for (index, candidate) in verdict.candidates.iter().enumerate() {
        let about = &candidate.bottleneck.name;
        if verdict.bottleneck.is_some() && index > 0 {
            let left = candidate
                .margin_share
                .map(|margin| format!(", which has {} left", percent(Some(margin.max(0.0)))));
            lines.push(format!("next: {about}{}", left.unwrap_or_default()));
        }
        let speaking = candidate.evidence.iter().filter(|evidence| evidence.says != Says::Neither);
        lines.extend(speaking.filter_map(|evidence| text::line(row, load, about, evidence)));
    }
    lines
}

fn percent(share: Option<f64>) -> String {
    share.map_or("-".into(), |share| format!("{:.0} %", share * 100.0))
}

/// Returns a rate with its interval: `12.3 GB/s +2/-3 %`.
fn rate(rate: &RateResult) -> String {
    let &Estimate { median, low, high, count } = rate.amount();
    let interval = if count > 2 {
        let of = |end: f64| if median > 0.0 { (end / median - 1.0) * 100.0 } else { 0.0 };
        format!(" {:+.1}/{:+.1} %", of(low), of(high))
    } else {
        String::new()
    };
    let mark = if rate.disturbed { " (disturbed)" } else { "" };
    amount(rate.amount(), rate.bytes_per_second.median == 0.0) + &interval + mark
}

/// Prints a rate with its unit.
pub(super) fn amount(estimate: &Estimate, counts_operations: bool) -> String {
    match counts_operations {
        true => operations(estimate.median),
        false => units::bytes_per_second(estimate.median),
    }
}

/// Prints a rate in operations per second: `12.35 kop/s`.
pub(super) fn operations(per_second: f64) -> String {
    units::packets_per_second(per_second).replace("pps", "op/s")
}
