use super::capture::Capture;
use super::fault::Faults;
use super::pace::PacedRx;
use crate::check::{Checker, captures, reference};
use crate::generate::Generator;
use crate::pcap::{Playback, Sink, Source, Stamps};
use inlane_core::clock::Clock;
use inlane_core::port::Counters;
use inlane_core::result::Verification;
use inlane_core::units::Rate;
use inlane_core::{Error, HeapPool, Packet, Pool, Port, Result, Rx, Tx};
use std::sync::Arc;

struct Bench {
    clock: Clock,
    checker: Checker,
    pool: Arc<dyn Pool>,
    rx: Box<dyn Rx>,
    tx: Box<dyn Tx>,
}

fn bench(text: &str) -> Bench {
    let clock = Clock::new();
    let mut generator = Generator::open(text, &clock).unwrap();
    let mut checker =
        Checker::open("check", &clock, Some(&generator), reference::find("io").unwrap()).unwrap();
    let pool: Arc<dyn Pool> = Arc::new(HeapPool::new(1024, 2048).unwrap());
    generator.configure(std::slice::from_ref(&pool), 0).unwrap();
    checker.configure(&[], 1).unwrap();
    let rx = generator.take_rx(0).unwrap();
    let tx = checker.take_tx(0, pool.clone()).unwrap();
    Bench { clock, checker, pool, rx, tx }
}

