//! Finds what limited a run, with the numbers that show it.
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
//! | sending port | the port took nothing for most of the time, or refused packets, or threads slept while they sent |
//! | source | the threads mostly found no packets, and nothing was lost |
//! | CPU quota | the control group was throttled, and the threads did not run |
//! | processors | threads waited for a processor |
//! | system calls | threads slept |
//! | thread | the dispatching thread was busy |
//! | launches, posting | the feeder was busy |
//! | source | the source offered no more packets, and nothing was lost |
//! | workers, GPU | everything else |

use crate::config::{Config, Device, Method};
use crate::control::TimeShares;
use crate::gpu::Memory;
use crate::pipeline::Overload;
use crate::pipeline::WorkShares;
use crate::result::{Evidence, Limit, LimitKind, Note, PacketResult, Resource, Task};
use crate::run::RunOutcome;
use inlane_core::units::Rate;
use inlane_process::cgroup::CpuQuota;
use std::time::Duration;

/// A thread that is busy for at least this share of the run counts as busy all the time.
const BUSY: f64 = 0.9;
/// If at least this share of the offered packets arrived, the run counts as if all arrived. The start and the
/// end of a run lose a few packets.
const ALL: f64 = 0.99;
/// If at least this share of the offered packets arrived and the threads were not busy, the offered rate was
/// the limit: the threads could have handled more packets. If a smaller share arrived, the run has missed its
/// rate, even if the threads were busy.
const NEARLY_ALL: f64 = 0.95;
/// A ceiling limits a run if the run's rate is at least this share of the ceiling.
const CEILING: f64 = 0.9;
/// If threads wait for a processor or sleep in system calls for at least this share of the run, this waiting
/// is the limit of the run.
const NOT_RUNNING: f64 = 0.2;
/// If a quota throttled the process in at least this share of its periods, the quota is the limit.
const THROTTLED: f64 = 0.5;
/// Dispatching threads that had work for less than this share of the time mostly waited for packets.
const MOSTLY: f64 = 0.5;
/// A port is the limit of a run if it accepts nothing for at least this share of the run.
const BLOCKED: f64 = 0.5;
/// If sending takes at least this share of the time of bursts, blocked threads waited for the sending port.
const SENDING: f64 = 0.8;
/// If a port refuses at least this share of the packets, the port is the limit.
const REFUSED: f64 = 0.05;
/// The shortest run for which [`limit`] names a limit. In shorter runs, start-up and shutdown distort the
/// rates.
const SHORTEST: Duration = Duration::from_millis(10);

/// Finds what limited the run of `config`. Set the ceiling in `outcome.result` before the call. Without it, PCIe and GPU
/// memory are never found. Returns `None` for a run without packets or shorter than 10 ms.
pub fn limit(config: &Config, outcome: &RunOutcome) -> Option<Limit> {
    let result = &outcome.result;
    if result.rx.packets == 0 || Duration::from_nanos(result.duration_ns) < SHORTEST {
        return None;
    }
    Some(
        offered(config, result, ALL)
            .or_else(|| link(config, outcome))
            .or_else(|| bare_kernel(config, result))
            .or_else(|| sending_port(config, outcome))
            .or_else(|| idle_source(config, outcome))
            .or_else(|| not_running(config, outcome))
            .unwrap_or_else(|| threads(config, outcome)),
    )
}

/// Returns the number of packets that were lost because the receive port or the pipeline was full.
fn lost(result: &PacketResult) -> u64 {
    result.rx.missed + result.dropped_overload
}

/// Finds the offered rate as the limit. Returns `None` if less than `share` of the offered rate arrived, or if packets
/// were lost.
fn offered(config: &Config, result: &PacketResult, share: f64) -> Option<Limit> {
    let (arrived, evidence) = arrived(config, result)?;
    (arrived >= share && lost(result) == 0).then(|| Limit {
        kind: LimitKind::Offered,
        resource: Resource::OfferedRate,
        evidence: vec![evidence, Evidence::NothingLost],
    })
}

/// Returns a note if the run received less than 95 % of the rate that the settings demand. `None` without such a rate
/// and for a run shorter than 10 ms.
pub fn missed_rate(config: &Config, result: &PacketResult) -> Option<Note> {
    let (share, rates) = arrived(config, result)?;
    let long_enough = Duration::from_nanos(result.duration_ns) >= SHORTEST;
    (share < NEARLY_ALL && long_enough).then_some(Note::RateMissed { rates })
}

