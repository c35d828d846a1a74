//! Transfers between accelerators, between them and host memory, and through BARs; peer-to-peer or without it.
//!
//! ```text
//!  endpoint    host | gpu:N | twin:N | pci:ADDRESS/barN[:wc]          as people write it
//!  device      an endpoint, opened: memory, filled and checked where it lies
//!  path        bar | dma | sm | hybrid | staged | staged-sm | p2p     a kind of chain of movers
//!  route       between two devices: one path, or the one that costs least for each size
//! ```
//!
//! A [`Route`] is what an application uses; [`measure`] is what `inlane copy` does with it. What a path costs is measured
//! once a machine ([`cost`]). Twins are models: a route says whether one takes part.

pub mod ceiling;
pub mod cost;
pub mod device;
pub mod endpoint;
pub mod experiment;
pub mod gpu;
pub mod hybrid;
pub mod measure;
pub mod opening;
mod parts;
pub mod path;
pub mod pattern;
pub mod route;
pub mod staged;
pub mod stop;

pub use device::{Device, open};
pub use endpoint::Endpoint;
pub use path::Path;
pub use route::{Choice, Options, Route};
