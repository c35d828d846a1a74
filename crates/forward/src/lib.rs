//! System 1: packets come in from a port, a packet function runs on them, and they go out.
//!
//! ```text
//! port.rx -> [burst] -> packet function -> port.tx              method single
//! port.rx -> item of the burst ring -> packet function -> port.tx    method split
//! ```
//!
//! [`config::Config`] says what is asked, [`run::run`] does it, [`measure`] repeats it to find limits.

pub mod choose;
mod compete;
pub mod config;
pub mod control;
mod error;
pub mod gpu;
mod limit;
pub mod measure;
mod open;
mod outcome;
pub mod pipeline;
pub mod result;
pub mod run;
pub mod verify;
mod wrappers;

pub use error::{Error, Result};
pub use inlane_function::builtins as functions;
pub use limit::limit;
