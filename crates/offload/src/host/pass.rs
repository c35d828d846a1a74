//! Passes packets, requests and sockets between the threads of an engine.
//!
//! The packets of a flow usually arrive on one queue. So a connection that a peer opens stays on the thread
//! on which it begins. A connection that a program opens moves to the thread on which its SYN,ACK arrives. If
//! a packet or UDP datagram arrives on another thread than that of its socket, it is passed on.

use super::Engine;
use super::control::Request;
use super::input::{Arrival, ReceivedPacket, original};
use super::shared::{MovedSocket, Owner, PassedPacket, Shared, Task};
use crate::host::pair;
use crate::stack::arena::Key;
use crate::stack::network::{Heard, Route};
use inlane_offload_protocol::message::Operation;
use inlane_tcp::{Flow, State};
use inlane_wire::{icmp, ipv4};
use rustix::event::epoll;
use std::net::IpAddr;

/// The most times that a packet is passed between threads while its socket moves. A packet beyond this limit
/// is dropped, and its sender retransmits it.
const MOST_HOPS: usize = 4;
/// The most MAC addresses of neighbours that a thread may pass to the other threads in a burst. Afterwards it
/// may pass one more address every `NEIGHBOUR_NS` nanoseconds.
const NEIGHBOUR_BURST: u64 = 256;
const NEIGHBOUR_NS: u64 = 1_000_000;

impl Engine {
    /// Notes that this thread is about to sleep. Returns false if its inbox contains something.
    pub(super) fn falls_asleep(&self) -> bool {
        self.inbox().is_none_or(|inbox| inbox.falls_asleep())
    }

    /// Processes everything that other threads have put into this thread's inbox. Returns true if the inbox
    /// was not empty.
    pub(super) fn empty_inbox(&mut self, now: u64) -> bool {
        match self.inbox() {
            Some(inbox) if inbox.is_filled() => {}
            _ => return false,
        }
        self.take_moved_sockets(now);
        let Some((packets, tasks)) = self.inbox().map(|inbox| inbox.take()) else { return false };
        for task in tasks {
            match task {
                Task::Client(client) => self.add_client(client),
                Task::Request(request) => self.on_passed_request(now, request),
                Task::Listen(announcement) => self.on_announcement(&announcement),
                Task::Report(report) => self.add_to_report(now, &report),
                Task::Forget(flow) => drop(self.time_waits.remove(&flow)),
                Task::Learn { address, mac, add } => self.network.learn(now, address, mac, add),
            }
        }
        for packet in packets {
            self.on_passed_packet(now, &packet);
        }
        true
    }

    fn on_passed_packet(&mut self, now: u64, packet: &PassedPacket) {
        let arrival = Arrival { trusted: packet.trusted, hops: packet.hops, from: Some(packet.from) };
        self.on_ip(now, &packet.bytes, arrival);
    }

    /// Passes a packet to another thread.
    pub(super) fn pass(&mut self, to: usize, packet: &ReceivedPacket<'_>) {
        self.pass_bytes(to, packet.whole, packet.arrival);
    }

    /// Like [`Engine::pass`], but for a packet that was not parsed.
    pub(super) fn pass_bytes(&mut self, to: usize, bytes: &[u8], arrival: Arrival) {
        let Some(shared) = &self.shared else { return };
        let packet = PassedPacket {
            bytes: bytes.to_vec(),
            trusted: arrival.trusted,
            from: arrival.from.unwrap_or(self.thread),
            hops: arrival.hops + 1,
        };
        match arrival.hops < MOST_HOPS.max(shared.threads()) && shared.pass(to, packet) {
            true => self.network.counters.passed += 1,
            false => self.network.counters.dropped += 1,
        }
    }

    /// Passes a packet to the thread that runs its flow. Returns false if this thread must process the packet
    /// itself. This is so if it runs the flow, or if no thread does.
    pub(super) fn pass_by_flow(&mut self, now: u64, flow: &Flow, packet: &ReceivedPacket<'_>) -> bool {
        let Some(owner) = self.owner(flow) else { return false };
        if owner.thread == self.thread {
            // The connection may have moved to this thread and still be in the inbox.
            self.take_moved_sockets(now);
            return false;
        }
        self.pass(owner.thread, packet);
        true
    }

    /// Passes a packet to the engine's thread that runs the UDP sockets bound to `port`. Returns false if
    /// that is the calling thread.
    pub(super) fn pass_by_port(&mut self, port: u16, packet: &ReceivedPacket<'_>) -> bool {
        let Some(home) = self.shared.as_ref().map(|shared| shared.thread_of_port(port)) else { return false };
        if home == self.thread {
            return false;
        }
        self.pass(home, packet);
        true
    }

