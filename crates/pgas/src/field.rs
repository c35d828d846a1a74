//! The names of this crate's settings in messages. The `inlane` command shows them as flags.

use inlane_core::setting::Field;

/// The address of the launcher at which the PEs of a job over UCX meet.
pub const ADDRESS: Field = Field::new("address");
/// The PE at which faults are injected.
pub const FAULTY: Field = Field::new("faulty");
/// The size of each PE's symmetric heap.
pub const HEAP: Field = Field::new("heap");
/// The mover of large puts.
pub const MOVER: Field = Field::new("mover");
/// The size from which the mover copies.
pub const MOVER_FROM: Field = Field::new("mover-from");
/// The number of PEs.
pub const PES: Field = Field::new("pes");
/// The measured operations.
pub const ONLY: Field = Field::new("only");
/// How the PEs communicate.
pub const TRANSPORT: Field = Field::new("transport");
/// The program that measures UCX for a comparison.
pub const UCX: Field = Field::new("ucx");

/// All settings that messages of this crate name.
pub const ALL: &[Field] = &[ADDRESS, FAULTY, HEAP, MOVER, MOVER_FROM, ONLY, PES, TRANSPORT, UCX];
