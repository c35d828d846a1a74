use super::*;
use inlane_core::HeapPool;
use inlane_wire::{FiveTuple, Layers, ethernet, ipv4, ipv6, tcp, udp};
use proptest::prelude::*;
use std::collections::HashSet;

fn open(text: &str, queues: usize, room: usize) -> (Generator, Arc<dyn Pool>, Vec<Box<dyn Rx>>) {
    let mut port = Generator::open(text, &Clock::new()).unwrap();
    let pool: Arc<dyn Pool> = Arc::new(HeapPool::new(256, room).unwrap());
    port.configure(&vec![pool.clone(); queues], 0).unwrap();
    let queues = (0..queues).map(|queue| port.take_rx(queue as u16).unwrap()).collect();
    (port, pool, queues)
}

fn checksums_ok(frame: &[u8]) -> bool {
    let layers = Layers::of(frame).unwrap().unwrap();
    let (network, upper) = (&frame[layers.network..], &frame[layers.transport..layers.end]);
    let pseudo = if layers.ethertype == ethernet::IPV4 {
        let packet = ipv4::Packet::new(network).unwrap();
        assert!(packet.checksum_ok());
        packet.pseudo_sum()
    } else {
        ipv6::Packet::new(network).unwrap().pseudo_sum(layers.protocol, upper.len() as u32)
    };
    match layers.protocol {
        ipv4::UDP => {
            let datagram = udp::Datagram::new(upper).unwrap();
            datagram.checksum() != 0 && datagram.checksum_ok(pseudo)
        }
        _ => tcp::Segment::new(upper).unwrap().checksum_ok(pseudo),
    }
}

#[test]
fn packets_equal_those_that_their_stamps_name() {
    for text in [
        "gen:60",
        "gen:64,flows=3",
        "gen:75,tcp,flows=5",
        "gen:85,v6,flows=2",
        "gen:9001,v6,tcp",
        "gen:imix,v4,v6,udp,tcp,flows=9,vlan=7",
    ] {
        let (port, pool, mut queues) = open(text, 1, 9216);
        let mut packets = [Packet::EMPTY; 100];
        for _ in 0..5 {
            let count = queues[0].receive(&mut packets).unwrap();
            assert_eq!(count, 100);
            for packet in &packets {
                // SAFETY: the packet was just received into host memory.
                let frame = unsafe { packet.bytes() };
                assert!(checksums_ok(frame), "{text}: {frame:02x?}");
                let stamp = Stamp::from_bytes(frame.last_chunk().unwrap());
                let size = port.traffic.sizes[port.traffic.size_index(stamp.sequence)];
                assert_eq!(frame, port.traffic.frame(size, stamp, &port.traffic.body()), "{text}");
            }
            // SAFETY: the packets are from this pool, and are not used again.
            unsafe { pool.free(&packets) };
        }
        assert_eq!(pool.outstanding(), 0);
        assert_eq!(port.sent.total(), 500);
    }
}

#[test]
fn flows_send_in_turns_on_every_queue() {
    let (port, pool, mut queues) = open("gen:64,flows=5,packets=23", 2, 2048);
    let mut seen = vec![0u64; 5];
    let mut packets = [Packet::EMPTY; 32];
    for queue in &mut queues {
        let count = queue.receive(&mut packets).unwrap();
        for packet in &packets[..count] {
            // SAFETY: the packet was just received into host memory.
            let stamp = Stamp::from_bytes(unsafe { packet.bytes() }.last_chunk().unwrap());
            assert_eq!(stamp.sequence as u64, seen[stamp.flow as usize]);
            seen[stamp.flow as usize] += 1;
        }
        // SAFETY: the packets are from this pool, and are not used again.
        unsafe { pool.free(&packets[..count]) };
        assert!(queue.exhausted());
        assert_eq!(queue.receive(&mut packets).unwrap(), 0);
    }
    assert_eq!(seen.iter().sum::<u64>(), 23);
    assert_eq!(port.sent.by_flow(), seen);
}

#[test]
fn a_size_with_fcs_is_four_bytes_more_than_the_frame() {
    for (text, sizes) in [("gen:64,fcs", [60]), ("gen:1518,fcs", [1514]), ("gen:60", [60])] {
        assert_eq!(Traffic::parse(text).unwrap().0.sizes, sizes, "{text}");
    }
    assert_eq!(Traffic::parse("gen:65553,fcs").unwrap().0.longest(), 65549);
}

