//! Names what limited a run, with the numbers that show it.
//!
//! The processor time of polling threads is no evidence, because they always run. So the dispatching thread
//! measures how long it had work ([`crate::control::Idle`]). If it had work nearly all the time, it is the
//! limit. If it mostly waited, other evidence shows what it waited for:
//!
//! | limit | evidence |
//! | --- | --- |
//! | offered rate | nearly all offered packets arrived |
//! | link | frames fill the link |
//! | PCIe, GPU memory | the rate of a bare kernel that moves the same bytes |
//! | sending port | the port took nothing for most of the time, or refused packets |
//! | processors | threads waited for a processor |
//! | system calls | threads slept |
//! | thread | the dispatching thread was busy |
//! | launches, posting | the feeder was busy |
//! | source | the source offered no more packets, and nothing was lost |
//! | workers, GPU | everything else |

use crate::config::{Config, Device, Method};
use crate::control::TimeShares;
use crate::field;
use crate::gpu::Memory;
use crate::pipeline::Overload;
use crate::result::PacketResult;
use crate::run::RunOutcome;
use inlane_core::stats::Summary;
use inlane_core::units::{self, Rate};
use std::time::Duration;

/// A thread that is busy for at least this share of the run counts as busy all the time.
const BUSY: f64 = 0.9;
/// If at least this share of the offered packets arrived, the run counts as if all arrived. The start and the
/// end of a run lose a few packets.
const ALL: f64 = 0.99;
/// If at least this share of the offered packets arrived and the threads were not busy, the offered rate was
/// the limit: the threads could have handled more packets. If a smaller share arrived, the run has missed its
/// `--rate`, even if the threads were busy.
const NEARLY_ALL: f64 = 0.95;
/// A ceiling limits a run if the run's rate is at least this share of the ceiling.
const CEILING: f64 = 0.9;
/// If threads wait for a processor or sleep in system calls for at least this share of the run, this waiting
/// is the limit of the run.
const NOT_RUNNING: f64 = 0.2;
/// A port is the limit of a run if it accepts nothing for at least this share of the run.
const BLOCKED: f64 = 0.5;
/// If a port refuses at least this share of the packets, the port is the limit.
const REFUSED: f64 = 0.05;
/// The shortest run for which [`limit`] names a limit. In shorter runs, start-up and shutdown distort the
/// rates.
const SHORTEST: Duration = Duration::from_millis(10);

/// Names what limited the run of `config`: a word or two, a colon, and the evidence. Set the ceiling in
/// `outcome.result` before the call. Without it, PCIe and GPU memory are never named. Returns `None` for a
/// run without packets or shorter than 10 ms.
pub fn limit(config: &Config, outcome: &RunOutcome) -> Option<String> {
    let result = &outcome.result;
    if result.rx.packets == 0 || Duration::from_nanos(result.duration_ns) < SHORTEST {
        return None;
    }
    Some(
        offered(config, result, ALL)
            .or_else(|| link(config, outcome))
            .or_else(|| bare_kernel(config, result))
            .or_else(|| sending_port(config, outcome))
            .or_else(|| not_running(config, outcome))
            .unwrap_or_else(|| threads(config, outcome)),
    )
}

/// Returns the number of packets that were lost because the receive port or the pipeline was full.
fn lost(result: &PacketResult) -> u64 {
    result.rx.missed + result.dropped_overload
}

/// Returns a text that names the offered rate as the limit. Returns `None` if less than `share` of the
/// offered rate arrived, or if packets were lost.
fn offered(config: &Config, result: &PacketResult, share: f64) -> Option<String> {
    let (arrived, said) = arrived(config, result)?;
    (arrived >= share && lost(result) == 0).then(|| format!("offered rate: {said}; nothing was lost"))
}

