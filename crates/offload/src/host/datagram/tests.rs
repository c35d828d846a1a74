//! Tests of UDP sockets: hostile programs and frames, and Linux's rules for sockets that share a port.

use super::super::tests::{Bench, MAC, PEER};
use super::*;
use crate::stack::icmp::{ICMP_BURST, ICMP_NS};
use inlane_offload_protocol::message::{Message, Operation, write_options};
use inlane_wire::{ethernet, ipv4, ipv6, udp};
use proptest::prelude::*;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

impl Bench {
    fn datagrams(&mut self, operation: Operation, address: &str, options: &[(i32, i32, i32)]) -> OwnedFd {
        let mut message = Message::new(operation);
        let address: SocketAddr = address.parse().unwrap();
        (message.datagrams, message.v6) = (true, address.is_ipv6());
        match operation {
            Operation::Bind => message.local = Some(address),
            _ => message.remote = Some(address),
        }
        write_options(&mut message, options);
        let (reply, fd) = self.ask(message, None);
        assert_eq!(reply.status, 0);
        fd.unwrap()
    }

    fn bind(&mut self, address: &str) -> OwnedFd {
        self.datagrams(Operation::Bind, address, &[])
    }

    fn local(&mut self, fd: &OwnedFd) -> SocketAddr {
        let message = Message::new(Operation::Addresses);
        self.ask(message, Some(fd.try_clone().unwrap())).0.local.unwrap()
    }

    fn send(&mut self, fd: &OwnedFd, to: Option<SocketAddr>, data: &[u8]) {
        let header = Header { remote: to, ..Header::new(self.engine.number) };
        pair::send(fd.as_raw_fd(), &header.encode(), data).unwrap();
        self.turn();
    }

    fn receive(&mut self, fd: &OwnedFd) -> Option<(Header, Vec<u8>)> {
        let mut bytes = vec![0; 70_000];
        let len = pair::receive(fd.as_raw_fd(), &mut bytes).ok()?;
        Some((Header::decode(self.engine.number, &bytes[..len])?, bytes[datagram::LEN..len].to_vec()))
    }

    fn totals(&self) -> crate::status::DatagramCounters {
        let mut totals = self.engine.totals.datagrams;
        for (_, socket) in self.engine.stack.sockets.iter() {
            if let Pair::Datagram(pair) = &socket.attachment.pair {
                totals.add(&pair.counters);
            }
        }
        totals
    }
}

