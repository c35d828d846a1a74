//! Serves the card's connections: takes bytes and state from the engine, and tells it theirs.

use super::{Attached, CardStack, Kind};
use crate::stack::arena::Key;
use crate::stack::card::message::{Message, flag};
use crate::stack::card::{Channel, is_news};
use crate::stack::network::Network;
use crate::stack::options::SocketOptions;
use crate::stack::packet::Arrival;
use crate::stack::socket::{Role, Socket};
use crate::stack::stream::Stream;
use inlane_tcp::{Report, State};

impl CardStack {
    /// Takes bytes and state of a connection from the engine. Returns `None` if they break the protocol.
    pub(super) fn on_stream(&mut self, now: u64, message: &Message, payload: &[u8]) -> Option<()> {
        // The card may have refused the connection, and the engine may not know it yet.
        let Some(&key) = self.by_id.get(&message.id) else { return Some(()) };
        let crate::stack::Stack { sockets, network, .. } = &mut self.stack;
        let Some(Socket { role: Role::Stream(stream), .. }) = sockets.get_mut(key) else {
            return None;
        };
        if message.flags & flag::ABORTED != 0 {
            // As much of the data as the peer's window allows goes before the reset.
            stream.transmit(now, network);
            stream.connection.abort();
            self.stack.touch(key);
            return Some(());
        }
        if stream.connection.state() == State::Closed {
            return Some(()); // The engine is about to hear it.
        }
        let len = payload.len() as u64;
        if message.position != stream.written
            || len > stream.room(stream.send.capacity() as u64)
            || message.progress < stream.delivered
            || message.progress > stream.connection.received()
        {
            return None;
        }
        let corked = message.flags & flag::CORKED != 0;
        if corked != stream.connection.is_corked() {
            stream.connection.set_cork(corked);
        }
        if len > 0 {
            stream.connection.set_written(stream.written + len).ok()?;
            let mut rest = payload;
            for span in stream.writable(len) {
                let (first, last) = rest.split_at(span.len);
                // SAFETY: the span lies within the ring, and nothing else uses it.
                unsafe { span.start.copy_from_nonoverlapping(first.as_ptr(), first.len()) };
                rest = last;
            }
            stream.written += len;
        }
        if message.progress > stream.delivered {
            stream.delivered = message.progress;
            stream.publish_delivered();
        }
        if message.flags & flag::CLOSED != 0 {
            stream.connection.close(now);
        } else if message.flags & flag::FINISHED != 0 {
            stream.connection.shutdown_write();
        } else if message.flags & flag::ABANDONED != 0 {
            stream.connection.abandon();
        }
        self.stack.touch(key);
        Some(())
    }

    /// Forgets a connection or a listener, which the engine has removed.
    pub(super) fn forget(&mut self, now: u64, id: u64) {
        let Some(key) = self.by_id.remove(&id) else { return };
        let Some(socket) = self.stack.sockets.get_mut(key) else { return };
        socket.attachment.is_forgotten = true;
        if let Role::Stream(stream) = &mut socket.role
            && !stream.connection.is_abandoned()
            && stream.connection.state() != State::TimeWait
        {
            stream.connection.abort();
        }
        self.serve(now, key);
    }

    /// Runs timers, serves the changed sockets, and sends. Returns true if there was work.
    pub(super) fn serve_all(&mut self, now: u64) -> bool {
        self.check_engine(now);
        let mut worked = self.receive_own(now);
        self.stack.expire(now, &mut Vec::new());
        worked |= !self.stack.changed.is_empty();
        let mut keys = self.stack.take_changed();
        for key in keys.drain(..) {
            if self.stack.begin_service(key) {
                self.serve(now, key);
            }
        }
        self.stack.reuse_changed(keys);
        self.stack.network.flush();
        self.to_engine.with_channel(|channel, network| channel.flush(network));
        self.to_engine.flush();
        worked
    }

    /// Processes the packets that the card has sent to itself. Returns true if there were any.
    fn receive_own(&mut self, now: u64) -> bool {
        let count = self.stack.network.own.len();
        for _ in 0..count {
            if let Some(bytes) = self.stack.network.own.pop_front() {
                let outcome = self.stack.on_ip(now, &bytes, Arrival::OWN);
                self.on_outcome(now, outcome);
                self.stack.network.recycle(bytes);
            }
        }
        count > 0
    }

    /// Sends what a changed socket has to send, to the peer and to the engine.
    pub(super) fn serve(&mut self, now: u64, key: Key) {
        let Self { stack, to_engine, .. } = self;
        let crate::stack::Stack { sockets, network, .. } = stack;
        let Some(Socket { role, attachment, options, .. }) = sockets.get_mut(key) else { return };
        let Role::Stream(stream) = role else {
            if attachment.is_forgotten {
                stack.remove(key);
            }
            return;
        };
        let mut again = stream.transmit(now, network);
        if !attachment.is_forgotten {
            let tell = |channel: &mut Channel, network: &mut _| {
                channel.is_up && tell(stream, attachment, options, channel, network)
            };
            again |= to_engine.with_channel(tell).unwrap_or(false);
        }
        let ended = matches!(stream.connection.state(), State::Closed | State::TimeWait);
        // A reset that found no room is sent later.
        if ended && attachment.is_forgotten && !again {
            stack.enter_time_wait(key);
            stack.remove(key);
            return;
        }
        if let Some(deadline) = stream.next_deadline() {
            stack.arm(key, deadline);
            stack.watch_acknowledgment(key);
        }
        if again {
            stack.touch(key);
        }
    }
}

/// Tells the engine what it does not know about a connection. Returns true if there was no room for all of it.
fn tell(
    stream: &Stream,
    attached: &mut Attached,
    options: &SocketOptions,
    channel: &mut Channel,
    network: &mut Network,
) -> bool {
    let report = stream.connection.report();
    let most = channel.most_payload();
    let scale = stream.window.bytes().max(1).ilog2() as u8;
    let limit = options.send_limit(stream.send.capacity()) as u64;
    loop {
        let end = report.received.min(attached.pushed + most);
        // The end of the data, and of the connection, must not overtake the data.
        let said = match end == report.received {
            true => report,
            false => Report { acknowledged: report.acknowledged, ..attached.told },
        };
        if end == attached.pushed
            && scale == attached.scale
            && !is_news(&attached.told, &said, stream.written, limit)
        {
            return false;
        }
        let mut message =
            Message { position: attached.pushed, scale, ..Message::new(Kind::Stream, attached.id) };
        message.set_report(&said);
        if !channel.send(network, message, &stream.receive, attached.pushed..end) {
            return true;
        }
        (attached.pushed, attached.told, attached.scale) = (end, said, scale);
    }
}
