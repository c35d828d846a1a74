//! The target: serves namespaces to hosts.
//!
//! ```text
//!                  acceptor and timers            one thread per core
//!   hosts ==TCP==> [ server ] --sockets--> [ worker: io_uring, connections ] --> memory, files, block devices
//!                      |                          |
//!                      +------- subsystem --------+    namespaces, hosts, controllers
//! ```
//!
//! [`connection`] is the protocol of one connection, without I/O. [`subsystem`] and [`controller`] hold what
//! the connections share. The worker threads move bytes between sockets, connections and files. [`Target`]
//! starts and ends all of these.

pub mod admin;
pub mod buffer;
pub mod connection;
pub mod controller;
mod error_log;
pub mod fabrics;
mod flush;
pub mod half_open;
pub mod inbox;
pub mod io;
mod logs;
mod network;
mod pages;
mod result;
mod ring;
mod server;
pub mod storage;
pub mod subsystem;
#[cfg(test)]
mod tests;
mod worker;

pub use result::{NamespaceResult, TargetResult};
pub use server::{Config, Hosts, Target};
