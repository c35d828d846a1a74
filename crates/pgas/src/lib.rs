//! One-sided communication between processing elements (PEs): put, get, atomics, signals and collectives on
//! symmetric memory, as in OpenSHMEM, over the windows of [`inlane_ntb`] or over UCX.
//!
//! The modules, from the lowest layer up: [`transport`] moves bytes and carries out atomics; [`world`] adds
//! the symmetric heap, waits and collectives; [`launch`] starts jobs; [`bench`](mod@bench) measures and
//! [`check`] verifies what the transport does.

pub mod bench;
pub mod check;
pub mod error;
pub mod field;
pub mod launch;
pub mod transport;
pub mod variables;
pub mod world;
