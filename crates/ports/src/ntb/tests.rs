//! Tests of two ends in one process, and of a hostile peer.

use super::connection::{Connection, INBOUND_BYTES, Word};
use super::ring::{LONGEST_FRAME, SKIP};
use super::*;
use inlane_core::port::{Counters, Reservation};
use inlane_core::{HeapPool, Packet};
use inlane_ntb::handshake;
use inlane_ntb::twin::{Hub, Twin};
use proptest::prelude::*;
use std::path::Path;
use std::time::{Duration, Instant};

/// Posted windows, whose stores are late, torn and in any order.
const POSTED: &str = "reorder,torn,delay=20us,seed=3";
const LIMIT: Duration = Duration::from_secs(60);

struct End {
    port: NtbPort,
    pool: Arc<dyn Pool>,
    rx: Box<dyn Rx>,
    tx: Box<dyn Tx>,
}

fn new_port() -> (NtbPort, Arc<dyn Pool>) {
    let pool: Arc<dyn Pool> = Arc::new(HeapPool::new(64, LONGEST_FRAME + 64).unwrap());
    (NtbPort::new(NtbSpec::parse("ntb:/nowhere").unwrap()), pool)
}

fn end(mut port: NtbPort, pool: Arc<dyn Pool>) -> End {
    let (rx, tx) = (port.take_rx(0).unwrap(), port.take_tx(0, pool.clone()).unwrap());
    assert!(port.take_rx(0).is_err() && port.take_tx(0, pool.clone()).is_err());
    End { port, pool, rx, tx }
}

/// Opens a port of a bridge. Its link may be down.
fn open(hub: &Hub, number: u32, faults: &str) -> End {
    let twin = Twin::attach(hub.admit(number).unwrap(), &faults.parse().unwrap()).unwrap();
    let (mut port, pool) = new_port();
    port.start_over((Source::Own(Arc::new(twin)), None), Some(&pool)).unwrap();
    end(port, pool)
}

fn pair(faults: &str) -> (Hub, End, End) {
    let hub = Hub::new(2, INBOUND_BYTES as u64).unwrap();
    let (a, b) = (open(&hub, 0, faults), open(&hub, 1, faults));
    a.await_link();
    b.await_link();
    (hub, a, b)
}

fn wait(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_micros(100));
    }
}

impl End {
    fn shared(&self) -> &Shared {
        &self.port.link.as_ref().unwrap().shared
    }

    fn await_link(&self) {
        self.shared().await_link(LIMIT).unwrap();
    }

    fn is_up(&self) -> bool {
        self.shared().current().1.is_some()
    }

    /// Sends a frame as a packet. Returns false if the queue is full.
    fn send(&mut self, frame: &[u8]) -> bool {
        let mut packet = [Packet::EMPTY];
        assert_eq!(self.pool.allocate(&mut packet), 1);
        packet[0].length = frame.len() as u32;
        // SAFETY: the packet was just allocated, and is sent or freed once.
        unsafe {
            packet[0].bytes_mut().copy_from_slice(frame);
            let sent = self.tx.send(&packet).unwrap();
            if sent == 0 {
                self.pool.free(&packet);
            }
            sent == 1
        }
    }

    /// Writes a frame in place if the window allows it, and sends it as a packet otherwise. Returns false if the queue is full.
    fn write(&mut self, frame: &[u8]) -> bool {
        match self.tx.reserve(frame.len()) {
            Reservation::Memory(address) => {
                // SAFETY: the memory was reserved for a frame of this length.
                unsafe { address.as_ptr().copy_from_nonoverlapping(frame.as_ptr(), frame.len()) };
                self.tx.commit();
                true
            }
            Reservation::Full => false,
            Reservation::Unsupported => self.send(frame),
        }
    }

    fn receive(&mut self) -> Vec<Vec<u8>> {
        let mut packets = [Packet::EMPTY; 32];
        let count = self.rx.receive(&mut packets).unwrap();
        // SAFETY: the packets were just received, and are freed once.
        unsafe {
            let frames = packets[..count].iter().map(|packet| packet.bytes().to_vec()).collect();
            self.pool.free(&packets[..count]);
            frames
        }
    }

