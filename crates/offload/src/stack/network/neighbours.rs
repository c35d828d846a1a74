//! The MAC addresses of neighbours, by ARP and neighbour discovery.

use inlane_core::packet::Packet;
use inlane_wire::ethernet::Mac;
use std::collections::HashMap;
use std::net::IpAddr;

/// The most neighbours that are kept. An attacker on the link can claim any number of addresses.
const MOST: usize = 4096;
/// The most packets that wait for the answer of one neighbour. If the path MTU is at least 1280 bytes, this
/// is enough for all fragments of the largest datagram.
const MOST_PENDING: usize = 64;
/// The most packets that wait for answers, apart from the first packet for each neighbour. Without this limit, a program
/// that sends to many unused addresses could take all buffers of the engine.
const MOST_WAITING: usize = 2048;
/// The time between two requests to a neighbour, in nanoseconds.
const RETRY_NS: u64 = 1_000_000_000;
/// The number of unanswered requests to a neighbour after which the packets that wait for this neighbour are
/// dropped. Also the number of requests that go to a neighbour's old MAC address before all hosts are asked.
const TRIES: u32 = 3;
/// The least time between two reports of the same MAC address to other threads, in nanoseconds. A thread that
/// missed a report asks the neighbour again after `RETRY_NS`. Because this time is shorter, the answer is
/// then reported again.
const TELL_NS: u64 = RETRY_NS / 2;
/// How long an answer is used before the neighbour is asked again, in nanoseconds.
const LIFETIME_NS: u64 = 60_000_000_000;

/// A neighbour.
#[derive(Default)]
struct Neighbour {
    mac: Option<Mac>,
    /// When the MAC address was last confirmed, in nanoseconds of the engine's clock.
    confirmed: u64,
    /// When the neighbour was last asked, in nanoseconds of the engine's clock.
    asked: u64,
    /// The number of requests since the last answer.
    tries: u32,
    /// The time at which this thread last reported the neighbour's MAC address to the other threads, in
    /// nanoseconds of the engine's clock. `None` if it never did.
    told: Option<u64>,
    pending: Vec<Packet>,
}

impl Neighbour {
    /// Returns the time in nanoseconds after which the neighbour must be asked again.
    fn fresh_until(&self) -> u64 {
        (self.confirmed + LIFETIME_NS).max(self.asked + RETRY_NS)
    }
}

/// The neighbours of the link.
#[derive(Default)]
pub struct Neighbours {
    by_address: HashMap<IpAddr, Neighbour>,
    /// The number of neighbours without an answer: the engine has requested the MAC address, and packets wait
    /// for it.
    asking: usize,
    /// The number of waiting packets, apart from the first one for each neighbour.
    waiting: usize,
    /// The earliest time at which a neighbour may need another request or may be given up. In nanoseconds of
    /// the engine's clock.
    due: u64,
    /// The neighbour to which the last packet was sent. Consecutive packets often go to the same neighbour, and
    /// then need no search.
    recent: Option<Recent>,
}

/// A neighbour whose MAC address can be used without a search.
struct Recent {
    address: IpAddr,
    mac: Mac,
    /// The time in nanoseconds after which the neighbour must be asked again.
    fresh_until: u64,
}

/// The result of looking up a neighbour's MAC address: what the caller must do with its packet.
#[derive(Debug, PartialEq, Eq)]
pub enum Lookup {
    /// Send the packet to this MAC address. Also ask for the neighbour's address again, as this says.
    Send(Mac, Ask),
    /// The packet waits for the neighbour's answer. If the flag is set, ask the neighbour.
    Waits(bool),
    /// The sender must free the packet, because too many packets or neighbours wait for an answer.
    Drop,
}

/// Whom to ask for the address of a neighbour whose last answer is old.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Nobody: the answer is recent, or the neighbour was asked a short time ago.
    Nobody,
    /// The neighbour, at its known MAC address.
    Neighbour,
    /// All hosts, because the neighbour does not answer at that address. It may have another one now.
    All,
}

