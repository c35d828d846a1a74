use super::*;
use crate::target::inbox::{ConnectionId, Inbox, Message, Note};
use std::sync::Arc;

/// A table of half-open connections.
struct Fixture {
    half_open: HalfOpen,
    inbox: Arc<Inbox>,
    /// The numbers of the displaced connections.
    closed: Vec<u64>,
}

impl Fixture {
    fn new(limit: usize) -> Self {
        Self { half_open: HalfOpen::new(limit), inbox: Arc::new(Inbox::new().unwrap()), closed: Vec::new() }
    }

    /// Accepts a connection from an address and lets it reach a step.
    fn accept(&mut self, address: &str, number: u64, step: Step) -> Ticket {
        let reach = Reach { inbox: self.inbox.clone(), connection: ConnectionId(number) };
        let ticket = self.half_open.add(address.parse().unwrap());
        assert!(self.half_open.taken(&ticket, reach));
        self.half_open.advance(&ticket, step);
        for message in self.inbox.take() {
            let Message::To(id, Note::Displace) = message else { panic!("{message:?}") };
            self.closed.push(id.0);
        }
        ticket
    }
}

#[test]
fn a_flood_closes_its_own_connections_only() {
    let mut table = Fixture::new(10);
    table.accept("192.0.2.1", 1, Step::Silent);
    table.accept("192.0.2.2", 2, Step::Initialized);
    for number in 100..1100 {
        table.accept("192.0.2.3", number, Step::Connected);
    }
    assert_eq!(table.closed, (100..1092).collect::<Vec<_>>());
    // A second flood comes from 1000 addresses of one IPv6 network, which together count as one host. The two
    // floods then share the table.
    table.closed.clear();
    for number in 2000..3000 {
        table.accept(&format!("2001:db8::{number:x}"), number, Step::Silent);
    }
    assert!(!table.closed.contains(&1) && !table.closed.contains(&2));
    assert!(
        (4..=5).contains(&table.closed.iter().filter(|number| **number < 2000).count()),
        "{:?}",
        table.closed
    );
}

#[test]
fn at_one_address_the_step_with_the_most_connections_loses_its_oldest() {
    for (flood, host) in [
        (Step::Silent, Step::Initialized),
        (Step::Silent, Step::Connected),
        (Step::Initialized, Step::Silent),
        (Step::Connected, Step::Initialized),
    ] {
        let mut table = Fixture::new(10);
        table.accept("192.0.2.1", 1, host);
        for number in 100..200 {
            table.accept("192.0.2.1", number, flood);
        }
        assert_eq!(table.closed, (100..191).collect::<Vec<_>>(), "{flood:?}");
    }
    // Equally many connections of each step: those that have sent nothing are closed first.
    let mut table = Fixture::new(4);
    let steps = [Step::Connected, Step::Connected, Step::Silent, Step::Silent];
    for (number, step) in steps.into_iter().enumerate() {
        table.accept("192.0.2.1", number as u64, step);
    }
    table.half_open.displace();
    table.accept("192.0.2.1", 4, Step::Silent);
    table.accept("192.0.2.1", 5, Step::Connected);
    assert_eq!(table.closed, [2, 3]);
}

#[test]
fn of_addresses_with_equally_many_connections_the_oldest_silent_one_is_closed() {
    let mut table = Fixture::new(3);
    table.accept("192.0.2.1", 1, Step::Initialized);
    for number in 2..50 {
        table.accept(&format!("192.0.2.{number}"), number, Step::Silent);
    }
    assert_eq!(table.closed, (2..48).collect::<Vec<_>>());
}

#[test]
fn connections_that_are_usable_or_closed_do_not_count() {
    let mut table = Fixture::new(4);
    for number in 0..100 {
        let ticket = table.accept("192.0.2.1", number, Step::Connected);
        table.half_open.remove(&ticket);
        // A second removal, and a step of a removed connection, have no effect.
        table.half_open.remove(&ticket);
        table.half_open.advance(&ticket, Step::Silent);
    }
    assert!(table.closed.is_empty());
    assert_eq!(table.half_open.count(), 0);
}

/// Connections must count as soon as they are accepted. If they counted only once a thread takes them, a
/// flood would be displaced too slowly. Other connections would be displaced meanwhile.
#[test]
fn connections_that_their_thread_has_not_taken_count() {
    let mut table = Fixture::new(4);
    table.accept("192.0.2.1", 1, Step::Silent);
    let flood: Vec<_> = (0..10).map(|_| table.half_open.add("192.0.2.2".parse().unwrap())).collect();
    let reach = Reach { inbox: table.inbox.clone(), connection: ConnectionId(2) };
    let taken: Vec<_> = flood.iter().map(|ticket| table.half_open.taken(ticket, reach.clone())).collect();
    assert_eq!(taken, [false, false, false, false, false, false, false, true, true, true]);
    assert!(table.closed.is_empty());
}
