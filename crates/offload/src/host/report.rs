//! Collects what the engine reports: the status that `inlane offload status` shows, and the TCP_INFO of a
//! connection.

use super::Engine;
use super::control::{MOST_PASSED, Outstanding, Request};
use super::direct::{Direct, DirectBytes};
use super::pair;
use super::reply::{Refusal, Reply};
use super::shared::Task;
use super::socket::{Pair, Socket, StreamPair};
use crate::lock;
use crate::stack::socket::Role;
use crate::stack::stream::Stream;
use crate::status::{
    ConnectionCounters, DatagramCounters, DatagramTotals, EngineStatus, SocketStatus, ThreadStatus, protocol,
};
use inlane_offload_protocol::message::{Message, Operation};
use inlane_tcp::State;
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

pub(super) use crate::status::KernelSocket;

/// The most sockets that the report lists among the sockets that stayed with the kernel. It lists the latest
/// ones.
const KEPT: usize = 64;

/// Counters of the engine, and the last sockets that stayed with the kernel.
#[derive(Default)]
pub(super) struct Totals {
    pub requests: u64,
    pub sockets: u64,
    pub accepted: u64,
    /// The number of connections that were reset because their program broke the protocol of shared memory.
    pub hostile: u64,
    /// Payload bytes that went through shared memory on connections that have ended.
    direct_bytes: DirectBytes,
    kernel: u64,
    kernel_sockets: VecDeque<KernelSocket>,
    /// Payload bytes received on connections that have ended.
    received_bytes: u64,
    /// Payload bytes that peers acknowledged on connections that have ended.
    sent_bytes: u64,
    /// Payload bytes that were retransmitted on connections that have ended.
    retransmitted_bytes: u64,
    /// The sums of the counters of all closed UDP sockets.
    pub datagrams: DatagramCounters,
    /// The number of received datagrams to ports without a socket.
    pub no_port: u64,
}

impl Totals {
    pub fn note_kernel(&mut self, socket: KernelSocket) {
        self.kernel += 1;
        self.kernel_sockets.truncate(KEPT - 1);
        self.kernel_sockets.push_front(socket);
    }

    /// Adds the counters of a connection that ends.
    pub fn add(&mut self, socket: &Socket) {
        if let Some(stream) = socket.stream() {
            self.received_bytes += stream.delivered;
            self.direct_bytes += direct_bytes(socket);
            self.sent_bytes += stream.connection.acknowledged();
            self.retransmitted_bytes += stream.retransmitted_bytes();
        }
    }
}

/// Returns the pair of a connection.
fn stream_pair(socket: &Socket) -> Option<&StreamPair> {
    match &socket.attachment.pair {
        Pair::Stream(pair) => Some(pair),
        _ => None,
    }
}

/// Returns the payload bytes of a socket that went through shared memory.
fn direct_bytes(socket: &Socket) -> DirectBytes {
    stream_pair(socket).map(StreamPair::direct_bytes).unwrap_or_default()
}

/// Returns the name of a state in RFC 9293.
fn state_name(state: State) -> &'static str {
    match state {
        State::SynSent => "SYN-SENT",
        State::SynReceived => "SYN-RECEIVED",
        State::Established => "ESTABLISHED",
        State::FinWait1 => "FIN-WAIT-1",
        State::FinWait2 => "FIN-WAIT-2",
        State::CloseWait => "CLOSE-WAIT",
        State::Closing => "CLOSING",
        State::LastAck => "LAST-ACK",
        State::TimeWait => "TIME-WAIT",
        State::Closed => "CLOSED",
    }
}

