//! The state of an engine, as `inlane offload status` shows it.

use crate::stack::network::LinkCounters;
use crate::stack::rdma::RdmaCounters;
use inlane_result::{Cell, Quantity, Row};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The state of an engine.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct EngineStatus {
    /// The port as the user wrote it.
    pub port: String,
    /// The driver and mode that carry the packets.
    pub path: String,
    /// The engine's MAC address.
    pub mac: String,
    /// The engine's IP addresses, each with the prefix length of its network.
    pub addresses: Vec<String>,
    /// How long the engine has been running.
    pub uptime_ns: u64,
    /// The processor time that the engine has used.
    pub cpu_ns: u64,
    /// What each thread of the engine does.
    pub threads: Vec<ThreadStatus>,
    /// Counters of the link.
    pub link: LinkCounters,
    /// The kernel's interface of the port, if it is down. The engine resumes once it is up.
    pub down_interface: Option<String>,
    /// Counters of connections.
    pub connections: ConnectionCounters,
    /// Counters of RDMA. Null unless the engine offers RDMA.
    pub rdma: Option<RdmaCounters>,
    /// Counters of UDP datagrams.
    pub datagrams: DatagramTotals,
    /// The number of descriptors that the engine is closing: those that programs have sent, and ends of sockets in
    /// which such descriptors wait. The programs' limits of sockets and clients count such ends.
    pub closing_descriptors: u64,
    /// The sockets that the engine runs.
    pub sockets: Vec<SocketStatus>,
    /// The sockets that most recently stayed with the kernel, the latest first.
    pub kernel: Vec<KernelSocket>,
}

/// What one thread of an engine does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ThreadStatus {
    /// The thread's number. Its queues of the port have the same number.
    pub thread: u64,
    /// The processor time that the thread has used.
    pub cpu_ns: u64,
    /// The sockets that the thread runs.
    pub sockets: u64,
    /// The number of frames received from the thread's queue.
    pub received_packets: u64,
    /// The number of frames sent to the thread's queue.
    pub sent_packets: u64,
    /// The number of received packets that this thread passed to other threads, because the packets' sockets
    /// run there.
    pub passed_packets: u64,
}

/// Counters of connections since the engine started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConnectionCounters {
    /// Sockets that were created, including the sockets of accepted connections.
    pub sockets: u64,
    /// Established connections that programs opened.
    pub connected: u64,
    /// Established connections that listeners accepted.
    pub accepted: u64,
    /// Connections that are in the state TIME-WAIT now.
    pub time_wait: u64,
    /// Resets that the engine sent, because a segment arrived for no connection and no listener.
    pub resets_sent: u64,
    /// The number of connections that were reset because their program broke the protocol of shared memory.
    pub hostile: u64,
    /// Payload bytes that went through memory shared with programs instead of socket pairs. Counts both
    /// directions.
    pub direct_bytes: u64,
    /// Received payload bytes that programs copied from receive rings in shared memory.
    #[serde(default)]
    pub ring_bytes: u64,
    /// Received payload bytes that were placed directly into buffers of programs.
    #[serde(default)]
    pub buffer_bytes: u64,
    /// Received payload bytes that went through socket pairs.
    #[serde(default)]
    pub pair_bytes: u64,
    /// Sockets that stayed with the kernel.
    pub kernel: u64,
    /// Requests that programs sent through the control socket.
    pub requests: u64,
    /// Payload bytes that programs received over connections.
    pub received_bytes: u64,
    /// Payload bytes of programs that peers have acknowledged.
    pub sent_bytes: u64,
    /// Payload bytes that were retransmitted.
    pub retransmitted_bytes: u64,
}

impl std::ops::AddAssign for ConnectionCounters {
    fn add_assign(&mut self, other: Self) {
        self.sockets += other.sockets;
        self.connected += other.connected;
        self.accepted += other.accepted;
        self.time_wait += other.time_wait;
        self.resets_sent += other.resets_sent;
        self.hostile += other.hostile;
        self.direct_bytes += other.direct_bytes;
        self.ring_bytes += other.ring_bytes;
        self.buffer_bytes += other.buffer_bytes;
        self.pair_bytes += other.pair_bytes;
        self.kernel += other.kernel;
        self.requests += other.requests;
        self.received_bytes += other.received_bytes;
        self.sent_bytes += other.sent_bytes;
        self.retransmitted_bytes += other.retransmitted_bytes;
    }
}

/// Counters of datagrams, of one UDP socket or of all UDP sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DatagramCounters {
    /// Datagrams handed to programs.
    pub received: u64,
    /// Datagrams that programs sent.
    pub sent: u64,
    /// Payload bytes of the datagrams handed to programs.
    pub received_bytes: u64,
    /// Payload bytes of the datagrams that programs sent.
    pub sent_bytes: u64,
    /// Received datagrams that were dropped because the program's receive buffer was full.
    pub dropped: u64,
    /// Datagrams of programs that could not be sent: no route, an address that is not the engine's, or no free buffer.
    pub unsent: u64,
}

impl DatagramCounters {
    /// Adds other counters.
    pub fn add(&mut self, other: &Self) {
        self.received += other.received;
        self.sent += other.sent;
        self.received_bytes += other.received_bytes;
        self.sent_bytes += other.sent_bytes;
        self.dropped += other.dropped;
        self.unsent += other.unsent;
    }
}

/// Counters of UDP since the engine started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DatagramTotals {
    /// The counters summed over all UDP sockets, including closed ones.
    #[serde(flatten)]
    pub sockets: DatagramCounters,
    /// Received datagrams whose destination port had no socket.
    pub no_port: u64,
}

