//! The baseline: a short run with the same source and executor, but without the packet function's work.

use crate::config::{Compete, Config, Device, Executor, Route};
use crate::control::Control;
use crate::result::{Baseline, BaselinePorts};
use crate::run::run;
use inlane_ports::null::NullSpec;
use inlane_ports::pcap::{Pace, Playback};
use inlane_ports::spec::PortSpec;
use std::time::Duration;

/// How long a baseline runs.
const BASELINE: Duration = Duration::from_millis(300);

/// Returns settings for a run of `duration` without capture, measurements, faults, pacing, packet limit and
/// competing job.
pub(super) fn shortened(config: &Config, duration: Duration) -> Config {
    let mut short = config.clone();
    short.per_pipeline.stages = false;
    short.per_pipeline.packets = u64::MAX;
    short.rate = None;
    short.capture = None;
    short.faults = None;
    short.compete = Compete::None;
    if let Executor::Gpu { settings, .. } = &mut short.executor {
        settings.measure_pcie = false;
    }
    short.duration = Some(duration);
    short
}

/// Measures the baseline: a 300 ms run with the same source and the same executor. Its packet function is
/// `io`, its transmit port is `null`, and it does no extra work. A capture is played in a loop at full speed.
///
/// Returns `None` in these cases:
///
/// - Packets flow in both directions, or the source cannot be read twice.
/// - `control` was stopped, or the baseline fails.
/// - The executor is a GPU, and the run drops privileges that its ports need.
pub fn baseline(config: &Config, control: &Control) -> Option<Baseline> {
    let Route::OneWay { rx, tx } = &config.route else { return None };
    let needs_privileges = config.executor.device() != Device::Cpu && config.drops_needed_privileges();
    if !rx.can_reopen() || control.stopping() || needs_privileges {
        return None;
    }
    let mut plain = shortened(config, BASELINE);
    let same_sink = matches!(&tx[..], [PortSpec::Null(_)]);
    if !same_sink {
        plain.route = Route::OneWay { rx: rx.clone(), tx: vec![discard()] };
    }
    plain.function = "io".into();
    plain.reference = None;
    plain.per_pipeline.work = Duration::ZERO;
    // Loop the capture, because a short one would end before its rate is meaningful.
    plain.playback = Playback { pace: Pace::Full, repeat: true };
    let outcome = run(&plain, &Control::default(), &mut |_, _| ()).ok();
    let flow = outcome.filter(|outcome| outcome.errors.is_empty())?.result.tx;
    let ports = match same_sink {
        true => BaselinePorts::Same,
        false => {
            BaselinePorts::Discarding { source: rx.to_string(), repeats: matches!(rx, PortSpec::Capture(_)) }
        }
    };
    Some(Baseline {
        ports,
        bytes_per_second: flow.bits_per_second / 8.0,
        packets_per_second: flow.packets_per_second,
    })
}

/// Returns a port that discards packets.
pub(super) fn discard() -> PortSpec {
    NullSpec::default().into()
}
