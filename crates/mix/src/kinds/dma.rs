//! Loads that copy between memories of the host and of devices.

use super::{KindInfo, MOST_THREADS, THREADS, Work};
use crate::settings::{Settings, Wrong, key};
use crate::solo::Crossing;
use inlane_copy::{CopyLoad, CopyLoadConfig, Endpoint, Path, PathChoice};
use inlane_core::load::Load;
use inlane_core::{CompletionMode, Error};

/// The most transfers that a thread may have in flight.
const MOST_IN_FLIGHT: usize = 4096;
/// The bytes of a transfer, unless the settings name others.
const SIZE: usize = 64 << 20;
/// The bytes of a transfer that fills a link: large enough for its full rate, and small enough to follow a pace.
const FILLING: usize = 16 << 20;

/// Copies between any two memories that `inlane copy` reaches, except BARs, which need permissions.
pub(super) const DMA: KindInfo = KindInfo {
    name: "dma",
    about: "copies between two memories, as 'inlane copy' does",
    own_keys: &[
        key("from", "the source: host, gpu:N or twin:N"),
        key("to", "the destination"),
        key("size", "the bytes of a transfer; default: 64M"),
        key(
            "depth",
            "the most transfers in flight for each thread; default: as many as hold 64 MiB, from 2 to 32",
        ),
        key(
            "path",
            "dma, sm, staged, another path of 'inlane copy' or auto; default: dma with a device, cpu without",
        ),
        key("completion", "poll, interrupt or adaptive; default: poll"),
        key("buffer", "the bytes of memory at each end; default: 256M"),
        THREADS,
    ],
    read: |settings| Ok(Work::Dma(Box::new(read(settings)?))),
};

fn read(settings: &Settings<'_>) -> Result<CopyLoadConfig, Wrong> {
    let end = |key: &'static str| -> Result<Endpoint, Wrong> {
        settings.required(key, "give for example host or gpu:0")?;
        Ok(settings.of(key)?.expect("the key was given"))
    };
    let (from, to) = (end("from")?, end("to")?);
    let on_host = from == Endpoint::Host && to == Endpoint::Host;
    let path = settings.parsed("path", |text| match text {
        "auto" => Ok(PathChoice::Auto),
        name => name.parse().map(PathChoice::Require),
    })?;
    let mut config = CopyLoadConfig::new(from, to, settings.size("size")?.unwrap_or(SIZE));
    config.choice = path.unwrap_or(PathChoice::Require(if on_host { Path::Cpu } else { Path::Dma }));
    config.in_flight = settings.count("depth", MOST_IN_FLIGHT)?;
    config.completion = settings.of("completion")?.unwrap_or(CompletionMode::Poll);
    config.rotate = settings.size("buffer")?.unwrap_or(config.rotate);
    config.threads = settings.count("threads", MOST_THREADS)?.unwrap_or(1);
    config.check().map_err(|error| Wrong { key: "kind", why: error.to_string() })?;
    Ok(config)
}

/// Opens copies of `config` with `threads` threads on `cores`, in turns.
pub(super) fn open(config: &CopyLoadConfig, threads: usize, cores: &[usize]) -> Result<Box<dyn Load>, Error> {
    let cores = cores.iter().copied().cycle().take(if cores.is_empty() { 0 } else { threads }).collect();
    Ok(Box::new(CopyLoad::open(CopyLoadConfig { threads, cores, ..config.clone() })?))
}

/// Returns the copies that fill a direction of a link. `None` if the device is not one whose memory can be copied.
pub(crate) fn filling_link(crossing: &Crossing) -> Option<CopyLoadConfig> {
    let device: Endpoint = crossing.device.parse().ok().filter(|end| *end != Endpoint::Host)?;
    let by_sm = !crossing.by_engine && matches!(device, Endpoint::Gpu(_));
    let path = if by_sm { Path::Sm } else { Path::Dma };
    let (from, to) = if crossing.to_device { (Endpoint::Host, device) } else { (device, Endpoint::Host) };
    Some(CopyLoadConfig { choice: PathChoice::Require(path), ..CopyLoadConfig::new(from, to, FILLING) })
}