    /// Passes an ICMP error to the thread of the affected socket. The error quotes a packet, which this
    /// socket has sent. Returns false if this thread runs the socket, or if no thread has such a socket.
    pub(super) fn pass_icmp_error(&mut self, packet: &ReceivedPacket<'_>) -> bool {
        if self.shared.is_none() || packet.arrival.from.is_some() {
            return false;
        }
        let quoted = &packet.payload[icmp::HEADER..];
        if let Some((flow, _)) = original(quoted, ipv4::UDP) {
            return self.pass_by_port(flow.local.port(), packet);
        }
        let flow = original(quoted, ipv4::TCP).map(|(flow, _)| flow);
        let owner = flow.and_then(|flow| self.owner(&flow));
        match owner.filter(|owner| owner.thread != self.thread) {
            Some(owner) => {
                self.pass(owner.thread, packet);
                true
            }
            None => false,
        }
    }

    /// Passes an IP fragment to the thread that reassembles the packet. Returns false if this thread must
    /// reassemble it.
    pub(super) fn pass_fragment(
        &mut self,
        addresses: (IpAddr, IpAddr),
        bytes: &[u8],
        arrival: Arrival,
    ) -> bool {
        let Some(shared) = &self.shared else { return false };
        let to = shared.thread_of_fragments(addresses.0, addresses.1);
        if to == self.thread {
            return false;
        }
        self.pass_bytes(to, bytes, arrival);
        true
    }

    /// Passes an acknowledgment to the next thread. Use it if this thread's copy of a listener has no
    /// handshake for the acknowledgment. The reason may be that the SYN arrived on another thread. Returns
    /// false if all threads have received the packet.
    pub(super) fn pass_to_next(&mut self, packet: &ReceivedPacket<'_>) -> bool {
        let threads = self.threads();
        if packet.arrival.hops + 1 >= threads {
            return false;
        }
        self.pass((self.thread + 1) % threads, packet);
        true
    }

    /// Tells the other threads a neighbour's MAC address, because the neighbour's answer arrives on one queue
    /// only. Does nothing above a rate limit, because anybody on the link can claim addresses. A thread that
    /// still waits for the answer asks again.
    pub(super) fn spread_neighbour(&mut self, now: u64, heard: &Heard) {
        let Some(shared) = &self.shared else { return };
        let budget = &mut self.neighbour_budgets[usize::from(heard.asked)];
        if budget.take(now, NEIGHBOUR_BURST, NEIGHBOUR_NS) {
            let &Heard { address, mac, add, .. } = heard;
            shared.give_others(self.thread, || Task::Learn { address, mac, add });
        }
    }

    /// Makes this thread the owner of a flow, and removes the flow's TIME-WAIT entry. Returns false, without
    /// effect, if another thread owns the flow.
    pub(super) fn claim_flow(&mut self, flow: Flow, key: Key) -> bool {
        let claimed = self.shared.as_ref().is_none_or(|shared| shared.claim(flow, self.thread));
        if claimed {
            self.time_waits.remove(&flow);
            self.flows.insert(flow, key);
        }
        claimed
    }

    /// Allows other threads to run a flow again. Call it after this thread has removed the flow.
    pub(super) fn release_flow(&self, flow: &Flow) {
        if let Some(shared) = &self.shared
            && !self.flows.contains(flow)
        {
            shared.release(flow, self.thread);
        }
    }

    /// Returns the thread that runs a flow, if the engine has several threads.
    fn owner(&self, flow: &Flow) -> Option<Owner> {
        self.shared.as_ref()?.flows.get(flow)
    }

    /// Returns true if a thread runs a connection of this flow.
    pub(super) fn is_connected(&self, flow: &Flow) -> bool {
        self.flows.contains(flow) || self.owner(flow).is_some_and(|owner| !owner.waits)
    }

    /// Returns true if the flow is in TIME-WAIT.
    pub(super) fn is_waiting(&self, flow: &Flow) -> bool {
        self.time_waits.contains_key(flow) || self.owner(flow).is_some_and(|owner| owner.waits)
    }

    /// Tells the other threads that a flow is in TIME-WAIT.
    pub(super) fn note_time_wait(&self, flow: Flow) {
        if let Some(shared) = &self.shared {
            shared.flows.part(&flow).insert(flow, Owner { thread: self.thread, waits: true });
        }
    }

