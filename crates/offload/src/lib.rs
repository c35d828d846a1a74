//! Sockets on an engine. The engine runs other programs' TCP and UDP sockets on its own network stack, on its
//! own cores.
//!
//! ```text
//! program --- pair of UNIX sockets ---+
//! program --- pair of UNIX sockets ---+--- engine: TCP, IP, ARP, ... --- port (AF_XDP, packet socket, network card)
//! `inlane offload status` --- control socket ---+
//! ```
//!
//! * `stack` turns frames into bytes of sockets and back. It has no descriptors and makes no system calls.
//! * `host` connects the stack to programs and to the port: control socket, descriptors, limits, threads.
//! * `card` runs TCP for an engine on another machine.
//! * [`status`] is what the engine reports; [`client`] asks for it.
//! * [`rules`] reads which sockets stay with the kernel; [`toml_error`] explains why a file is not TOML.
//! * [`trace`] records when messages pass points of an engine or a card; [`floors`] measures what each part of the way takes alone.
//! * [`stepped`] is an engine for tests, with the caller's clock and frames in memory.
//!
//! Programs may be hostile. The engine checks every request of a program before use, and limits the memory
//! for a program's sockets. The memory that the engine shares with a program holds only bytes of that
//! program's own connections, and words that the engine checks.

mod card;
pub mod client;
mod error;
pub mod field;
pub mod floors;
mod host;
pub mod rules;
mod settings;
mod stack;
pub mod status;
pub mod stepped;
pub mod toml_error;
pub mod trace;

pub use card::{Card, CardCounters, CardSettings};
pub use error::{Error, Result};
pub use host::Threads;
pub use host::link::{parse_port, shared_addresses};
pub use settings::{Settings, Transport};
pub use stack::network::LinkCounters;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex. Ignores a panic of a thread that held the lock, because the engine ends after a panic
/// anyway.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