/// Returns which share of the offered rate arrived, and both rates. Returns `None` if no rate was set.
fn arrived(config: &Config, result: &PacketResult) -> Option<(f64, Evidence)> {
    let bits = |arrived, offered| Evidence::ArrivedBits {
        arrived_bits_per_second: arrived,
        offered_bits_per_second: offered,
    };
    let (arrived, offered, evidence) = match config.rate? {
        Rate::Packets(offered) => {
            let arrived = result.rx.packets_per_second;
            let evidence = Evidence::ArrivedPackets {
                arrived_packets_per_second: arrived,
                offered_packets_per_second: offered,
            };
            (arrived, offered, evidence)
        }
        Rate::Bits(offered) => {
            let arrived = result.rx.bits_per_second;
            (arrived, offered, bits(arrived, offered))
        }
        Rate::Line(offered) => {
            let arrived = result.rx.line_bits_per_second();
            (arrived, offered, bits(arrived, offered))
        }
    };
    Some((arrived / offered, evidence))
}

/// Finds the slowest link as the limit, if frames fill it.
fn link(config: &Config, outcome: &RunOutcome) -> Option<Limit> {
    let bits = outcome.link_bits_per_second?;
    let [rx, tx] = [outcome.result.rx, outcome.result.tx].map(|flow| flow.line_bits_per_second());
    let share = rx.max(tx) / bits / config.route.directions() as f64;
    let evidence = vec![Evidence::LinkUsed { share, link_bits_per_second: bits }];
    (share >= CEILING).then_some(Limit { kind: LimitKind::Saturated, resource: Resource::Link, evidence })
}

/// Finds PCIe or GPU memory as the limit, if a bare kernel that moves the same bytes is hardly faster than
/// the run. The limit is GPU memory if packets are there from the start, else PCIe.
fn bare_kernel(config: &Config, result: &PacketResult) -> Option<Limit> {
    let share = share_of_bare_kernel(config, result).filter(|&share| share >= CEILING)?;
    let mut evidence = vec![Evidence::BareKernel { share }];
    if let Some(found) = result.pcie.as_ref().and_then(|pcie| pcie.measured.as_ref()) {
        evidence.push(Evidence::GpuCounted {
            in_bytes_per_second: found.in_bytes_per_second.median,
            out_bytes_per_second: found.out_bytes_per_second.median,
        });
    }
    let in_place = config.executor.gpu_memory() == Some(Memory::Pool);
    let resource = if in_place { Resource::GpuMemory } else { Resource::Pcie };
    Some(Limit { kind: LimitKind::Saturated, resource, evidence })
}

/// Returns the packet rate of a GPU run as a share of the rate of a bare kernel. Returns `None` on the CPU.
fn share_of_bare_kernel(config: &Config, result: &PacketResult) -> Option<f64> {
    let ceiling = result.ceiling.as_ref()?.packets_per_second?;
    (config.executor.device() != Device::Cpu).then(|| result.rx.packets_per_second / ceiling)
}

/// Finds the sending port as the limit if it made the pipeline wait, or if it refused packets.
fn sending_port(config: &Config, outcome: &RunOutcome) -> Option<Limit> {
    let waited = |evidence| {
        Some(Limit { kind: LimitKind::Waited, resource: Resource::SendingPort, evidence: vec![evidence] })
    };
    let blocked = outcome.time_shares.iter().map(|shares| shares.refused).fold(0.0, f64::max);
    if blocked >= BLOCKED {
        return waited(Evidence::PortTookNothing { share: blocked });
    }
    let share = outcome.refused_packets as f64 / outcome.result.rx.packets as f64;
    let drops = config.per_pipeline.overload == Overload::Drop;
    if drops && share >= REFUSED { waited(Evidence::PortFull { share }) } else { None }
}

/// Finds the source or the offered rate as the limit, if the dispatching threads mostly found nothing to do and nothing
/// was lost. It does not matter then that other threads or a quota kept the threads from polling.
fn idle_source(config: &Config, outcome: &RunOutcome) -> Option<Limit> {
    let result = &outcome.result;
    let (evidence, most) = busy(outcome, |shares| shares.busy, Task::ReceiveAndSend);
    if outcome.time_shares.is_empty() || most >= MOSTLY || lost(result) > 0 {
        return None;
    }
    if config.rate.is_some() {
        return offered(config, result, NEARLY_ALL);
    }
    (!always_ready(config)).then(|| Limit {
        kind: LimitKind::Waited,
        resource: Resource::Source,
        evidence: vec![Evidence::NothingLost, evidence],
    })
}

impl From<WorkShares> for Evidence {
    fn from(WorkShares { receive, function, send }: WorkShares) -> Self {
        Evidence::Work { receive_share: receive, function_share: function, send_share: send }
    }
}

