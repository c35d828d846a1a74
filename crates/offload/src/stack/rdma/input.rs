//! Received RDMA packets.

use super::Transport;
use crate::stack::Stack;
use crate::stack::outcome::Outcome;
use crate::stack::packet::{DatagramHeaders, ReceivedPacket};
use crate::stack::socket::{Role, Socket};
use inlane_rdma::{CONTROL, MAX_HEADERS, data_headers};
use inlane_wire::{roce, udp};

/// The field of an ICRC that was left out.
const MISSING_ICRC: [u8; roce::ICRC] = [0; roce::ICRC];

impl<A> Stack<A> {
    /// Processes a received UDP datagram to the port of RoCEv2.
    pub(in crate::stack) fn on_roce<'a>(&mut self, now: u64, packet: &ReceivedPacket<'a>) -> Outcome<'a> {
        let Some(pairs) = &mut self.queue_pairs else { return Outcome::Done };
        let bytes = packet.payload;
        let whole = udp::Datagram::new(bytes).is_ok_and(|view| usize::from(view.length()) == bytes.len());
        let body = bytes.get(udp::HEADER..bytes.len().saturating_sub(roce::ICRC)).filter(|_| whole);
        let Some(number) = body.and_then(|body| roce::Bth::new(body).ok().map(|bth| bth.queue_pair())) else {
            pairs.counters.malformed += 1;
            return Outcome::Done;
        };
        let key = pairs.keys.get(&number).copied();
        if key.is_none()
            && let Some(to) = self.owners.as_ref().and_then(|owners| owners.queue_pair_thread(number))
            && to != self.thread
        {
            return Outcome::Pass { to, bytes: packet.whole, arrival: packet.arrival };
        }
        let is_missing = packet.whole.ends_with(&MISSING_ICRC) && self.network.accepts_missing_icrc();
        if !is_missing && !roce::icrc_ok(packet.whole) {
            pairs.counters.refused_icrc += 1;
            return Outcome::Done;
        }
        let socket = key.and_then(|key| Some((key, self.sockets.get_mut(key)?)));
        let Some((key, Socket { role: Role::Stream(stream), .. })) = socket else {
            pairs.counters.refused_queue_pair += 1;
            return Outcome::Done;
        };
        let addresses = (stream.flow.local.ip(), stream.flow.remote.ip());
        let Transport::Rdma(carrier) = &mut stream.transport else {
            pairs.counters.refused_queue_pair += 1;
            return Outcome::Done;
        };
        if addresses != (packet.destination, packet.source) {
            pairs.counters.refused_queue_pair += 1;
            return Outcome::Done;
        }
        let body = body.unwrap_or_default();
        carrier.process_stores();
        carrier.connection.on_packet(now, body, &mut stream.receive);
        if carrier.connection.take_shared() {
            pairs.note_shared(key, carrier);
        }
        let events = stream.follow(now);
        self.after_events(now, key, events);
        Outcome::Done
    }

    /// Processes an RDMA packet in a frame in memory that its sender may change at any time, as
    /// [`Stack::on_frame_in_place`] does. `head` is a copy of the beginning of the frame. Returns false, and does nothing, unless
    /// the packet has no ICRC and belongs to a connection of this thread.
    ///
    /// # Safety
    /// The memory of `len` bytes at `address` is readable during the call.
    #[inline]
    pub(in crate::stack) unsafe fn on_roce_in_place(
        &mut self,
        now: u64,
        head: &[u8],
        address: *const u8,
        len: usize,
    ) -> bool {
        let Some(pairs) = self.queue_pairs.as_mut().filter(|_| self.network.accepts_missing_icrc()) else {
            return false;
        };
        let Some(DatagramHeaders { source, destination, payload }) = DatagramHeaders::parse(head, roce::PORT)
        else {
            return false;
        };
        let (start, end) = (payload.start, payload.end.saturating_sub(roce::ICRC));
        let is_complete = payload.end <= len && head[..6] == self.network.mac().0;
        let Some(Ok(bth)) = head.get(start..).filter(|_| is_complete).map(roce::Bth::new) else {
            return false;
        };
        let Some(&key) = pairs.keys.get(&bth.queue_pair()) else { return false };
        let Some(Socket { role: Role::Stream(stream), .. }) = self.sockets.get_mut(key) else { return false };
        let flow = (stream.flow.local.ip(), stream.flow.remote.ip());
        let Transport::Rdma(carrier) = &mut stream.transport else { return false };
        let mut icrc = MISSING_ICRC;
        // SAFETY: the field lies in the frame: it ends where the packet ends, and the headers before it are longer than it is.
        unsafe { icrc.as_mut_ptr().copy_from_nonoverlapping(address.add(end), icrc.len()) };
        let headers = data_headers(bth.opcode()).unwrap_or(end.saturating_sub(start));
        if icrc != MISSING_ICRC || flow != (destination, source) || end < start + headers {
            return false;
        }
        let mut control = [0; MAX_HEADERS];
        let headers = match head.get(start..start + headers) {
            Some(headers) => headers,
            // A control message can be longer than the copy of the frame's beginning.
            None if bth.opcode() == CONTROL && headers <= MAX_HEADERS => {
                // SAFETY: the message lies in the frame, and `control` has room for it.
                unsafe { control.as_mut_ptr().copy_from_nonoverlapping(address.add(start), headers) };
                &control[..headers]
            }
            None => return false,
        };
        let data = start + headers.len();
        // SAFETY: the range lies within the frame. The sender may change these bytes meanwhile. They are only copied, so a change
        // has the effect of other bytes sent.
        let data = unsafe { std::slice::from_raw_parts(address.add(data), end - data) };
        carrier.process_stores();
        carrier.connection.on_split_packet(now, headers, data, &mut stream.receive);
        if carrier.connection.take_shared() {
            pairs.note_shared(key, carrier);
        }
        let events = stream.follow(now);
        let counters = &mut self.network.counters;
        counters.received_packets += 1;
        counters.received_bytes += len as u64;
        self.after_events(now, key, events);
        true
    }
}

/// Returns true if a UDP datagram is for the port of RoCEv2.
pub(in crate::stack) fn is_roce(datagram: &[u8]) -> bool {
    datagram.get(2..4) == Some(&roce::PORT.to_be_bytes())
}
