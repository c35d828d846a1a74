//! The settings that messages of this crate name.

use inlane_core::setting::Field;

/// The faults to inject.
pub const FAULTS: Field = Field::new("faults");
/// The size of each PE's symmetric heap.
pub const HEAP: Field = Field::new("heap");
/// The address of the ivshmem device.
pub const IVSHMEM: Field = Field::new("ivshmem");
/// The number of virtual machines that share an ivshmem device.
pub const MACHINES: Field = Field::new("machines");

/// The fields of a job.
pub const OF_JOBS: &[Field] = &[FAULTS, HEAP];
/// The fields of bridges between virtual machines.
pub const OF_MACHINES: &[Field] = &[IVSHMEM, MACHINES];
