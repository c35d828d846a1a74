//! NVMe over TCP in user space: the wire format, an initiator and a target.
//!
//! ```text
//!            host                                                   controller
//!   initiator --> commands --> [ pdu ] == TCP, one connection per queue == [ pdu ] --> target --> namespace
//!             <-- completions <--                                              <--
//! ```
//!
//! Both sides share three modules. [`pdu`] encodes and decodes the protocol data units of the TCP transport.
//! [`command`] defines commands, completions and statuses. [`identify`] defines the data structures that
//! commands transfer. [`target`] serves the drives that [`namespace`] opens.
//!
//! Sources: NVM Express TCP Transport Specification 1.0 ("TCP"), NVM Express Base Specification 2.0 ("Base")
//! and NVM Command Set Specification 1.0 ("NVM").

#[macro_use]
mod wire;

pub mod authentication;
pub mod bench;
pub mod command;
pub mod error;
pub mod field;
pub mod identify;
pub mod initiator;
pub mod namespace;
pub mod nbd;
pub mod nqn;
pub mod pdu;
mod random;
pub mod target;
mod text_file;

pub use error::{Error, Result};
