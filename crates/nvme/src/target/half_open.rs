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
use super::inbox::{Note, Ticket};
use super::network::network;
use crate::lock;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Mutex;

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

/// The half-open connections of all threads, from the moment when they are accepted.
#[derive(Debug)]
pub struct HalfOpen {
    limit: usize,
    table: Mutex<Table>,
}

#[derive(Debug)]
struct Connection {
    source: IpAddr,
    step: Step,
    /// `None` until the connection's thread has taken the connection.
    reach: Option<Reach>,
}

#[derive(Debug, Default)]
struct Table {
    /// The connections by their numbers, so in the order of arrival.
    connections: BTreeMap<u64, Connection>,
    /// How many connections of each address are at each step. No address has none.
    counts: HashMap<IpAddr, [usize; STEPS.len()]>,
    last_number: u64,
    /// The address of the connection that was last removed to be closed.
    last_source: Option<IpAddr>,
}

impl HalfOpen {
    /// Creates an empty table. It may hold `limit` connections.
    pub fn new(limit: usize) -> Self {
        Self { limit, table: Mutex::default() }
    }

    /// Returns the number of connections.
    pub fn count(&self) -> usize {
        lock(&self.table).connections.len()
    }

    /// Adds a connection from `address` that was just accepted. If there are too many now, displaces one.
    pub fn add(&self, address: IpAddr) -> Ticket {
        let mut table = lock(&self.table);
        table.last_number += 1;
        let (number, source) = (table.last_number, network(address));
        table.connections.insert(number, Connection { source, step: Step::Silent, reach: None });
        table.counts.entry(source).or_default()[Step::Silent as usize] += 1;
        if table.connections.len() > self.limit {
            table.displace();
        }
        Ticket(number)
    }

    /// Records that a connection's thread has taken the connection, and how to reach it there. Returns false
    /// if the connection was displaced before.
    pub fn taken(&self, ticket: &Ticket, reach: Reach) -> bool {
        let mut table = lock(&self.table);
        table.connections.get_mut(&ticket.0).map(|it| it.reach = Some(reach)).is_some()
    }

    /// Records that a connection has reached a step. Does nothing if the table does not have the connection any
    /// more.
    pub fn advance(&self, ticket: &Ticket, step: Step) {
        let Table { connections, counts, .. } = &mut *lock(&self.table);
        let Some(connection) = connections.get_mut(&ticket.0) else { return };
        let counts = counts.get_mut(&connection.source).expect("the count of a connection");
        counts[connection.step as usize] -= 1;
        counts[step as usize] += 1;
        connection.step = step;
    }

    /// Removes a connection from the table. Call this when its host may use the queue, or when it was closed.
    /// Does nothing if the table no longer contains the connection.
    pub fn remove(&self, ticket: &Ticket) {
        lock(&self.table).remove(ticket.0);
    }

    /// Removes the connection that is first in the order of closing, and asks its thread to close it. If the
    /// thread has not received the connection yet, it closes the connection on receipt.
    pub fn displace(&self) {
        lock(&self.table).displace();
    }

    /// Returns the source of the connection that was last closed to make room: its address, or its network.
    pub fn last_source(&self) -> Option<IpAddr> {
        lock(&self.table).last_source
    }
}

impl Table {
    fn remove(&mut self, number: u64) -> Option<Connection> {
        let connection = self.connections.remove(&number)?;
        let counts = self.counts.get_mut(&connection.source)?;
        counts[connection.step as usize] -= 1;
        if counts.iter().all(|count| *count == 0) {
            self.counts.remove(&connection.source);
        }
        Some(connection)
    }

    fn displace(&mut self) {
        let Some(connection) = self.next_to_close().and_then(|number| self.remove(number)) else { return };
        self.last_source = Some(connection.source);
        if let Some(reach) = connection.reach {
            reach.send(Note::Displace);
        }
    }

    /// Returns the number of the connection that is to be closed before the others.
    fn next_to_close(&self) -> Option<u64> {
        let total = |counts: &[usize; STEPS.len()]| counts.iter().sum::<usize>();
        let most = self.counts.values().map(total).max()?;
        let busiest = || self.counts.values().filter(|counts| total(counts) == most);
        // `max_by_key` returns the last of several equal elements. If two steps have equally many
        // connections, connections of the silent step are therefore closed first.
        let count = |step: &Step| busiest().map(|counts| counts[*step as usize]).sum::<usize>();
        let step = STEPS.into_iter().rev().max_by_key(count)?;
        let is_busiest = |it: &Connection| it.step == step && total(&self.counts[&it.source]) == most;
        self.connections.iter().find(|(_, it)| is_busiest(it)).map(|(number, _)| *number)
    }
}

#[cfg(test)]
mod tests;