/// Returns `udp` if `datagrams` is set, otherwise `tcp`.
pub fn protocol(datagrams: bool) -> String {
    if datagrams { "udp" } else { "tcp" }.to_owned()
}

/// A socket that stayed with the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KernelSocket {
    /// `tcp` or `udp`.
    pub protocol: String,
    /// The name of the program that created the socket.
    pub program: String,
    /// The identifier of the program's process.
    pub process: i32,
    /// The address to which the program bound the socket. Null if it bound none.
    pub local: Option<String>,
    /// The address to which the program connected the socket. Null if it connected none.
    pub remote: Option<String>,
    /// Why the socket stayed with the kernel.
    pub reason: String,
}

/// A socket that the engine runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SocketStatus {
    /// `tcp` or `udp`.
    pub protocol: String,
    /// The program that created the socket.
    pub program: String,
    /// The identifier of the program's process.
    pub process: i32,
    /// The state of a TCP socket, by its name in RFC 9293, or `bound`. The state of a UDP socket: `bound` or `connected`.
    pub state: String,
    /// The local address.
    pub local: String,
    /// The remote address; `null` for listeners.
    pub remote: Option<String>,
    /// Who runs the socket: always `engine`, because sockets of the kernel are listed apart.
    pub run_by: String,
    /// What carries the data of a connection: `tcp` or `rdma`. Null unless the socket is a TCP connection.
    pub transport: Option<String>,
    /// Why TCP carries the data. Null if RDMA does, or if the engine does not offer RDMA.
    pub transport_reason: Option<String>,
    /// Why the peer's engine sends the data by RDMA in packets. Null if it stores the data into this engine's memory, or if RDMA does not
    /// carry the data.
    pub packets_reason: Option<String>,
    /// The congestion window. Null unless the socket is a TCP connection.
    pub congestion_window_bytes: Option<u64>,
    /// The smoothed round-trip time. Null if none was measured.
    pub rtt_ns: Option<u64>,
    /// Payload bytes that the program has received.
    pub received_bytes: u64,
    /// Payload bytes that the program has sent and the peer has acknowledged.
    pub sent_bytes: u64,
    /// The mean rate of received payload bytes since the connection was created. Null unless the socket is a TCP connection.
    pub received_bytes_per_second: Option<f64>,
    /// The mean rate of acknowledged payload bytes since the connection was created. Null unless the socket is a TCP connection.
    pub sent_bytes_per_second: Option<f64>,
    /// Payload bytes that were retransmitted.
    pub retransmitted_bytes: u64,
    /// Payload bytes, in both directions, that went through memory shared with the program instead of the
    /// socket pair.
    pub direct_bytes: u64,
    /// Received payload bytes that the program copied from the receive ring in shared memory.
    #[serde(default)]
    pub ring_bytes: u64,
    /// Received payload bytes that were placed directly into buffers of the program.
    #[serde(default)]
    pub buffer_bytes: u64,
    /// Connections that wait to be accepted; `null` unless the socket listens.
    pub backlog: Option<u64>,
    /// Datagrams dropped because the receive buffer was full; `null` for TCP.
    pub dropped_datagrams: Option<u64>,
}

impl Row for SocketStatus {
    fn parameters(&self) -> Vec<Cell> {
        vec![
            Cell::new("protocol", &self.protocol),
            Cell::new("program", format!("{}[{}]", self.program, self.process)),
            Cell::new("local", &self.local),
            Cell::new("remote", self.remote.as_deref().unwrap_or("*")),
        ]
    }

    fn figures(&self) -> Vec<Cell> {
        let rate = |rate: Option<f64>| rate.map(|bytes| Quantity::bits_per_second(bytes * 8.0));
        vec![
            Cell::new("state", &self.state),
            Cell::new("transport", self.transport.as_deref().filter(|_| self.shows_transport())),
            Cell::new("cwnd", self.congestion_window_bytes.map(Quantity::Bytes)),
            Cell::new("rtt us", self.rtt_ns.map(|ns| Quantity::Time(ns as f64).fixed(1e3, 0))),
            Cell::new("received", Quantity::Bytes(self.received_bytes)),
            Cell::new("sent", Quantity::Bytes(self.sent_bytes)),
            Cell::new("in", rate(self.received_bytes_per_second)),
            Cell::new("out", rate(self.sent_bytes_per_second)),
            Cell::new("retransmitted", Quantity::Bytes(self.retransmitted_bytes)),
            Cell::new("direct", (self.direct_bytes > 0).then_some(Quantity::Bytes(self.direct_bytes))),
            Cell::new("placed", (self.buffer_bytes > 0).then_some(Quantity::Bytes(self.buffer_bytes))),
            Cell::new("backlog", self.backlog),
            Cell::new("dropped", self.dropped_datagrams),
        ]
    }
}

impl SocketStatus {
    /// Returns true if the transport is worth a column: the engine offers RDMA.
    fn shows_transport(&self) -> bool {
        self.transport.as_deref() != Some("tcp") || self.transport_reason.is_some()
    }
}

/// Returns a text that a program has chosen, with control characters and characters that change the direction of text written as
/// `\u{1b}`. On a terminal, they could hide or forge other lines.
pub fn printable(text: &str) -> String {
    let changes = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}')
    };
    text.chars().fold(String::with_capacity(text.len()), |mut shown, c| {
        match changes(c) {
            true => shown.extend(c.escape_unicode()),
            false => shown.push(c),
        }
        shown
    })
}