/// Returns a frame with a UDP datagram from 10.0.0.2:4000 or [fd00::2]:4000 to the engine's port 5000.
fn frame(v6: bool, data: &[u8]) -> Vec<u8> {
    let header = if v6 { ipv6::HEADER } else { ipv4::HEADER };
    let mut bytes = vec![0; ethernet::HEADER + header + udp::HEADER + data.len()];
    let len = bytes.len() - ethernet::HEADER - header;
    let mut frame = ethernet::Frame::new(&mut bytes[..]).unwrap();
    frame.set_destination(MAC);
    frame.set_ethertype(if v6 { ethernet::IPV6 } else { ethernet::IPV4 });
    let pseudo = if v6 {
        let mut packet = ipv6::Packet::init(frame.payload_mut()).unwrap();
        packet.set_next_header(ipv4::UDP);
        packet.set_source("fd00::2".parse().unwrap());
        packet.set_destination("fd00::1".parse().unwrap());
        packet.pseudo_sum(ipv4::UDP, len as u32)
    } else {
        let mut packet = ipv4::Packet::init(frame.payload_mut()).unwrap();
        packet.set_protocol(ipv4::UDP);
        packet.set_source([10, 0, 0, 2].into());
        packet.set_destination([10, 0, 0, 1].into());
        packet.fill_checksum();
        packet.pseudo_sum()
    };
    let payload = &mut bytes[ethernet::HEADER + header..];
    payload[udp::HEADER..].copy_from_slice(data);
    let mut datagram = udp::Datagram::new(payload).unwrap();
    datagram.set_source_port(4000);
    datagram.set_destination_port(5000);
    datagram.set_length(len as u16);
    datagram.fill_checksum(pseudo);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Programs may write arbitrary bytes to their pairs. The engine must send only datagrams from its own
    /// addresses and the socket's port.
    #[test]
    fn hostile_programs_send_only_from_their_socket(messages in proptest::collection::vec(
        (any::<bool>(), any::<[u8; 8]>(), 0usize..3, any::<[u8; 4]>(), proptest::collection::vec(any::<u8>(), 0..200)), 1..30)) {
        let mut bench = Bench::new(10);
        let fd = bench.datagrams(Operation::Bind, "0.0.0.0:5000", &[]);
        let target = bench.bind("10.0.0.1:6000");
        for (known, [flags, hops, class, a, b, c, d, e], choice, octets, data) in messages {
            let remote: SocketAddr = match choice {
                0 => "10.0.0.1:6000".parse().unwrap(),
                1 => (octets, u16::from_be_bytes([a, b])).into(),
                _ => "[fd00::1]:6000".parse().unwrap(),
            };
            let local = (d % 2 == 0).then(|| ([10, 0, 0, e], 7).into());
            let mut header = Header { flags, hops, class, remote: Some(remote), local, ..Header::new(bench.engine.number) };
            header.engine ^= u64::from(!known);
            header.error = i32::from(c % 2);
            let _ = pair::send(fd.as_raw_fd(), &header.encode(), &data);
            bench.turn();
            while let Some((header, _)) = bench.receive(&target) {
                let source = header.remote.unwrap();
                prop_assert!(source.port() == 5000 && bench.engine.stack.network.is_own(source.ip()), "{source}");
            }
        }
        let totals = bench.totals();
        prop_assert!(totals.sent + totals.unsent <= 30);
        drop((fd, target));
        bench.turn();
        prop_assert_eq!(bench.engine.stack.sockets.len() + bench.engine.stack.datagram_ports.len(), 0);
    }

    #[test]
    fn hostile_datagrams_do_no_harm(v6: bool, data in proptest::collection::vec(any::<u8>(), 0..100),
        damage in proptest::collection::vec((14usize..100, any::<u8>()), 0..4)) {
        let mut bench = Bench::new(10);
        let fd = bench.datagrams(Operation::Bind, "[::]:5000", &[]);
        let mut bytes = frame(v6, &data);
        let before = bytes.clone();
        for (at, value) in damage {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        bench.engine.on_frame(0, &bytes);
        bench.turn();
        let received = bench.receive(&fd);
        if bytes == before {
            let (header, got) = received.expect("a datagram without damage arrives");
            prop_assert_eq!(got, data);
            prop_assert_eq!(header.remote.unwrap().port(), 4000);
        }
    }
}

#[test]
fn a_missing_checksum_is_accepted_in_ipv4_only() {
    let mut bench = Bench::new(10);
    let fd = bench.datagrams(Operation::Bind, "[::]:5000", &[]);
    for (v6, at, accepted) in [(false, 40, true), (true, 60, false)] {
        let mut bytes = frame(v6, b"data");
        bytes[at..at + 2].fill(0);
        bench.engine.on_frame(0, &bytes);
        assert_eq!(bench.receive(&fd).is_some(), accepted);
        let mut wrong = frame(v6, b"data");
        wrong[at] ^= 1;
        bench.engine.on_frame(0, &wrong);
        assert!(bench.receive(&fd).is_none());
        let mut padded = frame(v6, b"data12");
        padded.truncate(at + 2 + 4);
        padded.extend_from_slice(b"12");
        bench.engine.on_frame(0, &padded);
        assert!(bench.receive(&fd).is_some());
    }
    assert_eq!(bench.engine.stack.network.counters.malformed, 3);
}

#[test]
fn a_full_receive_queue_drops_and_counts() {
    let mut bench = Bench::new(10);
    let receiver =
        bench.datagrams(Operation::Bind, "10.0.0.1:6000", &[(libc::SOL_SOCKET, libc::SO_RCVBUF, 20_000)]);
    let sender = bench.datagrams(Operation::Connect, "10.0.0.1:6000", &[]);
    for _ in 0..100 {
        bench.send(&sender, None, &[7; 1000]);
    }
    let totals = bench.totals();
    assert_eq!((totals.sent, totals.received + totals.dropped), (100, 100));
    assert!(totals.dropped > 50 && totals.received > 3, "{totals:?}");
    let received = std::iter::from_fn(|| bench.receive(&receiver)).count() as u64;
    assert_eq!(received, totals.received);
    bench.send(&sender, None, b"after");
    assert_eq!(bench.receive(&receiver).unwrap().1, b"after");
}

#[test]
fn a_program_that_floods_itself_leaves_the_rest_in_its_pair() {
    let mut bench = Bench::new(10);
    let _receiver = bench.bind("10.0.0.1:6000");
    let sender = bench.datagrams(Operation::Connect, "10.0.0.1:6000", &[]);
    let header = Header::new(bench.engine.number).encode();
    let mut written = 0;
    while pair::send(sender.as_raw_fd(), &header, b"flood").is_ok() {
        written += 1;
    }
    assert!(written > 100);
    for _ in 0..10 {
        bench.engine.wait(0, 0, &mut Vec::with_capacity(64)).unwrap();
        bench.engine.serve_changed(0);
        assert!(bench.engine.stack.network.own.len() <= MOST_OWN);
    }
    // After the program has closed the socket, the engine still sends the datagrams that the socket pair has
    // accepted.
    drop(sender);
    for _ in 0..10 {
        bench.turn();
    }
    assert_eq!(bench.totals().sent, written);
    assert_eq!(bench.engine.stack.sockets.len(), 1);
}

#[test]
fn sockets_share_a_port_as_in_linux() {
    let mut bench = Bench::new(100);
    let sender = bench.bind("10.0.0.1:7000");
    let to: SocketAddr = "10.0.0.1:6000".parse().unwrap();
    let reuse = [(libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)];
    let first = bench.datagrams(Operation::Bind, "10.0.0.1:6000", &reuse);
    let any = bench.datagrams(Operation::Bind, "0.0.0.0:6000", &reuse);
    let last = bench.datagrams(Operation::Bind, "10.0.0.1:6000", &reuse);
    bench.send(&sender, Some(to), b"x");
    assert!(bench.receive(&last).is_some(), "the socket that was bound last gets the datagram");
    drop(last);
    bench.send(&sender, Some(to), b"x");
    assert!(bench.receive(&first).is_some() && bench.receive(&any).is_none());
    bench.send(&sender, Some("127.0.0.1:6000".parse().unwrap()), b"x");
    assert!(bench.receive(&any).is_some() && bench.receive(&first).is_none());

    let mut message = Message::new(Operation::Connect);
    (message.datagrams, message.remote) = (true, Some("10.0.0.1:7000".parse().unwrap()));
    assert_eq!(bench.ask(message, Some(any.try_clone().unwrap())).0.status, 0);
    bench.send(&sender, Some(to), b"x");
    assert!(bench.receive(&any).is_some() && bench.receive(&first).is_none());

    // With SO_REUSEPORT, all datagrams of one sender must arrive at the same socket. Each socket must get
    // some of the senders.
    let share = [(libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)];
    let sharing: Vec<OwnedFd> =
        (0..2).map(|_| bench.datagrams(Operation::Bind, "10.0.0.1:6001", &share)).collect();
    let to: SocketAddr = "10.0.0.1:6001".parse().unwrap();
    let mut counts = [0; 2];
    for port in 0..40 {
        let sender = bench.bind(&format!("10.0.0.1:{}", 20_000 + port));
        for _ in 0..2 {
            bench.send(&sender, Some(to), b"x");
        }
        let found = sharing.iter().map(|fd| std::iter::from_fn(|| bench.receive(fd)).count());
        let found: Vec<usize> = found.collect();
        assert!(found == [2, 0] || found == [0, 2], "{found:?}");
        counts[usize::from(found[0] == 0)] += 1;
    }
    assert!(counts[0] > 0 && counts[1] > 0, "{counts:?}");
}

#[test]
fn a_disconnected_socket_gives_its_port_back() {
    let mut bench = Bench::new(10);
    let fd = bench.datagrams(Operation::Connect, "10.0.0.1:9", &[]);
    let before = bench.local(&fd);
    assert!(before.port() != 0 && bench.engine.stack.datagram_ports.contains_key(&before.port()));
    assert_eq!(bench.ask(Message::new(Operation::Disconnect), Some(fd.try_clone().unwrap())).0.status, 0);
    assert_eq!(bench.local(&fd), "0.0.0.0:0".parse().unwrap());
    assert!(bench.engine.stack.datagram_ports.is_empty());
    bench.send(&fd, Some("10.0.0.1:9".parse().unwrap()), b"x");
    assert_ne!(bench.local(&fd).port(), 0);

    let fd = bench.bind("0.0.0.0:6000");
    let mut message = Message::new(Operation::Connect);
    (message.datagrams, message.remote) = (true, Some("10.0.0.1:9".parse().unwrap()));
    bench.ask(message, Some(fd.try_clone().unwrap()));
    assert_eq!(bench.local(&fd), "10.0.0.1:6000".parse().unwrap());
    bench.ask(Message::new(Operation::Disconnect), Some(fd.try_clone().unwrap()));
    assert_eq!(bench.local(&fd), "0.0.0.0:6000".parse().unwrap());
}

#[test]
fn icmp_errors_reach_connected_sockets_and_are_limited() {
    let mut bench = Bench::new(10);
    let fd = bench.datagrams(Operation::Connect, "10.0.0.1:9", &[]);
    bench.send(&fd, None, b"x");
    assert_eq!(bench.receive(&fd).unwrap().0.error, libc::ECONNREFUSED);
    let mut granted = |now| (0..1000).filter(|_| bench.engine.stack.may_send_icmp_error(now)).count() as u64;
    assert_eq!(granted(5), ICMP_BURST);
    assert_eq!(granted(5 + 10 * ICMP_NS), 10);
}

#[test]
fn an_unfinished_datagram_is_bounded_and_ends_with_its_socket() {
    let mut bench = Bench::new(10);
    let receiver = bench.bind("10.0.0.1:6000");
    let sender = bench.datagrams(Operation::Connect, "10.0.0.1:6000", &[]);
    let more = Header { flags: send::MORE, ..Header::new(bench.engine.number) };
    for _ in 0..3 {
        pair::send(sender.as_raw_fd(), &more.encode(), &[1; 30_000]).unwrap();
        bench.turn();
    }
    assert_eq!(bench.receive(&sender).unwrap().0.error, libc::EMSGSIZE);
    bench.send(&sender, None, b"next");
    assert_eq!(bench.receive(&receiver).unwrap().1, b"next");
    pair::send(sender.as_raw_fd(), &more.encode(), b"never finished").unwrap();
    drop(sender);
    bench.turn();
    assert!(bench.receive(&receiver).is_none() && bench.engine.stack.sockets.len() == 1);
}

#[test]
fn the_engine_says_where_it_has_a_route() {
    let mut bench = Bench::new(10);
    let fd = bench.bind("0.0.0.0:6000");
    for (remote, status) in [
        ("10.0.0.2:1", 0),
        ("127.0.0.1:1", 0),
        ("10.0.0.255:1", libc::EACCES),
        ("224.0.0.1:1", libc::EACCES),
        ("192.0.2.1:1", libc::ENETUNREACH),
    ] {
        let mut message = Message::new(Operation::Route);
        message.remote = Some(remote.parse().unwrap());
        assert_eq!(bench.ask(message, Some(fd.try_clone().unwrap())).0.status, status, "{remote}");
        let before = bench.totals();
        bench.send(&fd, Some(remote.parse().unwrap()), b"x");
        let after = bench.totals();
        assert_eq!(
            (after.sent - before.sent, after.unsent - before.unsent),
            (u64::from(status == 0), u64::from(status != 0))
        );
    }
    // Connect a new socket to a multicast address. The socket stays with the kernel, because the engine has
    // no route there.
    let mut message = Message::new(Operation::Connect);
    (message.datagrams, message.remote) = (true, Some("224.0.0.1:1".parse().unwrap()));
    assert_eq!(bench.ask(message, None).0.status, inlane_offload_protocol::message::KERNEL);
}

#[test]
fn datagrams_above_the_path_mtu_are_sent_as_fragments() {
    let mut bench = Bench::new(10);
    let fd = bench.datagrams(Operation::Connect, "10.0.0.2:4000", &[]);
    bench.engine.stack.network.learn(0, PEER.into(), inlane_wire::Mac([2, 0, 0, 0, 0, 2]), true);
    let sent = |bench: &mut Bench| {
        let before = bench.engine.stack.network.counters.sent_packets;
        bench.send(&fd, None, &[0; 1092]);
        bench.engine.stack.network.counters.sent_packets - before
    };
    assert_eq!(sent(&mut bench), 1);
    // Report by an ICMP error that a link carries only 600 bytes.
    let local = bench.engine.stack.sockets.iter().next().unwrap().1.local;
    let mut quoted = ipv4::Packet::init(vec![0; 28]).unwrap();
    quoted.set_protocol(ipv4::UDP);
    quoted.set_source([10, 0, 0, 1].into());
    quoted.set_destination(PEER);
    quoted.payload_mut()[..2].copy_from_slice(&local.port().to_be_bytes());
    quoted.payload_mut()[2..4].copy_from_slice(&4000u16.to_be_bytes());
    bench.engine.stack.on_datagram_too_big(0, quoted.bytes(), 600);
    assert_eq!(sent(&mut bench), 2);
    // Quote a port without a socket in the ICMP error. The engine ignores such an error.
    quoted.payload_mut()[0] ^= 1;
    bench.engine.stack.on_datagram_too_big(0, quoted.bytes(), 68);
    assert_eq!(sent(&mut bench), 2);
    // Quote the socket's own port again, and report an MTU of 68 bytes. The engine must use 552 bytes
    // instead, the least that it accepts for IPv4. A fragment then carries at most 528 bytes: 552 without the
    // header of 20 bytes, rounded down to a multiple of
    // 8. The 1092 bytes of data and the UDP header therefore need three fragments.
    quoted.payload_mut()[0] ^= 1;
    bench.engine.stack.on_datagram_too_big(0, quoted.bytes(), 68);
    assert_eq!(sent(&mut bench), 3);
    bench.now += 601 * 1_000_000_000;
    bench.engine.stack.network.learn(bench.now, PEER.into(), inlane_wire::Mac([2, 0, 0, 0, 0, 2]), true);
    assert_eq!(sent(&mut bench), 1);
}

#[test]
fn rules_of_the_engine_hold_for_each_datagram() {
    let mut bench = Bench::new(100);
    bench.engine.settings.rules = "kernel protocol=udp port=53".into();
    let fd = bench.bind("10.0.0.1:5000");
    let sent = |bench: &Bench| (bench.totals().sent, bench.totals().unsent);
    bench.send(&fd, Some("10.0.0.2:54".parse().unwrap()), b"allowed");
    assert_eq!(sent(&bench), (1, 0));
    bench.send(&fd, Some("10.0.0.2:53".parse().unwrap()), b"refused");
    assert_eq!(sent(&bench), (1, 1));
}
