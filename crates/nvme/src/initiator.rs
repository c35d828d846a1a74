//! The initiator: reads and writes the namespaces of a target.
//!
//! ```text
//!   Session      one thread's access to a namespace over one or several paths; retries on another path
//!     Association  the use of a controller: admin queue, properties, identify, keep-alive, events
//!     Queues       the I/O queues of a session; commands go to them in turn
//!       Queue        a connection with its socket
//!         HostConnection   the protocol as a state machine without I/O: commands to bytes, bytes to completions
//! ```
//!
//! A session starts a thread to reconnect. No other layer starts threads. Commands may complete in any order.
//! A submission moves its [`Buffer`] into the connection, and the completion returns the buffer. Nothing else
//! can therefore access the memory while data is received into it.

#![allow(clippy::result_large_err, reason = "a submission is returned to its owner")]

mod address;
mod association;
mod buffer;
pub mod connection;
mod discover;
mod host;
mod queue;
mod queues;
mod session;
mod transfer;

pub use address::Address;
pub use association::{Association, ConnectOptions, NamespaceIdentity, NamespaceInfo};
pub use buffer::Buffer;
pub use connection::{Done, HostConnection, Submission};
pub use discover::{DiscoveredSubsystem, discover, resolve_subsystem};
pub use host::HostIdentity;
pub use queue::{Queue, QueueOptions, sleep};
pub use queues::Queues;
#[cfg(test)]
pub(crate) use session::tests as session_tests;
pub use session::{Session, SessionOptions};
pub use transfer::{
    Sink, Source, Supply, check_range, check_stop, flush, read_range, read_to, write_from, write_range,
};
