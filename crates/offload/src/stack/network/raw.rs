//! Frames that the network sends as they are.

use super::Network;
use crate::stack::card::Channel;
use crate::stack::ring::ByteRing;
use inlane_core::port::Reservation;
use inlane_offload_protocol::rules::Prefix;
use inlane_wire::ethernet::{self, Mac};
use inlane_wire::ndp;
use std::net::IpAddr;
use std::ops::Range;

impl Network {
    /// Returns the length of the longest frame on the port.
    pub fn longest_frame(&self) -> usize {
        ethernet::HEADER + usize::from(self.segment_mtu)
    }

    /// Sends the frame that consists of `head` and of the bytes of `body` in a ring. Frames leave in the order of the calls.
    /// Returns false if there is no room now: the frame was not sent.
    #[inline]
    pub fn send_raw(&mut self, head: &[u8], body: Option<(&ByteRing, Range<u64>)>) -> bool {
        if self.is_congested() {
            return false;
        }
        let body_len = body.as_ref().map_or(0, |(_, range)| (range.end - range.start) as usize);
        let len = head.len() + body_len;
        let reserved = match self.waiting.is_empty() {
            true => self.tx.reserve(len),
            false => Reservation::Unsupported,
        };
        let (memory, packet) = match reserved {
            Reservation::Memory(memory) => (memory.as_ptr(), None),
            Reservation::Full => {
                self.full = true;
                return false;
            }
            Reservation::Unsupported => {
                let Some(packet) = self.allocate(len) else { return false };
                // SAFETY: the packet was just allocated, so nothing else uses it, and its buffer has `len` bytes.
                (unsafe { packet.bytes_mut() }.as_mut_ptr(), Some(packet))
            }
        };
        // SAFETY: the memory has `len` bytes, and only this function writes to it. A peer that shares it may read it at any
        // time.
        unsafe {
            memory.copy_from_nonoverlapping(head.as_ptr(), head.len());
            if let Some((ring, range)) = body {
                ring.read(range, std::slice::from_raw_parts_mut(memory.add(head.len()), body_len));
            }
        }
        self.counters.sent_packets += 1;
        self.counters.sent_bytes += len as u64;
        match packet {
            None => self.tx.commit(),
            Some(packet) => {
                self.waiting.push(packet);
                if self.waiting.len() >= 64 {
                    self.flush();
                }
            }
        }
        true
    }

    /// Calls `act` with the link to the card, or to the engine, and with this network. Returns `None` if there is no such link.
    pub fn with_channel<R>(&mut self, act: impl FnOnce(&mut Channel, &mut Self) -> R) -> Option<R> {
        let mut channel = self.channel.take()?;
        let result = act(&mut channel, self);
        self.channel = Some(channel);
        Some(result)
    }

    /// Takes the MAC address of the card, the link-local address that follows from it, and whether packets of the card's network
    /// may have partial checksums.
    pub fn adopt_card_address(&mut self, mac: Mac, partial_checksums: bool) {
        let (before, after) = (ndp::link_local(self.mac), ndp::link_local(mac));
        for prefix in self.addresses.iter_mut().filter(|prefix| prefix.address == IpAddr::V6(before)) {
            prefix.address = after.into();
        }
        self.mac = mac;
        self.partial_checksums = partial_checksums;
    }

    /// Changes the engine's addresses and routes.
    pub fn set_addresses(&mut self, addresses: &[Prefix], gateways: &[IpAddr], loopback: bool) {
        self.addresses = addresses.to_vec();
        if addresses.iter().any(|prefix| prefix.address.is_ipv6()) {
            self.addresses.push(Prefix { address: ndp::link_local(self.mac).into(), length: 64 });
        }
        self.gateways = gateways.to_vec();
        self.loopback = loopback;
    }
}