    fn receive_in_place(&mut self, most: usize) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let count = self.rx.receive_in_place(most, &mut |address, len| {
            // SAFETY: the frame is valid during the call, and the other end of this test does not change it.
            frames.push(unsafe { std::slice::from_raw_parts(address, len) }.to_vec());
            true
        });
        assert_eq!(count.unwrap(), Some(frames.len()));
        frames
    }

    fn receive_one(&mut self) -> Vec<u8> {
        let mut frames = Vec::new();
        wait("no frame arrives", || {
            frames = self.receive_in_place(1);
            !frames.is_empty()
        });
        frames.remove(0)
    }

    fn is_rung(&self) -> bool {
        let doorbells = self.shared().doorbells();
        let mut polled = [rustix::event::PollFd::new(&doorbells, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut polled, Some(&rustix::event::Timespec::default())).unwrap() == 1
    }
}

fn content(index: usize, len: usize) -> Vec<u8> {
    (0..len).map(|n| (index * 31 + n * 7 + n / 256) as u8).collect()
}

/// Sends frames of these lengths and checks that they arrive once and in order.
fn carry(from: &mut End, to: &mut End, lengths: &[usize]) {
    let (mut sent, mut received) = (0, 0);
    let start = Instant::now();
    while received < lengths.len() {
        assert!(start.elapsed() < LIMIT, "{received} of {sent} frames arrived");
        while sent < lengths.len() {
            let frame = content(sent, lengths[sent]);
            if !(if sent % 3 == 0 { from.write(&frame) } else { from.send(&frame) }) {
                break;
            }
            sent += 1;
        }
        from.tx.flush().unwrap();
        let frames = if received % 2 == 0 { to.receive() } else { to.receive_in_place(5) };
        for frame in frames {
            assert!(frame == content(received, lengths[received]), "frame {received}");
            received += 1;
        }
    }
    assert!(to.receive().is_empty());
}

