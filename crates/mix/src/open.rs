//! Opens the loads of a scenario, and the antagonists that follow from them.

use crate::kinds::Work;
use crate::kinds::cpu::CpuLoad;
use crate::kinds::dma;
use crate::kinds::memory::{self, MemoryLoad, MemoryOperation, MemorySettings, Stores};
use crate::observation::Loaded;
use crate::scenario::{LoadSpec, Scenario};
use crate::solo::{Crossing, crossings};
use inlane_core::load::{Load, Resource, Use, UseSource};
use inlane_core::units::Rate;
use inlane_core::{Error, cores, units};
use std::collections::BTreeMap;

/// The most of the available memory that the loads and antagonists on host memory take together.
const MOST_OF_MEMORY: f64 = 0.5;
/// The most threads of an antagonist on memory. A few dozen cores fill the memory of any machine.
const MOST_MEMORY_THREADS: usize = 32;

/// An opened load of a session.
pub(crate) struct Opened {
    pub load: Box<dyn Load>,
    pub loaded: Loaded,
    /// The user's loads beside which an antagonist runs. Empty for a user's load.
    pub beside: Vec<usize>,
}

/// Opens the loads of the user, and then the antagonists.
///
/// # Errors
/// The first load that cannot be opened.
pub(crate) fn all(scenario: &Scenario) -> Result<Vec<Opened>, Error> {
    check_memory(scenario)?;
    let mut opened = Vec::new();
    for spec in &scenario.loads {
        let load = spec.work.open(&spec.name, spec.threads, &spec.cores)?;
        let loaded = Loaded {
            name: spec.name.clone(),
            uses: with_cores(load.uses(), &spec.cores),
            asked: asked(spec)?,
            fed: spec.work.is_fed(),
            in_flight: spec.work.in_flight(load.threads()),
            antagonist_of: None,
            cores: spec.cores.clone(),
            threads: load.threads(),
        };
        opened.push(Opened { load, loaded, beside: Vec::new() });
    }
    let users: Vec<Loaded> = opened.iter().map(|user| user.loaded.clone()).collect();
    opened.extend(antagonists(scenario, &users)?);
    Ok(opened)
}

/// Adds the cores of a load to its uses, unless it has told them. Only a measurement shows the time of a core for a byte.
fn with_cores(mut uses: Vec<Use>, cores: &[usize]) -> Vec<Use> {
    let is_time = |of: &Use| matches!(of.resource, Resource::Core(_) | Resource::Processors);
    if !uses.iter().any(is_time) {
        let resources = match cores {
            [] => vec![Resource::Processors],
            cores => cores.iter().map(|core| Resource::Core(*core)).collect(),
        };
        let unknown = |resource| Use { resource, per_byte: None, source: UseSource::Computed };
        uses.extend(resources.into_iter().map(unknown));
    }
    uses
}

/// Returns the rate that the user asked for, in operations per second.
fn asked(spec: &LoadSpec) -> Result<Option<f64>, Error> {
    let Some(rate) = spec.rate else { return Ok(None) };
    match (rate, spec.work.operation_bytes()) {
        (Rate::Packets(operations), _) => Ok(Some(operations)),
        (rate, Some(bytes)) => Ok(Some(rate.packets_per_second(bytes))),
        (_, None) => {
            let why = "the size of its operations is not known; give operations per second, for example rate=10kop/s";
            Err(Error::invalid(format!("load {}: rate={}", spec.name, spec.settings["rate"]), why))
        }
    }
}

/// Returns the bytes of all buffers of the user's loads on host memory.
fn buffers(scenario: &Scenario) -> usize {
    scenario.loads.iter().map(|load| load.work.buffers()).sum()
}

/// Returns the bytes of memory that new programs may take, or `None` if the kernel does not report it.
fn available_memory() -> Option<usize> {
    inlane_process::limits::memory("MemAvailable").map(|bytes| bytes as usize)
}

fn check_memory(scenario: &Scenario) -> Result<(), Error> {
    let (wanted, Some(available)) = (buffers(scenario), available_memory()) else { return Ok(()) };
    let most = (available as f64 * MOST_OF_MEMORY) as usize;
    if wanted <= most {
        return Ok(());
    }
    let why = format!(
        "they need {} together, and {} may be taken, half of what is available; give smaller buffers",
        units::bytes(wanted as u64),
        units::bytes(most as u64)
    );
    Err(Error::invalid("the buffers of the loads of kind memory", why))
}

/// Opens the antagonists of `users`: one for host memory if a load uses it, and one for the cores of each load.
fn antagonists(scenario: &Scenario, users: &[Loaded]) -> Result<Vec<Opened>, Error> {
    let mut opened = Vec::new();
    let on_memory: Vec<usize> =
        having(users, |user| user.uses.iter().any(|it| it.resource == Resource::HostMemory));
    if !on_memory.is_empty() {
        opened.push(of_memory(users, on_memory, buffers(scenario))?);
    }
    for (crossing, beside) in links(users) {
        let alike = users.iter().position(|user| crossings(user).contains(&crossing));
        let alike = alike.map(|user| &scenario.loads[user].work);
        match of_link(&crossing, beside, alike) {
            Ok(one) => opened.extend(one),
            Err(error) => tracing::warn!(
                "{} cannot be loaded, so its phases are left out: {error}",
                crate::text::resource(&crossing.resource())
            ),
        }
    }
    let mut by_cores: BTreeMap<&[usize], Vec<usize>> = BTreeMap::new();
    for (index, user) in users.iter().enumerate() {
        by_cores.entry(&user.cores).or_default().push(index);
    }
    for (cores, beside) in by_cores {
        let (name, threads, of) = match cores.first() {
            Some(first) => {
                let list: Vec<String> = cores.iter().map(usize::to_string).collect();
                (format!("cpu-on-{}", list.join(",")), cores.len(), Resource::Core(*first))
            }
            None => ("cpu-on-all".into(), cores::allowed().len().max(1), Resource::Processors),
        };
        let load = CpuLoad::new(&name, threads, cores);
        opened.push(antagonist(name, Box::new(load), of, cores.to_vec(), beside));
    }
    Ok(opened)
}

