//! What limited a run: read off what it measured of itself, each time with the figures that say so.
//!
//! A thread that polls is always running, so processor time tells nothing. What does is how long the thread that moves a pipeline's packets
//! found nothing to do ([`crate::control::Idle`]): if hardly ever, it is the limit itself; if often, it waited for somebody, and who
//! that was follows from what else is known: what was offered, whether the source ever ends, whether a port refused packets, what a
//! bare kernel moves over the same path, whether the thread that launches kernels or posts them had time left.

use crate::config::{Config, Device, Method, Route};
use crate::control::TimeShares;
use crate::gpu::Memory;
use crate::result::PacketResult;
use crate::run::RunOutcome;
use crate::run::kind;
use inlane_core::units::{self, Rate};
use inlane_ports::pcap::Pace;
use std::time::Duration;

/// A thread that had something to do for this share of the run had no time left.
const BUSY: f64 = 0.9;
/// This share of what was offered is all of it; of who was not busy, this one, too: a run's beginning and end.
const ALL: f64 = 0.99;
const NEARLY: f64 = 0.95;
/// This share of a ceiling is the ceiling.
const CEILING: f64 = 0.9;
/// Threads that poll run all the time: with less than this, others had their cores.
const SHARED: f64 = 0.8;
/// Beginning and end are too much of anything shorter.
const SHORTEST: Duration = Duration::from_millis(10);

/// What limited the run of `config`, whose ceiling is known: a word for it, a colon, and how that was seen. `None` for runs that
/// were too short to tell.
pub fn limit(config: &Config, outcome: &RunOutcome) -> Option<String> {
    let result = &outcome.result;
    if result.rx.packets == 0 || Duration::from_nanos(result.duration_ns) < SHORTEST {
        return None;
    }
    let lost = result.rx.missed + result.dropped_overload;
    if let Some(said) = offered(config, result, ALL).filter(|_| lost == 0) {
        return Some(said);
    }
    Some(
        link(outcome)
            .or_else(|| pcie(config, result))
            .or_else(|| shared(config, result))
            .unwrap_or_else(|| threads(config, outcome, lost)),
    )
}

/// The rate asked for, if this share of it came.
fn offered(config: &Config, result: &PacketResult, share: f64) -> Option<String> {
    let (came, said) = came(config, result)?;
    (came >= share).then(|| format!("offered rate: {said}, and nothing was lost"))
}

/// What share of the rate asked for came, and that in words.
fn came(config: &Config, result: &PacketResult) -> Option<(f64, String)> {
    let (came, asked, text): (_, _, fn(f64) -> String) = match config.rate? {
        Rate::Packets(asked) => (result.rx.packets_per_second, asked, units::packets_per_second),
        Rate::Bits(asked) => (result.rx.bits_per_second, asked, units::bits_per_second),
        Rate::Line(asked) => (result.rx.line_bits_per_second(), asked, units::bits_per_second),
    };
    Some((came / asked, format!("of {} asked for {} came", text(asked), text(came))))
}

fn link(outcome: &RunOutcome) -> Option<String> {
    let bits = outcome.link_bits_per_second?;
    let [rx, tx] = [outcome.result.rx, outcome.result.tx].map(|flow| flow.line_bits_per_second());
    let share = rx.max(tx) / bits;
    let said = || {
        let link = units::bits_per_second(bits);
        format!("link: frames with what stands between them took {} of its {link}", percent(share))
    };
    (share >= CEILING).then(said)
}

/// On a GPU: the memory that packets are read from, if a bare kernel gets no more out of it.
fn pcie(config: &Config, result: &PacketResult) -> Option<String> {
    let share = bare_kernel(config, result)?;
    let counted =
        result.pcie.as_ref().and_then(|pcie| pcie.measured.as_ref()).map_or(String::new(), |found| {
            let rate = |summary: &inlane_core::stats::Summary| units::bytes_per_second(summary.median);
            let (into, out) = (rate(&found.in_bytes_per_second), rate(&found.out_bytes_per_second));
            format!("; the GPU counted {into} in and {out} out")
        });
    let what = if config.executor.gpu_memory() == Some(Memory::Pool) { "GPU memory" } else { "PCIe" };
    let said = || {
        format!("{what}: {} of the rate of a bare kernel that moves the same bytes{counted}", percent(share))
    };
    (share >= CEILING).then(said)
}

