//! Twins: software stand-ins for devices, so that everything above them can be tested on any machine.
//!
//! A twin moves real bytes, takes the time of its model, signals interrupts through an eventfd, and fails on
//! request. Results mark a twin's figures, which are those of a model.

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
