use super::capture::Capture;
use super::fault::Faults;
use super::pace::{PaceFollower, PacedRx};
use crate::check::{Checker, captures, reference};
use crate::generate::Generator;
use crate::pcap::{CaptureSink, CaptureSource, Playback, TimestampSource};
use crate::spec::PortSpec;
use inlane_core::clock::Clock;
use inlane_core::load::{Pace, Pacer};
use inlane_core::port::Counters;
use inlane_core::units::Rate;
use inlane_core::verification::Verification;
use inlane_core::{Error, HeapPool, Packet, Pool, Port, Result, Rx, Tx};
use std::sync::Arc;

struct TestRun {
    clock: Clock,
    checker: Checker,
    pool: Arc<dyn Pool>,
    rx: Box<dyn Rx>,
    tx: Box<dyn Tx>,
}

fn test_run(text: &str) -> TestRun {
    let clock = Clock::new();
    let mut generator = Generator::open(text, &clock).unwrap();
    let mut checker =
        Checker::open("check", &clock, Some(&generator), reference::find("io").unwrap(), 0).unwrap();
    let pool: Arc<dyn Pool> = Arc::new(HeapPool::new(1024, 2048).unwrap());
    generator.configure(std::slice::from_ref(&pool), 0).unwrap();
    checker.configure(&[], 1).unwrap();
    let rx = generator.take_rx(0).unwrap();
    let tx = checker.take_tx(0, pool.clone()).unwrap();
    TestRun { clock, checker, pool, rx, tx }
}

fn forward(rx: &mut dyn Rx, tx: &mut dyn Tx) -> Result<()> {
    let mut packets = [Packet::EMPTY; 32];
    loop {
        let count = rx.receive(&mut packets)?;
        let mut sent = 0;
        while sent < count {
            // SAFETY: the packets are from this queue's pool. Sent packets are not used again.
            sent += unsafe { tx.send(&packets[sent..count]) }?;
        }
        if count == 0 {
            tx.flush()?;
            if rx.exhausted() {
                return Ok(());
            }
        }
    }
}

const TEXT: &str = "gen:64,flows=1,packets=20000";
const FAULTS: &str = "drop=1%,duplicate=2%,reorder=3%:2,corrupt=0.5%,delay=0.1%:50us,seed=7";

fn compare(checker: &Checker, injected: [u64; 5]) {
    let (found, foreign): (Verification, u64) = (checker.verification().unwrap(), checker.foreign());
    let [dropped, duplicated, reordered, corrupted, delayed] = injected;
    assert!(injected.iter().all(|&count| count > 0), "{injected:?}");
    // A flipped bit can make a packet foreign. The checker then counts the original packet as lost. So it may
    // report up to `foreign` more lost packets than were dropped.
    assert!((dropped..=dropped + foreign).contains(&found.lost), "{injected:?} {found:?}");
    // The checker may report up to 10 more altered packets than were corrupted. It also counts copies of
    // corrupted packets. It may also mistake a packet with a flipped sequence number for another packet.
    assert!(
        found.altered + foreign >= corrupted && found.altered <= corrupted + 10,
        "{injected:?} {found:?}"
    );
    assert!(found.duplicated <= duplicated && found.duplicated + 10 >= duplicated, "{injected:?} {found:?}");
    // A held packet counts as reordered only if a later packet overtakes it. If the later packets are dropped
    // or held, too, none overtakes it. So the count may lack up to a fifth of the held packets.
    let late = reordered + delayed;
    assert!(found.reordered <= late && found.reordered * 10 > late * 8, "{injected:?} {found:?}");
}

#[test]
fn a_checker_finds_the_injected_faults() {
    let TestRun { clock, checker, pool, rx, mut tx } = test_run(TEXT);
    let mut faulty = Faults::parse(FAULTS).unwrap().rx(rx, &pool, &clock).unwrap();
    let injected = faulty.fault_counts();
    forward(&mut faulty, &mut *tx).unwrap();
    assert_eq!(faulty.counters().missed, injected.read()[0]);
    drop(tx);
    compare(&checker, injected.read());
    assert_eq!(pool.outstanding(), 0);

    let TestRun { clock, pool, rx, mut tx, .. } = test_run(TEXT);
    let mut again = Faults::parse(FAULTS).unwrap().rx(rx, &pool, &clock).unwrap();
    forward(&mut again, &mut *tx).unwrap();
    assert_eq!(injected.read(), again.fault_counts().read(), "the seed determines the faults");
}

