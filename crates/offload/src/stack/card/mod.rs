//! The engine's side of a card: another machine or process that runs TCP for the engine ([`crate::card`]).
//!
//! The card has the network: it terminates TCP, answers ARP, and passes all other packets. The engine keeps the programs: pairs,
//! shared memory, options, the tables of ports and flows. Both are joined by a port, over which they send [`message`]s; the
//! engine's other frames go over the same port to the card, which sends them on.
//!
//! A connection's rings exist on both sides, with the same indices. The engine copies written bytes to the card's send ring and
//! frees them when the peer has acknowledged them. The card copies received bytes to the engine's receive ring and frees them
//! when the program has taken them. So each side knows the other's room, and a message always finds room in the ring.

mod channel;
pub mod message;

use super::Stack;
use super::arena::Key;
use super::network::{Network, Route};
use super::options::SocketOptions;
use super::outcome::Outcome;
use super::rdma::Transport;
use super::socket::{Role, Socket};
use super::stream::{Stream, Unopened};
pub use channel::Channel;
use inlane_tcp::{Connection, EndReason, Flow, MILLISECOND, Report, SECOND, State};
use inlane_wire::ethernet::Mac;
use message::{HEADER, Hello, Kind, LEAST_FRAME, Message, OF_CARD, Reader, VERSION, Writer, flag};
use std::collections::{HashMap, HashSet};

/// The time between two heartbeats of each side, in nanoseconds.
pub const BEAT_NS: u64 = 500 * MILLISECOND;
/// After this time without a message of the other side, in nanoseconds, the session ends.
pub const SILENCE_NS: u64 = 5 * SECOND;
/// How long a new connection waits for a card that does not answer, in nanoseconds.
const CONNECT_TIMEOUT_NS: u64 = 3 * SECOND;

/// What the engine knows about its card.
pub struct CardLink {
    hello: Vec<u8>,
    /// When the next [`Kind::Hello`] is due.
    next_hello: u64,
    /// When the last message of the card arrived, or when the last session ended.
    heard: u64,
    /// The connections that the card has accepted, by its numbers.
    accepted: HashMap<u64, Key>,
    /// The listeners that the card knows.
    listeners: HashSet<Key>,
    /// Why there is no session, once it was reported.
    reported: Option<Trouble>,
}

/// Why an engine has no session with a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// No card has answered.
    Silent,
    /// The card has this version of the protocol.
    OtherVersion(u8),
}

impl CardLink {
    /// Reports why there is no session, unless that was reported already.
    fn report(&mut self, trouble: Trouble) {
        if self.reported == Some(trouble) {
            return;
        }
        self.reported = Some(trouble);
        match trouble {
            Trouble::Silent => tracing::warn!(
                "no card has answered for {} s, so new TCP connections fail: start 'inlane offload card', and check that its port \
                 to the engine and the engine's port lead to each other",
                SILENCE_NS / SECOND
            ),
            Trouble::OtherVersion(version) => tracing::warn!(
                "the card has version {version} of the protocol between engines and cards, and this engine version {VERSION}: use one \
                 version of inlane for both"
            ),
        }
    }
}

/// A connection that the card runs.
pub struct CardStream {
    /// The number of the connection.
    id: u64,
    /// The index up to which the program's bytes were sent to the card.
    written: u64,
    /// The index up to which the card knows that bytes were consumed.
    consumed: u64,
    /// The number of consumed bytes that the engine reports at once: a part of the card's receive window.
    granule: u64,
    /// The flags that the card knows.
    flags: u8,
    /// True if the card knows the connection.
    is_open: bool,
    /// The payload of [`Kind::Connect`].
    request: Vec<u8>,
}

impl CardStream {
    fn new(id: u64, is_open: bool) -> Self {
        let granule = granule(FIRST_SCALE);
        Self { id, written: 0, consumed: 0, granule, flags: 0, is_open, request: Vec::new() }
    }
}

/// The binary logarithm of the least receive window.
const FIRST_SCALE: u8 = 12;

/// Returns the number of consumed bytes that the engine reports to the card at once: an eighth of a receive window of
/// 2^`scale` bytes.
fn granule(scale: u8) -> u64 {
    1 << scale.min(32).saturating_sub(3)
}