#[test]
fn no_two_flows_share_a_tuple() {
    let (traffic, _) = Traffic::parse("gen:128,flows=70000,v4,v6,tcp,udp").unwrap();
    let body = traffic.body();
    let mut tuples = HashSet::new();
    for flow in (0..traffic.flows).step_by(7) {
        let frame = traffic.frame(128, Stamp { flow, sequence: 0, due_ns: 0 }, &body);
        assert!(tuples.insert(FiveTuple::of(&frame).unwrap()));
    }
}

#[test]
fn due_times_follow_the_rate() {
    let (_, pool, mut queues) = open("gen:64,rate=1Mpps", 1, 2048);
    let mut packets = [Packet::EMPTY; 32];
    let mut dues = Vec::new();
    while dues.len() < 2000 {
        let count = queues[0].receive(&mut packets).unwrap();
        for packet in &packets[..count] {
            // SAFETY: the packet was just received into host memory.
            dues.push(Stamp::from_bytes(unsafe { packet.bytes() }.last_chunk().unwrap()).due_ns);
        }
        // SAFETY: the packets are from this pool, and are not used again.
        unsafe { pool.free(&packets[..count]) };
    }
    let gaps: HashSet<u64> = dues.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(gaps, HashSet::from([1000]), "due times follow the schedule, not the calls");
    assert_eq!(pool.outstanding(), 0);
}

#[test]
fn wrong_options_and_small_buffers_are_refused() {
    let error = |text: &str| Generator::open(text, &Clock::new()).err().expect(text).to_string();
    assert!(error("gen:59").contains("give 60 or more"));
    assert!(error("gen:64,v6,tcp").contains("give 92 or more"));
    assert!(error("gen:").contains("gen:64 or gen:imix"));
    assert!(error("gen:99999999999999999999").contains("too large"));
    assert!(error("gen:100K").contains("60 to 65549"));
    assert!(error("gen:3,fcs").contains("64 to 65553"));
    assert!(error("gen:63,fcs").contains("give 64 or more"));
    assert!(error("gen:imix,fcs").contains("leave out 'fcs'"));
    assert!(error("gen:64,flows=0").contains("from 1 to"));
    assert!(error("gen:64,flow=8").contains("unknown option 'flow'"));
    assert!(error("gen:64,rate=0").contains("above zero"));
    let mut port = Generator::open("gen:3000,flows=1", &Clock::new()).unwrap();
    let pool: Arc<dyn Pool> = Arc::new(HeapPool::new(4, 2048).unwrap());
    assert!(port.configure(std::slice::from_ref(&pool), 0).unwrap_err().to_string().contains("3000"));
    assert!(port.configure(&[pool.clone(), pool.clone()], 0).unwrap_err().to_string().contains("flows=2"));
    assert!(port.take_tx(0, pool).is_err());
}

#[test]
fn an_empty_pool_skips_no_packet() {
    let (port, pool, mut queues) = open("gen:64,flows=1", 1, 2048);
    let mut packets = vec![Packet::EMPTY; 300];
    assert_eq!(queues[0].receive(&mut packets).unwrap(), 256);
    assert_eq!(queues[0].receive(&mut packets[256..]).unwrap(), 0);
    // SAFETY: the packets are from this pool, and are not used again.
    unsafe { pool.free(&packets[..256]) };
    assert_eq!(queues[0].receive(&mut packets[..1]).unwrap(), 1);
    // SAFETY: the packet was just received into host memory.
    assert_eq!(Stamp::from_bytes(unsafe { packets[0].bytes() }.last_chunk().unwrap()).sequence, 256);
    // SAFETY: the packets are from this pool, and are not used again.
    unsafe { pool.free(&packets[..1]) };
    assert_eq!(port.sent.total(), 257);
}

proptest! {
    #[test]
    fn no_specification_panics(text in "gen:[0-9imx]{0,5}(,[a-z]{1,6}(=[0-9a-zA-Z.:]{0,9})?){0,3}") {
        let _ = Generator::open(&text, &Clock::new());
    }
}