#[test]
fn packets_held_at_the_end_count_as_dropped() {
    let TestRun { clock, pool, rx, .. } = test_run("gen:64,packets=100");
    let mut faulty = Faults::parse("delay=100%:1h").unwrap().rx(rx, &pool, &clock).unwrap();
    let injected = faulty.fault_counts();
    let mut packets = [Packet::EMPTY; 100];
    assert_eq!(faulty.receive(&mut packets).unwrap(), 0);
    assert_eq!(injected.read(), [0, 0, 0, 0, 100]);
    drop(faulty);
    assert_eq!((injected.read()[0], pool.outstanding()), (100, 0));
}

#[test]
fn packets_are_dropped_in_runs() {
    let TestRun { clock, pool, rx, .. } = test_run("gen:64,packets=10000");
    let mut faulty = Faults::parse("drop=1%:8,seed=5").unwrap().rx(rx, &pool, &clock).unwrap();
    let mut packets = [Packet::EMPTY; 64];
    loop {
        match faulty.receive(&mut packets).unwrap() {
            0 => break,
            // SAFETY: the packets are of this pool and are not used again.
            count => unsafe { pool.free(&packets[..count]) },
        }
    }
    let dropped = faulty.fault_counts().read()[0];
    // About 93 of the 10,000 packets begin a run of 8 dropped packets, about 750 in all. The lower limit is
    // far below, because a run is shorter if the thread is preempted for 10 ms.
    assert!((100..1100).contains(&dropped), "{dropped}");
}

#[test]
fn fault_specifications_are_parsed() {
    assert!(Faults::parse("").unwrap().are_none() && Faults::parse("seed=5,delay=0%:1s").unwrap().are_none());
    assert!(!Faults::parse("corrupt=0.1%").unwrap().are_none());
    let faults = Faults::parse("drop=1%,delay=0.5:2ms,seed=9").unwrap();
    assert_eq!((faults.drop, faults.delay, faults.delay_ns, faults.seed), (0.01, 0.5, 2_000_000, 9));
    assert_eq!(Faults::parse("").unwrap().drop, 0.0);
    let without_probability = Faults::parse("delay=50us").unwrap_err().to_string();
    assert!(without_probability.ends_with("the probability is missing; give delay=5%:50us"));
    for bad in [
        "drop",
        "drop=2",
        "drop=-1%",
        "drop=x",
        "drop=1%:0",
        "corrupt=1%:3",
        "loss=1%",
        "reorder=1%:0",
        "delay=1%:5",
        "seed=x",
    ] {
        assert!(Faults::parse(bad).unwrap_err().to_string().contains(bad), "{bad}");
    }
}

#[test]
fn a_paced_queue_is_no_faster_than_its_rate() {
    let TestRun { clock, rx, mut tx, .. } = test_run("gen:64,packets=2000");
    let start = clock.now_ns();
    forward(&mut PacedRx::new(rx, Rate::Packets(100e3), 1.0, &clock), &mut *tx).unwrap();
    let took = clock.now_ns() - start;
    assert!(took >= 19_900_000, "2000 packets at 100 kpps take 20 ms: {took} ns");
    let TestRun { clock, rx, mut tx, .. } = test_run("gen:1000,packets=1000");
    let start = clock.now_ns();
    forward(&mut PacedRx::new(rx, Rate::Bits(800e6), 0.5, &clock), &mut *tx).unwrap();
    let took = clock.now_ns() - start;
    assert!(took >= 19_500_000, "8 Mb at half of 800 Mb/s take 20 ms: {took} ns");
}