    /// Returns the thread that must process a request.
    pub(super) fn thread_of_request(&self, shared: &Shared, request: &Request) -> usize {
        // Choose the thread of a bind by its port alone, because the descriptor that comes with it belongs to an earlier engine.
        if request.message.operation == Operation::Bind {
            return match request.message.local {
                Some(local) if local.port() != 0 => shared.thread_of_port(local.port()),
                _ => self.thread,
            };
        }
        if request.message.operation == Operation::Start
            && let Some(handle) = request.message.handle()
        {
            return (handle.socket % shared.threads() as u64) as usize;
        }
        let Some(attached) = &request.attached else { return self.thread };
        let Ok(cookie) = pair::cookie(attached) else { return self.thread };
        match self.by_cookie.contains_key(&cookie) {
            true => self.thread,
            false => shared.by_cookie.get(&cookie).unwrap_or(self.thread),
        }
    }

    /// Processes a request on an engine with several threads. Another thread may send the reply later.
    pub(super) fn process_shared(&mut self, now: u64, mut request: Request) {
        let operation = request.message.operation;
        if operation == Operation::Status {
            return self.start_report(now, &request);
        }
        self.take_moved_sockets(now);
        let changes_listener =
            matches!(operation, Operation::Listen | Operation::SetOption | Operation::SetOptionNow);
        let key = if changes_listener { self.attached(&request).ok() } else { None };
        let (reply, descriptor) = self.process(now, &mut request);
        if reply.status == 0
            && let Some(key) = key
            && self.announce(key, &request.client, &reply)
        {
            return;
        }
        self.reply(&request, &reply, descriptor);
    }

    /// Moves a connection to the thread `to`, which receives the connection's packets. Passes `packet` to
    /// that thread for processing, usually the SYN,ACK.
    fn move_socket(&mut self, key: Key, to: usize, packet: &ReceivedPacket<'_>) {
        let Some(shared) = self.shared.clone() else { return };
        let Some(mut socket) = self.sockets.remove(key) else { return };
        self.wheel.remove(key);
        self.by_cookie.remove(&socket.cookie);
        if let Some(end) = &socket.end {
            super::stop_watching(&self.epoll, end);
        }
        (socket.armed, socket.dirty) = (u64::MAX, false);
        let Some(flow) = socket.stream().map(|stream| stream.flow) else { return };
        self.flows.remove(&flow);
        let arrival = packet.arrival;
        let packet = PassedPacket {
            bytes: packet.whole.to_vec(),
            trusted: arrival.trusted,
            from: to,
            hops: arrival.hops + 1,
        };
        shared.move_socket(to, flow, MovedSocket { socket: Box::new(socket), packet });
    }

    /// Moves a connection in SYN-SENT to the thread that received `packet`, because the connection's packets
    /// arrive there. Returns false if the connection stays on this thread. It stays if this thread received
    /// the packet, if its SYN is held back, or if it leads to the engine's own address. A connection of a
    /// bound socket also stays, because this thread checks its port for conflicts.
    pub(super) fn follow_packets(&mut self, key: Key, packet: &ReceivedPacket<'_>) -> bool {
        let Some(from) = packet.arrival.from.filter(|&from| from != self.thread) else { return false };
        let moves = self.sockets.get(key).is_some_and(|socket| {
            !socket.holds_port
                && socket.stream().is_some_and(|stream| {
                    // Do not move a socket if its SYN is held back: the timer that sends the SYN runs on this
                    // thread.
                    stream.connection.state() == State::SynSent
                        && stream.route != Route::Own
                        && stream.held_until.is_none()
                })
        });
        if moves {
            self.move_socket(key, from, packet);
        }
        moves
    }

    /// Adds the sockets that were moved to this thread. Also processes the packets because of which they were
    /// moved.
    pub(super) fn take_moved_sockets(&mut self, now: u64) {
        let Some(inbox) = self.inbox().filter(|inbox| inbox.is_filled()) else { return };
        for MovedSocket { socket, packet } in inbox.take_sockets() {
            let cookie = socket.cookie;
            let Some(flow) = socket.stream().map(|stream| stream.flow) else { continue };
            let key = self.sockets.insert_with(|_| *socket);
            self.by_cookie.insert(cookie, key);
            self.flows.insert(flow, key);
            if self.watch_pair(key).is_err() {
                self.remove(key);
                continue;
            }
            self.touch(key);
            self.on_passed_packet(now, &packet);
        }
    }

    /// Lets epoll report events of a socket's pair.
    pub(super) fn watch_pair(&self, key: Key) -> rustix::io::Result<()> {
        use epoll::EventFlags as Flags;
        let flags = Flags::IN | Flags::OUT | Flags::PRI | Flags::RDHUP | Flags::ET;
        let end = self.sockets.get(key).and_then(|socket| socket.end.as_ref());
        let end = end.ok_or(rustix::io::Errno::BADF)?;
        epoll::add(&self.epoll, end, epoll::EventData::new_u64(key.to_u64()), flags)
    }
}
