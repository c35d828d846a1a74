//! One-sided communication between processing elements (PEs): put, get, atomics, signals and collectives on
//! symmetric memory, as in OpenSHMEM.
//!
//! [`transport`] moves bytes and carries out atomics. [`world`] adds the symmetric heap, waits and
//! collectives. [`launch`] starts jobs. [`bench`](mod@bench) measures the transport, and [`check`] verifies
//! it.

pub mod bench;
pub mod check;
pub mod error;
pub mod launch;
pub mod transport;
pub mod world;