#[test]
fn a_fast_pace_gives_full_bursts_and_a_slow_one_single_packets() {
    for (per_second, expected) in [(20e6, 16), (1e3, 1)] {
        let TestRun { clock, rx, mut tx, .. } = test_run("gen:64,packets=20000");
        let pacer = Pacer::new(Arc::new(Pace::new(per_second)), 1.0);
        let mut rx = PaceFollower::new(rx, pacer, &clock);
        let mut packets = [Packet::EMPTY; 16];
        let mut bursts = Vec::new();
        while bursts.len() < 20 {
            let count = rx.receive(&mut packets).unwrap();
            if count > 0 {
                // SAFETY: the packets were received from a queue of the same pool.
                unsafe { tx.send(&packets[..count]) }.unwrap();
                bursts.push(count);
            }
        }
        // A busy machine makes bursts larger.
        assert!(bursts.iter().all(|count| *count >= expected), "{per_second}: {bursts:?}");
        assert!(bursts.contains(&expected), "{per_second}: {bursts:?}");
    }
}

#[test]
fn a_capture_holds_the_packets_that_were_sent() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let text = |name: &str| format!("pcap:{}", at(name).display());
    // Write generated packets to the capture `made`. The timestamps in it are the times of sending.
    let TestRun { pool, mut rx, .. } = test_run("gen:imix,packets=3000");
    let mut sink = CaptureSink::open(&text("made"), None).unwrap();
    sink.configure(&[], 1).unwrap();
    let mut tx = sink.take_tx(0, pool.clone()).unwrap();
    forward(&mut *rx, &mut *tx).unwrap();
    drop(tx);
    // Play `made` through a capturing wrapper into a sink. Both captures must equal `made`.
    let mut source = CaptureSource::open(&text("made"), Playback::default()).unwrap();
    source.configure(std::slice::from_ref(&pool), 0).unwrap();
    let mut sink = CaptureSink::open(&text("sent"), Some(&source)).unwrap();
    sink.configure(&[], 1).unwrap();
    let passed = Capture::open(&at("passed"), TimestampSource::Metadata, &[]).unwrap();
    let mut rx = source.take_rx(0).unwrap();
    let partial = Box::new(PartialTx(sink.take_tx(0, pool.clone()).unwrap(), 0));
    let mut tx = passed.tx(partial, &pool).unwrap();
    forward(&mut *rx, &mut *tx).unwrap();
    drop((rx, tx, passed));
    for name in ["sent", "passed"] {
        let found = captures::compare(&at("made"), &at(name), &*reference::find("io").unwrap()).unwrap();
        assert!(found.passed() && found.checked == 3000, "{name}: {found:?}");
    }
    assert_eq!(pool.outstanding(), 0);
}

/// A transmit queue that accepts only some packets of most bursts.
struct PartialTx(Box<dyn Tx>, usize);

// SAFETY: the inner queue sends a prefix of the packets, and its count is returned.
unsafe impl Tx for PartialTx {
    unsafe fn send(&mut self, packets: &[Packet]) -> Result<usize> {
        self.1 += 7;
        match self.1 % 5 {
            0 => Ok(0),
            // SAFETY: the caller upholds the inner queue's safety contract.
            part => unsafe { self.0.send(&packets[..packets.len().min(part)]) },
        }
    }

    fn flush(&mut self) -> Result<()> {
        self.0.flush()
    }

    fn counters(&self) -> Counters {
        self.0.counters()
    }
}

#[test]
fn a_capture_that_cannot_be_created_is_named() {
    let error: Error = Capture::open("/nowhere/x".as_ref(), TimestampSource::SendTime, &[]).err().unwrap();
    assert!(error.to_string().contains("/nowhere/x"));
}

#[test]
fn a_capture_over_a_file_of_the_run_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("in"), "precious").unwrap();
    std::fs::hard_link(at("in"), at("hard")).unwrap();
    std::os::unix::fs::symlink(at("in"), at("soft")).unwrap();
    let ports = [format!("pcap:{}", at("in").display()), "null".into()]
        .map(|text: String| PortSpec::parse(&text).unwrap());
    for name in ["in", "hard", "soft"] {
        let error = Capture::open(&at(name), TimestampSource::Metadata, &ports).err().unwrap();
        assert!(error.to_string().contains("uses the same file"), "{error}");
    }
    drop(Capture::open(&at("other"), TimestampSource::Metadata, &ports).unwrap());
    assert!(!at("other").exists(), "a run that never began leaves no file");
    assert_eq!(std::fs::read(at("in")).unwrap(), b"precious");
}