impl Stream {
    /// Sends what the card does not know about the connection yet. Returns true if the link was congested.
    pub(super) fn transmit_to_card(&mut self, network: &mut Network) -> bool {
        let tell = |channel: &mut Channel, network: &mut _| channel.is_up && self.tell_card(channel, network);
        network.with_channel(tell).unwrap_or(false)
    }

    fn tell_card(&mut self, channel: &mut Channel, network: &mut Network) -> bool {
        let Transport::Card(card) = &mut self.transport else { return false };
        let connection = &self.connection;
        if connection.state() == State::Closed {
            if card.is_open
                && connection.reason() == Some(EndReason::Aborted)
                && card.flags & flag::ABORTED == 0
            {
                card.flags |= flag::ABORTED;
                let message = Message { flags: card.flags, ..Message::new(Kind::Stream, card.id) };
                channel.post(
                    network,
                    Message { position: card.written, progress: card.consumed, ..message },
                    &[],
                );
            }
            return false;
        }
        if !card.is_open {
            channel.post(network, Message::new(Kind::Connect, card.id), &card.request);
            card.is_open = true;
        }
        let corked = if connection.is_corked() { flag::CORKED } else { 0 };
        // The cork must arrive before the data that it holds back.
        let mut flags = card.flags & !flag::CORKED | corked;
        let most = channel.most_payload();
        let mut tells = flags != card.flags;
        tells |= self.delivered - card.consumed >= card.granule;
        loop {
            let end = self.written.min(card.written + most);
            if end == self.written && connection.is_ending() {
                flags |= flag::FINISHED;
            }
            if connection.is_abandoned() {
                flags |= if flags & flag::FINISHED == 0 { flag::ABANDONED } else { flag::CLOSED };
            }
            tells |= flags != card.flags;
            if end == card.written && !tells {
                return false;
            }
            let message = Message {
                position: card.written,
                progress: self.delivered,
                flags,
                ..Message::new(Kind::Stream, card.id)
            };
            if !channel.send(network, message, &self.send, card.written..end) {
                return true;
            }
            (card.written, card.consumed, card.flags, tells) = (end, self.delivered, flags, false);
        }
    }

    /// Takes what the card says about the connection, with the bytes at `payload`. Returns `None` if it contradicts what was
    /// known.
    ///
    /// # Safety
    /// The message's payload is readable at `payload`.
    unsafe fn follow_card(
        &mut self,
        now: u64,
        message: &Message,
        payload: *const u8,
    ) -> Option<inlane_tcp::Events> {
        let report = message.report()?;
        let received = self.connection.received();
        let room = self.receive.capacity() as u64 - self.undelivered();
        if self.connection.state() == State::Closed {
            return Some(inlane_tcp::Events::NONE);
        }
        let Transport::Card(card) = &mut self.transport else { return None };
        if message.position != received
            || u64::from(message.length) > room
            || report.acknowledged > card.written
        {
            return None;
        }
        card.granule = granule(message.scale);
        let [first, second] = self.receive.spans(received..report.received);
        // SAFETY: the spans lie within the ring, and the caller promises as many bytes at `payload`. Its sender may change them
        // meanwhile, with the effect of other bytes.
        unsafe {
            first.start.copy_from_nonoverlapping(payload, first.len);
            second.start.copy_from_nonoverlapping(payload.add(first.len), second.len);
        }
        self.connection.follow(now, &report)
    }
}

impl<A> Stack<A> {
    /// Lets a card run the connections of this stack. The network's port leads to the card. `now` is the time.
    pub fn use_card(&mut self, now: u64, hello: &Hello) {
        let mut channel = Box::<Channel>::default();
        channel.begin(self.random());
        self.network.channel = Some(channel);
        self.card = Some(Box::new(CardLink {
            hello: hello.encode(),
            next_hello: now,
            heard: now,
            accepted: HashMap::new(),
            listeners: HashSet::new(),
            reported: None,
        }));
    }

    /// Creates a connection of a new flow, which the card will open.
    pub(super) fn open_card_stream(
        &mut self,
        now: u64,
        flow: Flow,
        route: Route,
        options: &SocketOptions,
    ) -> Result<Stream, Unopened> {
        let mut request = Writer::default();
        request.flow(&flow);
        request.options(flow.local.is_ipv6(), options);
        let card = CardStream { request: request.0, ..CardStream::new(0, false) };
        self.card_stream(now, (flow, route), options, State::SynSent, card)
    }

