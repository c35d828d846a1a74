//! The card: runs TCP for an engine on another machine or in another process ([`crate::stack::card`] has the engine's side).
//!
//! ```text
//! programs -- engine: pairs, slots -- port ===== port -- card: TCP, IP, ARP -- port -- network
//!                                     messages, frames
//! ```
//!
//! The card has no programs, descriptors or limits. It has one thread, and serves one engine at a time. It trusts the engine like
//! itself, but checks each message, so that a broken engine ends its own session only.

mod filter;
mod run;
mod serve;
#[cfg(test)]
mod tests;

pub use run::{Card, CardSettings};

use crate::host::memory::allocate_ring;
use crate::stack::arena::Key;
use crate::stack::card::message::{
    HEADER, Hello, Kind, LEAST_FRAME, Message, OF_CARD, Reader, VERSION, Writer, flag, is_message,
    other_version,
};
use crate::stack::card::{Channel, SILENCE_NS};
use crate::stack::network::Network;
use crate::stack::options::SocketOptions;
use crate::stack::outcome::{Established, Outcome};
use crate::stack::packet::Arrival;
use crate::stack::socket::{Role, Socket};
use crate::stack::{Stack, StackConfig};
use filter::{Receiver, receiver};
use inlane_tcp::{EndReason, Report, Secrets, State, reset_for};
use std::collections::HashMap;
use std::net::SocketAddr;

/// What a card has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CardCounters {
    /// Sessions of engines.
    pub sessions: u64,
    /// Connections that the card has opened for engines.
    pub opened: u64,
    /// Connections that the card has accepted for engines.
    pub accepted: u64,
    /// Frames passed from the network to the engine, and from the engine to the network.
    pub passed: u64,
    /// Frames to pass that were dropped, because the other port had no room.
    pub dropped: u64,
    /// Sessions that ended because the engine broke the protocol or a message was lost.
    pub broken: u64,
}

/// The largest backlog, as of the engine.
const MOST_BACKLOG: u32 = 4096;

/// What the card keeps with a socket.
struct Attached {
    /// The number of the connection or listener.
    id: u64,
    /// The index up to which received bytes were sent to the engine.
    pushed: u64,
    /// What the engine was told.
    told: Report,
    /// The receive window that the engine was told, as [`Message::scale`].
    scale: u8,
    /// True if the engine has removed the connection.
    is_forgotten: bool,
    /// The number of the listener's connections that the engine has not accepted yet.
    waiting: usize,
    /// True if the engine was asked for this number and has not answered.
    asked: bool,
}

/// The report about a connection of which the engine knows nothing.
const UNTOLD: Report = Report {
    state: State::SynSent,
    reason: None,
    peer_closed: false,
    acknowledged: 0,
    received: 0,
    segment_size: 1,
};

/// What a card does, without its ports: frames go in, and frames leave through two networks.
struct CardStack {
    /// TCP, with the network as its port.
    stack: Stack<Attached>,
    /// The frames to the engine. This network has no addresses.
    to_engine: Network,
    /// The sockets by the numbers that engine and card use.
    by_id: HashMap<u64, Key>,
    /// The number of the last accepted connection.
    last_id: u64,
    /// When the engine was last heard.
    heard: u64,
    /// The other version of an engine's messages, once it was reported.
    reported: Option<u8>,
    counters: CardCounters,
}

impl CardStack {
    /// Creates a card without connections. `network` leads to the network, and `to_engine` to the engine.
    fn new(now: u64, network: Network, mut to_engine: Network, secrets: Secrets, seed: u64) -> Self {
        to_engine.channel = Some(Box::new(Channel::default()));
        let config = StackConfig {
            thread: 0,
            owners: None,
            // The engine says which size it has.
            buffer: 4096,
            allocate: allocate_ring,
            secrets,
            seed,
            rdma: false,
        };
        let stack = Stack::new(now, config, network);
        let (by_id, counters) = (HashMap::new(), CardCounters::default());
        Self { stack, to_engine, by_id, last_id: 0, heard: 0, reported: None, counters }
    }

    fn channel(&mut self) -> &mut Channel {
        self.to_engine.channel.get_or_insert_default()
    }

    /// Sends a message to the engine, now or when there is room.
    fn post(&mut self, message: Message, payload: &[u8]) {
        self.to_engine.with_channel(|channel, network| channel.post(network, message, payload));
    }

