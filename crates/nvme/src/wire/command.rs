//! The commands of a host, the completions of a controller, and the status codes in completions.

mod entry;
mod fabrics_command;
mod status;
#[cfg(test)]
mod tests;

pub use entry::{Command, Completion, Sgl, admin, async_event, dsm, feature, io, io_flags, log};
pub use fabrics_command::{Cap, ConnectData, FABRICS, cc, connect, connect_error, csts, fabrics, property};
pub use status::Status;