/// Returns the crossings of links by antagonists, each with the loads beside which it runs.
///
/// An antagonist that crosses as a load does shows what the other loads on the link keep beside that load, also those in the
/// opposite direction. Two users of a GPU's copy engine do not share it: the engine serves one queue until that is empty.
/// Beside such a load, SMs show what it takes.
fn links(users: &[Loaded]) -> Vec<(Crossing, Vec<usize>)> {
    let by_user: Vec<Vec<Crossing>> = users.iter().map(crossings).collect();
    let mut links: Vec<(Crossing, Vec<usize>)> = Vec::new();
    for crossing in by_user.iter().flatten() {
        let on_gpu = crossing.device.starts_with("gpu:");
        let having = |is: &dyn Fn(&Crossing) -> bool| -> Vec<usize> {
            (0..users.len()).filter(|user| by_user[*user].iter().any(is)).collect()
        };
        if crossing.by_engine && on_gpu {
            let sms = Crossing { by_engine: false, ..crossing.clone() };
            let same =
                having(&|of: &Crossing| of.device == crossing.device && of.to_device == crossing.to_device);
            links.push((sms, same));
        }
        let mut beside = having(&|of: &Crossing| of.device == crossing.device);
        let alike = having(&|of: &Crossing| of == crossing);
        if crossing.by_engine && on_gpu && alike.len() == 1 {
            beside.retain(|user| !alike.contains(user));
        }
        links.push((crossing.clone(), beside));
    }
    let mut merged: Vec<(Crossing, Vec<usize>)> = Vec::new();
    for (crossing, beside) in links.into_iter().filter(|(_, beside)| !beside.is_empty()) {
        match merged.iter_mut().find(|(of, _)| *of == crossing) {
            Some((_, all)) => all.extend(beside),
            None => merged.push((crossing, beside)),
        }
    }
    for (_, beside) in &mut merged {
        beside.sort();
        beside.dedup();
    }
    // Those that share the link with the loads come first.
    merged.sort_by_key(|(crossing, _)| crossing.by_engine);
    merged
}

/// Opens the antagonist that crosses a link. Its transfers have the size of those of `alike`, a load that crosses the link in
/// the same way, because the share of a copy engine depends on that. `None` if no copies can cross the link.
fn of_link(crossing: &Crossing, beside: Vec<usize>, alike: Option<&Work>) -> Result<Option<Opened>, Error> {
    let Some(mut config) = dma::filling_link(crossing) else { return Ok(None) };
    if let Some(Work::Dma(alike)) = alike {
        (config.size, config.in_flight, config.rotate) = (alike.size, alike.in_flight, alike.rotate);
    }
    let Crossing { device, to_device, by_engine } = crossing;
    let by = if *by_engine { "" } else { "-by-sm" };
    let name = format!("copies-{}-{device}{by}", if *to_device { "to" } else { "from" });
    let work = Work::Dma(Box::new(config));
    let load = work.open(&name, Some(1), &[])?;
    Ok(Some(antagonist(name, load, crossing.resource(), Vec::new(), beside)))
}

fn having(users: &[Loaded], is: impl Fn(&Loaded) -> bool) -> Vec<usize> {
    users.iter().enumerate().filter(|(_, user)| is(user)).map(|(index, _)| index).collect()
}

/// Opens the antagonist on host memory, on cores that no load is bound to. If there are none, its threads run on any core.
fn of_memory(users: &[Loaded], beside: Vec<usize>, buffers: usize) -> Result<Opened, Error> {
    let allowed = cores::allowed();
    let taken = |core: &usize| users.iter().any(|user| user.cores.contains(core));
    let free: Vec<usize> = allowed.into_iter().filter(|core| !taken(core)).collect();
    // Threads of loads that are bound to no core need some of the free ones.
    let roaming: usize = users.iter().filter(|user| user.cores.is_empty()).map(|user| user.threads).sum();
    let threads = free.len().saturating_sub(roaming).clamp(1, MOST_MEMORY_THREADS);
    let cores = if free.len() >= threads { free[free.len() - threads..].to_vec() } else { Vec::new() };
    let left = available_memory().unwrap_or(usize::MAX).saturating_sub(buffers) as f64 * MOST_OF_MEMORY / 2.0;
    let buffer = memory::beyond_the_caches().min(left as usize).max(threads * (1 << 20));
    let settings =
        MemorySettings { operation: MemoryOperation::Copy, stores: Stores::Plain, size: 64 << 10, buffer };
    let load = MemoryLoad::open("memory-antagonist", settings, threads, &cores)?;
    Ok(antagonist("memory-antagonist".into(), Box::new(load), Resource::HostMemory, cores, beside))
}

fn antagonist(
    name: String,
    load: Box<dyn Load>,
    of: Resource,
    cores: Vec<usize>,
    beside: Vec<usize>,
) -> Opened {
    let loaded = Loaded {
        name,
        uses: load.uses(),
        asked: None,
        fed: false,
        in_flight: None,
        antagonist_of: Some(of),
        cores,
        threads: load.threads(),
    };
    Opened { load, loaded, beside }
}