    /// Creates the connection that the card has accepted, with its number and the size of its segments. It is not in any table yet.
    pub fn accepted_card_stream(
        &mut self,
        now: u64,
        flow: Flow,
        (id, segment_size): (u64, u16),
        options: &SocketOptions,
    ) -> Option<Stream> {
        let route = self.network.route(flow.remote.ip())?;
        let card = CardStream::new(id, true);
        let mut stream = self.card_stream(now, (flow, route), options, State::Established, card).ok()?;
        stream.connected = true;
        stream.connection.follow(now, &Report { segment_size, ..stream.connection.report() })?;
        Some(stream)
    }

    fn card_stream(
        &mut self,
        now: u64,
        (flow, route): (Flow, Route),
        options: &SocketOptions,
        state: State,
        card: CardStream,
    ) -> Result<Stream, Unopened> {
        let config = options.config(self.buffer, self.network.mss(route, flow.remote.is_ipv6()));
        let connection = Connection::image(now, &config, state)?;
        let mut stream = self.stream_of(now, flow, route, connection, options).ok_or(Unopened::Memory)?;
        stream.transport = Transport::Card(Box::new(card));
        Ok(stream)
    }

    /// Lists a connection under the number that the card has given it, or gives it the number of its key.
    pub fn list_card_stream(&mut self, key: Key) {
        let Some(Socket { role: Role::Stream(stream), .. }) = self.sockets.get_mut(key) else { return };
        let (Transport::Card(card), Some(link)) = (&mut stream.transport, &mut self.card) else { return };
        if card.is_open {
            link.accepted.insert(card.id, key);
        } else {
            card.id = key.to_u64();
        }
    }

    /// Tells the card that it does not need to keep a connection any longer.
    pub(super) fn forget_card_stream(&mut self, stream: &Stream) {
        let (Transport::Card(card), Some(link)) = (&stream.transport, &mut self.card) else { return };
        link.accepted.remove(&card.id);
        if card.is_open {
            self.post_to_card(Message::new(Kind::Forget, card.id), &[]);
        }
    }

    /// Tells the card that a connection which it has accepted is not wanted.
    pub fn refuse_card_stream(&mut self, id: u64) {
        self.post_to_card(Message::new(Kind::Forget, id), &[]);
    }

    /// Sends a message to the card, unless it is away: the next session begins with all that it must know.
    fn post_to_card(&mut self, message: Message, payload: &[u8]) {
        self.network.with_channel(|channel, network| {
            if channel.is_up {
                channel.post(network, message, payload);
            }
        });
    }

    /// Lets the card listen for a listener, or tells it the listener's new backlog.
    pub fn tell_listener(&mut self, key: Key) {
        let Some(link) = &mut self.card else { return };
        let Some(Socket { local, v6, options, role: Role::Listening(listening), .. }) = self.sockets.get(key)
        else {
            return;
        };
        link.listeners.insert(key);
        let mut payload = Writer::default();
        payload.address(*local);
        payload.options(*v6, options);
        let message =
            Message { number: listening.backlog as u32, ..Message::new(Kind::Listen, key.to_u64()) };
        self.post_to_card(message, &payload.0);
    }

    /// Tells the card that a listener was removed.
    pub(super) fn forget_listener(&mut self, key: Key) {
        if self.card.as_mut().is_some_and(|link| link.listeners.remove(&key)) {
            self.post_to_card(Message::new(Kind::Forget, key.to_u64()), &[]);
        }
    }

    /// Tells the card the options of a connection, after the program has changed one.
    pub fn tell_options(&mut self, key: Key) {
        let Some(Socket { v6, options, role: Role::Stream(stream), .. }) = self.sockets.get_mut(key) else {
            return;
        };
        let Transport::Card(card) = &mut stream.transport else { return };
        let mut payload = Writer::default();
        payload.options(*v6, options);
        if card.is_open {
            let message = Message::new(Kind::Options, card.id);
            return self.post_to_card(message, &payload.0);
        }
        let mut request = Writer::default();
        request.flow(&stream.flow);
        request.0.append(&mut payload.0);
        card.request = request.0;
    }

    /// Tells the card how many connections of a listener wait to be accepted.
    pub fn tell_waiting(&mut self, key: Key) {
        let Some(Socket { role: Role::Listening(listening), .. }) = self.sockets.get(key) else { return };
        let number = listening.waiting.total() as u32;
        self.post_to_card(Message { number, ..Message::new(Kind::Waiting, key.to_u64()) }, &[]);
    }