/// Returns Linux's `struct tcp_info` up to the field `tcpi_total_retrans`, as programs read it.
pub(super) fn tcp_info(socket: &Socket, stream: Option<&Stream>) -> [u8; 104] {
    let mut bytes = [0; 104];
    let Some(stream) = stream else {
        bytes[0] = if matches!(socket.role, Role::Listening(_)) { 10 } else { 7 };
        return bytes;
    };
    let connection = &stream.connection;
    // Write the state as its number in Linux's include/net/tcp_states.h, because programs read Linux's
    // `struct tcp_info`.
    bytes[0] = match connection.state() {
        State::Established => 1,
        State::SynSent => 2,
        State::SynReceived => 3,
        State::FinWait1 => 4,
        State::FinWait2 => 5,
        State::TimeWait => 6,
        State::Closed => 7,
        State::CloseWait => 8,
        State::LastAck => 9,
        State::Closing => 11,
    };
    let mss = connection.segment_size().max(1);
    let us = |ns: u64| (ns / 1000) as u32;
    let segments = |bytes: u64| (bytes / u64::from(mss)).min(u64::from(u32::MAX)) as u32;
    let mut put = |at: usize, value: u32| bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    put(8, us(connection.retransmission_timeout()));
    put(16, mss);
    put(20, mss);
    put(24, segments(connection.in_flight()));
    put(68, us(connection.smoothed_rtt().unwrap_or(0)));
    put(72, us(connection.rtt_variation()));
    put(76, segments(connection.slow_start_threshold()));
    put(80, segments(connection.congestion_window()));
    put(84, mss);
    put(100, segments(stream.retransmitted_bytes()));
    bytes
}

/// Returns the number of connections of this thread's listener that wait to be accepted. Those in the pair, which all threads
/// share, count for the listener and not for its copies.
fn waiting(socket: &Socket) -> usize {
    let attachment = &socket.attachment;
    let Pair::Listening(pair) = &attachment.pair else { return 0 };
    let handed_over =
        attachment.end.as_ref().filter(|_| !attachment.copy).and_then(pair::waiting_connections);
    pair.queue.len() + handed_over.unwrap_or(0)
}

impl Engine {
    fn socket_status(&self, now: u64, socket: &Socket) -> SocketStatus {
        let stream = socket.stream();
        let connection = stream.map(|stream| &stream.connection);
        let seconds = stream.map(|stream| now.saturating_sub(stream.since) as f64 / 1e9);
        let rate =
            |bytes: u64| seconds.filter(|&seconds| seconds > 0.0).map(|seconds| bytes as f64 / seconds);
        let received = stream.map_or(0, |stream| stream.delivered);
        let sent = connection.map_or(0, |connection| connection.acknowledged());
        let (state, backlog) = match &socket.role {
            Role::Bound => ("bound", None),
            Role::Listening(_) => ("LISTEN", Some(waiting(socket) as u64)),
            Role::Stream(stream) => (state_name(stream.connection.state()), None),
            Role::Datagram(datagram) if datagram.remote.is_some() => ("connected", None),
            Role::Datagram(_) => ("bound", None),
        };
        let datagram = match &socket.role {
            Role::Datagram(datagram) => Some(datagram),
            _ => None,
        };
        let counters = match &socket.attachment.pair {
            Pair::Datagram(pair) => Some(pair.counters),
            _ => None,
        };
        let received = counters.map_or(received, |counters| counters.received_bytes);
        let sent = counters.map_or(sent, |counters| counters.sent_bytes);
        let remote = match datagram {
            Some(datagram) => datagram.remote,
            None => stream.map(|stream| stream.flow.remote),
        };
        let transport = stream.map(|stream| stream.transport.describe());
        let direct = direct_bytes(socket);
        SocketStatus {
            protocol: protocol(datagram.is_some()),
            program: socket.attachment.program.clone(),
            process: socket.attachment.process,
            state: state.into(),
            local: socket.local.to_string(),
            remote: remote.map(|remote| remote.to_string()),
            run_by: "engine".into(),
            transport: transport.map(|(name, _)| name.to_owned()),
            transport_reason: transport.and_then(|(_, reason)| reason).map(str::to_owned),
            packets_reason: stream.and_then(|stream| {
                let direct = stream_pair(socket).and_then(|pair| pair.direct.as_deref());
                packets_reason(stream, direct, self.slots.peer.is_some()).map(str::to_owned)
            }),
            congestion_window_bytes: stream.map(Stream::congestion_window),
            rtt_ns: stream.and_then(Stream::smoothed_rtt),
            received_bytes: received,
            sent_bytes: sent,
            received_bytes_per_second: rate(received),
            sent_bytes_per_second: rate(sent),
            retransmitted_bytes: stream.map_or(0, Stream::retransmitted_bytes),
            direct_bytes: direct.all(),
            ring_bytes: direct.ring,
            buffer_bytes: direct.buffers,
            backlog,
            dropped_datagrams: counters.map(|counters| counters.dropped),
        }
    }

