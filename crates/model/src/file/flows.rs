//! The flows of a model file.

use super::resources::{Handle, Resources};
use super::{FlowInfo, unknown};
use crate::error::{Problem, Result};
use crate::id::ResourceId;
use crate::network::{Flow, Network, WEIGHTS, Window};
use crate::pcie::Transfer;
use crate::tree::{Reader, Value};
use inlane_core::units::Rate;
use std::collections::HashMap;

/// Reads the table of flows and adds them to the network. If `only` is given, reads only these flows. Returns the
/// flows with their places in the file, in the network's order.
pub(super) fn read<'a>(
    table: Option<Reader<'a>>,
    only: Option<&[&str]>,
    resources: &Resources,
    network: &mut Network,
) -> Result<Vec<(FlowInfo, Reader<'a>)>> {
    let entries = table.iter().flat_map(Reader::entries);
    let entries: Vec<_> = entries.filter(|(name, _)| only.is_none_or(|only| only.contains(name))).collect();
    let by_name: HashMap<&str, usize> =
        entries.iter().enumerate().map(|(index, (name, _))| (*name, index)).collect();
    let leaders: Vec<Option<usize>> = (entries.iter())
        .map(|(_, reader)| {
            let Some(follows) = reader.value("follows") else { return Ok(None) };
            let name = follows.text()?;
            let found = by_name.get(name).copied();
            found.map(Some).ok_or_else(|| follows.wrong(unknown("flow", name, by_name.keys().copied())))
        })
        .collect::<Result<_>>()?;
    let mut ids = vec![None; entries.len()];
    let mut flows = Vec::with_capacity(entries.len());
    for start in 0..entries.len() {
        // This flow, the flow that it follows, and so on. A followed flow must be added before its followers.
        let mut way = Vec::new();
        let mut on_way = std::collections::HashSet::new();
        let mut next = Some(start);
        while let Some(index) = next.filter(|index| ids[*index].is_none()) {
            if !on_way.insert(index) {
                let mut path: Vec<String> = way.iter().map(|at: &usize| entries[*at].0.to_string()).collect();
                path.drain(..way.iter().position(|at| *at == index).unwrap_or(0));
                path.push(entries[index].0.into());
                path.truncate(10);
                let place = entries[index].1.value("follows").unwrap_or(entries[index].1.clone());
                return Err(place.wrong(Problem::Cycle { path }));
            }
            way.push(index);
            next = leaders[index];
        }
        for index in way.into_iter().rev() {
            let (name, reader) = &entries[index];
            let (mut flow, packet) = read_one(reader, resources)?;
            let ratio = reader.value("ratio");
            if let (Some(_), None) = (&ratio, leaders[index]) {
                let example = "a ratio is that to the followed flow, for example follows = \"reads\"";
                return Err(reader.wrong(Problem::Missing { key: "follows", example }));
            }
            if let Some(leader) = leaders[index].and_then(|leader| ids[leader]) {
                let ratio = ratio.map_or(Ok(1.0), |value| value.number(*WEIGHTS.start(), *WEIGHTS.end()))?;
                flow.follows = Some((leader, ratio));
                // Drop a window that comes from the tags of a link, because the followed flow's tags limit both flows.
                flow.window = flow.window.filter(|_| reader.get("window").is_some());
            }
            reader.finish()?;
            let id =
                network.add_flow(flow).map_err(|error| reader.wrong(Problem::Network(Box::new(error))))?;
            ids[index] = Some(id);
            flows.push((FlowInfo { name: name.to_string(), packet }, reader.clone()));
        }
    }
    Ok(flows)
}

/// The bytes of a flow's packets and operations.
#[derive(Clone, Copy)]
struct Sizes {
    packet: Option<f64>,
    operation: Option<f64>,
}

fn read_one(reader: &Reader<'_>, resources: &Resources) -> Result<(Flow, Option<f64>)> {
    let bytes = |key: &'static str| reader.value(key).map(|value| value.bytes()).transpose();
    let sizes = Sizes { packet: bytes("packet")?, operation: bytes("operation")? };
    let weight =
        |key| reader.value(key).map_or(Ok(1.0), |value| value.number(*WEIGHTS.start(), *WEIGHTS.end()));
    let mut flow = Flow {
        demand: reader.value("rate").map(|value| value.traffic_rate(sizes.packet)).transpose()?,
        requesters: weight("requesters")?,
        weight: weight("weight")?,
        ..Flow::default()
    };
    let mut tags: Option<(f64, f64)> = None;
    for (name, used) in reader.table("use")?.iter().flat_map(Reader::entries) {
        let handle = resources.by_name.get(name);
        let handle = handle.ok_or_else(|| {
            used.wrong(unknown("resource", name, resources.by_name.keys().map(String::as_str)))
        })?;
        let (uses, limit) = read_use(&used, handle, sizes)?;
        flow.uses.extend(uses);
        tags = match (tags, limit) {
            (Some(one), Some(other)) => Some((one.0.min(other.0), one.1.max(other.1))),
            (one, other) => one.or(other),
        };
    }
    let window = bytes("window")?;
    let latency = reader.value("latency").map(|value| value.seconds()).transpose()?;
    if let (None, None, Some(_)) = (window, tags, latency) {
        let example = "a latency limits a flow only with a window, for example window = \"64K\"";
        return Err(reader.wrong(Problem::Missing { key: "window", example }));
    }
    let in_flight = [window, tags.map(|tags| tags.0)].into_iter().flatten().reduce(f64::min);
    let latency = latency.or(tags.map(|tags| tags.1)).unwrap_or(0.0);
    flow.window = in_flight.map(|bytes| Window { bytes, latency });
    Ok((flow, sizes.packet))
}