/// Returns a note if the run received less than 95 % of `--rate`. `None` without `--rate` and for a run
/// shorter than 10 ms.
pub fn missed_rate(config: &Config, result: &PacketResult) -> Option<String> {
    let (share, text) = arrived(config, result)?;
    let long_enough = Duration::from_nanos(result.duration_ns) >= SHORTEST;
    (share < NEARLY_ALL && long_enough).then(|| format!("{} was not reached: {text}", field::RATE))
}

/// Returns which share of the offered rate arrived, and a text with both rates. Returns `None` if no rate was
/// set.
fn arrived(config: &Config, result: &PacketResult) -> Option<(f64, String)> {
    let (arrived, asked, text): (_, _, fn(f64) -> String) = match config.rate? {
        Rate::Packets(asked) => (result.rx.packets_per_second, asked, units::packets_per_second),
        Rate::Bits(asked) => (result.rx.bits_per_second, asked, units::bits_per_second),
        Rate::Line(asked) => (result.rx.line_bits_per_second(), asked, units::bits_per_second),
    };
    Some((arrived / asked, format!("{} of {} arrived", text(arrived), text(asked))))
}

/// Names the slowest link as the limit, if frames fill it.
fn link(config: &Config, outcome: &RunOutcome) -> Option<String> {
    let bits = outcome.link_bits_per_second?;
    let [rx, tx] = [outcome.result.rx, outcome.result.tx].map(|flow| flow.line_bits_per_second());
    let share = rx.max(tx) / bits / config.route.directions() as f64;
    let link = units::bits_per_second(bits);
    (share >= CEILING)
        .then(|| format!("link: frames with preamble and gap used {} of {link}", percent(share)))
}

/// Names PCIe or GPU memory as the limit, if a bare kernel that moves the same bytes is hardly faster than
/// the run. The limit is GPU memory if packets are there from the start, else PCIe.
fn bare_kernel(config: &Config, result: &PacketResult) -> Option<String> {
    let share = share_of_bare_kernel(config, result).filter(|&share| share >= CEILING)?;
    let counted =
        result.pcie.as_ref().and_then(|pcie| pcie.measured.as_ref()).map_or(String::new(), |found| {
            let rate = |summary: &Summary| units::bytes_per_second(summary.median);
            let (into, out) = (rate(&found.in_bytes_per_second), rate(&found.out_bytes_per_second));
            format!("; the GPU counted {into} in and {out} out")
        });
    let what = if config.executor.gpu_memory() == Some(Memory::Pool) { "GPU memory" } else { "PCIe" };
    Some(format!(
        "{what}: {} of the rate of a bare kernel that moves the same bytes{counted}",
        percent(share)
    ))
}

/// Returns the packet rate of a GPU run as a share of the rate of a bare kernel. Returns `None` on the CPU.
fn share_of_bare_kernel(config: &Config, result: &PacketResult) -> Option<f64> {
    let ceiling = result.ceiling.as_ref()?.packets_per_second?;
    (config.executor.device() != Device::Cpu).then(|| result.rx.packets_per_second / ceiling)
}

/// Names the sending port as the limit if it made the pipeline wait, or if it refused packets.
fn sending_port(config: &Config, outcome: &RunOutcome) -> Option<String> {
    let blocked = outcome.time_shares.iter().map(|shares| shares.refused).fold(0.0, f64::max);
    if blocked >= BLOCKED {
        return Some(format!("sending port: it took nothing for {} of the time", percent(blocked)));
    }
    let refused = outcome.refused_packets as f64 / outcome.result.rx.packets as f64;
    let drops = config.per_pipeline.overload == Overload::Drop;
    (drops && refused >= REFUSED).then(|| {
        format!("sending port: it was full for {} of the packets, which were dropped", percent(refused))
    })
}

