//! NVMe over TCP in user space: the wire format, an initiator and a target.
//!
//! ```text
//!            host                                                   controller
//!   initiator --> commands --> [ pdu ] == TCP, one connection per queue == [ pdu ] --> target --> namespace
//!             <-- completions <--                                              <--
//! ```
//!
//! Both sides share [`wire`]. Its module [`pdu`](wire::pdu) encodes and decodes the protocol data units of the TCP
//! transport. [`command`](wire::command) defines commands, completions and statuses, and
//! [`identify`](wire::identify) the data structures that commands transfer. [`target`] serves the drives that
//! [`namespace`] opens.
//!
//! Sources: NVM Express TCP Transport Specification 1.0 ("TCP"), NVM Express Base Specification 2.0 ("Base")
//! and NVM Command Set Specification 1.0 ("NVM").

#[macro_use]
pub mod wire;

pub mod authentication;
pub mod bench;
pub mod error;
pub mod field;
pub mod initiator;
pub mod input;
pub mod namespace;
mod random;
pub mod target;
mod text_file;

pub use error::{Error, Result};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, also if another thread has panicked while it held the lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
