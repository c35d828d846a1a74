//! Exports a namespace as a network block device (NBD), so that any program with an NBD client can use it without a kernel
//! module: qemu, fio, nbdcopy.
//!
//! ```text
//!   NBD client ==unix socket or TCP== thread of the client: [ Wire | requests | Session ] ==NVMe/TCP== target
//! ```
//!
//! Each client has a thread with a session of its own. The server offers the fixed newstyle negotiation, simple and structured replies,
//! and the metadata context `base:allocation`, in which all blocks count as allocated.
//! Flush, FUA, trim and write zeroes are offered where the namespace supports them. A request that is invalid is answered with
//! an error, and the connection stays usable; a client that violates the protocol is disconnected.
//!
//! Source: the NBD protocol, <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>.

mod client;
mod listen;
mod negotiation;
mod protocol;
mod result;
#[cfg(test)]
mod tests;

pub use listen::{ListenAddress, Server};
pub use protocol::parse_request;
pub use result::ExportResult;
