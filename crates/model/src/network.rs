//! Resources and flows.

use crate::error::{Error, Item, Result};
use crate::id::{FlowId, ResourceId};
use std::ops::RangeInclusive;

/// The values that capacities, rates, uses, windows and latencies may have, apart from zero. Products and
/// quotients of values in this range neither overflow nor vanish.
pub const RANGE: RangeInclusive<f64> = 1e-30..=1e30;
/// The values that weights, numbers of requesters and ratios may have.
pub const WEIGHTS: RangeInclusive<f64> = 1e-9..=1e9;

/// How a full resource divides its capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// Round robin between requesters. A flow gets a share in proportion to [`Flow::requesters`].
    #[default]
    Requester,
    /// First in, first out. A flow gets a share in proportion to its bytes in the queue, which its
    /// [`Window`] limits. If several flows use the resource, each needs a window.
    Fifo,
    /// A scheduler with weights. A flow gets a share in proportion to [`Flow::weight`].
    Scheduler,
}

/// Something that flows share, such as a direction of a link, memory bandwidth or core time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resource {
    /// The units that the resource provides in a second. The unit is free: bytes for a link, seconds for
    /// cores and engines.
    pub capacity: f64,
    /// How the resource divides its capacity when it is full.
    pub sharing: Sharing,
}

impl Resource {
    /// Creates a resource that is shared by round robin between requesters.
    pub fn new(capacity: f64) -> Self {
        Self { capacity, sharing: Sharing::default() }
    }
}

/// The limit of a closed loop: a flow that has at most this many bytes in flight. Its rate is at most
/// `bytes / (latency + delays)`, where the delays are those of full [`Sharing::Fifo`] resources.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// The most bytes in flight.
    pub bytes: f64,
    /// The time of one round trip, in seconds, while no queue is full. It may be zero.
    pub latency: f64,
}

/// A stream of bytes that uses resources.
#[derive(Clone, Debug, PartialEq)]
pub struct Flow {
    /// The resources that the flow uses, with the units that each byte takes.
    pub uses: Vec<(ResourceId, f64)>,
    /// The highest rate in bytes per second: a pace, or the rate of the flow alone. `None` for no limit.
    pub demand: Option<f64>,
    /// The limit of a closed loop. `None` for no limit.
    pub window: Option<Window>,
    /// The number of requesters that round robin serves in turns, such as queues or devices.
    pub requesters: f64,
    /// The weight at schedulers.
    pub weight: f64,
    /// Weights at single resources, which replace [`Flow::requesters`] and [`Flow::weight`] there.
    pub weights: Vec<(ResourceId, f64)>,
    /// The flow that this flow follows, and the bytes of this flow for each byte of the followed flow. Both
    /// flows then have one rate, for example if one sends what the other has read.
    pub follows: Option<(FlowId, f64)>,
}

impl Default for Flow {
    fn default() -> Self {
        Self {
            uses: Vec::new(),
            demand: None,
            window: None,
            requesters: 1.0,
            weight: 1.0,
            weights: Vec::new(),
            follows: None,
        }
    }
}

impl Flow {
    /// Returns the weight at a resource that divides its capacity by `sharing`.
    pub(crate) fn weight_at(&self, resource: usize, sharing: Sharing) -> f64 {
        let own = self.weights.iter().find(|(of, _)| of.0 == resource);
        match (own, sharing) {
            (Some((_, weight)), _) => *weight,
            (None, Sharing::Scheduler) => self.weight,
            (None, _) => self.requesters,
        }
    }

    /// Adds a resource of which each byte takes `per_byte` units.
    pub fn using(mut self, resource: ResourceId, per_byte: f64) -> Self {
        self.uses.push((resource, per_byte));
        self
    }

    /// Sets the highest rate, in bytes per second.
    pub fn at_most(mut self, demand: f64) -> Self {
        self.demand = Some(demand);
        self
    }

    /// Sets the most bytes in flight, and the latency in seconds.
    pub fn in_flight(mut self, bytes: f64, latency: f64) -> Self {
        self.window = Some(Window { bytes, latency });
        self
    }
}

/// Resources and the flows that share them. [`Network::solve`] computes the rates.
#[derive(Clone, Debug, Default)]
pub struct Network {
    pub(crate) resources: Vec<Resource>,
    pub(crate) flows: Vec<Flow>,
}

impl Network {
    /// Creates a network without resources and flows.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a resource.
    ///
    /// # Errors
    /// [`Error::Value`] if the capacity is outside [`RANGE`].
    pub fn add_resource(&mut self, resource: Resource) -> Result<ResourceId> {
        let id = ResourceId(self.resources.len());
        within(&RANGE, resource.capacity, Item::Capacity(id))?;
        self.resources.push(resource);
        Ok(id)
    }

    /// Adds a flow.
    ///
    /// # Errors
    /// [`Error::Value`] if a number of the flow is outside its range. [`Error::Unknown`] if the flow uses or
    /// follows what this network does not have. [`Error::FollowerWindow`] if a follower has a window.
    pub fn add_flow(&mut self, flow: Flow) -> Result<FlowId> {
        let id = FlowId(self.flows.len());
        for (resource, per_byte) in &flow.uses {
            if resource.0 >= self.resources.len() {
                return Err(Error::Unknown { flow: id });
            }
            within_or_zero(*per_byte, Item::Use(id, *resource))?;
        }
        flow.demand.map_or(Ok(()), |demand| within(&RANGE, demand, Item::Demand(id)))?;
        if let Some(window) = flow.window {
            within(&RANGE, window.bytes, Item::Window(id))?;
            within_or_zero(window.latency, Item::Latency(id))?;
        }
        within(&WEIGHTS, flow.requesters, Item::Requesters(id))?;
        for weight in flow.weights.iter().map(|(_, weight)| *weight).chain([flow.weight]) {
            within(&WEIGHTS, weight, Item::Weight(id))?;
        }
        if let Some((leader, ratio)) = flow.follows {
            within(&WEIGHTS, ratio, Item::Ratio(id))?;
            if leader.0 >= id.0 {
                return Err(Error::Unknown { flow: id });
            }
            if flow.window.is_some() {
                return Err(Error::FollowerWindow { flow: id });
            }
        }
        self.flows.push(flow);
        Ok(id)
    }

    /// Returns the number of flows.
    pub fn flow_count(&self) -> usize {
        self.flows.len()
    }
}

fn within(range: &RangeInclusive<f64>, value: f64, item: Item) -> Result<()> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(Error::Value { item, value, least: *range.start(), most: *range.end() })
}

fn within_or_zero(value: f64, item: Item) -> Result<()> {
    if value == 0.0 { Ok(()) } else { within(&RANGE, value, item) }
}