    /// Returns this thread's part of the engine's state.
    fn part(&self, now: u64) -> Part {
        let totals = &self.totals;
        let mut sockets = Vec::new();
        let (mut listeners, mut copies) = (HashMap::new(), Vec::new());
        for (_, socket) in self.stack.sockets.iter() {
            let status = self.socket_status(now, socket);
            if matches!(socket.role, Role::Listening(_)) {
                if socket.attachment.copy {
                    copies.push((socket.attachment.id, status.backlog.unwrap_or_default()));
                    continue;
                }
                listeners.insert(socket.attachment.id, sockets.len());
            }
            sockets.push(status);
        }
        let streams = || sockets.iter().filter(|socket| socket.protocol == "tcp");
        let sum = |field: fn(&SocketStatus) -> u64| streams().map(field).sum::<u64>();
        let mut datagrams = totals.datagrams;
        for (_, socket) in self.stack.sockets.iter() {
            if let Pair::Datagram(pair) = &socket.attachment.pair {
                datagrams.add(&pair.counters);
            }
        }
        let link = self.stack.network.counters;
        let received_bytes = totals.received_bytes + sum(|socket| socket.received_bytes);
        let ring_bytes = totals.direct_bytes.ring + sum(|socket| socket.ring_bytes);
        let buffer_bytes = totals.direct_bytes.buffers + sum(|socket| socket.buffer_bytes);
        let thread = ThreadStatus {
            thread: self.stack.thread as u64,
            cpu_ns: inlane_core::clock::thread_cpu_ns(),
            sockets: sockets.len() as u64,
            received_packets: link.received_packets,
            sent_packets: link.sent_packets,
            passed_packets: link.passed,
        };
        let status = EngineStatus {
            port: self.settings.port.text().to_string(),
            path: self.link.info().path.clone(),
            mac: self.stack.network.mac().to_string(),
            addresses: self.stack.network.addresses().iter().map(ToString::to_string).collect(),
            uptime_ns: now,
            cpu_ns: thread.cpu_ns,
            threads: vec![thread],
            link,
            down_interface: self.down_interface.clone(),
            connections: ConnectionCounters {
                sockets: totals.sockets,
                connected: self.stack.counters.connected,
                accepted: totals.accepted,
                time_wait: self.stack.time_waits.len() as u64,
                resets_sent: self.stack.counters.resets_sent,
                hostile: totals.hostile,
                direct_bytes: totals.direct_bytes.all() + sum(|socket| socket.direct_bytes),
                ring_bytes,
                buffer_bytes,
                pair_bytes: received_bytes.saturating_sub(ring_bytes + buffer_bytes),
                kernel: totals.kernel,
                requests: totals.requests,
                received_bytes,
                sent_bytes: totals.sent_bytes + sum(|socket| socket.sent_bytes),
                retransmitted_bytes: totals.retransmitted_bytes + sum(|socket| socket.retransmitted_bytes),
            },
            rdma: self.stack.rdma_counters(),
            datagrams: DatagramTotals { sockets: datagrams, no_port: totals.no_port },
            closing_descriptors: self.closer.unclosed() as u64,
            sockets,
            kernel: totals.kernel_sockets.iter().cloned().collect(),
        };
        Part { status, listeners, copies }
    }

    /// Returns a file with the state of this engine. Only for engines with one thread.
    pub(super) fn status_file(&self, now: u64) -> Reply {
        status_file(&self.part(now).status)
    }

    /// Begins a report of the engine's state by asking the other threads for their parts. The last thread to
    /// answer sends the reply to the client.
    pub(super) fn start_report(&mut self, now: u64, request: &Request) {
        let Some(shared) = &self.shared else { return };
        let report = Arc::new(Report {
            whole: Mutex::new(self.part(now)),
            remaining: AtomicUsize::new(shared.threads() - 1),
            client: Outstanding::new(&request.client, MOST_PASSED),
        });
        shared.give_others(self.stack.thread, || Task::Report(report.clone()));
    }

