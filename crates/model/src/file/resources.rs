//! The resources of a model file.

use super::{ResourceInfo, Unit};
use crate::error::{Problem, Result};
use crate::id::ResourceId;
use crate::network::{Network, RANGE, Resource, Sharing};
use crate::pcie::Pcie;
use crate::tree::Reader;
use std::collections::HashMap;

/// A resource of the file, with what is needed to compute its use by a flow.
#[derive(Clone, Copy, Debug)]
pub(super) enum Handle {
    /// A resource whose use is a number of units for each byte. It has no named uses.
    Plain(ResourceId),
    /// A PCI Express link. `tags` holds the most bytes of reads in flight and their latency.
    Pcie { link: Pcie, directions: Directions, tags: Option<(f64, f64)> },
    /// A link whose two directions count payload bytes.
    Duplex(Directions),
    /// An Ethernet line. Each packet takes its bytes and those between packets.
    Ethernet(Directions),
    /// Memory. A written byte takes `write_cost` units, and a read byte takes one.
    Memory { id: ResourceId, write_cost: f64 },
    /// An engine with the seconds for each byte and for each operation.
    Engine { id: ResourceId, per_byte: f64, per_operation: f64 },
}

/// The two directions of a link, and the ceiling of both together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Directions {
    pub first: ResourceId,
    pub second: ResourceId,
    pub both: Option<ResourceId>,
}

impl Directions {
    /// Returns the uses of `first` and `second` units in the two directions.
    pub fn uses(&self, first: f64, second: f64) -> Vec<(ResourceId, f64)> {
        let both = self.both.map(|both| (both, first + second));
        [(self.first, first), (self.second, second)].into_iter().chain(both).collect()
    }
}

/// The resources of a file.
#[derive(Default)]
pub(super) struct Resources {
    pub infos: Vec<ResourceInfo>,
    pub by_name: HashMap<String, Handle>,
}

#[derive(Clone, Copy)]
enum Kind {
    Pcie,
    Duplex,
    Ethernet,
    Memory,
    Cores,
    Engine,
    Rate,
}

const KINDS: [(&str, Kind); 7] = [
    ("pcie", Kind::Pcie),
    ("duplex", Kind::Duplex),
    ("ethernet", Kind::Ethernet),
    ("memory", Kind::Memory),
    ("cores", Kind::Cores),
    ("engine", Kind::Engine),
    ("rate", Kind::Rate),
];

const SHARING: [(&str, Sharing); 3] =
    [("requester", Sharing::Requester), ("fifo", Sharing::Fifo), ("scheduler", Sharing::Scheduler)];

/// The most cores, engines, channels and tags.
const MANY: u32 = 1 << 20;

impl Resources {
    /// Reads the table of resources and adds them to the network.
    pub fn read(table: Option<Reader<'_>>, network: &mut Network) -> Result<Self> {
        let mut resources = Self::default();
        for (name, reader) in table.iter().flat_map(Reader::entries) {
            let handle = resources.read_one(name, &reader, network)?;
            reader.finish()?;
            resources.by_name.insert(name.into(), handle);
        }
        Ok(resources)
    }