    /// Returns the time of the next heartbeat.
    pub(super) fn card_timer(&self) -> Option<u64> {
        let (link, channel) = self.card.as_ref().zip(self.network.channel.as_ref())?;
        Some(if channel.is_waiting() { 0 } else { link.next_hello })
    }

    /// Sends heartbeats, and ends the session if the card sends none.
    pub(super) fn on_card_timer(&mut self, now: u64) {
        self.network.with_channel(|channel, network| channel.flush(network));
        let (Some(link), Some(channel)) = (&mut self.card, &mut self.network.channel) else { return };
        if now < link.next_hello {
            return;
        }
        let silent = now.saturating_sub(link.heard);
        if channel.is_up && (silent >= SILENCE_NS || channel.is_overrun()) {
            return self.lose_card(now);
        }
        link.next_hello = now + BEAT_NS;
        let (is_up, session) = (channel.is_up, channel.session);
        let flags = if is_up { flag::WELCOMED } else { 0 };
        let number = self.network.longest_frame() as u32;
        let message = Message { flags, number, ..Message::new(Kind::Hello, 0) };
        Channel::send_unnumbered(&mut self.network, session, message, &link.hello);
        if !is_up {
            if silent >= SILENCE_NS {
                link.report(Trouble::Silent);
            }
            let waits_long = |stream: &Stream, card: &CardStream| {
                !card.is_open && now.saturating_sub(stream.since) >= CONNECT_TIMEOUT_NS
            };
            self.end_card_streams(waits_long, EndReason::Unreachable);
        }
    }

    /// Returns why there is no session with the card, once that was reported.
    #[cfg(test)]
    pub fn card_trouble(&self) -> Option<Trouble> {
        self.card.as_ref()?.reported
    }

    /// Ends the session, because the card does not answer or breaks the protocol. Its connections are reset, and the next
    /// session begins.
    pub fn lose_card(&mut self, now: u64) {
        let session = self.random();
        let (Some(link), Some(channel)) = (&mut self.card, &mut self.network.channel) else { return };
        channel.begin(session);
        link.accepted.clear();
        (link.next_hello, link.heard) = (now, now);
        self.end_card_streams(|_, card| card.is_open, EndReason::Reset);
    }

    fn end_card_streams(&mut self, ends: impl Fn(&Stream, &CardStream) -> bool, reason: EndReason) {
        let affected = self.sockets.iter().filter(|(_, socket)| {
            socket.stream().is_some_and(|stream| match &stream.transport {
                Transport::Card(card) => ends(stream, card),
                _ => false,
            })
        });
        let keys: Vec<Key> = affected.map(|(key, _)| key).collect();
        for key in keys {
            if let Some(Socket { role: Role::Stream(stream), .. }) = self.sockets.get_mut(key) {
                stream.connection.fail(reason);
                if let Transport::Card(card) = &mut stream.transport {
                    card.is_open = false; // The next session does not know it.
                }
            }
            self.touch(key);
        }
    }

    /// Processes a message of the card in memory that the card may change at any time, if it is about bytes of a connection.
    /// Returns false, and does nothing, for other messages: copy them and call [`Stack::on_frame`]. `head` is a copy of the
    /// frame's beginning.
    ///
    /// # Safety
    /// The memory of `len` bytes at `address` is readable during the call.
    #[inline]
    pub(super) unsafe fn on_card_in_place(
        &mut self,
        now: u64,
        head: &[u8],
        address: *const u8,
        len: usize,
    ) -> bool {
        let Some(message) = Message::decode(head, len) else { return false };
        if message.kind != Kind::Stream {
            return false;
        }
        if self.takes_from_card(now, &message) {
            // SAFETY: the payload follows the header, in the frame.
            unsafe { self.on_card_stream(now, &message, address.add(HEADER)) };
        }
        let counters = &mut self.network.counters;
        counters.received_packets += 1;
        counters.received_bytes += len as u64;
        true
    }

    /// Returns true if a numbered message is the next one of the session.
    fn takes_from_card(&mut self, now: u64, message: &Message) -> bool {
        let (Some(link), Some(channel)) = (&mut self.card, &mut self.network.channel) else { return false };
        if !channel.is_up || message.session != channel.session {
            return false;
        }
        link.heard = now;
        if !channel.take(message) {
            self.lose_card(now);
            return false;
        }
        true
    }

