//! A TCP connection with its two rings of bytes.

use super::Stack;
use super::arena::Key;
use super::network::{Network, Route};
use super::options::SocketOptions;
use super::rdma::{Carrier, RdmaCounters, Reason, Transport};
use super::receive_window::ReceiveWindow;
use super::ring::{ByteRing, Span};
use super::segment::Outgoing;
use super::socket::{Role, Socket};
use inlane_tcp::{Connection, Events, Flow, Handshake, Segment};

/// A TCP connection. Its caller writes the program's bytes into the ring `send`, and takes received bytes from the ring
/// `receive`.
pub struct Stream {
    /// The local and the remote address of the connection, with their ports.
    pub flow: Flow,
    /// Where the packets of the connection go: to the engine itself, or over the link.
    pub route: Route,
    /// The TCP state machine of the connection.
    pub connection: Connection,
    /// The program's data that the peer has not acknowledged yet.
    pub send: ByteRing,
    /// Received data that the caller has not taken yet.
    pub receive: ByteRing,
    /// The number of bytes of the program's data that were put into `send` so far. The data ends at this index
    /// of `send`.
    pub written: u64,
    /// The number of received bytes that the caller has taken or discarded so far.
    pub delivered: u64,
    /// How much the peer may send ahead of the program.
    pub window: ReceiveWindow,
    /// Before this time, in nanoseconds, nothing is sent. `None` if there is no such limit.
    pub held_until: Option<u64>,
    /// True once a connection that the program opens was established.
    pub connected: bool,
    /// When the connection was established, in nanoseconds of the engine's clock.
    pub since: u64,
    /// The position after the last byte that the program has sent with MSG_MORE. Counted from the same start
    /// as `written`. `None` if no such bytes wait for more bytes.
    pub more_end: Option<u64>,
    /// What carries the data.
    pub transport: Transport,
    /// The number of the RDMA queue pair that the stack has registered for the connection.
    pub(super) queue_pair: Option<u32>,
    /// What RDMA has counted before the connection returned to TCP.
    pub(super) carried: RdmaCounters,
}

impl Stream {
    /// Returns how many more bytes fit into the send ring, of which `limit` bytes may be used.
    #[inline]
    pub fn room(&self, limit: u64) -> u64 {
        limit.saturating_sub(self.written - self.connection.acknowledged())
    }

    /// Returns the memory for the next `len` bytes of the program, in two parts. They must fit into the ring.
    #[inline]
    pub fn writable(&self, len: u64) -> [Span; 2] {
        self.send.spans(self.written..self.written + len)
    }

    /// Records that `len` bytes of the program are in the send ring.
    #[inline]
    pub fn add_written(&mut self, len: u64) {
        self.written += len;
        let outcome = self.connection.set_written(self.written);
        debug_assert!(outcome.is_ok(), "{outcome:?}");
    }

    /// Returns the number of received bytes that the caller has not taken.
    #[inline]
    pub fn undelivered(&self) -> u64 {
        self.connection.received() - self.delivered
    }

    /// Returns the first `len` received bytes that the caller has not taken, in two parts. There are at least as many.
    #[inline]
    pub fn readable(&self, len: u64) -> [Span; 2] {
        self.receive.spans(self.delivered..self.delivered + len)
    }

    /// Replaces the rings, the send ring first, by others of the same capacity, with the bytes that they hold. Returns the
    /// earlier rings. Bytes that were received out of order would be lost, so the connection must have none.
    pub fn replace_rings(&mut self, [mut send, mut receive]: [ByteRing; 2]) -> [ByteRing; 2] {
        debug_assert!(!self.is_reassembling());
        self.forget_placed();
        send.copy_from(&self.send, self.connection.acknowledged()..self.written);
        receive.copy_from(&self.receive, self.delivered..self.connection.received());
        [std::mem::replace(&mut self.send, send), std::mem::replace(&mut self.receive, receive)]
    }

    /// Replaces the send ring by another of the same capacity, with the bytes that it holds.
    pub fn replace_send_ring(&mut self, mut send: ByteRing) {
        send.copy_from(&self.send, self.connection.acknowledged()..self.written);
        self.send = send;
    }

    /// Drops all received bytes that the caller has not taken.
    pub fn discard(&mut self) {
        self.forget_placed();
        self.delivered = self.connection.received();
        self.publish_delivered();
    }

    /// Tells TCP how many bytes were taken. The announced window then grows.
    #[inline]
    pub fn publish_delivered(&mut self) {
        if self.window.adapt(self.delivered, self.is_reassembling()) {
            self.set_receive_capacity();
        }
        let outcome = self.connection.set_consumed(self.delivered);
        debug_assert!(outcome.is_ok(), "{outcome:?}");
    }

