//! Shows the result of `inlane offload trace` as text.

use super::result::{Mode, ModeResult, Prediction, TraceResult};
use inlane_offload::trace::{Stage, Times};
use inlane_report::grid;
use inlane_result::Document;
use std::io::{self, Write};

/// Returns the name of a stage in the table.
fn name(stage: Stage) -> &'static str {
    match stage {
        Stage::HandOver => "hand-over by send()",
        Stage::WakeUp => "engine finds it or is woken",
        Stage::ToCardProtocol => "to card: engine",
        Stage::ToCardDataMovement => "to card: data movement to the port",
        Stage::ToCardSendPort => "to card: port, engine",
        Stage::ToCardWire => "to card: card finds it or is woken",
        Stage::ToCardReceivePort => "to card: port, card",
        Stage::ToCardPlacement => "to card: placement in the card's ring",
        Stage::SendProtocol => "TCP or RDMA, sender",
        Stage::DataMovement => "data movement to the port",
        Stage::SendPort => "port, sender",
        Stage::Wire => "wire, receiving engine finds it or is woken",
        Stage::ReceivePort => "port, receiver",
        Stage::ReceiveProtocol => "TCP or RDMA, receiver",
        Stage::FromCardProtocol => "from card: card",
        Stage::FromCardDataMovement => "from card: data movement to the port",
        Stage::FromCardSendPort => "from card: port, card",
        Stage::FromCardWire => "from card: engine finds it or is woken",
        Stage::FromCardReceivePort => "from card: port, engine",
        Stage::FromCardPlacement => "from card: placement in the engine's ring",
        Stage::Placement => "placement",
        Stage::ReaderWakeUp => "recv() finds it or is woken",
    }
}

fn us(ns: f64) -> String {
    format!("{:.2}", ns / 1e3)
}

fn published(ns: Option<f64>) -> String {
    ns.map_or_else(String::new, |ns| format!("{:.0}", ns / 1e3))
}

fn median_and_p99(times: &Times) -> String {
    format!("{} ({})", us(times.median_ns), us(times.p99_ns))
}

fn heading(mode: &ModeResult) -> String {
    let name = match mode.mode {
        Mode::Kernel => "kernel",
        Mode::Tcp => "TCP",
        Mode::Rdma => "RDMA",
        Mode::Card => "TCP on cards",
    };
    format!("{name}{}", if mode.spin_ns == Some(0) { ", asleep" } else { "" })
}

fn residual(residual: f64) -> String {
    format!("{:+.1} %", residual * 100.0)
}

/// Writes the result.
///
/// # Errors
/// If the output cannot be written.
pub fn show(out: &mut dyn Write, document: &Document<TraceResult>) -> io::Result<()> {
    for result in &document.results {
        let modes: Vec<&ModeResult> =
            result.modes.iter().chain(result.prediction.as_ref().map(|it| &it.measured)).collect();
        let headings: Vec<String> = modes.iter().map(|mode| heading(mode)).collect();
        let header = ["us: median (p99)", "paper: engine", "paper: RDMA"].into_iter();
        let header: Vec<&str> = header.chain(headings.iter().map(String::as_str)).collect();
        write!(out, "{}", grid(&header, &rows(result, &modes)))?;
        for identity in &result.published.identities {
            writeln!(
                out,
                "paper: {}: {} us is the sum {} of parts of its table, so agreement says nothing",
                identity.what,
                published(Some(identity.published_ns)),
                us(identity.sum_ns)
            )?;
        }
        if let Some(prediction) = &result.prediction {
            writeln!(out, "{}", prediction_text(prediction))?;
        }
    }
    document.notes.iter().try_for_each(|note| writeln!(out, "note: {note}"))
}

fn rows(result: &TraceResult, modes: &[&ModeResult]) -> Vec<Vec<String>> {
    let line = |name: &str, paper: [Option<f64>; 2], cell: &dyn Fn(&ModeResult) -> String| {
        let cells = [name.to_owned()].into_iter().chain(paper.map(published));
        cells.chain(modes.iter().map(|mode| cell(mode))).collect::<Vec<_>>()
    };
    let has_cards = modes.iter().any(|mode| mode.mode == Mode::Card);
    let mut rows: Vec<_> = (Stage::ALL.into_iter())
        .filter(|stage| has_cards || !stage.is_of_card())
        .map(|stage| {
            let paper = result.published.stages.iter().find(|paper| paper.stage == stage);
            line(name(stage), paper.map_or([None; 2], |it| [it.engine_ns, it.rdma_ns]), &|mode| match mode
                .stages
                .iter()
                .find(|it| it.stage == stage)
            {
                Some(found) => median_and_p99(&found.times),
                None if stage.is_of_card() && mode.mode != Mode::Card => String::new(),
                None => "-".to_owned(),
            })
        })
        .collect();
    let sums = [Some(result.published.engine_ns), Some(result.published.rdma_ns)];
    rows.push(line("sum of the medians", sums, &|mode| us(mode.sum_ns)));
    rows.push(line("whole, with time stamps", [None; 2], &|mode| median_and_p99(&mode.traced)));
    rows.push(line("sum beside the whole", [None; 2], &|mode| residual(mode.residual)));
    rows.push(line("whole, without time stamps", [None; 2], &|mode| median_and_p99(&mode.whole)));
    rows.push(line("cost of the time stamps", [None; 2], &|mode| residual(mode.overhead)));
    rows
}

fn prediction_text(prediction: &Prediction) -> String {
    format!(
        "prediction: with engines that sleep, {} us: {} us of stages without waits and {} us of wake-ups measured alone; measured: {} us ({})",
        us(prediction.predicted_ns),
        us(prediction.kept_ns),
        us(prediction.wake_ups_ns),
        us(prediction.measured.whole.median_ns),
        residual(prediction.residual)
    )
}
