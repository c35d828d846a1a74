use super::*;
use crate::generate::Generator;
use inlane_core::HeapPool;

struct TestRun {
    generator: Generator,
    checker: Checker,
    pool: Arc<dyn Pool>,
    rx: Box<dyn Rx>,
    tx: Box<dyn Tx>,
}

fn test_run(text: &str, function: &str) -> TestRun {
    test_run_against(text, reference::find(function).unwrap().into())
}

fn test_run_against(text: &str, reference: Option<Arc<dyn ReferenceFunction>>) -> TestRun {
    let clock = Clock::new();
    let mut generator = Generator::open(text, &clock).unwrap();
    let mut checker = Checker::open("check", &clock, Some(&generator), reference, 0).unwrap();
    let pool: Arc<dyn Pool> = Arc::new(HeapPool::new(64, 2048).unwrap());
    generator.configure(std::slice::from_ref(&pool), 0).unwrap();
    checker.configure(&[], 1).unwrap();
    let rx = generator.take_rx(0).unwrap();
    let tx = checker.take_tx(0, pool.clone()).unwrap();
    TestRun { generator, checker, pool, rx, tx }
}

impl TestRun {
    /// Moves `bursts` bursts of 32 packets from the generator to the checker. `work` may change, add and
    /// remove packets in between.
    fn run(
        mut self,
        bursts: usize,
        mut work: impl FnMut(usize, &mut Vec<Packet>, &dyn Pool),
    ) -> (Verification, Checker) {
        let mut packets = [Packet::EMPTY; 32];
        for burst in 0..bursts {
            let count = self.rx.receive(&mut packets).unwrap();
            assert_eq!(count, 32);
            let mut packets = packets.to_vec();
            work(burst, &mut packets, &*self.pool);
            // SAFETY: the packets are from this queue's pool, and are not used again.
            assert_eq!(unsafe { self.tx.send(&packets) }.unwrap(), packets.len());
        }
        drop(self.tx);
        assert_eq!(self.pool.outstanding(), 0);
        assert_eq!(self.generator.sent().total(), bursts as u64 * 32);
        let verification = self.checker.verification().unwrap();
        (verification, self.checker)
    }
}

#[expect(clippy::mut_from_ref, reason = "the bytes are behind the address, not in the value")]
fn bytes(packet: &Packet) -> &mut [u8] {
    // SAFETY: the test holds the packet, which lies in host memory.
    unsafe { packet.bytes_mut() }
}

#[test]
fn correct_packets_pass() {
    let texts = ["gen:60", "gen:64,flows=1", "gen:1500,tcp", "gen:imix,v4,v6,udp,tcp,flows=11,vlan=3"];
    for text in texts {
        for function in ["io", "macswap", "l3-decrement", "checksum", "drop-rule:udp:1"] {
            let reference = reference::find(function).unwrap();
            let (verification, checker) = test_run(text, function).run(30, |_, packets, _| {
                for packet in packets {
                    let mut frame = bytes(packet).to_vec();
                    reference.apply(&mut frame);
                    bytes(packet).copy_from_slice(&frame);
                }
            });
            assert!(verification.passed(), "{text} {function}: {verification:?}");
            assert_eq!((verification.checked, checker.foreign()), (960, 0));
            assert_eq!(checker.latency().unwrap().count(), 960);
        }
    }
}

#[test]
fn a_function_that_changes_nothing_is_caught() {
    for function in ["macswap", "l3-decrement", "drop-rule:all"] {
        let (verification, _) = test_run("gen:64", function).run(10, |_, _, _| {});
        assert_eq!((verification.altered, verification.lost), (320, 0), "{function}");
        let example = verification.altered_example.unwrap();
        let expected = match function {
            "macswap" => "byte 5 of packet 0 of flow 0 is 0x02 instead of 0x01",
            "l3-decrement" => "byte 22 of packet 0 of flow 0 is 0x40 instead of 0x3f",
            _ => "packet 0 of flow 0 must not arrive at this port",
        };
        assert!(example.starts_with(expected), "{example}");
    }
}

#[test]
fn every_flipped_bit_is_found() {
    for text in ["gen:60,flows=1", "gen:92,tcp,v6,flows=1"] {
        let size = if text.contains("60") { 60 } else { 92 };
        let mut bit = 0;
        let (verification, _) = test_run(text, "io").run(size * 8 / 32, |_, packets, _| {
            for packet in packets {
                bytes(packet)[bit / 8] ^= 1 << (bit % 8);
                bit += 1;
            }
        });
        assert_eq!(verification.altered + verification.lost, size as u64 * 8, "{text} {verification:?}");
        // A packet with a wrong ethertype or IP version counts as foreign, and the sent packet as lost.
        assert!(verification.lost <= 32, "{verification:?}");
    }
}