    /// Limits the connection's rings to the bytes that the program has set by SO_SNDBUF and SO_RCVBUF.
    pub fn limit_rings(&mut self, options: &SocketOptions) {
        self.connection.set_send_limit(options.send_limit(self.send.capacity()) as u32);
        let most = options.receive_limit(self.receive.capacity()) as u32;
        self.window.limit(most, options.receive_buffer.is_some());
        self.set_receive_capacity();
    }

    /// Limits the bytes that the peer may send ahead of the program to the receive window.
    fn set_receive_capacity(&mut self) {
        self.connection.set_receive_capacity(self.window.bytes());
        if let Transport::Rdma(carrier) = &mut self.transport {
            carrier.connection.set_receive_capacity(self.window.bytes());
        }
    }

    /// Returns true if bytes were received out of order, so the receive ring has bytes behind those that the program may read.
    pub fn is_reassembling(&self) -> bool {
        let carrier = self.carrier();
        self.connection.is_reassembling()
            || carrier.is_some_and(|carrier| carrier.connection.is_reassembling())
    }

    /// Returns the time of the connection's next timer, in nanoseconds.
    pub fn next_deadline(&self) -> Option<u64> {
        if let Transport::Card(_) = self.transport {
            return None;
        }
        let tcp = self.connection.next_deadline();
        match self.carrier().and_then(Carrier::next_deadline) {
            Some(rdma) => Some(tcp.map_or(rdma, |tcp| tcp.min(rdma))),
            None => tcp,
        }
    }

    /// Returns true if the acknowledgment of several packets waits for further ones. [`Stream::next_deadline`] then is only
    /// microseconds away.
    #[inline]
    pub fn holds_acknowledgment(&self) -> bool {
        self.connection.holds_acknowledgment()
            || self.carrier().is_some_and(|carrier| carrier.connection.holds_acknowledgment())
    }

    /// Sends the acknowledgment that is held back with the next packet. Call [`Stream::transmit`] afterwards.
    pub fn release_acknowledgment(&mut self) {
        self.connection.release_acknowledgment();
        if let Transport::Rdma(carrier) = &mut self.transport {
            carrier.connection.release_acknowledgment();
        }
    }

    /// Treats the program's bytes up to index `end` as sent with MSG_MORE. Holds small segments back until more bytes
    /// follow, as TCP_CORK does.
    pub fn expect_more(&mut self, end: u64) {
        if self.more_end.replace(end).is_none() {
            self.connection.set_cork(true);
        }
    }

    /// Ends what [`Stream::expect_more`] has begun if more bytes have followed. `cork` is true if the program has set
    /// TCP_CORK.
    #[inline]
    pub fn end_more(&mut self, cork: bool) {
        if self.more_end.take_if(|end| *end < self.written).is_some() {
            self.connection.set_cork(cork);
        }
    }

    /// Sends packets until the connection has none or the link is congested. Returns true if the link was congested:
    /// the next round must then try again.
    pub fn transmit(&mut self, now: u64, network: &mut Network) -> bool {
        if let Transport::Card(_) = self.transport {
            return self.transmit_to_card(network);
        }
        let congested = self.transmit_segments(now, network);
        if congested || self.carrier().is_none() {
            return congested;
        }
        if self.transmit_carried(now, network) {
            return true;
        }
        // TCP sends the FIN when RDMA has sent all data.
        self.connection.is_ending() && self.transmit_segments(now, network)
    }

    /// Sends TCP's segments. Returns true if the link was congested.
    fn transmit_segments(&mut self, now: u64, network: &mut Network) -> bool {
        while !network.is_congested() {
            let Some(transmit) = self.connection.poll_transmit(now) else { return false };
            let (local, remote) = (self.flow.local.ip(), self.flow.remote.ip());
            for (header, payload) in transmit.segments() {
                let segment = Outgoing { flow: &self.flow, header, ring: Some(&self.send), payload };
                network.send(now, self.route, local, remote, transmit.ecn as u8, &segment);
            }
        }
        true
    }
}

/// Why a connection cannot be opened.
#[derive(Debug)]
pub enum Unopened {
    /// An option of the socket is out of TCP's range.
    Option,
    /// There is no memory for the rings.
    Memory,
}

impl From<inlane_tcp::Error> for Unopened {
    fn from(_: inlane_tcp::Error) -> Self {
        Self::Option
    }
}