/// The rate as a share of the bare kernel's.
fn bare_kernel(config: &Config, result: &PacketResult) -> Option<f64> {
    let ceiling = result.ceiling.as_ref()?.packets_per_second?;
    (config.executor.device() != Device::Cpu).then(|| result.rx.packets_per_second / ceiling)
}

/// Cores that the run's threads did not have for themselves.
fn shared(config: &Config, result: &PacketResult) -> Option<String> {
    let threads = config.executor.threads() * config.pipelines as usize * config.route.directions();
    let had = result.cpu_ns as f64 / result.duration_ns as f64 / threads as f64;
    let said = || {
        format!(
            "processors: the run's {threads} thread(s), which poll, had one for {} of the time; others ran there, or system calls slept",
            percent(had)
        )
    };
    (had < SHARED).then(said)
}

/// What the threads' own time says.
fn threads(config: &Config, outcome: &RunOutcome, lost: u64) -> String {
    let result = &outcome.result;
    let (busy, most) = how_busy(outcome, |spent| spent.busy, ["moves packets", "move packets"]);
    if most >= BUSY {
        let ceiling = result.ceiling.as_ref().and_then(|ceiling| ceiling.packets_per_second);
        let function = match (config.executor.device(), config.executor.method(), ceiling) {
            (Device::Cpu, Method::Single, Some(ceiling)) => {
                let share = percent(result.rx.packets_per_second / ceiling);
                format!("; the function alone takes {share}, with packets in cache")
            }
            _ => String::new(),
        };
        return format!("thread: {busy}{function}");
    }
    let refused = outcome.time_shares.iter().map(|spent| spent.refused).fold(0.0, f64::max);
    if refused > 1.0 - most - refused {
        return format!("sending port: it took nothing for {} of the time; {busy}", percent(refused));
    }
    if let Some(said) = offered(config, result, NEARLY).filter(|_| lost == 0) {
        return said;
    }
    let more = match (lost, came(config, result), endless(config)) {
        (1.., ..) => format!("{lost} packets were lost"),
        (0, Some((_, said)), _) => said,
        (0, None, true) => "there was always more to receive".into(),
        (0, None, false) => return format!("source: it offered no more, for nothing was lost, and {busy}"),
    };
    let share = bare_kernel(config, result)
        .map_or(String::new(), |share| format!(", at {} of a bare kernel's rate", percent(share)));
    let fed = |by, does| {
        let (said, most) = how_busy(outcome, |spent| spent.feeding, does);
        (if most >= BUSY { by } else { "GPU" }, said + ", ")
    };
    let (what, feeding) = match (config.executor.device(), config.executor.method()) {
        (Device::Cpu, Method::Single) => ("sending port", String::new()),
        (Device::Cpu, _) => ("workers", String::new()),
        (Device::Gpu(_), Method::Single) => ("round trip to the GPU, one item at a time", String::new()),
        (Device::Gpu(_), Method::Persistent) => ("GPU", String::new()),
        (Device::Gpu(_), Method::Split) => fed("launches", ["launches kernels", "launch kernels"]),
        (Device::Gpu(_), Method::Stream | Method::Graph) => fed("posting", ["posts kernels", "post kernels"]),
    };
    format!("{what}: {feeding}{busy} and waited otherwise, though {more}{share}")
}

/// How busy the threads were that do this (one does, several do), and the busiest one's share.
fn how_busy(outcome: &RunOutcome, share: fn(&TimeShares) -> f64, [one, several]: [&str; 2]) -> (String, f64) {
    let shares = || outcome.time_shares.iter().map(share);
    let (least, most) = (shares().fold(1.0, f64::min), shares().fold(0.0, f64::max));
    let (from, to) = (percent(least), percent(most));
    let said = match outcome.time_shares.len() {
        1 => format!("the thread that {one} was busy {to} of the time"),
        _ if from == to => format!("the threads that {several} were busy {to} of the time"),
        _ => format!("the threads that {several} were busy {from} to {to} of the time"),
    };
    (said, most)
}

/// The source always has more.
fn endless(config: &Config) -> bool {
    let Route::OneWay { rx, .. } = &config.route else { return false };
    match kind(rx) {
        "null" | "net_null" => true,
        "gen" => !rx.starts_with("gen:oran"),
        // A pipe has what its writer wrote.
        "pcap" => {
            let file = rx.split_once(':').is_some_and(|(_, path)| std::path::Path::new(path).is_file());
            file && config.playback.pace == Pace::Full
        }
        _ => false,
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
mod tests;