#[test]
fn losses_duplicates_and_order_are_counted() {
    let (verification, _) = test_run("gen:100,flows=4", "io").run(10, |burst, packets, pool| match burst {
        2 => {
            // SAFETY: the packets are from this pool, and are not used again.
            unsafe { pool.free(&packets.drain(4..9).collect::<Vec<_>>()) }
        }
        3 => {
            let mut copy = [Packet::EMPTY];
            assert_eq!(pool.allocate(&mut copy), 1);
            copy[0].length = packets[7].length;
            bytes(&copy[0]).copy_from_slice(bytes(&packets[7]));
            packets.push(copy[0]);
        }
        4 => packets.swap(0, 4),
        9 => {
            // SAFETY: the packets are from this pool, and are not used again.
            unsafe { pool.free(&packets.split_off(30)) }
        }
        _ => {}
    });
    let expected = Verification {
        method: verification.method.clone(),
        expected: Some(320),
        checked: 314,
        lost: 7,
        duplicated: 1,
        reordered: 1,
        altered: 0,
        altered_example: None,
    };
    assert_eq!(verification, expected);
}

#[test]
fn packets_that_a_rule_drops_are_not_lost() {
    // Half of the generated flows are TCP, and the closure drops TCP packets as the rule `drop-rule:tcp`
    // requires. So half of the packets are dropped.
    let (verification, checker) =
        test_run("gen:100,flows=4,udp,tcp", "drop-rule:tcp").run(10, |_, packets, pool| {
            let dropped: Vec<_> = packets.extract_if(.., |packet| bytes(packet)[23] == 6).collect();
            // SAFETY: the packets are from this pool, and are not used again.
            unsafe { pool.free(&dropped) };
        });
    assert!(verification.passed(), "{verification:?}");
    assert_eq!((verification.checked, checker.dropped_as_expected()), (160, 160));
}

#[test]
fn packets_of_others_are_foreign() {
    let (verification, checker) = test_run("gen:64", "io").run(2, |burst, packets, pool| {
        if burst == 1 {
            let mut other = [Packet::EMPTY; 2];
            assert_eq!(pool.allocate(&mut other), 2);
            other[0].length = 42;
            bytes(&other[0]).fill(0);
            bytes(&other[0])[12..14].copy_from_slice(&[8, 6]);
            other[1].length = 0;
            packets.extend(other);
        }
    });
    // The ARP packet is foreign. The empty packet counts as altered, because it has no headers to show that
    // it is foreign.
    assert_eq!((checker.foreign(), verification.altered, verification.lost), (1, 1, 0));
}

#[test]
fn a_checker_without_generator_needs_its_options() {
    let clock = Clock::new();
    let reference = || reference::find("io").unwrap();
    let error = Checker::open("check", &clock, None, reference(), 0).err().unwrap().to_string();
    assert!(error.contains("check:64,flows=8"), "{error}");
    for text in ["check,foo=1", "check:64,foo=1"] {
        assert!(Checker::open(text, &clock, None, reference(), 0).is_err(), "{text}");
    }
    let mut generator = Generator::open("gen:64,flows=3", &clock).unwrap();
    let mut checker = Checker::open("check:64,flows=3", &clock, None, reference(), 0).unwrap();
    let pool: Arc<dyn Pool> = Arc::new(HeapPool::new(64, 2048).unwrap());
    generator.configure(std::slice::from_ref(&pool), 0).unwrap();
    checker.configure(&[], 2).unwrap();
    let (mut rx, mut tx) = (generator.take_rx(0).unwrap(), checker.take_tx(1, pool.clone()).unwrap());
    let mut packets = [Packet::EMPTY; 30];
    rx.receive(&mut packets).unwrap();
    // SAFETY: the packets are from this pool, and are not used again.
    unsafe { pool.free(&packets[..1]) };
    // SAFETY: the packets are from this queue's pool, and are not used again.
    unsafe { tx.send(&packets[1..]) }.unwrap();
    drop(tx);
    let verification = checker.verification().unwrap();
    assert_eq!((verification.checked, verification.lost), (29, 1));
    assert!(checker.latency().is_none());
    assert!(checker.take_tx(1, pool.clone()).is_err() && checker.take_rx(0).is_err());
    assert!(checker.configure(&[pool], 1).is_err());
}

