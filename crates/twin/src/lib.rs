//! Twins: software stand-ins for devices. With twins, the code that uses devices can be tested on any
//! machine.
//!
//! A twin moves real bytes, takes the time of its model, signals interrupts through an eventfd, and fails on
//! request. Its figures are those of a model. Results mark them, and they never stand in a table of
//! measurements.

mod accelerator;
mod costs;
mod dma;
mod fault;
mod interrupt;

pub use accelerator::{Accelerator, BarMover};
pub use costs::{BarCosts, Costs, DmaCosts};
pub use dma::DmaEngine;
pub use fault::Faults;
pub use interrupt::Interrupt;