#[test]
fn frames_arrive_once_and_in_order_whichever_way_they_are_sent() {
    for (faults, frames) in [("", 4000), (POSTED, 300)] {
        let (_hub, mut a, mut b) = pair(faults);
        let lengths: Vec<_> = (0..frames).map(|n| 1 + n * 137 % 9000).collect();
        carry(&mut a, &mut b, &lengths);
        carry(&mut b, &mut a, &lengths);
        let bytes = lengths.iter().sum::<usize>() as u64;
        let counted = Counters { packets: frames as u64, bytes, ..Counters::default() };
        for end in [&a, &b] {
            assert_eq!((end.tx.counters(), end.rx.counters()), (counted, counted));
        }
        assert_eq!((a.pool.outstanding(), b.pool.outstanding()), (0, 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn frames_of_any_length_arrive(
        posted in any::<bool>(),
        lengths in proptest::collection::vec(prop_oneof![1..=200usize, 1..=LONGEST_FRAME], 1..60),
    ) {
        let (_hub, mut a, mut b) = pair(if posted { POSTED } else { "" });
        carry(&mut a, &mut b, &lengths);
    }
}

#[test]
fn a_full_ring_refuses_frames_until_some_are_read() {
    let (_hub, mut a, mut b) = pair("");
    for len in [60, 2000, 9000, LONGEST_FRAME] {
        let mut sent = 0;
        while a.send(&content(sent, len)) {
            sent += 1;
        }
        assert!(sent >= 7 && a.tx.reserve(len) == Reservation::Full, "{sent} of {len} bytes");
        for index in 0..sent {
            assert!(b.receive_in_place(1) == [content(index, len)]);
        }
        assert!(b.receive().is_empty());
    }
}

#[test]
fn frames_that_are_too_long_are_counted() {
    let (_hub, mut a, mut b) = pair("");
    assert_eq!(a.tx.reserve(LONGEST_FRAME + 1), Reservation::Unsupported);
    assert!(a.send(&[0; LONGEST_FRAME + 1]) && a.send(&[]));
    assert_eq!((a.tx.counters().errors, a.tx.counters().packets), (2, 0));
    assert!(b.receive().is_empty());
}

#[test]
fn a_frame_that_is_not_taken_stays_the_next_one() {
    let (_hub, mut a, mut b) = pair("");
    (0..4).for_each(|n| assert!(a.send(&content(n, 100))));
    let mut left = 2;
    let visited = b.rx.receive_in_place(10, &mut |_, _| {
        left -= 1;
        left >= 0
    });
    assert_eq!(visited.unwrap(), Some(2));
    assert_eq!(b.receive(), [content(2, 100), content(3, 100)]);
}

#[test]
fn a_sleeping_reader_is_woken_and_a_polling_one_is_not() {
    for faults in ["", POSTED] {
        let (_hub, mut a, mut b) = pair(faults);
        b.rx.end_sleep();
        b.receive();
        b.rx.end_sleep();
        assert!(!b.is_rung(), "the link has come up");
        assert!(a.send(b"polled"));
        assert_eq!(b.receive_one(), b"polled");
        assert!(!b.is_rung());
        for _ in 0..20 {
            // With late stores, the sender may not see the announcement that the reader has made.
            assert!(b.rx.begin_sleep());
            assert!(a.send(b"wakes"));
            wait("the doorbell does not ring", || b.is_rung());
            b.rx.end_sleep();
            assert_eq!(b.receive_one(), b"wakes");
            assert!(!b.is_rung());
        }
        assert!(a.send(b"there"));
        wait("the frame does not arrive", || !b.rx.begin_sleep());
        b.rx.end_sleep();
    }
}

#[test]
fn the_link_comes_up_again_with_a_new_peer() {
    let (hub, mut a, mut b) = pair("");
    a.rx.end_sleep();
    assert!(a.receive().is_empty() && a.rx.begin_sleep());
    a.rx.end_sleep();
    for round in 0..3 {
        assert!(b.send(b"last words") && a.send(b"lost"));
        drop(b);
        wait("the link stays up", || !a.is_up());
        assert_eq!(a.receive_one(), b"last words", "they are in this end's memory");
        let before = a.tx.counters().errors;
        assert!(a.send(b"dropped") && a.tx.reserve(60) == Reservation::Unsupported);
        assert_eq!(a.tx.counters().errors, before + 1);
        assert!(a.rx.begin_sleep());
        b = open(&hub, 1, "");
        wait("the sleeper does not learn of the link", || a.is_rung() && a.is_up());
        a.rx.end_sleep();
        b.await_link();
        carry(&mut a, &mut b, &[60 + round, 9000, 64]);
        carry(&mut b, &mut a, &[60 + round, 9000, 64]);
    }
}

#[test]
fn a_link_that_fails_again_and_again_loses_frames_only() {
    let (_hub, mut a, mut b) = pair("flap=30ms,seed=2");
    let start = Instant::now();
    let (mut next, mut changes) = (0u64, 0);
    while start.elapsed() < LIMIT && (changes < 12 || next < 100) {
        let mut frame = vec![0; 1000];
        frame[..8].copy_from_slice(&next.to_le_bytes());
        next += u64::from(a.send(&frame));
        for frame in b.receive() {
            let number = u64::from_le_bytes(frame[..8].try_into().unwrap());
            assert!(number < next && frame[8..].iter().all(|&byte| byte == 0));
        }
        changes = a.shared().change();
        std::thread::yield_now();
    }
    assert!(changes >= 12, "{changes} changes");
}

/// Opens a port beside a peer that connects as it should. Returns the peer's connection, too.
fn attacked(hub: &Hub) -> (End, Connection) {
    let twin: Arc<dyn Ntb> = Arc::new(Twin::attach(hub.admit(1).unwrap(), &Faults::default()).unwrap());
    let victim = open(hub, 0, "");
    (victim, connect(&twin))
}

fn connect(twin: &Arc<dyn Ntb>) -> Connection {
    twin.link_enable(true);
    let inbound = connection::used(twin.inbound()).unwrap();
    let offer = handshake::Offer { inbound: &inbound, epoch: handshake::fresh_epoch(), timeout: LIMIT };
    let epochs = handshake::connect(&**twin, 0, &offer, &Faults::default()).unwrap();
    let window = twin.peer_window(0, 0).unwrap();
    let connection = Connection::new(twin.clone(), 0, epochs.tag(), inbound, window).unwrap();
    connection.greet();
    connection
}

#[test]
fn a_peer_that_breaks_the_protocol_loses_the_link() {
    type Attack = fn(&Connection);
    let attacks: [(&str, Attack); 9] = [
        ("sent more", |hostile| hostile.store(Word::Sent, hostile.units_out + 1)),
        ("sent more", |hostile| hostile.store(Word::Sent, u32::MAX)),
        ("length", |hostile| hostile.store(Word::Sent, 1)),
        ("length", |hostile| {
            hostile.store_header(0, LONGEST_FRAME as u64 + 1);
            hostile.store(Word::Sent, hostile.units_out);
        }),
        ("exceeds", |hostile| {
            hostile.store_header(0, 57);
            hostile.store(Word::Sent, 1);
        }),
        ("length", |hostile| {
            hostile.store_header(0, 1 << 32 | 8);
            hostile.store(Word::Sent, 1);
        }),
        ("exceeds", |hostile| {
            for unit in 0..hostile.units_out - 1 {
                hostile.store_header(unit, 1);
            }
            hostile.store_header(hostile.units_out - 1, 57);
            hostile.store(Word::Sent, hostile.units_out);
        }),
        ("no frame follows", |hostile| {
            hostile.store_header(0, SKIP);
            hostile.store(Word::Sent, hostile.units_out);
        }),
        ("read more", |hostile| hostile.store(Word::Read, u32::MAX)),
    ];
    let hub = Hub::new(2, INBOUND_BYTES as u64).unwrap();
    for (index, (expected, attack)) in attacks.into_iter().enumerate() {
        let (mut victim, hostile) = attacked(&hub);
        victim.await_link();
        let connection = victim.shared().current().1.unwrap();
        attack(&hostile);
        let mut violation = None;
        wait("the attack is not noticed", || {
            victim.receive_in_place(100);
            // The reader's position is only loaded when the ring is full.
            while victim.is_up() && victim.send(&[0; 9000]) {}
            violation = connection.broken();
            violation.is_some()
        });
        assert!(violation.unwrap().contains(expected), "{index}: {violation:?}");
        wait("the link stays up", || !victim.is_up());
        assert!(victim.receive().is_empty() && victim.send(b"dropped"));
    }
    // A peer that behaves is served.
    let (mut a, mut b) = (open(&hub, 0, ""), open(&hub, 1, ""));
    a.await_link();
    b.await_link();
    carry(&mut a, &mut b, &[60, 61]);
}

#[test]
fn a_peer_that_carries_no_frames_is_not_connected() {
    let hub = Hub::new(2, INBOUND_BYTES as u64).unwrap();
    let twin = Twin::attach(hub.admit(1).unwrap(), &Faults::default()).unwrap();
    twin.link_enable(true);
    let victim = open(&hub, 0, "");
    let inbound = twin.inbound().slice(0, 8192).unwrap();
    let offer = handshake::Offer { inbound: &inbound, epoch: handshake::fresh_epoch(), timeout: LIMIT };
    handshake::connect(&twin, 0, &offer, &Faults::default()).unwrap();
    let mut why = String::new();
    wait("the peer is accepted", || {
        why = victim.shared().await_link(Duration::ZERO).unwrap_err();
        why.contains("8192 bytes")
    });
}

fn of_spec(socket: &Path, options: &str) -> Result<End> {
    let spec = NtbSpec::parse(&format!("ntb:{}{options}", socket.display())).unwrap();
    let (mut port, pool) = (NtbPort::new(spec), new_port().1);
    port.configure(std::slice::from_ref(&pool), 1)?;
    Ok(end(port, pool))
}

#[test]
fn each_end_of_a_socket_may_restart() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("bridge");
    let open_both = || {
        std::thread::scope(|scope| {
            let server = scope.spawn(|| of_spec(&socket, ",role=server,wait=60").unwrap());
            let client = of_spec(&socket, ",wait=60").unwrap();
            (server.join().unwrap(), client)
        })
    };
    let (mut server, mut client) = open_both();
    for _ in 0..2 {
        carry(&mut server, &mut client, &[60, 9000]);
        carry(&mut client, &mut server, &[60, 9000]);
        drop(client);
        client = of_spec(&socket, ",wait=60").unwrap();
        server.await_link();
        carry(&mut server, &mut client, &[60, 9000]);
        drop(server);
        wait("the link stays up", || !client.is_up());
        assert!(client.send(b"dropped") && client.receive().is_empty());
        server = of_spec(&socket, ",role=server,wait=60").unwrap();
        client.await_link();
    }
    let error = of_spec(&socket, ",role=server").err().unwrap().to_string();
    assert!(error.contains("only one side has the role server"), "{error}");
}

#[test]
fn a_missing_peer_is_an_error_with_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("bridge");
    for (options, expected) in [
        (",wait=0.05", "(no server listens at the socket); start one with the same socket and role=server"),
        (
            ",role=server,wait=0.05",
            "(the peer has not opened its port); start one with the same socket and role=client",
        ),
    ] {
        let error = of_spec(&socket, options).err().unwrap().to_string();
        assert!(error.contains("no peer connected within 0.05 s") && error.contains(expected), "{error}");
    }
}
