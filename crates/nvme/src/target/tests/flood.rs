//! Hosts that connect while others flood the target with half-open connections.

use super::authentication_time::Protected;
use super::*;
use crate::authentication::Group;
use crate::target::controller::Host;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::{AtomicBool, AtomicU64};

/// The address of the flood.
const FLOODING: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// The address of another host.
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);

/// Opens a connection from an address of this machine.
fn open_from(source: Ipv4Addr, target: &Target) -> std::io::Result<TcpStream> {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &SocketAddrV4::new(source, 0))?;
    connect(&socket, &target.subsystem().listeners[0])?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// What a flooding host does with a connection, given its number. Returns the connection if it is still open.
type Begin<'a> = &'a (dyn Fn(TcpStream, u64) -> Option<TcpStream> + Sync);

/// Opens connections until `stop` is set, and counts them in `opened`. Keeps only the last 300 of them open,
/// because a process may have only some 1000 descriptors.
fn flood(target: &Target, begin: Begin<'_>, stop: &AtomicBool, opened: &AtomicU64) {
    let mut streams = VecDeque::new();
    while !stop.load(Relaxed) {
        let Ok(stream) = open_from(FLOODING, target) else { continue };
        streams.extend(begin(stream, opened.fetch_add(1, Relaxed)));
        if streams.len() > 300 {
            streams.pop_front();
        }
    }
}

/// Runs `hosts` while the target is flooded. Returns the number of connections of the flood.
fn during_flood(target: &Target, begin: Begin<'_>, hosts: impl FnOnce(&AtomicU64)) -> u64 {
    let (stop, opened) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| flood(target, begin, &stop, &opened));
        // End the flood even if a host panics, because the scope then still joins its threads.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Relaxed);
            }
        }
        let _stop = Stop(&stop);
        hosts(&opened);
    });
    opened.into_inner()
}

fn wait_until(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "no progress");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn hosts_get_in_during_a_flood_of_half_open_connections() {
    let mut request = [0; MAX_HEADER];
    let length = encode(
        &Pdu::initialization(Kind::IcReq, Digests::default(), 0),
        0,
        Digests::default(),
        4,
        &mut request,
    );
    // Every `every`-th connection of the flood sends an ICReq. The other connections send nothing.
    for every in [u64::MAX, 2, 1] {
        let begin = |mut stream: TcpStream, number: u64| {
            let sends = number.is_multiple_of(every);
            (!sends || stream.write_all(&request[..length]).is_ok()).then_some(stream)
        };
        let limits = Limits { connections: 256, handshake_timeout: PATIENCE, ..Limits::default() };
        let target = start("memory:1M", limits);
        let opened = during_flood(&target, &begin, |opened| {
            wait_until(|| opened.load(Relaxed) > 300);
            for attempt in 0..20 {
                let attached = attach_on(&target, || open_from(OTHER, &target), 0);
                let (_admin, mut queue) =
                    attached.unwrap_or_else(|error| panic!("{every}, attempt {attempt}: {error}"));
                assert_eq!(read(&mut queue, 8).len(), 4096);
            }
            // A host with the same address as the flood competes with the flood. So this host may need
            // several attempts.
            for _ in 0..5 {
                let mut queues = None;
                wait_until(|| {
                    queues = attach_on(&target, || open_from(FLOODING, &target), 0).ok();
                    queues.is_some()
                });
                assert_eq!(read(&mut queues.unwrap().1, 8).len(), 4096);
            }
            wait_until(|| opened.load(Relaxed) > 2000);
        });
        let result = target.stop().unwrap();
        let (displaced, refused) = (result.displaced, result.refused);
        assert!(displaced > 100 && displaced <= refused, "{displaced} and {refused} of {opened}");
    }
}

