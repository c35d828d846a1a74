use super::*;
use crate::generate::Generator;
use inlane_core::HeapPool;

struct Bench {
    generator: Generator,
    checker: Checker,
    pool: Arc<dyn Pool>,
    rx: Box<dyn Rx>,
    tx: Box<dyn Tx>,
}

fn bench(text: &str, function: &str) -> Bench {
    let clock = Clock::new();
    let mut generator = Generator::open(text, &clock).unwrap();
    let mut checker =
        Checker::open("check", &clock, Some(&generator), reference::find(function).unwrap(), 0).unwrap();
    let pool: Arc<dyn Pool> = Arc::new(HeapPool::new(64, 2048).unwrap());
    generator.configure(std::slice::from_ref(&pool), 0).unwrap();
    checker.configure(&[], 1).unwrap();
    let rx = generator.take_rx(0).unwrap();
    let tx = checker.take_tx(0, pool.clone()).unwrap();
    Bench { generator, checker, pool, rx, tx }
}

impl Bench {
    /// Moves `bursts` of 32 through `work`, which may do to them what it likes.
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
            // SAFETY: these packets are held here and of this queue's pool; those sent are not used again.
            assert_eq!(unsafe { self.tx.send(&packets) }.unwrap(), packets.len());
        }
        drop(self.tx);
        assert_eq!(self.pool.outstanding(), 0);
        assert_eq!(self.generator.ledger().total(), bursts as u64 * 32);
        let verification = self.checker.verification().unwrap();
        (verification, self.checker)
    }
}

#[expect(clippy::mut_from_ref, reason = "the bytes are behind the address, not in the value")]
fn bytes(packet: &Packet) -> &mut [u8] {
    // SAFETY: the test holds the packet, in host memory.
    unsafe { packet.bytes_mut() }
}

#[test]
fn what_is_right_passes() {
    let texts = ["gen:60", "gen:64,flows=1", "gen:1500,tcp", "gen:imix,v4,v6,udp,tcp,flows=11,vlan=3"];
    for text in texts {
        for function in ["io", "macswap", "l3-decrement", "checksum", "drop-rule:udp:1"] {
            let reference = reference::find(function).unwrap();
            let (verification, checker) = bench(text, function).run(30, |_, packets, _| {
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
fn a_function_that_does_not_do_its_work_is_caught() {
    for function in ["macswap", "l3-decrement", "drop-rule:all"] {
        let (verification, _) = bench("gen:64", function).run(10, |_, _, _| {});
        assert_eq!((verification.altered, verification.lost), (320, 0), "{function}");
    }
}

#[test]
fn every_single_bit_counts() {
    for text in ["gen:60,flows=1", "gen:92,tcp,v6,flows=1"] {
        let size = if text.contains("60") { 60 } else { 92 };
        let mut bit = 0;
        let (verification, _) = bench(text, "io").run(size * 8 / 32, |_, packets, _| {
            for packet in packets {
                bytes(packet)[bit / 8] ^= 1 << (bit % 8);
                bit += 1;
            }
        });
        assert_eq!(verification.altered + verification.lost, size as u64 * 8, "{text} {verification:?}");
        // An ethertype or a version that is none makes a packet foreign; it is missed then.
        assert!(verification.lost <= 32, "{verification:?}");
    }
}

#[test]
fn losses_duplicates_and_order_are_counted() {
    let (verification, _) = bench("gen:100,flows=4", "io").run(10, |burst, packets, pool| match burst {
        2 => {
            // SAFETY: these packets are held here, are of this pool, and are not used again.
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
            // SAFETY: these packets are held here, are of this pool, and are not used again.
            unsafe { pool.free(&packets.split_off(30)) }
        }
        _ => {}
    });
    let expected = Verification {
        method: verification.method.clone(),
        checked: 314,
        lost: 7,
        duplicated: 1,
        reordered: 1,
        altered: 0,
    };
    assert_eq!(verification, expected);
}

#[test]
fn drops_by_rule_are_expected() {
    // Every second flow is TCP.
    let (verification, checker) =
        bench("gen:100,flows=4,udp,tcp", "drop-rule:tcp").run(10, |_, packets, pool| {
            let dropped: Vec<_> = packets.extract_if(.., |packet| bytes(packet)[23] == 6).collect();
            // SAFETY: these packets are held here, are of this pool, and are not used again.
            unsafe { pool.free(&dropped) };
        });
    assert!(verification.passed(), "{verification:?}");
    assert_eq!((verification.checked, checker.dropped_as_expected()), (160, 160));
}

#[test]
fn other_traffic_is_foreign() {
    let (verification, checker) = bench("gen:64", "io").run(2, |burst, packets, pool| {
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
    // No bytes at all say nothing, not even that they are another's.
    assert_eq!((checker.foreign(), verification.altered, verification.lost), (1, 1, 0));
}

#[test]
fn a_checker_alone_is_told_what_comes() {
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
    // SAFETY: these packets are held here, are of this pool, and are not used again.
    unsafe { pool.free(&packets[..1]) };
    // SAFETY: these packets are held here and of this queue's pool; those sent are not used again.
    unsafe { tx.send(&packets[1..]) }.unwrap();
    drop(tx);
    let verification = checker.verification().unwrap();
    assert_eq!((verification.checked, verification.lost), (29, 1));
    assert!(checker.latency().is_none());
    assert!(checker.take_tx(1, pool.clone()).is_err() && checker.take_rx(0).is_err());
    assert!(checker.configure(&[pool], 1).is_err());
}

/// A packet of several segments: the pool shows two halves of each.
struct Halves(HeapPool);

// SAFETY: the inner pool keeps the contract.
unsafe impl Pool for Halves {
    fn allocate(&self, packets: &mut [Packet]) -> usize {
        self.0.allocate(packets)
    }
    unsafe fn free(&self, packets: &[Packet]) {
        // SAFETY: these packets are held here, are of this pool, and are not used again.
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
        // SAFETY: the caller's promise.
        unsafe { self.0.meta(packet) }
    }
    unsafe fn set_meta(&self, packet: &Packet, meta: inlane_core::packet::PacketMeta) {
        // SAFETY: the caller's promise.
        unsafe { self.0.set_meta(packet, meta) };
    }
    unsafe fn for_each_segment(&self, packet: &Packet, visit: &mut dyn FnMut(u64, u32)) {
        visit(packet.address, packet.length);
        visit(packet.address + packet.length as u64, packet.length);
    }
}

#[test]
fn segments_are_one_packet() {
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
    // SAFETY: these packets are held here and of this queue's pool; those sent are not used again.
    unsafe { tx.send(&packets) }.unwrap();
    assert_eq!(tx.counters().bytes, 32_000);
    drop(tx);
    assert!(checker.verification().unwrap().passed());
}
