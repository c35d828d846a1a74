//! Transfers between accelerators, host memory and PCI BARs. For two endpoints, the crate knows every path,
//! its cost and its measurement.
//!
//! ```text
//!  Endpoint       host | gpu:N | twin:N | pci:ADDRESS/barN[:wc]         an endpoint as the user writes it
//!  Device         an opened endpoint: allocates, fills and checks memory there
//!  Path           cpu | dma | sm | hybrid | staged | staged-sm | p2p | cuda   a kind of chain of movers
//!  PathSelector   a mover between two devices that picks the cheapest path for each transfer
//! ```
//!
//! Applications use a [`PathSelector`]. [`measure()`] measures and explains transfers; `inlane copy` shows its result.
//! [`timing`] measures any mover, and a [`CopyLoad`] copies continuously beside other loads. The cost of
//! each path is measured once per machine and kept in a file ([`cost`]). Twins are models. [`Mover::is_twin`]
//! returns true if a mover uses one.
//!
//! Cargo features, both on by default: `cuda` for GPUs, `dpdk` for DPDK's software DMA device. Without them
//! the crate offers host memory, BARs and twins.
//!
//! [`Mover::is_twin`]: inlane_core::mover::Mover::is_twin

pub mod ceiling;
pub mod cost;
pub mod device;
pub mod endpoint;
pub mod error;
pub mod explanation;
pub mod field;
#[cfg(feature = "cuda")]
pub mod gpu;
#[cfg(not(feature = "cuda"))]
#[path = "no_gpu.rs"]
pub mod gpu;
#[cfg(feature = "cuda")]
mod gpu_paths;
mod list;
pub mod load;
pub mod measure;
mod open_path;
pub mod path;
mod path_options;
pub mod path_selector;
pub mod pattern;
pub mod published;
pub mod result;
pub mod staged;
pub mod stop;
mod suballocator;
pub mod timing;
pub mod tuning;

pub use device::{Device, open};
pub use endpoint::Endpoint;
pub use error::Error;
pub use explanation::{Because, PathTaken};
pub use list::list_paths;
pub use load::{CopyLoad, CopyLoadConfig};
pub use measure::measure;
pub use open_path::open_path;
pub use path::Path;
pub use path_options::{PathChoice, PathOptions};
pub use path_selector::PathSelector;