#[test]
fn hosts_authenticate_themselves_during_a_flood_of_unauthenticated_ones() {
    let limits = Limits { controllers: 8, handshake_timeout: PATIENCE, ..Limits::default() };
    let protected = Protected::with_limits(Group::Null, limits);
    let target = &protected.target;
    let begin = |stream, _| protected.connect_on(stream).ok();
    during_flood(target, &begin, |_| {
        wait_until(|| target.subsystem().counters.displaced.load(Relaxed) > 50);
        for attempt in 0..20 {
            let authenticated = protected.authenticate_on(open_from(OTHER, target).unwrap());
            authenticated.unwrap_or_else(|error| panic!("attempt {attempt}: {error}"));
        }
        wait_until(|| target.subsystem().counters.displaced.load(Relaxed) > 1000);
    });
    protected.stop();
}

/// Without authentication, any machine that knows a host's NQN can connect a queue to that host's controller.
#[test]
fn a_stranger_who_stalls_loses_only_its_own_queue() {
    let target =
        start("memory:2M", Limits { stall_timeout: Duration::from_millis(500), ..Limits::default() });
    let opened = Cell::new(0);
    let open = || {
        opened.set(opened.get() + 1);
        // The admin queue is the first connection, and queue 1 the second.
        open_from(if opened.get() == 2 { FLOODING } else { OTHER }, &target)
    };
    let (_admin, mut queues) = attach_queues_on(&target, open, 0, 2).unwrap();
    send(&mut queues[0], Command::blocks(io::WRITE, 1, 0, 2048, Sgl::transport(1 << 20)), &[]);
    assert!(is_closed(&mut queues[0]));
    assert_eq!(read(&mut queues[1], 8).len(), 4096);
}

#[test]
fn the_oldest_stranger_of_the_address_with_most_strangers_makes_room() {
    let target = start("memory:1M", Limits { controllers: 16, ..Limits::default() });
    let create = |address: &str, trusted| {
        let host = Host { nqn: HOST.into(), id: [1; 16] };
        target.subsystem().create_controller(host, address.parse().unwrap(), false, trusted, 0)
    };
    // Strangers (hosts that are not trusted) may have a quarter of the 16 controllers.
    let host = create("192.0.2.1", false).unwrap();
    let flood: Vec<_> =
        (1..10).map(|number| create(&format!("2001:db8::{number}"), false).unwrap()).collect();
    let alive: Vec<_> = flood.iter().map(|controller| controller.is_alive()).collect();
    assert!(host.is_alive());
    assert_eq!(alive, [false, false, false, false, false, false, true, true, true]);
    // Trusted controllers first use the rest of the 16 controllers. Then they displace the controllers of
    // strangers.
    let trusted: Vec<_> = (0..16).map(|_| create("192.0.2.2", true).unwrap()).collect();
    assert!(trusted.iter().all(|controller| controller.is_alive()) && !host.is_alive());
    assert!(create("192.0.2.2", true).is_none());
}

/// The target has as many connections as its limit allows. Half-open connections must still make room for a
/// host.
#[test]
fn half_open_connections_make_room_for_a_host_if_the_target_is_full() {
    let limits = Limits { connections: 64, handshake_timeout: PATIENCE, ..Limits::default() };
    let target = start("memory:1M", limits);
    let hosts: Vec<_> = (0..27).map(|_| attach(&target, 0)).collect();
    let silent: Vec<_> = (0..10).map(|_| open_from(FLOODING, &target).unwrap()).collect();
    wait_until(|| target.connections() == 64);
    let mut other = attach_on(&target, || open_from(OTHER, &target), 0).unwrap();
    assert_eq!(read(&mut other.1, 8).len(), 4096);
    assert_eq!(target.subsystem().counters.displaced.load(Relaxed), 2);
    // Now hosts use all connections. They keep them.
    let others: Vec<_> =
        (0..4).map(|_| attach_on(&target, || open_from(OTHER, &target), 0).unwrap()).collect();
    assert!(try_attach(&target, 0).is_err());
    for (_admin, queue) in &mut hosts.into_iter().chain(others).chain([other]).collect::<Vec<_>>() {
        assert_eq!(read(queue, 8).len(), 4096);
    }
    drop(silent);
}
