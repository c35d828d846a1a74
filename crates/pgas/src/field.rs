//! The names of this crate's settings in messages. The `inlane` command shows them as flags.

use inlane_core::setting::Field;

/// The address of the launcher at which the PEs of a job over UCX meet.
pub const ADDRESS: Field = Field::new("address");
/// The faults to inject.
pub const FAULTS: Field = Field::new("faults");
/// The PE at which faults are injected.
pub const FAULTY: Field = Field::new("faulty");
/// The size of each PE's symmetric heap.
pub const HEAP: Field = Field::new("heap");
/// The mover of large puts.
pub const MOVER: Field = Field::new("mover");
/// The size from which the mover copies.
pub const MOVER_FROM: Field = Field::new("mover-from");
/// The measured operations.
pub const ONLY: Field = Field::new("only");
/// How the PEs communicate.
pub const TRANSPORT: Field = Field::new("transport");
/// The program that measures UCX for a comparison.
pub const UCX: Field = Field::new("ucx");

/// The fields of a job.
pub const OF_JOBS: &[Field] = &[ADDRESS, FAULTS, FAULTY, HEAP, MOVER, MOVER_FROM, TRANSPORT];
/// The fields of a bench.
pub const OF_BENCHES: &[Field] = &[MOVER, ONLY, TRANSPORT, UCX];
