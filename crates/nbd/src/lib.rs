//! Exports a namespace as a network block device (NBD) to programs such as qemu, fio and nbdcopy.
//!
//! ```text
//! NBD client ==unix socket or TCP== thread of the client: [ Wire | requests | Session ] ==NVMe/TCP== target
//! ```
//!
//! The server offers the fixed newstyle negotiation, simple replies, flush and FUA. It offers trim and write zeroes
//! if the namespace supports them. An invalid request is answered with an error. A client that violates the
//! protocol is disconnected.
//!
//! Source: the NBD protocol, <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>.

use inlane_core::setting::Field;

mod client;
mod listen;
mod negotiation;
mod protocol;
mod result;
#[cfg(test)]
mod tests;

pub use listen::{ListenAddress, Server};
pub use result::ExportResult;

/// Where the server listens.
pub const LISTEN: Field = Field::new("listen");
/// The settings that messages of this crate name.
pub const FIELDS: &[Field] = &[LISTEN];
