//! The commands of a host, the completions of a controller, and the status codes in completions.

mod entry;
mod fabrics_command;
mod status;
#[cfg(test)]
mod tests;

pub use entry::{
    Command, Completion, FABRICS, Sgl, admin, async_event, dsm, fabrics, feature, io, io_flags, log,
};
pub use fabrics_command::{Cap, ConnectData, cc, connect, connect_error, csts, property};
pub use status::Status;
