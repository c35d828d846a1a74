//! The settings of a run that messages of this crate name.

use inlane_core::setting::Field;

/// The port to receive from.
pub const RX: Field = Field::new("rx");
/// The port to send to.
pub const TX: Field = Field::new("tx");
/// The data room of packet buffers.
pub const ROOM: Field = Field::new("room");
/// The memory that packets lie in.
pub const MEMORY: Field = Field::new("memory");
/// The number of packets after which a run ends.
pub const PACKETS: Field = Field::new("packets");
/// The capture file that sent packets are also written to.
pub const CAPTURE: Field = Field::new("capture");
/// The injected faults.
pub const FAULTS: Field = Field::new("faults");

/// The function that a checker compares the packet function with.
pub const REFERENCE: Field = Field::new("reference");

/// All fields of this module.
pub const ALL: &[Field] = &[RX, TX, ROOM, MEMORY, PACKETS, CAPTURE, FAULTS, REFERENCE];
