//! The baseline: a short run with the same source and executor, but without the packet function's work.

use crate::config::{Compete, Config, Device, Executor, Route};
use crate::control::Control;
use crate::run::{kind, run};
use inlane_core::result::Baseline;
use inlane_ports::pcap::{Pace, Playback};
use std::path::Path;
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
/// `io`, its transmit port is `null`, and it does no `--work`. A capture is played in a loop at full speed.
///
/// Returns `None` in these cases:
///
/// - Packets flow in both directions, or the source cannot be read twice.
/// - `control` was stopped, or the baseline fails.
/// - The executor is a GPU, and the run drops privileges that its ports need.
pub fn baseline(config: &Config, control: &Control) -> Option<Baseline> {
    let Route::OneWay { rx, tx } = &config.route else { return None };
    let needs_privileges = config.executor.device() != Device::Cpu && config.drops_needed_privileges();
    if !is_repeatable(rx) || control.stopping() || needs_privileges {
        return None;
    }
    let mut plain = shortened(config, BASELINE);
    let same_sink = tx.len() == 1 && kind(&tx[0]) == "null";
    if !same_sink {
        plain.route = Route::OneWay { rx: rx.clone(), tx: vec!["null".into()] };
    }
    plain.function = "io".into();
    plain.per_pipeline.work = Duration::ZERO;
    // Loop the capture, because a short one would end before its rate is meaningful.
    plain.playback = Playback { pace: Pace::Full, repeat: true };
    let outcome = run(&plain, &Control::default(), &mut |_, _| ()).ok();
    let flow = outcome.filter(|outcome| outcome.errors.is_empty())?.result.tx;
    let ports = match same_sink {
        true => "the same ports".to_string(),
        false if kind(rx) == "pcap" => format!("{rx} in a loop to null"),
        false => format!("{rx} to null"),
    };
    Some(Baseline {
        what: format!("{ports}, the same method, function io, no forced work"),
        bytes_per_second: Some(flow.bits_per_second / 8.0),
        packets_per_second: Some(flow.packets_per_second),
    })
}

/// Returns true if the source gives the same packets when it is opened again: null ports, generators and
/// files.
pub(super) fn is_repeatable(rx: &str) -> bool {
    match kind(rx) {
        "null" | "gen" => true,
        "pcap" => rx.split_once(':').is_some_and(|(_, path)| Path::new(path).is_file()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipes_are_not_read_twice() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).to_str().unwrap().to_string();
        let (file, pipe) = (path("file"), path("pipe"));
        std::fs::write(&file, []).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(is_repeatable(&format!("pcap:{file}")) && is_repeatable("gen:64"));
        for rx in [format!("pcap:{pipe}"), "pcap:-".into(), "ring:x".into()] {
            assert!(!is_repeatable(&rx), "{rx}");
        }
    }
}