impl Neighbours {
    /// Returns the MAC address of the neighbour to which the last packet was sent, if that is `address` and need not be asked
    /// again.
    #[inline]
    pub fn recent(&self, now: u64, address: IpAddr) -> Option<Mac> {
        let recent = self.recent.as_ref()?;
        (recent.address == address && now <= recent.fresh_until).then_some(recent.mac)
    }

    /// Returns what to do with a packet for `address`. If the packet waits for the neighbour's answer, the
    /// table holds the packet.
    #[inline]
    pub fn look_up(&mut self, now: u64, address: IpAddr, packet: Packet) -> Lookup {
        if let Some(mac) = self.recent(now, address) {
            return Lookup::Send(mac, Ask::Nobody);
        }
        if let Some(neighbour) = self.by_address.get_mut(&address)
            && let Some(mac) = neighbour.mac
        {
            let mut ask = Ask::Nobody;
            if now > neighbour.fresh_until() {
                ask = if neighbour.tries < TRIES { Ask::Neighbour } else { Ask::All };
                (neighbour.asked, neighbour.tries) = (now, neighbour.tries.saturating_add(1));
            }
            self.recent = Some(Recent { address, mac, fresh_until: neighbour.fresh_until() });
            return Lookup::Send(mac, ask);
        }
        self.wait(now, address, packet)
    }

    #[cold]
    fn wait(&mut self, now: u64, address: IpAddr, packet: Packet) -> Lookup {
        if !self.by_address.contains_key(&address) && !self.make_room() {
            return Lookup::Drop;
        }
        let neighbour = self.by_address.entry(address).or_default();
        let first = neighbour.pending.is_empty();
        if neighbour.pending.len() >= MOST_PENDING || !first && self.waiting >= MOST_WAITING {
            return Lookup::Drop;
        }
        neighbour.pending.push(packet);
        self.waiting += usize::from(!first);
        if first {
            (neighbour.asked, neighbour.tries) = (now, 1);
            let due = now + RETRY_NS;
            self.due = if self.asking == 0 { due } else { self.due.min(due) };
            self.asking += 1;
        }
        Lookup::Waits(first)
    }

    /// If the table is full, removes the neighbour with the oldest answer among those for which no packet
    /// waits. Returns false if the table is full and packets wait for every neighbour.
    fn make_room(&mut self) -> bool {
        if self.by_address.len() < MOST {
            return true;
        }
        let idle = self.by_address.iter().filter(|(_, neighbour)| neighbour.pending.is_empty());
        let oldest = idle.min_by_key(|(_, neighbour)| neighbour.confirmed).map(|(&address, _)| address);
        self.recent = None;
        oldest.is_some_and(|address| self.by_address.remove(&address).is_some())
    }

    /// Records a neighbour's MAC address. If the neighbour is unknown, adds it only if `add` is set. Returns
    /// the packets that waited for the address.
    pub fn learn(&mut self, now: u64, address: IpAddr, mac: Mac, add: bool) -> Vec<Packet> {
        if mac.is_multicast() || mac == Mac::default() {
            return Vec::new();
        }
        self.recent = None;
        let known = self.by_address.contains_key(&address);
        if !known && (!add || !self.make_room()) {
            return Vec::new();
        }
        let neighbour = self.by_address.entry(address).or_default();
        (neighbour.mac, neighbour.confirmed, neighbour.tries) = (Some(mac), now, 0);
        let waited = std::mem::take(&mut neighbour.pending);
        self.waiting -= waited.len().saturating_sub(1);
        self.asking -= usize::from(!waited.is_empty());
        waited
    }

    /// Returns true if this thread must tell the other threads that a neighbour has this MAC address. This is
    /// so if this thread has no address or another address for the neighbour, or last told them at least
    /// `TELL_NS` ago. Call this before [`Neighbours::learn`].
    pub fn is_news(&self, now: u64, address: IpAddr, mac: Mac) -> bool {
        self.by_address.get(&address).is_none_or(|neighbour| {
            neighbour.mac != Some(mac) || neighbour.told.is_none_or(|told| now >= told + TELL_NS)
        })
    }

