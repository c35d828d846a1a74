//! Twins: software stand-ins for devices, so that everything above them runs, and can be tested, on a laptop.
//!
//! A twin moves real bytes, ends at the time that its costs say, raises real interrupts (an eventfd), and fails when it
//! is told to. What it measures is a model's: results name twins, and no table of measurements holds their figures.

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