    /// Sends a message that is not numbered.
    fn answer(&mut self, kind: Kind, session: u64, payload: &[u8]) {
        let partial = self.stack.network.accepts_partial_checksums();
        let flags = if partial { flag::PARTIAL_CHECKSUMS } else { 0 };
        let number = self.to_engine.longest_frame() as u32;
        let message = Message { flags, number, ..Message::new(kind, 0) };
        Channel::send_unnumbered(&mut self.to_engine, session, message, payload);
    }

    /// Processes a frame from the network.
    fn on_frame(&mut self, now: u64, bytes: &[u8]) {
        let Receiver { card, engine } = receiver(bytes, self.stack.network.mac());
        if engine && self.channel().is_up {
            match self.to_engine.send_raw(bytes, None) {
                true => self.counters.passed += 1,
                false => self.counters.dropped += 1,
            }
        }
        if card {
            let outcome = self.stack.on_frame(now, bytes);
            self.on_outcome(now, outcome);
        }
    }

    fn on_outcome(&mut self, now: u64, outcome: Outcome<'_>) {
        match outcome {
            Outcome::Established(established) => {
                self.accept(now, &established);
                if established.reopens {
                    self.stack.end_time_wait(&established.flow);
                }
            }
            Outcome::Count { listener, bytes, arrival } => {
                if let Some(Socket { attachment, .. }) = self.stack.sockets.get_mut(listener)
                    && !std::mem::replace(&mut attachment.asked, true)
                {
                    let id = attachment.id;
                    self.post(Message::new(Kind::Count, id), &[]);
                }
                // The peer repeats the segment if the listener is full.
                let outcome = self.stack.on_ip(now, bytes, Arrival { counted: true, ..arrival });
                self.on_outcome(now, outcome);
            }
            Outcome::Reassembled(packet) => {
                let outcome = self.stack.on_reassembled(now, &packet);
                self.on_outcome(now, outcome);
            }
            // The rest is for engines with several threads or UDP sockets, or for their own cards.
            _ => {}
        }
    }

    /// Creates the connection of a completed handshake, and tells the engine.
    fn accept(&mut self, now: u64, established: &Established<'_>) {
        let &Established { listener, flow, segment, handshake, .. } = established;
        let Some(socket) = self.stack.sockets.get_mut(listener) else { return };
        let (of_listener, v6, options) = (socket.attachment.id, socket.v6, socket.options.clone());
        let Some(mut stream) = self.stack.accept_stream(now, flow, &handshake, &options) else {
            if let Some(header) = reset_for(&segment) {
                self.stack.send_header(now, &flow, &header);
            }
            return;
        };
        stream.limit_rings(&options);
        self.last_id += 1;
        let id = self.last_id | OF_CARD;
        let told = stream.connection.report();
        let attached = Attached::new(id, told);
        let role = Role::Stream(Box::new(stream));
        let key = self.stack.insert(Socket::new(flow.local, v6, options, role, attached));
        let _ = self.stack.claim_flow(flow, key);
        self.by_id.insert(id, key);
        if let Some(Socket { role: Role::Listening(listening), attachment, .. }) =
            self.stack.sockets.get_mut(listener)
        {
            attachment.waiting += 1;
            listening.waiting.recount(attachment.waiting);
        }
        let mut payload = Writer::default();
        payload.flow(&flow);
        let number = told.segment_size.into();
        self.post(Message { position: of_listener, number, ..Message::new(Kind::Accepted, id) }, &payload.0);
        self.counters.accepted += 1;
        self.stack.on_stream_segment(now, key, &segment);
    }

    /// Processes a frame from the engine.
    fn on_engine_frame(&mut self, now: u64, bytes: &[u8]) {
        if is_message(bytes) {
            return self.on_message(now, bytes);
        }
        match self.stack.network.send_raw(bytes, None) {
            true => self.counters.passed += 1,
            false => self.counters.dropped += 1,
        }
    }

    fn on_message(&mut self, now: u64, bytes: &[u8]) {
        let Some(message) = Message::decode(bytes, bytes.len()) else {
            self.counters.broken += 1;
            if let Some(version) = other_version(bytes) {
                self.on_other_version(version, bytes);
            }
            return;
        };
        let payload = &bytes[HEADER..][..message.length as usize];
        let session = self.channel().session;
        if message.kind == Kind::Hello {
            return self.on_hello(now, &message, payload);
        }
        if !self.channel().is_up || message.session != session {
            return self.answer(Kind::Lost, message.session, &[]);
        }
        self.on_session_message(now, &message, payload);
    }