    /// Records that the other threads are told of a neighbour now. Returns true if the table contains the
    /// neighbour.
    pub fn note_told(&mut self, now: u64, address: IpAddr) -> bool {
        let neighbour = self.by_address.get_mut(&address);
        neighbour.map(|neighbour| neighbour.told = Some(now)).is_some()
    }

    /// Returns two lists. The first holds the neighbours to ask again. The second holds the neighbours that
    /// did not answer, with the packets for them, which must be dropped.
    pub fn on_timer(&mut self, now: u64) -> (Vec<IpAddr>, Vec<(IpAddr, Vec<Packet>)>) {
        let (mut ask, mut silent) = (Vec::new(), Vec::new());
        // The engine calls this in every round. So look at the whole table only when an answer is overdue.
        if self.asking == 0 || now < self.due {
            return (ask, silent);
        }
        self.due = u64::MAX;
        for (&address, neighbour) in &mut self.by_address {
            if neighbour.pending.is_empty() {
                continue;
            }
            if now < neighbour.asked + RETRY_NS {
                self.due = self.due.min(neighbour.asked + RETRY_NS);
            } else if neighbour.tries < TRIES {
                (neighbour.asked, neighbour.tries) = (now, neighbour.tries + 1);
                self.due = self.due.min(now + RETRY_NS);
                ask.push(address);
            } else {
                let waited = std::mem::take(&mut neighbour.pending);
                self.waiting -= waited.len() - 1;
                silent.push((address, waited));
                self.asking -= 1;
            }
        }
        for (address, _) in &silent {
            self.by_address.remove(address);
        }
        (ask, silent)
    }

    /// Returns the earliest time, in nanoseconds, at which a neighbour may have to be asked again or given
    /// up. Returns `None` if no answer is awaited.
    pub fn next_timer(&self) -> Option<u64> {
        self.is_asking().then_some(self.due)
    }

