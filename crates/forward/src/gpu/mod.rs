//! GPU executors: the packet function of a pipeline runs on a GPU, by one of five methods, over the same burst ring.
//!
//! | method | who launches | who waits |
//! | --- | --- | --- |
//! | `single` | one thread: receives, launches a kernel, waits, sends | the same |
//! | `split` | a thread of its own, a kernel a burst | the thread that receives and sends, by the ring |
//! | `persistent` | once, at the start: block b takes items b, b+n, ... | blocks poll the ring |
//! | `stream` | a thread of its own: wait-value and kernel ahead of the items, or one kernel for all that came before it could | the GPU's front end |
//! | `graph` | the same by graphs, a stretch of items each | the GPU's front end |
//!
//! ```text
//! receive -> ring, submit half (pinned) -> kernel: descriptors, packets -> ring, complete half (pinned) -> send
//!            CPU writes, GPU reads                 over PCIe in place,        GPU writes, CPU reads
//!                                                  or pulled into GPU memory
//! ```
//!
//! The end: the producer closes the ring, blocks drain it; whatever was posted for items that never came is released by a
//! word without packets. A function that never ends is noticed by the thread that waits for a pipeline's others; the device is then
//! given up, and the process must end without exit handlers ([`inlane_cuda::any_abandoned`]).

mod ceilings;
pub(crate) mod competing_kernel;
#[cfg(test)]
mod emulated;
mod feeder;
mod lane;
mod launch;
mod loaded_function;
mod posters;
mod run;
mod settings;
#[cfg(test)]
mod tests;
mod watchdog;

pub use ceilings::{Ceilings, Pull, RoundTrip, ceilings, round_trip};
pub use lane::{Lane, LaneReport, PCIE_MODEL};
pub use loaded_function::LoadedFunction;
pub use run::run;
pub use settings::{Memory, Settings};