    /// Processes a message of the session in memory that the engine may change at any time, if it is about bytes of a connection.
    /// Returns false, and does nothing, for other frames: copy them and call [`CardStack::on_engine_frame`].
    ///
    /// # Safety
    /// The memory of `len` bytes at `address` is readable during the call.
    unsafe fn on_engine_frame_in_place(&mut self, now: u64, address: *const u8, len: usize) -> bool {
        if len < HEADER {
            return false;
        }
        let mut head = [0; HEADER];
        // SAFETY: the caller promises the bytes at `address`. The copy is a variable of this function.
        unsafe { head.as_mut_ptr().copy_from_nonoverlapping(address, HEADER) };
        let Some(message) = Message::decode(&head, len) else { return false };
        let channel = self.channel();
        if message.kind != Kind::Stream || !channel.is_up || message.session != channel.session {
            return false;
        }
        // SAFETY: the payload follows the header, in the frame. Its bytes are only copied, so a change of the engine has the effect
        // of other bytes.
        let payload = unsafe { std::slice::from_raw_parts(address.add(HEADER), message.length as usize) };
        self.on_session_message(now, &message, payload);
        true
    }

    fn on_session_message(&mut self, now: u64, message: &Message, payload: &[u8]) {
        self.heard = now;
        if !self.channel().take(message) || self.on_numbered(now, message, payload).is_none() {
            tracing::warn!(
                "a message of the engine was lost or wrong, so its connections are reset; join both by a port that loses no frames \
                 (ntb, memif), and use one version of inlane"
            );
            let session = message.session;
            self.counters.broken += 1;
            self.end_session(now);
            self.answer(Kind::Lost, session, &[]);
        }
    }

    /// Processes a message of an engine of another version. Answers its first message, so that it can report both versions.
    fn on_other_version(&mut self, version: u8, bytes: &[u8]) {
        if bytes[14] == Kind::Hello as u8 {
            self.answer(Kind::Lost, 0, &[]);
        }
        if self.reported != Some(version) {
            self.reported = Some(version);
            tracing::warn!(
                "the engine has version {version} of the protocol between engines and cards, and this card version {VERSION}: use one \
                 version of inlane for both"
            );
        }
    }

    fn on_hello(&mut self, now: u64, message: &Message, payload: &[u8]) {
        let longest = self.to_engine.longest_frame().min(message.number as usize);
        let Some(hello) = Hello::decode(payload).filter(|_| longest >= LEAST_FRAME) else {
            self.counters.broken += 1;
            return;
        };
        self.heard = now;
        let channel = self.channel();
        if !channel.is_up || channel.session != message.session {
            self.end_session(now);
            if message.flags & flag::WELCOMED != 0 {
                return self.answer(Kind::Lost, message.session, &[]);
            }
            self.channel().begin(message.session);
            self.channel().open(longest);
            self.stack.network.set_addresses(&hello.addresses, &hello.gateways, hello.loopback);
            self.stack.set_buffer(hello.buffer as usize);
            self.counters.sessions += 1;
        }
        let mac = self.stack.network.mac();
        self.answer(Kind::Welcome, message.session, &mac.0);
    }

    /// Resets all connections and ends all listeners, because their engine is gone.
    fn end_session(&mut self, now: u64) {
        self.channel().begin(0);
        self.by_id.clear();
        let keys: Vec<Key> = self.stack.sockets.iter().map(|(key, _)| key).collect();
        for key in keys {
            let Some(socket) = self.stack.sockets.get_mut(key) else { continue };
            socket.attachment.is_forgotten = true;
            if let Role::Stream(stream) = &mut socket.role {
                stream.connection.abort();
            }
            self.serve(now, key);
        }
        self.stack.network.flush();
    }

    /// Ends the session, because the card ends.
    fn end(&mut self, now: u64) {
        let session = self.channel().session;
        self.end_session(now);
        self.answer(Kind::Lost, session, &[]);
        self.to_engine.flush();
    }

    /// Ends the session of an engine that is silent, or that does not take messages.
    fn check_engine(&mut self, now: u64) {
        let silent = now.saturating_sub(self.heard) >= SILENCE_NS;
        let channel = self.channel();
        if channel.is_up && (silent || channel.is_overrun()) {
            let session = channel.session;
            tracing::warn!("the engine does not answer; its connections are reset");
            self.end_session(now);
            self.answer(Kind::Lost, session, &[]);
        }
    }