impl<A> Stack<A> {
    /// Creates the connection of a new flow, which the program opens. It is not in any table yet.
    ///
    /// # Errors
    /// If an option of the socket is out of TCP's range, or there is no memory for the rings.
    pub fn open_stream(
        &mut self,
        now: u64,
        flow: Flow,
        route: Route,
        options: &SocketOptions,
    ) -> Result<Stream, Unopened> {
        if self.card.is_some() {
            return self.open_card_stream(now, flow, route, options);
        }
        let mss = self.network.mss(route, flow.remote.is_ipv6());
        let config = options.config(self.buffer, mss);
        let mut start = self.secrets.start(now, &flow);
        if let Some(previous) = self.time_waits.get_mut(&flow) {
            start.sequence = previous.sequence_after(start.sequence);
        }
        let config = inlane_tcp::Config { offer: self.offer(&flow, start.sequence), ..config };
        let connection = Connection::connect(now, &config, start)?;
        self.stream_of(now, flow, route, connection, options).ok_or(Unopened::Memory)
    }

    /// Creates the connection of a completed handshake. It is not in any table yet. Returns `None` if there is no route to
    /// the peer, or no memory for the rings.
    pub fn accept_stream(
        &mut self,
        now: u64,
        flow: Flow,
        handshake: &Handshake,
        options: &SocketOptions,
    ) -> Option<Stream> {
        let route = self.network.route(flow.remote.ip())?;
        let config = options.config(self.buffer, self.network.mss(route, flow.remote.is_ipv6()));
        let connection = Connection::accept(now, &config, handshake).ok()?;
        let mut stream = self.stream_of(now, flow, route, connection, options)?;
        self.agree(&mut stream, handshake.offers());
        Some(stream)
    }

    pub(super) fn stream_of(
        &mut self,
        now: u64,
        flow: Flow,
        route: Route,
        mut connection: Connection,
        options: &SocketOptions,
    ) -> Option<Stream> {
        connection.set_cork(options.cork);
        let send = self.rings.take()?;
        let Some(receive) = self.rings.take() else {
            self.rings.put(send, 0);
            return None;
        };
        let mss = self.network.mss(route, flow.remote.is_ipv6());
        let window = ReceiveWindow::new(receive.capacity() as u32, mss);
        connection.set_receive_capacity(window.bytes());
        Some(Stream {
            flow,
            route,
            connection,
            send,
            receive,
            written: 0,
            delivered: 0,
            window,
            held_until: None,
            connected: false,
            since: now,
            more_end: None,
            transport: Transport::Tcp(match route {
                _ if self.queue_pairs.is_none() => Reason::Disabled,
                Route::Own => Reason::Own,
                Route::Port(_) => Reason::Connecting,
            }),
            queue_pair: None,
            carried: RdmaCounters::default(),
        })
    }

    /// Frees the memory of a connection that is in no table.
    pub fn drop_stream(&mut self, stream: Stream) {
        self.forget_carried(&stream);
        let (sent, received) = (stream.written, stream.connection.received());
        self.put_rings([stream.send, stream.receive], [sent, received]);
    }

    /// Takes back two rings that a connection does not need any more. It has written `written` bytes to each.
    pub fn put_rings(&mut self, rings: [ByteRing; 2], written: [u64; 2]) {
        rings.into_iter().zip(written).for_each(|(ring, written)| self.rings.put(ring, written));
    }

    /// Hands a segment to a connection.
    #[inline]
    pub fn on_stream_segment(&mut self, now: u64, key: Key, segment: &Segment<'_>) {
        let Some(Socket { role: Role::Stream(stream), .. }) = self.sockets.get_mut(key) else { return };
        // The segment may be a reset or the end, which follow the stored bytes.
        let stored = stream.process_stores(now);
        let events = stored | stream.connection.on_segment(now, segment, &mut stream.receive);
        if stream.connection.is_reassembling() {
            stream.window.share(self.flows.len());
        }
        if events.contains(Events::RETURNED) {
            return self.on_returned(now, key, segment);
        }
        self.after_events(now, key, events);
    }

    pub(super) fn after_events(&mut self, now: u64, key: Key, events: Events) {
        if events.contains(Events::CONNECTED)
            && let Some(Socket { role: Role::Stream(stream), .. }) = self.sockets.get_mut(key)
        {
            (stream.since, stream.connected) = (now, true);
            self.counters.connected += 1;
            self.on_connected(key);
        }
        self.touch(key);
    }

    /// Runs the timers of a connection whose timer in the wheel is due. If the connection's deadline has moved, sets
    /// the timer again instead.
    pub(super) fn on_stream_timer(&mut self, now: u64, key: Key) {
        let Some(Socket { role: Role::Stream(stream), .. }) = self.sockets.get_mut(key) else { return };
        if stream.held_until.take_if(|until| *until <= now).is_some() {
            return self.touch(key);
        }
        match stream.next_deadline() {
            Some(deadline) if deadline <= now => {
                let events = stream.on_timer(now);
                self.after_events(now, key, events);
            }
            Some(deadline) => self.arm(key, deadline),
            None => {}
        }
    }
}