/// A pool whose packets have two segments of equal length.
struct Halves(HeapPool);

// SAFETY: the inner pool allocates and frees.
unsafe impl Pool for Halves {
    fn allocate(&self, packets: &mut [Packet]) -> usize {
        self.0.allocate(packets)
    }
    unsafe fn free(&self, packets: &[Packet]) {
        // SAFETY: the packets are from this pool, and are not used again.
        unsafe { self.0.free(packets) };
    }
    fn room(&self) -> usize {
        self.0.room()
    }
    fn capacity(&self) -> usize {
        self.0.capacity()
    }
    fn outstanding(&self) -> usize {
        self.0.outstanding()
    }
    fn region(&self) -> &inlane_core::Region {
        self.0.region()
    }
    unsafe fn meta(&self, packet: &Packet) -> inlane_core::packet::PacketMeta {
        // SAFETY: the caller upholds the inner pool's safety contract.
        unsafe { self.0.meta(packet) }
    }
    unsafe fn set_meta(&self, packet: &Packet, meta: inlane_core::packet::PacketMeta) {
        // SAFETY: the caller upholds the inner pool's safety contract.
        unsafe { self.0.set_meta(packet, meta) };
    }
    unsafe fn for_each_segment(&self, packet: &Packet, visit: &mut dyn FnMut(u64, u32)) {
        visit(packet.address, packet.length);
        visit(packet.address + packet.length as u64, packet.length);
    }
}

#[test]
fn a_packet_of_several_segments_is_checked_as_one() {
    let clock = Clock::new();
    let mut generator = Generator::open("gen:1000", &clock).unwrap();
    let mut checker =
        Checker::open("check", &clock, Some(&generator), reference::find("io").unwrap(), 0).unwrap();
    let pool: Arc<dyn Pool> = Arc::new(Halves(HeapPool::new(64, 2048).unwrap()));
    generator.configure(std::slice::from_ref(&pool), 0).unwrap();
    checker.configure(&[], 1).unwrap();
    let (mut rx, mut tx) = (generator.take_rx(0).unwrap(), checker.take_tx(0, pool.clone()).unwrap());
    let mut packets = [Packet::EMPTY; 32];
    rx.receive(&mut packets).unwrap();
    packets.iter_mut().for_each(|packet| packet.length /= 2);
    // SAFETY: the packets are from this queue's pool, and are not used again.
    unsafe { tx.send(&packets) }.unwrap();
    assert_eq!(tx.counters().bytes, 32_000);
    drop(tx);
    assert!(checker.verification().unwrap().passed());
}

/// Sends packets of generator `text` to checkers 0 and 1 according to the verdicts of `function`. `work` may
/// change packets.
fn route(text: &str, function: &str, mut work: impl FnMut(&mut [u8])) -> [Verification; 2] {
    let clock = Clock::new();
    let mut generator = Generator::open(text, &clock).unwrap();
    let reference = reference::find(function).unwrap();
    let pool: Arc<dyn Pool> = Arc::new(HeapPool::new(64, 2048).unwrap());
    generator.configure(std::slice::from_ref(&pool), 0).unwrap();
    let mut rx = generator.take_rx(0).unwrap();
    let mut checkers = [0, 1].map(|number| {
        let reference = reference::find(function).unwrap();
        let mut checker = Checker::open("check", &clock, Some(&generator), reference, number).unwrap();
        checker.configure(&[], 1).unwrap();
        checker
    });
    let mut txs = checkers.each_mut().map(|checker| checker.take_tx(0, pool.clone()).unwrap());
    let mut packets = [Packet::EMPTY; 32];
    while let count @ 1.. = rx.receive(&mut packets).unwrap() {
        for packet in &packets[..count] {
            work(bytes(packet));
            let number = match reference.apply(&mut bytes(packet).to_vec()) {
                reference::ExpectedVerdict::Port(port) => port as usize,
                _ => 0,
            };
            // SAFETY: the packet was just received from this pool, and is not used again.
            unsafe { txs[number].send(&[*packet]) }.unwrap();
        }
    }
    drop(txs);
    assert_eq!(pool.outstanding(), 0);
    checkers.map(|checker| checker.verification().unwrap())
}