/// Moves packets until the source is exhausted, as a pipeline does.
fn forward(rx: &mut dyn Rx, tx: &mut dyn Tx) -> Result<()> {
    let mut packets = [Packet::EMPTY; 32];
    loop {
        let count = rx.receive(&mut packets)?;
        let mut sent = 0;
        while sent < count {
            // SAFETY: these packets are held here and of this queue's pool; those sent are not used again.
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

fn compare(checker: &Checker, done: [u64; 5], wanted: &str) {
    let (found, foreign): (Verification, u64) = (checker.verification().unwrap(), checker.foreign());
    let [dropped, duplicated, reordered, corrupted, delayed] = done;
    assert!(done.iter().all(|&count| count > 0), "{done:?}");
    // A flipped bit can make a packet look like another's; then it is missing.
    assert!((dropped..=dropped + foreign).contains(&found.lost), "{wanted} {done:?} {found:?}");
    // A copy of a corrupted packet is a second corrupted packet; a packet with a flipped number may be taken for another.
    assert!(found.altered + foreign >= corrupted && found.altered <= corrupted + 10, "{done:?} {found:?}");
    assert!(found.duplicated <= duplicated && found.duplicated + 10 >= duplicated, "{done:?} {found:?}");
    // One that is held may be overtaken by none that counts, when its followers are dropped or held too.
    let late = reordered + delayed;
    assert!(found.reordered <= late && found.reordered * 10 > late * 8, "{done:?} {found:?}");
}

#[test]
fn a_checker_finds_what_a_faulty_queue_did() {
    let Bench { clock, checker, pool, rx, mut tx } = bench(TEXT);
    let mut faulty = Faults::parse(FAULTS).unwrap().rx(rx, &pool, &clock).unwrap();
    let done = faulty.done();
    forward(&mut faulty, &mut *tx).unwrap();
    assert_eq!(faulty.counters().missed, done.counts()[0]);
    drop(tx);
    compare(&checker, done.counts(), "rx");
    assert_eq!(pool.outstanding(), 0);

    let Bench { clock, checker, pool, mut rx, tx } = bench(TEXT);
    let mut faulty = Faults::parse(FAULTS).unwrap().tx(tx, &pool, &clock).unwrap();
    let again = faulty.done();
    forward(&mut *rx, &mut faulty).unwrap();
    // What is delayed is still on the wire.
    std::thread::sleep(std::time::Duration::from_millis(1));
    faulty.flush().unwrap();
    drop(faulty);
    compare(&checker, again.counts(), "tx");
    assert_eq!(pool.outstanding(), 0);
    assert_eq!(done.counts(), again.counts(), "the seed decides");
}

#[test]
fn what_is_on_the_wire_when_it_is_cut_is_counted() {
    let Bench { clock, pool, mut rx, tx, .. } = bench("gen:64,packets=100");
    let mut faulty = Faults::parse("delay=100%:1h").unwrap().tx(tx, &pool, &clock).unwrap();
    let done = faulty.done();
    forward(&mut *rx, &mut faulty).unwrap();
    assert_eq!(done.counts(), [0, 0, 0, 0, 100]);
    drop(faulty);
    assert_eq!((done.counts()[0], pool.outstanding()), (100, 0));
}

#[test]
fn faults_are_read() {
    let faults = Faults::parse("drop=1%,delay=0.5:2ms,seed=9").unwrap();
    assert_eq!((faults.drop, faults.delay, faults.delay_ns, faults.seed), (0.01, 0.5, 2_000_000, 9));
    assert_eq!(Faults::parse("").unwrap().drop, 0.0);
    for bad in [
        "drop",
        "drop=2",
        "drop=-1%",
        "drop=x",
        "drop=1%:3",
        "loss=1%",
        "reorder=1%:0",
        "delay=1%:5",
        "seed=x",
    ] {
        assert!(Faults::parse(bad).unwrap_err().to_string().contains(bad), "{bad}");
    }
}

#[test]
fn a_rate_slows_a_queue() {
    let Bench { clock, rx, mut tx, .. } = bench("gen:64,packets=2000");
    let start = clock.now_ns();
    forward(&mut PacedRx::new(rx, Rate::Packets(100e3), 1.0, &clock), &mut *tx).unwrap();
    let took = clock.now_ns() - start;
    assert!(took >= 19_900_000, "2000 packets at 100 kpps take 20 ms: {took} ns");
    let Bench { clock, rx, mut tx, .. } = bench("gen:1000,packets=1000");
    let start = clock.now_ns();
    forward(&mut PacedRx::new(rx, Rate::Bits(800e6), 0.5, &clock), &mut *tx).unwrap();
    let took = clock.now_ns() - start;
    assert!(took >= 19_500_000, "8 Mb at half of 800 Mb/s take 20 ms: {took} ns");
}

#[test]
fn what_goes_through_is_captured() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let text = |name: &str| format!("pcap:{}", at(name).display());
    // A capture to begin with: generated, stamped when sent.
    let Bench { pool, mut rx, .. } = bench("gen:imix,packets=3000");
    let mut sink = Sink::create(&text("made"), None).unwrap();
    sink.configure(&[], 1).unwrap();
    let mut tx = sink.take_tx(0, pool.clone()).unwrap();
    forward(&mut *rx, &mut *tx).unwrap();
    drop(tx);
    // Played, received and sent: three captures alike.
    let mut source = Source::open(&text("made"), Playback::default()).unwrap();
    source.configure(std::slice::from_ref(&pool), 0).unwrap();
    let mut sink = Sink::create(&text("sent"), Some(&source)).unwrap();
    sink.configure(&[], 1).unwrap();
    let received = Capture::create(&at("received"), Stamps::Noted).unwrap();
    let passed = Capture::create(&at("passed"), Stamps::Noted).unwrap();
    let mut rx = received.rx(source.take_rx(0).unwrap(), &pool).unwrap();
    let picky = Box::new(Picky(sink.take_tx(0, pool.clone()).unwrap(), 0));
    let mut tx = passed.tx(picky, &pool).unwrap();
    forward(&mut *rx, &mut *tx).unwrap();
    drop((rx, tx, received, passed));
    for name in ["sent", "received", "passed"] {
        let found = captures::compare(&at("made"), &at(name), &*reference::find("io").unwrap()).unwrap();
        assert!(found.passed() && found.checked == 3000, "{name}: {found:?}");
    }
    assert_eq!(pool.outstanding(), 0);
}

/// Takes a part of what it is given.
struct Picky(Box<dyn Tx>, usize);

// SAFETY: the inner port keeps the contract, and gets a prefix of the packets.
unsafe impl Tx for Picky {
    unsafe fn send(&mut self, packets: &[Packet]) -> Result<usize> {
        self.1 += 7;
        match self.1 % 5 {
            0 => Ok(0),
            // SAFETY: the caller's promise.
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
fn a_capture_that_cannot_be_made_is_named() {
    let error: Error = Capture::create("/nowhere/x".as_ref(), Stamps::Sent).err().unwrap();
    assert!(error.to_string().contains("/nowhere/x"));
}
