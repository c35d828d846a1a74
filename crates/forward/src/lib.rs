//! Inline packet processing: packets arrive at a port, a packet function processes them, and they leave by a
//! port.
//!
//! ```text
//! port.rx -> [burst] -> packet function -> port.tx                   method single
//! port.rx -> item of the burst ring -> packet function -> port.tx    all other methods
//! ```
//!
//! [`config::Config`] describes a run, and [`measure`] executes and explains it. [`run::run`] only executes it.
//! [`ForwardLoad`] runs beside other loads, for as long as its owner wants, at a pace that may change.

pub mod batch;
mod competing;
pub mod config;
pub mod control;
mod counters;
mod error;
pub mod experiment;
pub mod field;
pub mod gpu;
pub mod method;
pub mod pipeline;
mod reference;
pub mod result;
pub mod run;
mod trial;
pub mod verify;

pub use counters::PortCounters;
pub use error::{Error, Result};
pub use experiment::{MeasureOptions, Measurement, Session, measure};
pub use inlane_function::{PacketFunction, builtins as functions};
pub use run::ForwardLoad;
