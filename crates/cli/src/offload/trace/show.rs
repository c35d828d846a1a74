//! Shows the result of `inlane offload trace` as text.

use super::result::{Mode, ModeResult, Prediction, StageResult, TraceResult};
use inlane_offload::floors::Measured;
use inlane_offload::trace::{Hop, Stage, Times};
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

/// Explains a kind of floor: first the lines of the table that have it, then what was measured.
fn measured(measured: Measured) -> &'static str {
    match measured {
        Measured::StoreToPolledLines => {
            "hand-over, placement: a thread stores 4 bytes and an index to cache lines that another thread polls"
        }
        Measured::PassingOfLines => {
            "engine finds it, recv() finds it: the other thread, which only polls these lines, loads the index and the bytes"
        }
        Measured::MessageHeader => {
            "to card: engine, from card: card: the header of a message is built, in memory"
        }
        Measured::MessagePlacement => {
            "placement in the card's and the engine's ring: a message in memory is checked, and its 4 bytes are copied to a ring"
        }
        Measured::TcpHeader => {
            "TCP, sender: the state machine of TCP makes the header of a segment, in memory"
        }
        Measured::TcpPlacement => {
            "TCP, receiver: the headers of a segment in memory are checked, and the state machine copies its 4 bytes to a ring"
        }
        Measured::PortAlone => {
            "data movement, ports, wire, card or engine finds it: a frame of the same length passes the same kind of port between two \
             threads that do nothing else"
        }
    }
}

/// The kinds of floors, in the order of the table.
const MEASURED: [Measured; 7] = [
    Measured::StoreToPolledLines,
    Measured::PassingOfLines,
    Measured::MessageHeader,
    Measured::PortAlone,
    Measured::MessagePlacement,
    Measured::TcpHeader,
    Measured::TcpPlacement,
];

/// The ratio of a stage to its floor up to which they are shown as close.
const CLOSE: f64 = 1.5;

fn time_and_ratio(ns: f64, ratio: Option<f64>) -> String {
    ratio.map_or_else(|| us(ns), |ratio| format!("{} ({ratio:.1})", us(ns)))
}

fn floor(stage: &StageResult) -> String {
    stage.floor.as_ref().map_or("-".to_owned(), |floor| time_and_ratio(floor.times.median_ns, floor.ratio))
}

/// Returns true if the stages of a mode have floors, so a column shows them.
fn has_floors(mode: &ModeResult) -> bool {
    mode.stages.iter().any(|stage| stage.floor.is_some())
}

/// Returns the sum of the floors, and the ratio to it of the stages that have floors.
fn sum_of_floors(mode: &ModeResult) -> String {
    let floors = mode.stages.iter().filter_map(|stage| Some((stage, stage.floor.as_ref()?)));
    let (sum, stages) = floors.fold((0.0, 0.0), |(sum, stages), (stage, floor)| {
        (sum + floor.times.median_ns, stages + stage.times.median_ns)
    });
    time_and_ratio(sum, (sum > 0.0).then_some(stages / sum))
}

fn write_floors(out: &mut dyn Write, mode: &ModeResult) -> io::Result<()> {
    let floors = || mode.stages.iter().filter_map(|stage| stage.floor.as_ref());
    let ratios: Vec<f64> = floors().filter_map(|floor| floor.ratio).collect();
    let close = ratios.iter().filter(|&&ratio| ratio <= CLOSE).count();
    writeln!(
        out,
        "floors: {close} of the {} stages with a floor above 0 take at most {CLOSE} times as long",
        ratios.len()
    )?;
    for passage in &mode.passages {
        let link = match passage.link {
            Hop::ToCard => "to card",
            Hop::Network => "between the cards",
            Hop::FromCard => "from card",
        };
        let Some(floor) = &passage.floor else { continue };
        let (took, floor) = (us(passage.times.median_ns), time_and_ratio(floor.times.median_ns, floor.ratio));
        writeln!(out, "both ports and wire together, {link}: {took} us; floor (ratio): {floor}")?;
    }
    let kinds = MEASURED.into_iter().filter(|&kind| floors().any(|floor| floor.measured == kind));
    kinds.into_iter().try_for_each(|kind| writeln!(out, "floor of {}", measured(kind)))
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
        let headings = modes.iter().flat_map(|mode| {
            let floor = has_floors(mode).then(|| "floor (ratio)".to_owned());
            [heading(mode)].into_iter().chain(floor)
        });
        let headings: Vec<String> = headings.collect();
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
        for mode in modes.iter().filter(|mode| has_floors(mode)) {
            write_floors(out, mode)?;
        }
        if let Some(prediction) = &result.prediction {
            writeln!(out, "{}", prediction_text(prediction))?;
        }
    }
    document.notes.iter().try_for_each(|note| writeln!(out, "note: {note}"))
}

fn rows(result: &TraceResult, modes: &[&ModeResult]) -> Vec<Vec<String>> {
    // `cells` returns the cell of a mode, and of its floors.
    let line = |name: &str, paper: [Option<f64>; 2], cells: &dyn Fn(&ModeResult) -> [String; 2]| {
        let of_modes =
            modes.iter().flat_map(|mode| cells(mode).into_iter().take(if has_floors(mode) { 2 } else { 1 }));
        [name.to_owned()].into_iter().chain(paper.map(published)).chain(of_modes).collect::<Vec<_>>()
    };
    let without_floor = |name: &str, cell: &dyn Fn(&ModeResult) -> String| {
        line(name, [None; 2], &|mode| [cell(mode), String::new()])
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
                Some(found) => [median_and_p99(&found.times), floor(found)],
                None if stage.is_of_card() && mode.mode != Mode::Card => Default::default(),
                None => ["-".to_owned(), "-".to_owned()],
            })
        })
        .collect();
    let sums = [Some(result.published.engine_ns), Some(result.published.rdma_ns)];
    rows.push(line("sum of the medians", sums, &|mode| [us(mode.sum_ns), sum_of_floors(mode)]));
    rows.push(without_floor("whole, with time stamps", &|mode| median_and_p99(&mode.traced)));
    rows.push(without_floor("sum beside the whole", &|mode| residual(mode.residual)));
    rows.push(without_floor("whole, without time stamps", &|mode| median_and_p99(&mode.whole)));
    rows.push(without_floor("cost of the time stamps", &|mode| residual(mode.overhead)));
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
