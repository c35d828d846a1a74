//! The settings that messages of this crate name.

use inlane_core::setting::Field;

/// The cores of the target's threads.
pub const CORES: Field = Field::new("cores");
/// The file of hosts that may connect to the target.
pub const HOSTS_FILE: Field = Field::new("hosts-file");
/// A namespace: what the target serves, or the identifier that an initiator uses.
pub const NAMESPACE: Field = Field::new("namespace");
/// The file with the secrets of hosts.
pub const SECRETS_FILE: Field = Field::new("secrets-file");

/// The NQN of this host.
pub const HOST_NQN: Field = Field::new("host-nqn");
/// The NQN of the subsystem.
pub const SUBSYSTEM: Field = Field::new("subsystem");

/// The first byte of a range.
pub const OFFSET: Field = Field::new("offset");
/// The number of bytes of a transfer.
pub const LENGTH: Field = Field::new("length");

/// The number of bytes of each operation of a bench.
pub const BS: Field = Field::new("bs");
/// The operations in flight of each job.
pub const IODEPTH: Field = Field::new("iodepth");
/// The number of jobs.
pub const NUMJOBS: Field = Field::new("numjobs");
/// What the jobs do.
pub const RW: Field = Field::new("rw");
/// The number of bytes of the jobs' range.
pub const SIZE: Field = Field::new("size");
/// Whether reads check the data.
pub const VERIFY: Field = Field::new("verify");

/// The settings of a target.
pub const OF_TARGETS: &[Field] = &[CORES, HOSTS_FILE, NAMESPACE, SECRETS_FILE];
/// The settings of an initiator.
pub const OF_INITIATORS: &[Field] = &[HOST_NQN, NAMESPACE, SECRETS_FILE, SUBSYSTEM];
/// The settings of a read or write of a range.
pub const OF_TRANSFERS: &[Field] = &[OFFSET, LENGTH];
/// The settings of a bench.
pub const OF_BENCHES: &[Field] = &[BS, IODEPTH, NUMJOBS, OFFSET, RW, SIZE, VERIFY];