#[test]
fn each_checker_expects_the_packets_that_verdicts_send_to_it() {
    let found = route("gen:100,flows=4,udp,tcp,packets=640", "drop-rule:tcp@1", |_| {});
    for one in &found {
        assert!(one.passed(), "{found:?}");
        assert_eq!((one.expected, one.checked), (Some(320), 320));
    }
    let [first, second] = route("gen:100,flows=4,packets=640", "drop-rule:udp@1", |_| {});
    assert!(first.passed() && (first.expected, first.checked) == (Some(0), 0), "all go to port 1: {first:?}");
    assert!(second.passed() && second.checked == 640, "{second:?}");
}

#[test]
fn a_checker_behind_the_first_port_finds_corrupted_packets() {
    let mut count = 0;
    let [_, second] = route("gen:100,flows=4,packets=640", "drop-rule:udp@1", |bytes| {
        count += 1;
        // No verdict depends on the payload. So a packet with a changed payload still arrives at its port.
        bytes[60] ^= (count % 4 == 0) as u8;
    });
    assert_eq!((second.checked, second.altered, second.lost), (640, 160, 0));
}

#[test]
fn a_checker_that_receives_nothing_says_so() {
    let clock = Clock::new();
    let open = |text: &str, source: Option<&Generator>| {
        Checker::open(text, &clock, source, reference::find("io").unwrap(), 0).unwrap()
    };
    let alone = open("check:64", None).verification().unwrap();
    assert!(alone.received_nothing() && !alone.passed(), "{alone:?}");
    let TestRun { checker, .. } = test_run("gen:64", "io");
    let idle = checker.verification().unwrap();
    assert!(idle.received_nothing() && !idle.passed(), "the generator sent nothing: {idle:?}");
}

#[test]
fn without_a_reference_stamps_find_loss_and_duplicates_behind_any_headers() {
    let traffic = "gen:imix,flows=3";
    type Work<'a> = &'a mut dyn FnMut(usize, &mut Vec<Packet>, &dyn Pool);
    let counts = |work: Work<'_>| {
        let (found, _) = test_run_against(traffic, None).run(2, work);
        (found.checked, found.lost, found.duplicated, found.reordered, found.altered)
    };
    assert_eq!(counts(&mut |_, _, _| ()), (64, 0, 0, 0, 0));
    // Puts bytes in front of a packet.
    let push = |packet: &mut Packet, at: usize, new: &[u8]| {
        let length = packet.length as usize;
        packet.length += new.len() as u32;
        let bytes = bytes(packet);
        bytes.copy_within(at..length, at + new.len());
        bytes[at..at + new.len()].copy_from_slice(new);
    };
    // New bytes in front, another protocol, and changed headers are the function's business.
    let tunnel = &mut |_, packets: &mut Vec<Packet>, _: &dyn Pool| {
        packets.iter_mut().for_each(|packet| push(packet, 0, &[0x88; 50]));
    };
    assert_eq!(counts(tunnel), (64, 0, 0, 0, 0));
    let tag = &mut |_, packets: &mut Vec<Packet>, _: &dyn Pool| {
        packets.iter_mut().for_each(|packet| push(packet, 12, &[0x81, 0, 0, 42]));
        packets.iter().for_each(|packet| bytes(packet)[20] ^= 1);
    };
    assert_eq!(counts(tag), (64, 0, 0, 0, 0));
    let lose = &mut |_, packets: &mut Vec<Packet>, pool: &dyn Pool| {
        let lost = packets.remove(7);
        // SAFETY: the packet is from this pool, and is not used again.
        unsafe { pool.free(&[lost]) };
    };
    assert_eq!(counts(lose), (62, 2, 0, 0, 0));
    let damage = &mut |_, packets: &mut Vec<Packet>, _: &dyn Pool| {
        *bytes(&packets[9]).last_mut().unwrap() ^= 1;
    };
    assert_eq!(counts(damage), (64, 0, 0, 0, 2));
    let twice = &mut |_, packets: &mut Vec<Packet>, pool: &dyn Pool| {
        let mut copy = [Packet::EMPTY];
        assert_eq!(pool.allocate(&mut copy), 1);
        copy[0].length = packets[3].length;
        bytes(&copy[0]).copy_from_slice(bytes(&packets[3]));
        packets.push(copy[0]);
    };
    assert_eq!(counts(twice), (66, 0, 2, 0, 0));
}

#[test]
fn without_a_reference_the_generator_must_be_here() {
    let refused = Checker::open("check:64", &Clock::new(), None, None, 0).err().unwrap().to_string();
    assert!(refused.contains("the generator is in another process"), "{refused}");
}
