//! Passes packets, requests and sockets between the threads of an engine.
//!
//! The packets of a flow usually arrive on one queue. So a connection that a peer opens stays on the thread
//! on which it begins. A connection that a program opens moves to the thread on which its SYN,ACK arrives. If
//! a packet or UDP datagram arrives on another thread than that of its socket, it is passed on.

use super::Engine;
use super::control::Request;
use super::pair;
use super::shared::{MovedSocket, PassedPacket, Shared, Task};
use super::socket::{Attachment, Pair};
use crate::stack::arena::Key;
use crate::stack::outcome::Heard;
use crate::stack::packet::Arrival;
use inlane_offload_protocol::message::Operation;
use rustix::event::epoll;

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
                Task::Forget(flow) => self.stack.time_waits.remove(&flow),
                Task::Learn { address, mac, add } => self.stack.network.learn(now, address, mac, add),
            }
        }
        for packet in packets {
            self.on_passed_packet(now, &packet);
        }
        true
    }

    fn on_passed_packet(&mut self, now: u64, packet: &PassedPacket) {
        let PassedPacket { trusted, from, hops, .. } = *packet;
        self.on_ip(now, &packet.bytes, Arrival { trusted, hops, from: Some(from), ..Arrival::default() });
    }

    /// Passes an IP packet to another thread.
    pub(super) fn pass(&mut self, to: usize, bytes: &[u8], arrival: Arrival) {
        let Some(shared) = &self.shared else { return };
        let packet = PassedPacket {
            bytes: bytes.to_vec(),
            trusted: arrival.trusted,
            from: arrival.from.unwrap_or(self.stack.thread),
            hops: arrival.hops + 1,
        };
        let counters = &mut self.stack.network.counters;
        match arrival.hops < MOST_HOPS.max(shared.threads()) && shared.pass(to, packet) {
            true => counters.passed += 1,
            false => counters.dropped += 1,
        }
    }

    /// Tells the other threads a neighbour's MAC address, because the neighbour's answer arrives on one queue
    /// only. Does nothing above a rate limit, because anybody on the link can claim addresses. A thread that
    /// still waits for the answer asks again.
    pub(super) fn spread_neighbour(&mut self, now: u64, heard: &Heard) {
        let Some(shared) = &self.shared else { return };
        let budget = &mut self.neighbour_budgets[usize::from(heard.asked)];
        if budget.take(now, NEIGHBOUR_BURST, NEIGHBOUR_NS) {
            let &Heard { address, mac, add, .. } = heard;
            shared.give_others(self.stack.thread, || Task::Learn { address, mac, add });
        }
    }

    /// Returns the thread that must process a request.
    pub(super) fn thread_of_request(&self, shared: &Shared, request: &Request) -> usize {
        // Choose the thread of a bind by its port alone, because the descriptor that comes with it belongs to an earlier engine.
        if request.message.operation == Operation::Bind {
            return match request.message.local {
                Some(local) if local.port() != 0 => shared.owners.thread_of_port(local.port()),
                _ => self.stack.thread,
            };
        }
        if matches!(request.message.operation, Operation::Start | Operation::Refuse)
            && let Some(handle) = request.message.handle()
        {
            return (handle.socket % shared.threads() as u64) as usize;
        }
        let Some(attached) = &request.attached else { return self.stack.thread };
        let Ok(cookie) = pair::checked_cookie(attached) else { return self.stack.thread };
        match self.by_cookie.contains_key(&cookie) {
            true => self.stack.thread,
            false => shared.by_cookie.get(&cookie).unwrap_or(self.stack.thread),
        }
    }

    /// Returns the listener of a request whose changes other threads must learn of.
    pub(super) fn listener_to_announce(&self, request: &Request) -> Option<Key> {
        let changes_listener = matches!(
            request.message.operation,
            Operation::Listen | Operation::SetOption | Operation::SetOptionNow
        );
        (self.shared.is_some() && changes_listener).then(|| self.attached(request).ok())?
    }

    /// Moves a connection to the thread `to`, which receives the connection's packets. Passes the IP packet `bytes` to
    /// that thread for processing, usually the SYN,ACK.
    pub(super) fn move_socket(&mut self, key: Key, to: usize, bytes: &[u8], arrival: Arrival) {
        let Some(shared) = self.shared.clone() else { return };
        let Some(socket) = self.stack.take_out(key) else { return };
        let Some(flow) = socket.stream().map(|stream| stream.flow) else { return };
        self.by_cookie.remove(&socket.attachment.cookie);
        if let Some(end) = &socket.attachment.end {
            super::stop_watching(&self.epoll, end);
        }
        let Arrival { trusted, hops, .. } = arrival;
        let packet = PassedPacket { bytes: bytes.to_vec(), trusted, from: to, hops: hops + 1 };
        shared.move_socket(to, flow, MovedSocket { socket: Box::new(socket), packet });
    }

    /// Adds the sockets that were moved to this thread. Also processes the packets because of which they were
    /// moved.
    pub(super) fn take_moved_sockets(&mut self, now: u64) {
        let Some(inbox) = self.inbox().filter(|inbox| inbox.is_filled()) else { return };
        for MovedSocket { socket, packet } in inbox.take_sockets() {
            let cookie = socket.attachment.cookie;
            let key = self.stack.put_in(*socket);
            self.by_cookie.insert(cookie, key);
            self.move_slot(key);
            if self.watch_pair(key).is_err() {
                self.remove(key);
                continue;
            }
            self.stack.touch(key);
            self.on_passed_packet(now, &packet);
        }
    }

    /// Lets epoll report events of a socket's pair.
    pub(super) fn watch_pair(&self, key: Key) -> rustix::io::Result<()> {
        let Some(Attachment { pair, end: Some(end), .. }) =
            self.stack.sockets.get(key).map(|socket| &socket.attachment)
        else {
            return Err(rustix::io::Errno::BADF);
        };
        let awaits_room = match pair {
            // This thread may watch a kept pair already. It does not if the pair comes from another thread.
            Pair::Stream(pair) if pair.reused.is_some() || pair.opened_over_kept => {
                let (token, events) =
                    (epoll::EventData::new_u64(key.to_u64()), pair::events(pair.awaits_room));
                return match epoll::modify(&self.epoll, end, token, events) {
                    Err(rustix::io::Errno::NOENT) => epoll::add(&self.epoll, end, token, events),
                    watched => watched,
                };
            }
            Pair::Stream(pair) => pair.awaits_room,
            Pair::Listening(pair) => pair.awaits_room,
            Pair::Bound | Pair::Datagram(_) => false,
        };
        let flags = pair::events(awaits_room);
        epoll::add(&self.epoll, end, epoll::EventData::new_u64(key.to_u64()), flags)
    }
}