/// Finds a quota, processors, the sending port or system calls as the limit, if threads waited for processors or slept in system calls.
fn not_running(config: &Config, outcome: &RunOutcome) -> Option<Limit> {
    let result = &outcome.result;
    let threads = config.executor.threads() * config.pipelines as usize * config.route.directions();
    let all = result.duration_ns as f64 * threads as f64;
    let running = result.cpu_ns as f64 / all;
    // Limit the waiting time to the time in which the threads were not on a processor. The kernel's count of
    // time in run queues can be larger, because it includes time before the measurement.
    let queued = (outcome.queued_ns as f64 / all).min((1.0 - running).max(0.0));
    let slept = 1.0 - running - queued;
    let waited =
        |resource, evidence| Some(Limit { kind: LimitKind::Waited, resource, evidence: vec![evidence] });
    // The kernel counts throttled time as waiting for a processor, so look at the quota first.
    if let Some(CpuQuota { cores, periods, throttled_periods }) = outcome.quota
        && 1.0 - running >= NOT_RUNNING
        && throttled_periods as f64 >= periods as f64 * THROTTLED
        && throttled_periods > 0
    {
        return waited(Resource::CpuQuota, Evidence::Throttled { cores, periods, throttled_periods });
    }
    match (queued >= NOT_RUNNING, slept >= NOT_RUNNING) {
        (true, _) => waited(Resource::Processors, Evidence::WaitedForCores { share: queued, threads }),
        (false, false) => None,
        // This kernel does not report how long threads waited for a core. So the cause may be busy processors
        // or system calls.
        (false, true) if outcome.queued_ns == 0 => {
            waited(Resource::ProcessorsOrSystemCalls, Evidence::NotRunning { share: slept, threads })
        }
        (false, true) => {
            let blocked = Evidence::BlockedInCalls { share: slept, threads };
            let sending = outcome.work.filter(|work| work.send >= SENDING);
            let (resource, work) = match sending {
                Some(work) => (Resource::SendingPort, Some(Evidence::from(work))),
                None => (Resource::SystemCalls, None),
            };
            let evidence = [blocked].into_iter().chain(work).collect();
            Some(Limit { kind: LimitKind::Waited, resource, evidence })
        }
    }
}

/// Finds the limit from the busy time of the dispatching threads and feeders.
fn threads(config: &Config, outcome: &RunOutcome) -> Limit {
    let result = &outcome.result;
    let (device, method) = (config.executor.device(), config.executor.method());
    let (dispatching, most) = busy(outcome, |shares| shares.busy, Task::ReceiveAndSend);
    if most >= BUSY {
        let mut evidence = vec![dispatching];
        evidence.extend(outcome.work.map(Evidence::from));
        return Limit { kind: LimitKind::Busy, resource: Resource::Thread, evidence };
    }
    if let Some(limit) = offered(config, result, NEARLY_ALL) {
        return limit;
    }
    let more = match (lost(result), arrived(config, result), always_ready(config)) {
        (packets @ 1.., ..) => Evidence::Lost { packets },
        (0, Some((_, arrived)), _) => arrived,
        (0, None, true) => Evidence::AlwaysReady,
        (0, None, false) => {
            let evidence = vec![Evidence::NothingLost, dispatching];
            return Limit { kind: LimitKind::Waited, resource: Resource::Source, evidence };
        }
    };
    let by_feeder = |resource, task| {
        let (feeding, most) = busy(outcome, |shares| shares.feeding, task);
        match most >= BUSY {
            true => (LimitKind::Busy, resource, Some(feeding)),
            false => (LimitKind::Excluded, Resource::Gpu, Some(feeding)),
        }
    };
    let (kind, resource, feeding) = match (device, method) {
        (Device::Cpu, Method::Single) => (LimitKind::Excluded, Resource::Ports, None),
        (Device::Cpu, _) => (LimitKind::Excluded, Resource::Workers, None),
        (Device::Gpu(_), Method::Single) => (LimitKind::Excluded, Resource::RoundTrip, None),
        (Device::Gpu(_), Method::Persistent) => (LimitKind::Excluded, Resource::Gpu, None),
        (Device::Gpu(_), Method::Split) => by_feeder(Resource::Launches, Task::LaunchKernels),
        (Device::Gpu(_), Method::Stream | Method::Graph) => by_feeder(Resource::Posting, Task::PostKernels),
    };
    let mut evidence: Vec<Evidence> = feeding.into_iter().collect();
    evidence.extend([dispatching, more]);
    evidence.extend(share_of_bare_kernel(config, result).map(|share| Evidence::BareKernel { share }));
    Limit { kind, resource, evidence }
}

/// Returns how busy the threads of one kind were, as evidence, and the largest share. `share` returns the share of time
/// in which a thread had work.
fn busy(outcome: &RunOutcome, share: fn(&TimeShares) -> f64, task: Task) -> (Evidence, f64) {
    let shares = || outcome.time_shares.iter().map(share);
    let (least_share, most_share) = (shares().fold(1.0, f64::min), shares().fold(0.0, f64::max));
    let threads = outcome.time_shares.len();
    (Evidence::Busy { task, least_share, most_share, threads }, most_share)
}

/// Returns true if the source always had more packets.
fn always_ready(config: &Config) -> bool {
    config.route.source().is_some_and(|rx| rx.is_always_ready(config.playback))
}

#[cfg(test)]
mod tests;