    /// Adds this thread's part to a report. The last thread to do so sends the report.
    pub(super) fn add_to_report(&mut self, now: u64, report: &Report) {
        let part = self.part(now);
        let mut whole = lock(&report.whole);
        whole.add(part);
        if report.remaining.fetch_sub(1, Ordering::Relaxed) > 1 {
            return;
        }
        whole.status.threads.sort_by_key(|thread| thread.thread);
        whole.status.kernel.truncate(KEPT);
        let (reply, file) = status_file(&whole.status).unwrap_or_else(|_| {
            let mut reply = Message::new(Operation::Status);
            reply.status = libc::EIO;
            (reply, None)
        });
        report.client.reply(&reply, file.as_deref());
    }
}

/// Writes an engine's state to a file as JSON. Returns the reply and the file to send with it.
fn status_file(status: &EngineStatus) -> Reply {
    let text = serde_json::to_vec(status).map_err(|_| Refusal::Errno(libc::EIO))?;
    let fd = rustix::fs::memfd_create("inlane-status", rustix::fs::MemfdFlags::CLOEXEC)
        .map_err(|error| Refusal::Errno(error.raw_os_error()))?;
    let mut file = File::from(fd);
    file.write_all(&text)?;
    Ok((Message::new(Operation::Status), Some(Arc::new(file.into()))))
}

/// A report of the engine's state. Each thread adds its part to the report.
pub(super) struct Report {
    whole: Mutex<Part>,
    /// The number of threads that have not yet added their part of the report.
    remaining: AtomicUsize,
    /// Keeps the engine from reading further requests of the client until the report is sent.
    client: Outstanding,
}

/// The state of the engine as one or several of its threads see it.
struct Part {
    status: EngineStatus,
    /// The index in `status.sockets` of each listener, by the listener's number.
    listeners: HashMap<u64, usize>,
    /// Copies of listeners whose listeners are not in `listeners`. A listener has one copy on each other
    /// thread. An entry has the number of the listener, and the number of connections that wait to be
    /// accepted at the copy.
    copies: Vec<(u64, u64)>,
}

impl Part {
    fn add(&mut self, other: Self) {
        let (status, more) = (&mut self.status, other.status);
        let before = status.sockets.len();
        status.cpu_ns += more.cpu_ns;
        status.down_interface = status.down_interface.take().or(more.down_interface);
        status.threads.extend(more.threads);
        status.link += more.link;
        status.connections += more.connections;
        if let (Some(rdma), Some(more)) = (&mut status.rdma, more.rdma) {
            *rdma += more;
        }
        status.datagrams.sockets.add(&more.datagrams.sockets);
        status.datagrams.no_port += more.datagrams.no_port;
        status.sockets.extend(more.sockets);
        status.kernel.extend(more.kernel);
        self.listeners.extend(other.listeners.into_iter().map(|(id, index)| (id, before + index)));
        self.copies.extend(other.copies);
        let (listeners, sockets) = (&self.listeners, &mut status.sockets);
        // A copy is another thread's socket of a listener. Add its waiting connections to its listener's
        // entry. Keep a copy whose listener is not in the report yet.
        self.copies.retain(|(id, waiting)| {
            let listed = listeners.get(id).and_then(|&index| sockets[index].backlog.as_mut());
            listed.map(|backlog| *backlog += waiting).is_none()
        });
    }
}

/// Returns why the peer's engine sends the data of a connection in packets. `None` if it stores the data, or RDMA does not carry it.
/// `shares` is true if this engine can share memory with the peer's.
fn packets_reason(stream: &Stream, direct: Option<&Direct>, shares: bool) -> Option<&'static str> {
    let carrier = stream.carrier()?;
    match direct {
        _ if carrier.is_stored_into() => None,
        _ if !shares => Some("the engines share no memory"),
        None => Some("the connection has no slot of shared memory"),
        Some(direct) if !direct.offered => {
            Some("the program has not received through shared memory for long enough")
        }
        Some(_) => Some("the peer's engine does not store"),
    }
}
