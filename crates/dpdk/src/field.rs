//! The settings of a run that messages of this crate name.

use inlane_core::setting::Field;

/// The number of queues of the port that the run uses.
pub const QUEUES: Field = Field::new("queues");
/// Packet buffers of each pool.
pub const BUFFERS: Field = Field::new("buffers");
/// The data room of packet buffers.
pub const ROOM: Field = Field::new("room");

/// All fields of this module.
pub const ALL: &[Field] = &[QUEUES, BUFFERS, ROOM];