/// Names processors or system calls as the limit, if threads waited for processors or slept in system calls.
fn not_running(config: &Config, outcome: &RunOutcome) -> Option<String> {
    let result = &outcome.result;
    let threads = config.executor.threads() * config.pipelines as usize * config.route.directions();
    let all = result.duration_ns as f64 * threads as f64;
    let running = result.cpu_ns as f64 / all;
    // Limit the waiting time to the time in which the threads were not on a processor. The kernel's count of
    // time in run queues can be larger, because it includes time before the measurement.
    let queued = (outcome.queued_ns as f64 / all).min((1.0 - running).max(0.0));
    let (thread, noun, they) = match threads {
        1 => ("the thread", "the thread was", "it"),
        _ => ("the threads", "the threads were", "they"),
    };
    if queued >= NOT_RUNNING {
        let queued = percent(queued);
        return Some(format!(
            "processors: {thread} waited {queued} of the time for cores that other threads used"
        ));
    }
    let slept = 1.0 - running - queued;
    if slept < NOT_RUNNING {
        return None;
    }
    let slept = percent(slept);
    Some(match outcome.queued_ns {
        // This kernel does not report how long threads waited for a core. So the cause may be busy processors
        // or system calls.
        0 => format!("processors or system calls: {noun} not running for {slept} of the time"),
        _ => {
            format!("system calls: {noun} blocked for {slept} of the time while {they} read and wrote ports")
        }
    })
}

/// Names the limit that follows from how long the dispatching threads and feeders had work.
fn threads(config: &Config, outcome: &RunOutcome) -> String {
    let result = &outcome.result;
    let (device, method) = (config.executor.device(), config.executor.method());
    let (busy, most) = how_busy(outcome, |shares| shares.busy, ["receives and sends", "receive and send"]);
    if most >= BUSY {
        let ceiling = result.ceiling.as_ref().and_then(|ceiling| ceiling.packets_per_second);
        let function = match (device, method, ceiling) {
            (Device::Cpu, Method::Single, Some(ceiling)) => {
                let share = percent(result.rx.packets_per_second / ceiling);
                format!("; the packet function alone takes {share}, with packets in cache")
            }
            _ => String::new(),
        };
        return format!("thread: {busy}{function}");
    }
    if let Some(said) = offered(config, result, NEARLY_ALL) {
        return said;
    }
    let more = match (lost(result), arrived(config, result), always_ready(config)) {
        (lost @ 1.., ..) => format!("{lost} packets were lost"),
        (0, Some((_, said)), _) => format!("only {said}"),
        (0, None, true) => "there was always more to receive".into(),
        (0, None, false) => return format!("source: nothing was lost; {busy}"),
    };
    let share = share_of_bare_kernel(config, result)
        .map_or(String::new(), |share| format!("; the rate is {} of a bare kernel's", percent(share)));
    let by_feeder = |limit, does| {
        let (said, most) = how_busy(outcome, |shares| shares.feeding, does);
        (if most >= BUSY { limit } else { "GPU" }, said + "; ")
    };
    let (what, feeding) = match (device, method) {
        (Device::Cpu, Method::Single) => ("ports", String::new()),
        (Device::Cpu, _) => ("workers", String::new()),
        (Device::Gpu(_), Method::Single) => ("round trip to the GPU, one item at a time", String::new()),
        (Device::Gpu(_), Method::Persistent) => ("GPU", String::new()),
        (Device::Gpu(_), Method::Split) => by_feeder("launches", ["launches kernels", "launch kernels"]),
        (Device::Gpu(_), Method::Stream | Method::Graph) => {
            by_feeder("posting", ["posts kernels", "post kernels"])
        }
    };
    format!("{what}: {feeding}{busy}; {more}{share}")
}

/// Describes how busy the threads of one kind were. `share` returns the share of time in which a thread had
/// work. `one` and `several` name their task: they complete the phrases "the thread that ..." and "the
/// threads that ...". Returns the description and the largest share.
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

/// Returns true if the source always had more packets.
fn always_ready(config: &Config) -> bool {
    config.route.source().is_some_and(|rx| rx.is_always_ready(config.playback))
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
mod tests;