/// The uses of resources, and the most bytes in flight with their latency.
type Uses = (Vec<(ResourceId, f64)>, Option<(f64, f64)>);

/// Reads how a flow uses one resource: a number, a word, or a table of both.
fn read_use(used: &Reader<'_>, handle: &Handle, sizes: Sizes) -> Result<Uses> {
    let (word, factor, costs) = match used.node() {
        Value::Table(_) => {
            let number = |key: &'static str| used.value(key).map(|value| cost(&value)).transpose();
            let per_packet = match (number("per_packet")?, sizes.packet) {
                (Some(cost), Some(packet)) => cost / packet,
                (Some(_), None) => return Err(used.wrong(Problem::NoSize { key: "packet" })),
                (None, _) => 0.0,
            };
            let per_operation = match (number("per_operation")?, sizes.operation) {
                (Some(cost), Some(operation)) => cost / operation,
                (Some(_), None) => return Err(used.wrong(Problem::NoSize { key: "operation" })),
                (None, _) => 0.0,
            };
            let per_byte = used.value("per_byte").map(|value| match value.node() {
                // The inverse of a rate is the time of a byte, for resources that count seconds.
                Value::Text(text) if text.ends_with("/s") => Ok(1.0 / value.rate()?),
                _ => cost(&value),
            });
            let factor = used.value("factor").map_or(Ok(1.0), |value| value.number(1e-9, 1e9))?;
            let word = used.value("as");
            let costs = per_packet + per_operation + per_byte.transpose()?.unwrap_or(0.0);
            used.finish()?;
            (word, factor, costs)
        }
        Value::Number(_) => (None, 1.0, cost(used)?),
        _ => (Some(Reader::clone(used)), 1.0, 0.0),
    };
    let (mut uses, tags) = match &word {
        Some(word) => by_word(word, handle, sizes)?,
        None => (Vec::new(), None),
    };
    if costs > 0.0 || word.is_none() {
        let (Handle::Plain(id) | Handle::Memory { id, .. } | Handle::Engine { id, .. }) = handle else {
            let expected =
                "a word that names the direction, such as \"read\" for a PCIe link or \"tx\" for a line";
            return Err(used.wrong(Problem::Type { expected }));
        };
        uses.push((*id, costs));
    }
    uses.iter_mut().for_each(|(_, per_byte)| *per_byte *= factor);
    Ok((uses, tags))
}

/// Reads units: a number, or a time for resources that count seconds.
fn cost(value: &Reader<'_>) -> Result<f64> {
    match value.node() {
        Value::Text(_) => value.seconds(),
        _ => value.number(0.0, 1e18),
    }
}

fn by_word(word: &Reader<'_>, handle: &Handle, sizes: Sizes) -> Result<Uses> {
    let transfer = sizes.packet.or(sizes.operation);
    let mut limit = None;
    let uses = match *handle {
        Handle::Plain(_) => {
            let expected =
                "a number of units for each byte, such as 1, or a table, such as { per_packet = \"100ns\" }";
            return Err(word.wrong(Problem::Type { expected }));
        }
        Handle::Pcie { link, directions, tags } => {
            let kind = word.choice(&[
                ("read", Transfer::Read),
                ("write", Transfer::Write),
                ("load", Transfer::Load),
                ("store", Transfer::Store),
            ])?;
            limit = tags.filter(|_| kind == Transfer::Read);
            let wire = link.wire_bytes(kind, transfer);
            directions.uses(wire.up, wire.down)
        }
        Handle::Duplex(directions) => {
            let (up, down) = word.choice(&[("up", (1.0, 0.0)), ("down", (0.0, 1.0))])?;
            directions.uses(up, down)
        }
        Handle::Ethernet(directions) => {
            let (tx, rx) = word.choice(&[("tx", (1.0, 0.0)), ("rx", (0.0, 1.0))])?;
            let packet = sizes.packet.ok_or_else(|| word.wrong(Problem::NoSize { key: "packet" }))?;
            let line = 1.0 + Rate::LINE_OVERHEAD as f64 / packet;
            directions.uses(tx * line, rx * line)
        }
        Handle::Memory { id, write_cost } => {
            let units = word.choice(&[("read", 1.0), ("write", write_cost), ("copy", 1.0 + write_cost)])?;
            vec![(id, units)]
        }
        Handle::Engine { id, per_byte, per_operation } => {
            word.choice(&[("transfer", ())])?;
            let start = match sizes.operation {
                Some(operation) => per_operation / operation,
                None if per_operation > 0.0 => return Err(word.wrong(Problem::NoSize { key: "operation" })),
                None => 0.0,
            };
            vec![(id, per_byte + start)]
        }
    };
    Ok((uses, limit))
}