    /// Processes a message of the card.
    pub(super) fn on_card_message<'a>(&mut self, now: u64, bytes: &'a [u8]) -> Outcome<'a> {
        let own = self.network.longest_frame();
        let (Some(link), Some(channel)) = (&mut self.card, &mut self.network.channel) else {
            self.network.counters.ignored += 1;
            return Outcome::Done;
        };
        let Some(message) = Message::decode(bytes, bytes.len()) else {
            self.network.counters.malformed += 1;
            if let Some(version) = message::other_version(bytes).filter(|_| !channel.is_up) {
                link.heard = now;
                link.report(Trouble::OtherVersion(version));
            }
            return Outcome::Done;
        };
        let payload = &bytes[HEADER..][..message.length as usize];
        match message.kind {
            Kind::Welcome if message.session == channel.session => {
                link.heard = now;
                let longest = own.min(message.number as usize);
                if !channel.is_up
                    && longest >= LEAST_FRAME
                    && let Some(mac) = payload.first_chunk()
                {
                    channel.open(longest);
                    link.reported = None;
                    self.network.adopt_card_address(Mac(*mac), message.flags & flag::PARTIAL_CHECKSUMS != 0);
                    self.on_card_up();
                }
                Outcome::Done
            }
            Kind::Lost if message.session == channel.session => {
                if channel.is_up {
                    self.lose_card(now);
                }
                Outcome::Done
            }
            Kind::Welcome | Kind::Lost => Outcome::Done,
            _ if !self.takes_from_card(now, &message) => Outcome::Done,
            Kind::Stream => {
                // SAFETY: the slice has the message's length.
                unsafe { self.on_card_stream(now, &message, payload.as_ptr()) };
                Outcome::Done
            }
            Kind::Accepted => match (Reader(payload).flow(), message.id & OF_CARD) {
                (Some(flow), OF_CARD) => Outcome::Accepted {
                    listener: Key::from_u64(message.position),
                    flow,
                    id: message.id,
                    segment_size: message.number as u16,
                },
                _ => {
                    self.lose_card(now);
                    Outcome::Done
                }
            },
            Kind::Count => Outcome::CountForCard { listener: Key::from_u64(message.id) },
            Kind::Hello | Kind::Connect | Kind::Listen | Kind::Options | Kind::Forget | Kind::Waiting => {
                self.lose_card(now);
                Outcome::Done
            }
        }
    }

    /// Tells the card all that it must know at the beginning of a session.
    fn on_card_up(&mut self) {
        let listening = self.sockets.iter().filter(|(_, socket)| matches!(socket.role, Role::Listening(_)));
        let keys: Vec<Key> = listening.map(|(key, _)| key).collect();
        keys.into_iter().for_each(|key| self.tell_listener(key));
        let opening: Vec<Key> =
            self.sockets.iter().filter(|(_, socket)| socket.stream().is_some()).map(|(key, _)| key).collect();
        opening.into_iter().for_each(|key| self.touch(key));
    }

    /// Processes bytes and state of a connection.
    ///
    /// # Safety
    /// The message's payload is readable at `payload`.
    #[inline]
    unsafe fn on_card_stream(&mut self, now: u64, message: &Message, payload: *const u8) {
        let key = match (message.id & OF_CARD, &self.card) {
            (0, _) => Key::from_u64(message.id),
            (_, Some(link)) => match link.accepted.get(&message.id) {
                Some(&key) => key,
                None => return,
            },
            _ => return,
        };
        // A connection that the engine has removed meanwhile needs no answer: the card is about to be told.
        let Some(Socket { role: Role::Stream(stream), .. }) = self.sockets.get_mut(key) else { return };
        // SAFETY: the caller promises the payload.
        match unsafe { stream.follow_card(now, message, payload) } {
            Some(events) => self.after_events(now, key, events),
            None => self.lose_card(now),
        }
    }
}

/// Returns true if the card must be told `report`, given that it was told `told`. `written` is the number of bytes of the
/// program, and `limit` the most that may be unacknowledged.
pub fn is_news(told: &Report, report: &Report, written: u64, limit: u64) -> bool {
    let Report { acknowledged, .. } = *report;
    let others = Report { acknowledged, received: report.received, ..*told };
    others != *report
        || acknowledged > told.acknowledged
            && (acknowledged == written || acknowledged - told.acknowledged >= (limit / 8).max(1))
}
