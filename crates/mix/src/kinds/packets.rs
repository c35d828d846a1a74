//! Loads that forward or send packets.

use super::{KindInfo, Work};
use crate::settings::{Key, Settings, Wrong, key};
use inlane_core::Error;
use inlane_core::load::{Load, Pace};
use inlane_core::units;
use inlane_forward::ForwardLoad;
use inlane_forward::config::{Config, Device, Executor, Method, Route};
use inlane_forward::gpu;
use inlane_ports::spec::{PortSpec, Source};
use std::sync::Arc;

/// The largest frame and the largest burst that the settings allow. A run checks both against its ports.
const LARGEST: usize = 1 << 16;

const BURST: Key = key("burst", "the most packets of a burst; default: 64");
const PIPELINES: Key = key("pipelines", "the number of pipelines, each with a queue of its own; default: 1");

/// Packet processing between any ports.
pub(super) const FORWARD: KindInfo = KindInfo {
    name: "forward",
    about: "processes packets between two ports, as 'inlane forward' does",
    own_keys: &[
        key("from", "the port that it receives from"),
        key("to", "the port that it sends to"),
        key("size", "the bytes of a packet, if the receiving port makes packets; default: those of the port"),
        key("function", "the packet function; default: io"),
        key("on", "cpu or gpu:N; default: cpu"),
        key("method", "single, split, persistent, stream or graph; default: single"),
        key("memory", "the memory of packets for a GPU: pinned, gpu or split:BYTES; default: pinned"),
        key("work", "a time that each packet takes in addition, such as 1us; default: 0"),
        key("workers", "the number of worker threads of method split; default: 1"),
        key("room", "the largest packet that a buffer can hold; default: 2K"),
        BURST,
        PIPELINES,
    ],
    read: |settings| {
        let from = settings.required("from", "give the port that packets come from")?;
        let rx = settings.parsed("from", |_| PortSpec::parse(from))?;
        Packets::read(settings, rx.expect("the key was given"))
    },
};

/// Generated packets to any port.
pub(super) const TX: KindInfo = KindInfo {
    name: "tx",
    about: "generates packets and sends them to a port",
    own_keys: &[
        key("to", "the port that it sends to"),
        key("size", "the bytes of a packet; default: 64"),
        key("room", "the largest packet that a buffer can hold; default: 2K"),
        BURST,
        PIPELINES,
    ],
    read: |settings| {
        let size = settings.size("size")?.unwrap_or(64);
        let rx = PortSpec::generator(size as u64);
        let rx = rx.map_err(|error| Wrong { key: "size", why: error.to_string() })?;
        Packets::read(settings, rx)
    },
};

/// What pipelines do.
#[derive(Clone, Debug)]
pub struct Packets {
    config: Config,
    /// The bytes of a packet, if they are a setting.
    pub size: Option<usize>,
}

impl Packets {
    fn read(settings: &Settings<'_>, rx: PortSpec) -> Result<Work, Wrong> {
        let to = settings.required("to", "give the port that packets go to")?;
        let tx = settings.parsed("to", |_| PortSpec::parse(to))?.expect("the key was given");
        let mut config = Config::new(Route::OneWay { rx, tx: vec![tx] });
        // Ports that need privileges start while the load is opened, because the session drops these afterwards.
        config.drop_privileges = true;
        let gpu =
            gpu::Settings { memory: settings.of("memory")?.unwrap_or_default(), ..gpu::Settings::default() };
        let on = settings.of("on")?.unwrap_or(Device::Cpu);
        let method = settings.of("method")?.unwrap_or(Method::Single);
        let workers = settings.count("workers", 64)?.unwrap_or(0);
        let wrong = |key| move |error: inlane_forward::Error| Wrong { key, why: error.to_string() };
        config.executor = Executor::new(on, method, workers, gpu).map_err(wrong("method"))?;
        config.function = settings.text("function").unwrap_or("io").into();
        config.per_pipeline.burst = settings.count("burst", LARGEST)?.unwrap_or(config.per_pipeline.burst);
        config.per_pipeline.work = settings.parsed("work", units::parse_time)?.unwrap_or_default();
        config.pipelines = settings.count("pipelines", 64)?.unwrap_or(1) as u16;
        let size = settings.size("size")?;
        config.room =
            settings.size("room")?.unwrap_or(config.room.max(size.unwrap_or(0).next_power_of_two()));
        if let Some(size) = size {
            config = config.with_size(size as u64).map_err(wrong("size"))?;
        }
        config.check().map_err(wrong("kind"))?;
        Ok(Work::Packets(Box::new(Self { config, size })))
    }

    pub(super) fn open(&self, cores: &[usize]) -> Result<Box<dyn Load>, Error> {
        let config = Config { cores: Some(cores.to_vec()), ..self.config.clone() };
        let load = ForwardLoad::open(&config, Some(Arc::new(Pace::default())));
        Ok(Box::new(load.map_err(|error| {
            let class = error.class();
            Error::other(error, class)
        })?))
    }

    /// Returns true if a port needs privileges to open.
    pub(super) fn needs_privileges(&self) -> bool {
        self.config.drops_needed_privileges()
    }

    /// Returns true if the source may deliver fewer packets than the load could take: it is outside this process, is read from a
    /// file or a pipe, or generates packets at a rate of its own.
    pub(super) fn is_fed(&self) -> bool {
        self.config.route.source().is_some_and(|rx| match rx {
            PortSpec::Generator(generator) => generator.load.rate.is_some(),
            PortSpec::Radio(_) => true,
            _ => matches!(rx.properties().source, Source::Outside | Source::File),
        })
    }
}
