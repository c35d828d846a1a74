//! Converts the flags of `inlane forward` to the `Config` of a run.

use super::args::{Forward, GpuArgs};
use super::options::MethodChoice;
use crate::fields::flag;
use crate::values::core_list;
use inlane_core::setting::Field;
use inlane_forward::config::{Config, Executor, Method, Route};
use inlane_forward::field;
use inlane_forward::gpu::{self, Memory};
use inlane_forward::pipeline::PipelineSettings;
use inlane_ports::pcap::{Pace, Playback};
use inlane_ports::spec::PortSpec;
use std::time::Duration;

impl Forward {
    /// Returns the configuration that the flags ask for.
    ///
    /// # Errors
    /// If flags contradict each other, or a value is out of range.
    pub(super) fn config(&self) -> anyhow::Result<Config> {
        let route = match (&self.ports.between, &self.ports.rx) {
            (Some(between), _) => {
                if between.iter().any(String::is_empty) {
                    return Err(unnamed(field::BETWEEN));
                }
                Route::Between(port(&between[0])?, port(&between[1])?)
            }
            (None, Some(rx)) if !self.ports.tx.is_empty() => {
                if rx.is_empty() {
                    return Err(unnamed(field::RX));
                }
                if self.ports.tx.iter().any(String::is_empty) {
                    return Err(unnamed(field::TX));
                }
                Route::OneWay {
                    rx: port(rx)?,
                    tx: self.ports.tx.iter().map(|tx| port(tx)).collect::<Result<_, _>>()?,
                }
            }
            (None, rx) => {
                let what = match (rx, self.ports.tx.is_empty()) {
                    (Some(_), _) => format!("{} is missing", flag("tx")),
                    (None, false) => format!("{} is missing", flag("rx")),
                    (None, true) => "no port is named".into(),
                };
                let why = "give --rx and --tx, or --between; 'inlane forward --help' has examples";
                return Err(inlane_forward::Error::config(what, why).into());
            }
        };
        let mut config = Config::new(route);
        config.function = self.function.function.as_str().into();
        config.reference = self.function.reference.clone();
        if matches!(self.function.method, MethodChoice::Method(_))
            && (self.function.goal.is_some() || self.function.max_latency.is_some())
        {
            let name = if self.function.goal.is_some() { "goal" } else { "max-latency" };
            let why = "it needs --method auto; add it, or leave this flag out";
            return Err(inlane_forward::Error::config(flag(name), why).into());
        }
        let method = match self.function.method {
            MethodChoice::Method(method) => method,
            // The search of --method auto begins with method split if --workers is given, because no other
            // method has workers.
            MethodChoice::Auto if self.function.workers > 0 => Method::Split,
            MethodChoice::Auto => Method::Single,
        };
        config.executor =
            Executor::new(self.function.on, method, self.function.workers, self.gpu.settings()?)?;
        config.pipelines = self.pipeline.pipelines;
        config.rate = self.ports.rate;
        let pace = self.ports.pace;
        let plays = matches!(config.route.source(), Some(PortSpec::Capture(_)));
        if !plays && (self.ports.repeat || pace != Pace::Full) {
            let what = match self.ports.repeat {
                true => flag("loop").to_string(),
                false => flag("pace").with("original").to_string(),
            };
            let why = "it needs a capture as the receive port; add --rx pcap:FILE, or leave this flag out";
            return Err(inlane_forward::Error::config(what, why).into());
        }
        config.drop_privileges = !self.pipeline.keep_privileges;
        config.playback = Playback { pace, repeat: self.ports.repeat };
        config.buffers = self.pipeline.buffers;
        config.room = self.pipeline.room as usize;
        config.capture = self.ports.capture.clone();
        config.faults = self.ports.faults.clone();
        config.compete = self.experiment.compete;
        config.per_pipeline = PipelineSettings {
            burst: self.pipeline.burst,
            flush: self.pipeline.flush,
            slots: self.pipeline.slots,
            overload: self.pipeline.overload,
            work: self.function.work,
            stages: self.experiment.stages,
            packets: u64::MAX,
            watchdog: self.function.watchdog,
        };
        let mut whole_capture = false;
        match self.run.packets.as_deref() {
            Some("all") => whole_capture = true,
            Some(text) => {
                config.per_pipeline.packets =
                    text.replace('_', "").parse().ok().filter(|&n| n > 0).ok_or_else(|| {
                        let why = "give a whole number above zero, or all";
                        inlane_core::Error::invalid(flag("packets").with(text), why)
                    })?;
            }
            None => {}
        }
        config.cores = match self.pipeline.cores.as_deref() {
            None => None,
            Some("none") => Some(Vec::new()),
            Some(list) => Some(core_list(list).map_err(|error| match error {
                inlane_core::Error::Invalid { why, .. } => {
                    inlane_core::Error::invalid(flag("cores").with(list), why)
                }
                other => other,
            })?),
        };
        // True if a run without --duration and --packets must be ended after 5 s. A capture that is played
        // once ends the run by itself. A run with --between lasts until a signal.
        let endless = config.route.source().is_some() && (!plays || self.ports.repeat);
        // Require --duration for --packets all, because a source that never ends has no last packet.
        if let (true, None, Some(rx)) = (whole_capture, self.run.duration, config.route.source())
            && rx.is_endless(config.playback)
        {
            let why = format!("{rx} never ends; give a number, or --duration");
            return Err(inlane_core::Error::invalid(flag("packets").with("all"), why).into());
        }
        config.duration = match self.run.duration {
            Some(duration) => Some(duration),
            None if endless && !whole_capture && config.per_pipeline.packets == u64::MAX => {
                Some(Duration::from_secs(5))
            }
            None => None,
        };
        Ok(match self.ports.size {
            Some(size) => config.with_size(size)?,
            None => config,
        })
    }
}

/// Parses a port.
fn port(text: &str) -> Result<PortSpec, inlane_forward::Error> {
    Ok(PortSpec::parse(text)?)
}

/// Returns the error for a flag whose port is an empty text.
fn unnamed(flag: Field) -> anyhow::Error {
    inlane_forward::Error::config(flag.with("''"), "the port is missing; give for example null").into()
}

impl GpuArgs {
    /// Returns the settings of the GPU executor.
    ///
    /// # Errors
    /// If flags contradict each other.
    fn settings(&self) -> Result<gpu::Settings, inlane_forward::Error> {
        let memory = match (self.memory, self.header_split) {
            (None, None) => Memory::default(),
            (Some(memory), None) => memory,
            (None | Some(Memory::Gpu), Some(bytes)) => Memory::Split(bytes),
            (Some(memory), Some(_)) => {
                return Err(inlane_forward::Error::config(
                    format!("{} and {}", flag("memory").with(memory), flag("header-split")),
                    "only --memory gpu copies packets, whole or split; leave one of them out",
                ));
            }
        };
        Ok(gpu::Settings {
            memory,
            blocks: self.blocks,
            threads: self.threads,
            streams: self.streams,
            graph_items: self.graph_items,
            graph_branches: self.graph_branches,
            pause: self.pause,
            high_priority: self.high_priority,
            measure_pcie: self.measure_pcie,
            ..gpu::Settings::default()
        })
    }
}