    fn read_one(&mut self, name: &str, reader: &Reader<'_>, network: &mut Network) -> Result<Handle> {
        let kind = reader.require("kind", "choose one, for example kind = \"pcie\"")?.choice(&KINDS)?;
        let sharing = reader.value("sharing").map(|value| value.choice(&SHARING)).transpose()?;
        let default = if matches!(kind, Kind::Cores) { Sharing::Scheduler } else { Sharing::Requester };
        let sharing = sharing.unwrap_or(default);
        let efficiency = reader.value("efficiency").map_or(Ok(1.0), |value| value.number(1e-3, 1.0))?;
        let rate = |key: &'static str| reader.value(key).map(|value| value.rate()).transpose();
        let whole = |key, default, most| reader.value(key).map_or(Ok(default), |value| value.whole(1, most));
        let required = |key| reader.require(key, "give a rate, for example rate = \"55 GB/s\"")?.rate();
        let mut add = |suffix: &str, capacity: f64, unit: Unit| {
            let capacity = capacity * efficiency;
            let id = network.add_resource(Resource { capacity, sharing });
            let id = id.map_err(|error| reader.wrong(Problem::Network(Box::new(error))))?;
            let name = format!("{name}{suffix}");
            self.by_name.insert(name.clone(), Handle::Plain(id));
            self.infos.push(ResourceInfo { name, unit, capacity });
            Ok::<_, crate::Error>(id)
        };
        let mut directions = |names: [&str; 2], rates: [f64; 2], both: Option<f64>| {
            Ok::<_, crate::Error>(Directions {
                first: add(names[0], rates[0], Unit::Bytes)?,
                second: add(names[1], rates[1], Unit::Bytes)?,
                both: both.map(|both| add(".both", both, Unit::Bytes)).transpose()?,
            })
        };
        Ok(match kind {
            Kind::Pcie => {
                let generation =
                    reader.require("gen", "give the generation, for example gen = 5")?.whole(1, 6)?;
                let lanes = reader
                    .require("width", "give the number of lanes, for example width = 16")?
                    .whole(1, 32)?;
                let max_payload = whole("mps", 256, 4096)?;
                let link = Pcie {
                    generation: generation as u8,
                    lanes: lanes as u8,
                    max_payload,
                    max_read_request: whole("mrrs", 512, 4096)?,
                    completion: whole("completion", max_payload, 4096)?,
                };
                let tags = reader.value("tags").map(|value| value.whole(1, MANY)).transpose()?;
                let latency = reader.value("latency").map(|value| value.seconds()).transpose()?;
                let tags = match (tags, latency) {
                    (Some(tags), Some(latency)) => {
                        Some((f64::from(tags) * f64::from(link.max_read_request), latency))
                    }
                    (None, None) => None,
                    (Some(_), None) => {
                        let example = "tags limit reads only with a latency, for example latency = \"900ns\"";
                        return Err(reader.wrong(Problem::Missing { key: "latency", example }));
                    }
                    (None, Some(_)) => {
                        let example = "the latency is that of reads with tags, for example tags = 256";
                        return Err(reader.wrong(Problem::Missing { key: "tags", example }));
                    }
                };
                let wire = link.wire_bytes_per_second();
                let directions = directions([".up", ".down"], [wire, wire], rate("both")?)?;
                Handle::Pcie { link, directions, tags }
            }
            Kind::Duplex => {
                let (up, down) = (rate("up")?, rate("down")?);
                let rates = match (up, down) {
                    (Some(up), Some(down)) => [up, down],
                    _ => {
                        let rate = required("rate")?;
                        [up.unwrap_or(rate), down.unwrap_or(rate)]
                    }
                };
                Handle::Duplex(directions([".up", ".down"], rates, rate("both")?)?)
            }
            Kind::Ethernet => {
                let rate = required("rate")?;
                Handle::Ethernet(directions([".tx", ".rx"], [rate, rate], None)?)
            }
            Kind::Memory => {
                let capacity = match rate("rate")? {
                    Some(rate) => rate,
                    None => {
                        let example = "give a rate, or channels and megatransfers, for example channels = 2, megatransfers = 5600";
                        let channels = reader.require("channels", example)?.whole(1, MANY)?;
                        let transfers = reader.require("megatransfers", example)?.number(1.0, 1e6)?;
                        let bits = whole("bits", 64, 8192)?;
                        f64::from(channels) * transfers * 1e6 * f64::from(bits) / 8.0
                    }
                };
                let write_cost =
                    reader.value("write_cost").map_or(Ok(1.0), |value| value.number(1e-3, 1e3))?;
                Handle::Memory { id: add("", capacity, Unit::Bytes)?, write_cost }
            }
            Kind::Cores => {
                let count = reader.require("count", "give the number of cores, for example count = 4")?;
                Handle::Plain(add("", count.number(1e-3, f64::from(MANY))?, Unit::Seconds)?)
            }
            Kind::Engine => {
                let per_byte = 1.0 / required("rate")?;
                let per_operation = reader.value("per_operation").map_or(Ok(0.0), |value| value.seconds())?;
                let id = add("", f64::from(whole("count", 1, MANY)?), Unit::Seconds)?;
                Handle::Engine { id, per_byte, per_operation }
            }
            Kind::Rate => match reader.value("capacity") {
                Some(capacity) => {
                    Handle::Plain(add("", capacity.number(*RANGE.start(), *RANGE.end())?, Unit::Bytes)?)
                }
                None => Handle::Plain(add("", required("rate")?, Unit::Bytes)?),
            },
        })
    }
}