    /// Processes a numbered message. Returns `None` if it breaks the protocol.
    fn on_numbered(&mut self, now: u64, message: &Message, payload: &[u8]) -> Option<()> {
        match message.kind {
            Kind::Connect => self.connect(now, message.id, payload),
            Kind::Listen => self.listen(message, payload),
            Kind::Options => {
                let (_, options) = Reader(payload).options()?;
                self.set_options(now, message.id, options);
                Some(())
            }
            Kind::Stream => self.on_stream(now, message, payload),
            Kind::Forget => {
                self.forget(now, message.id);
                Some(())
            }
            Kind::Waiting => {
                let key = *self.by_id.get(&message.id)?;
                if let Some(Socket { role: Role::Listening(listening), attachment, .. }) =
                    self.stack.sockets.get_mut(key)
                {
                    (attachment.waiting, attachment.asked) = (message.number as usize, false);
                    listening.waiting.recount(attachment.waiting);
                }
                Some(())
            }
            Kind::Hello | Kind::Welcome | Kind::Accepted | Kind::Count | Kind::Lost => None,
        }
    }

    /// Opens a connection for the engine.
    fn connect(&mut self, now: u64, id: u64, payload: &[u8]) -> Option<()> {
        let mut reader = Reader(payload);
        let flow = reader.flow()?;
        let (v6, options) = reader.options()?;
        if id & OF_CARD != 0 || self.by_id.contains_key(&id) {
            return None;
        }
        let route = self.stack.network.route(flow.remote.ip());
        let free = !self.stack.is_connected(&flow);
        let opened =
            route.filter(|_| free).and_then(|route| self.stack.open_stream(now, flow, route, &options).ok());
        let Some(mut stream) = opened else {
            let mut message = Message::new(Kind::Stream, id);
            let (state, reason) = (State::Closed, Some(EndReason::Unreachable));
            message.set_report(&Report { state, reason, ..UNTOLD });
            self.post(message, &[]);
            return Some(());
        };
        stream.limit_rings(&options);
        let attached = Attached::new(id, stream.connection.report());
        let role = Role::Stream(Box::new(stream));
        let key = self.stack.insert(Socket::new(flow.local, v6, options, role, attached));
        let _ = self.stack.claim_flow(flow, key);
        self.by_id.insert(id, key);
        self.counters.opened += 1;
        self.stack.touch(key);
        Some(())
    }

    /// Listens for the engine, or changes the backlog of a listener.
    fn listen(&mut self, message: &Message, payload: &[u8]) -> Option<()> {
        let mut reader = Reader(payload);
        let local: SocketAddr = reader.address()?;
        let (v6, options) = reader.options()?;
        let backlog = message.number.min(MOST_BACKLOG) as usize;
        let id = message.id;
        if let Some(&key) = self.by_id.get(&id) {
            let socket = self.stack.sockets.get_mut(key)?;
            let Role::Listening(listening) = &mut socket.role else { return None };
            listening.set_backlog(backlog);
            socket.options = options;
            return Some(());
        }
        if id & OF_CARD != 0 {
            return None;
        }
        let listening = self.stack.new_listening(local, &options, backlog).ok()?;
        let role = Role::Listening(Box::new(listening));
        let attached = Attached::new(id, UNTOLD);
        let key = self.stack.insert(Socket::new(local, v6, options, role, attached));
        self.stack.hold_port(key, local.port());
        self.by_id.insert(id, key);
        Some(())
    }

    fn set_options(&mut self, now: u64, id: u64, options: SocketOptions) {
        let Some(&key) = self.by_id.get(&id) else { return };
        let Some(socket) = self.stack.sockets.get_mut(key) else { return };
        if let Role::Stream(stream) = &mut socket.role {
            stream.connection.set_keepalive(now, options.keepalive());
            stream.connection.set_user_timeout(options.user_timeout());
            if options.no_delay != socket.options.no_delay {
                stream.connection.set_no_delay(options.no_delay);
            }
            stream.limit_rings(&options);
            socket.options = options;
            self.stack.touch(key);
        }
    }
}

impl Attached {
    fn new(id: u64, told: Report) -> Self {
        Self { id, pushed: 0, told, scale: 0, is_forgotten: false, waiting: 0, asked: false }
    }
}
