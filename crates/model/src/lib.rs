//! A model of flows that share resources. It computes the rate of each flow, what limits it, and how much it
//! would gain without that limit.
//!
//! ```text
//!  Model        a TOML file: resources, flows, stages, cases       Network      resources and flows, by number
//!  test_beds    files of published systems with their results      Solution     rates, limits, use of resources
//!  fit          capacities, uses and latencies from measurements   Margin       a flow's rate without its limit
//! ```
//!
//! [`Network`] is the model itself and has no names. Programs that measure build one from fitted values
//! ([`fit::System`]). Files are read by [`Model`].
//!
//! ```
//! use inlane_model::{Flow, Limit, Network, Resource};
//!
//! let mut network = Network::new();
//! let link = network.add_resource(Resource::new(55e9))?;
//! let paced = network.add_flow(Flow::default().using(link, 1.0).at_most(20e9))?;
//! let copies = network.add_flow(Flow::default().using(link, 1.0))?;
//! let solution = network.solve()?;
//! assert_eq!(solution.flows[copies.index()].rate, 35e9);
//! assert_eq!(solution.flows[paced.index()].limit, Limit::Demand);
//! # Ok::<(), inlane_model::Error>(())
//! ```
//!
//! The model describes the steady state: rates and mean delays, but neither bursts nor tail latencies.

mod error;
pub mod file;
mod fill;
pub mod fit;
mod id;
mod network;
pub mod pcie;
pub mod published;
mod quantity;
pub mod result;
mod solve;
pub mod test_beds;
mod tree;

/// The settings that messages of this crate name.
pub mod field {
    use inlane_core::setting::Field;

    /// Replaces a value of a model file.
    pub const SET: Field = Field::new("set");
    /// All fields.
    pub const ALL: &[Field] = &[SET];
}

pub use error::{Error, Item, Place, Problem, Result};
pub use file::{Case, Model};
pub use id::{FlowId, ResourceId};
pub use network::{Flow, Network, RANGE, Resource, Sharing, WEIGHTS, Window};
pub use solve::{FlowRate, Limit, Margin, ResourceUse, Solution};