    /// Returns true while a neighbour's answer is awaited.
    pub fn is_asking(&self) -> bool {
        self.asking > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

    fn address(n: u32) -> IpAddr {
        std::net::Ipv4Addr::from(0x0a00_0000 + n).into()
    }

    #[test]
    fn packets_wait_for_the_answer_and_are_dropped_without_one() {
        let mut neighbours = Neighbours::default();
        let packet = |cookie| Packet { cookie, ..Packet::EMPTY };
        assert_eq!(neighbours.look_up(0, address(1), packet(1)), Lookup::Waits(true));
        assert_eq!(neighbours.look_up(0, address(1), packet(2)), Lookup::Waits(false));
        let waited = neighbours.learn(5, address(1), MAC, false);
        assert_eq!(waited.iter().map(|packet| packet.cookie).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(neighbours.look_up(6, address(1), packet(3)), Lookup::Send(MAC, Ask::Nobody));
        assert!(!neighbours.is_asking());
        let later = 6 + LIFETIME_NS;
        assert_eq!(neighbours.look_up(later, address(1), packet(4)), Lookup::Send(MAC, Ask::Neighbour));
        assert_eq!(
            neighbours.look_up(later, address(1), packet(4)),
            Lookup::Send(MAC, Ask::Nobody),
            "asked already"
        );
        let asked_again = later + RETRY_NS + 1;
        assert_eq!(neighbours.look_up(asked_again, address(1), packet(4)), Lookup::Send(MAC, Ask::Neighbour));
        let other = Mac([2, 0, 0, 0, 0, 2]);
        assert!(neighbours.learn(asked_again, address(1), other, false).is_empty());
        assert_eq!(neighbours.look_up(asked_again, address(1), packet(4)), Lookup::Send(other, Ask::Nobody));
        assert_eq!(
            neighbours.look_up(asked_again + LIFETIME_NS + 1, address(1), packet(4)),
            Lookup::Send(other, Ask::Neighbour)
        );

        assert_eq!(neighbours.look_up(0, address(2), packet(5)), Lookup::Waits(true));
        for second in 1..TRIES as u64 {
            assert_eq!(neighbours.on_timer(second * RETRY_NS).0, [address(2)]);
        }
        let (ask, silent) = neighbours.on_timer(TRIES as u64 * RETRY_NS);
        assert!(ask.is_empty() && silent.len() == 1 && silent[0].1[0].cookie == 5);
        assert!(!neighbours.is_asking());
    }

    #[test]
    fn each_neighbour_is_asked_again_in_its_own_time() {
        let mut neighbours = Neighbours::default();
        for n in 0..3 {
            neighbours.look_up(u64::from(n) * 100, address(n), Packet::EMPTY);
        }
        neighbours.learn(250, address(0), MAC, true);
        let mut asked = Vec::new();
        while let Some(next) = neighbours.next_timer() {
            assert!(neighbours.on_timer(next - 1).0.is_empty(), "asked before {next}");
            let (ask, silent) = neighbours.on_timer(next);
            asked.extend(ask.into_iter().map(|address| (next, address)));
            asked.extend(silent.into_iter().map(|(address, _)| (next, address)));
        }
        let expected = (1..=TRIES as u64)
            .flat_map(|round| [1, 2].map(|n| (round * RETRY_NS + n * 100, address(n as u32))));
        assert_eq!(asked, expected.collect::<Vec<_>>());
    }

    #[test]
    fn a_neighbour_that_does_not_answer_at_its_old_address_is_looked_for_everywhere() {
        let mut neighbours = Neighbours::default();
        neighbours.learn(0, address(1), MAC, true);
        let mut now = LIFETIME_NS;
        let mut look_up = |neighbours: &mut Neighbours| {
            now += RETRY_NS + 1;
            neighbours.look_up(now, address(1), Packet::EMPTY)
        };
        for _ in 0..TRIES {
            assert_eq!(look_up(&mut neighbours), Lookup::Send(MAC, Ask::Neighbour));
        }
        for _ in 0..5 {
            assert_eq!(look_up(&mut neighbours), Lookup::Send(MAC, Ask::All));
        }
        let other = Mac([2, 0, 0, 0, 0, 2]);
        neighbours.learn(0, address(1), other, false);
        assert_eq!(look_up(&mut neighbours), Lookup::Send(other, Ask::Neighbour));
    }

    #[test]
    fn packets_for_many_silent_neighbours_leave_buffers_for_others() {
        let mut neighbours = Neighbours::default();
        let mut waiting = 0;
        for _ in 0..MOST_PENDING {
            for n in 0..MOST as u32 {
                waiting += usize::from(neighbours.look_up(0, address(n), Packet::EMPTY) != Lookup::Drop);
            }
        }
        assert_eq!(waiting, MOST + MOST_WAITING);
        assert!(waiting < crate::stack::network::BUFFERS / 2);
        neighbours.learn(1, address(0), MAC, false);
        let mut dropped = 0;
        while let Some(next) = neighbours.next_timer() {
            dropped += neighbours.on_timer(next).1.iter().map(|(_, packets)| packets.len()).sum::<usize>();
        }
        assert!(dropped < waiting && neighbours.waiting == 0);
        for _ in 0..MOST_PENDING {
            assert!(matches!(neighbours.look_up(0, address(5), Packet::EMPTY), Lookup::Waits(_)));
        }
    }

    #[test]
    fn the_table_is_bounded() {
        let mut neighbours = Neighbours::default();
        for n in 0..2 * MOST as u32 {
            neighbours.learn(n as u64, address(n), MAC, true);
        }
        assert_eq!(neighbours.by_address.len(), MOST);
        for _ in 0..MOST_PENDING {
            assert!(matches!(neighbours.look_up(0, address(0), Packet::EMPTY), Lookup::Waits(_)));
        }
        assert_eq!(neighbours.look_up(0, address(0), Packet::EMPTY), Lookup::Drop);
        assert!(neighbours.learn(0, address(7_000_000), Mac::BROADCAST, true).is_empty());
        assert!(!neighbours.by_address.contains_key(&address(7_000_000)));
    }
}
