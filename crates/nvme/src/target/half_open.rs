//! The half-open connections of a target: the connections whose hosts may not use a queue yet.
//!
//! Anybody can open connections, so their number is limited. Beyond the limit, one connection is closed.
//! Three rules choose it:
//!
//! * Its address has the most half-open connections. So a flood from one address does not close the
//!   connections of other hosts.
//! * Of the connections of such addresses, it is at the [`Step`] that most of them have reached. So a flood
//!   of silent connections does not close the connection of an authenticating host at the same address.
//! * It is the oldest of the remaining connections.

use super::controller::Reach;
use super::inbox::Message;
use super::network::network;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How far a half-open connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// The host has not sent a complete ICReq, or the connection ends.
    Silent,
    /// The connection is initialized; Connect is missing.
    Initialized,
    /// The host has sent Connect; its authentication is missing.
    Connected,
}

const STEPS: [Step; 3] = [Step::Silent, Step::Initialized, Step::Connected];

/// The key of a connection in the table of half-open connections.
#[derive(Clone, Copy, Debug)]
pub struct Ticket {
    source: IpAddr,
    step: Step,
    /// The connection's number in the order of arrival.
    number: u64,
}

/// The half-open connections of all threads, from the moment when they are accepted.
#[derive(Debug)]
pub struct HalfOpen {
    limit: usize,
    table: Mutex<Table>,
}

/// The half-open connections of one address in one step, by number. The numbers are in the order of arrival.
/// The value is `None` until the connection's thread has taken the connection.
type Connections = BTreeMap<u64, Option<Reach>>;

#[derive(Debug, Default)]
struct Table {
    /// The connections of each address, by their steps. No address has none.
    sources: HashMap<IpAddr, [Connections; STEPS.len()]>,
    count: usize,
    last_number: u64,
    /// The address of the connection that was last removed to be closed.
    last_source: Option<IpAddr>,
}

impl HalfOpen {
    /// Creates an empty table. It may hold `limit` connections.
    pub fn new(limit: usize) -> Self {
        Self { limit, table: Mutex::default() }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of connections.
    pub fn count(&self) -> usize {
        self.table().count
    }

    /// Adds a connection from `address` that was just accepted. If there are too many now, displaces one.
    pub fn add(&self, address: IpAddr) -> Ticket {
        let mut table = self.table();
        table.last_number += 1;
        let ticket = Ticket { source: network(address), step: Step::Silent, number: table.last_number };
        table.insert(&ticket, None);
        if table.count > self.limit {
            table.displace();
        }
        ticket
    }

    /// Records that a connection's thread has taken the connection, and how to reach it there. Returns false
    /// if the connection was displaced before.
    pub fn taken(&self, ticket: &Ticket, reach: Reach) -> bool {
        let mut table = self.table();
        let is_there = table.remove(ticket).is_some();
        if is_there {
            table.insert(ticket, Some(reach));
        }
        is_there
    }

    /// Records that a connection has reached a step. Does nothing if the table does not have the connection any
    /// more.
    pub fn advance(&self, ticket: &mut Ticket, step: Step) {
        if ticket.step == step {
            return;
        }
        let mut table = self.table();
        let reach = table.remove(ticket);
        ticket.step = step;
        if let Some(reach) = reach {
            table.insert(ticket, reach);
        }
    }

    /// Removes a connection from the table. Call this when its host may use the queue, or when it was closed.
    /// Does nothing if the table no longer contains the connection.
    pub fn remove(&self, ticket: &Ticket) {
        self.table().remove(ticket);
    }

    /// Removes the connection that is first in the order of closing, and asks its thread to close it. If the
    /// thread has not received the connection yet, it closes the connection on receipt.
    pub fn displace(&self) {
        self.table().displace();
    }

    /// Returns the source of the connection that was last closed to make room: its address, or its network.
    pub fn last_source(&self) -> Option<IpAddr> {
        self.table().last_source
    }
}

impl Table {
    fn insert(&mut self, ticket: &Ticket, reach: Option<Reach>) {
        self.sources.entry(ticket.source).or_default()[ticket.step as usize].insert(ticket.number, reach);
        self.count += 1;
    }

    fn remove(&mut self, ticket: &Ticket) -> Option<Option<Reach>> {
        let steps = self.sources.get_mut(&ticket.source)?;
        let reach = steps[ticket.step as usize].remove(&ticket.number)?;
        self.count -= 1;
        if steps.iter().all(BTreeMap::is_empty) {
            self.sources.remove(&ticket.source);
        }
        Some(reach)
    }

    fn displace(&mut self) {
        let Some(ticket) = self.next_to_close() else { return };
        self.last_source = Some(ticket.source);
        if let Some(Reach { inbox, connection }) = self.remove(&ticket).flatten() {
            inbox.send(Message::Displace(connection));
        }
    }

    /// Returns the connection that is to be closed before the others.
    fn next_to_close(&self) -> Option<Ticket> {
        let total = |steps: &[Connections; STEPS.len()]| steps.iter().map(BTreeMap::len).sum::<usize>();
        let most = self.sources.values().map(total).max()?;
        let busiest = || self.sources.iter().filter(|(_, steps)| total(steps) == most);
        let count = |step: &Step| busiest().map(|(_, steps)| steps[*step as usize].len()).sum::<usize>();
        // `max_by_key` returns the last of several equal elements. If two steps have equally many
        // connections, connections of the silent step are therefore closed first.
        let step = STEPS.into_iter().rev().max_by_key(count)?;
        let oldest = |(source, steps): (&IpAddr, &[Connections; STEPS.len()])| {
            Some(Ticket { source: *source, step, number: *steps[step as usize].first_key_value()?.0 })
        };
        busiest().filter_map(oldest).min_by_key(|ticket| ticket.number)
    }
}

#[cfg(test)]
mod tests;
