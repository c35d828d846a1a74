//! The settings of an engine that messages of this crate name.

use inlane_core::setting::Field;

/// An IP address of the engine.
pub const ADDRESS: Field = Field::new("address");
/// The size of the buffers of each connection.
pub const BUFFER: Field = Field::new("buffer");
/// Whether the port leads to a card, which runs TCP for the engine.
pub const CARD: Field = Field::new("card");
/// The cores of the engine's threads.
pub const CORES: Field = Field::new("cores");
/// A router.
pub const GATEWAY: Field = Field::new("gateway");
/// Whether connections to loopback addresses run on the engine.
pub const LOOPBACK: Field = Field::new("loopback");
/// The MAC address of the engine.
pub const MAC: Field = Field::new("mac");
/// The size of the largest IP packet.
pub const MTU: Field = Field::new("mtu");
/// The port to the network.
pub const PORT: Field = Field::new("port");
/// The path of the control socket. Clients of an engine have this setting, too.
pub const SOCKET: Field = Field::new("socket");
/// The permissions of the control socket.
pub const SOCKET_MODE: Field = Field::new("socket-mode");
/// The most sockets of a process.
pub const SOCKETS: Field = Field::new("sockets");
/// The number of threads.
pub const THREADS: Field = Field::new("threads");

/// All settings of an engine.
pub const ALL: &[Field] =
    &[ADDRESS, BUFFER, CARD, CORES, GATEWAY, LOOPBACK, MAC, MTU, PORT, SOCKET, SOCKET_MODE, SOCKETS, THREADS];
