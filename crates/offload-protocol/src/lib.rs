//! The protocol between the offload engine and the preloaded library.
//!
//! * [`name`]: the names of the UNIX sockets that stand for offloaded sockets. A name describes its socket,
//!   so the library needs no table.
//!
//! The library runs inside other programs, also in their signal handlers. For this reason, nothing in this
//! crate allocates, locks or panics, unless the documentation of a function says so.

pub mod address;
pub mod datagram;
pub mod filler;
pub mod message;
pub mod name;
pub mod rules;
pub mod slots;

/// The environment variable that names the engine's control socket.
pub const SOCKET_VARIABLE: &str = "_INLANE_OFFLOAD_SOCKET";
/// The environment variable with the rules, one per line. The rules say which sockets the engine runs and
/// which stay with the kernel ([`rules`]).
pub const RULES_VARIABLE: &str = "_INLANE_OFFLOAD_RULES";
/// If this environment variable is set, a socket that would stay with the kernel is an error. Its first line is how users demand
/// this, and the second line is the command that starts an engine on the control socket. Messages of the library contain both.
pub const REQUIRE_VARIABLE: &str = "_INLANE_OFFLOAD_REQUIRE";
/// The path of the engine's control socket, unless another one was chosen.
pub const DEFAULT_SOCKET: &str = "/run/inlane/offload.sock";
