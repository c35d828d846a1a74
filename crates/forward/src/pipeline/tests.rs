//! Pipelines between ports in memory: everything is accounted for, whatever the ports do.

use super::*;
use crate::control::Progress;
use inlane_core::{Error as CoreError, HeapPool, Packet};
use inlane_function::PacketFunction;
use proptest::prelude::*;
use std::sync::Mutex;

/// Makes `left` packets numbered in their first bytes, in odd helpings; may fail or panic at the end.
struct Source {
    pool: Arc<dyn Pool>,
    left: u64,
    next: u64,
    counters: Counters,
    end: End,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Exhausted,
    Error,
    Panic,
}

// SAFETY: the packets are just allocated, and shorter than the data room.
unsafe impl Rx for Source {
    fn receive(&mut self, packets: &mut [Packet]) -> inlane_core::Result<usize> {
        if self.left == 0 {
            match self.end {
                End::Exhausted => return Ok(0),
                End::Error => return Err(CoreError::port_failed("source", "unplugged")),
                End::Panic => panic!("as a defect would"),
            }
        }
        let want = packets.len().min(self.left as usize).min(1 + (self.next % 7) as usize);
        let got = self.pool.allocate(&mut packets[..want]);
        for packet in &mut packets[..got] {
            packet.length = 60 + (self.next % 100) as u32;
            // SAFETY: just taken from a pool in host memory.
            let bytes = unsafe { packet.bytes_mut() };
            bytes.fill(0);
            bytes[20..28].copy_from_slice(&self.next.to_le_bytes());
            bytes[..12].copy_from_slice(b"DSTMACSRCMAC");
            self.next += 1;
            self.counters.packets += 1;
            self.counters.bytes += packet.length as u64;
        }
        self.left -= got as u64;
        Ok(got)
    }

    fn exhausted(&self) -> bool {
        self.left == 0 && self.end == End::Exhausted
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

/// Takes at most `most` packets of a call, sometimes none; fails or panics after `fail_after`.
struct Sink {
    pool: Arc<dyn Pool>,
    seen: Arc<Mutex<Vec<u64>>>,
    most: usize,
    calls: u64,
    fail_after: Option<(u64, End)>,
    counters: Counters,
}

// SAFETY: it frees exactly the packets that it returns as sent.
unsafe impl Tx for Sink {
    unsafe fn send(&mut self, packets: &[Packet]) -> inlane_core::Result<usize> {
        self.calls += 1;
        if let Some((after, how)) = self.fail_after
            && self.calls > after
        {
            assert_ne!(how, End::Panic, "as a defect would");
            return Err(CoreError::port_failed("sink", "unplugged"));
        }
        let count = if self.calls.is_multiple_of(3) { 0 } else { packets.len().min(self.most) };
        let mut seen = self.seen.lock().unwrap();
        for packet in &packets[..count] {
            // SAFETY: handed over to this port; host memory.
            let bytes = unsafe { packet.bytes() };
            assert_eq!(&bytes[..12], b"SRCMACDSTMAC", "processed");
            seen.push(u64::from_le_bytes(bytes[20..28].try_into().unwrap()));
            self.counters.packets += 1;
            self.counters.bytes += packet.length as u64;
        }
        // SAFETY: these packets are held here, are of this pool, and are not used again.
        unsafe { self.pool.free(&packets[..count]) };
        Ok(count)
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

struct Case {
    packets: u64,
    workers: Option<usize>,
    overload: Overload,
    end: End,
    sink_fails: Option<(u64, End)>,
    most: usize,
    work: Duration,
    abort_after: Option<Duration>,
}

impl Default for Case {
    fn default() -> Self {
        Case {
            packets: 1000,
            workers: None,
            overload: Overload::Wait,
            end: End::Exhausted,
            sink_fails: None,
            most: 5,
            work: Duration::ZERO,
            abort_after: None,
        }
    }
}

/// Runs a case, checks that every packet is accounted for, and returns the tally and what the sink saw.
fn run_case(case: &Case) -> (Tally, Vec<u64>) {
    let pool: Arc<dyn Pool> = Arc::new(HeapPool::new(256, 256).unwrap());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let counters = Counters::default();
    let function = PacketFunction::parse("macswap").unwrap();
    let pipeline = Pipeline {
        rx: Box::new(Source { pool: pool.clone(), left: case.packets, next: 0, counters, end: case.end }),
        txs: vec![Box::new(Sink {
            pool: pool.clone(),
            seen: seen.clone(),
            most: case.most,
            calls: 0,
            fail_after: case.sink_fails,
            counters,
        })],
        pool: pool.clone(),
        instances: (0..case.workers.unwrap_or(1)).map(|_| function.instance().unwrap()).collect(),
    };
    let Case { overload, work, .. } = *case;
    let drive =
        PipelineSettings { burst: 8, slots: 4, overload, work, stages: true, ..PipelineSettings::default() };
    let (control, progress, clock) = (Control::default(), Progress::default(), Clock::new());
    let shared =
        PipelineContext { control: &control, progress: &progress, clock: &clock, index: 0, cores: &[] };
    let tally = std::thread::scope(|scope| {
        if let Some(after) = case.abort_after {
            let control = &control;
            scope.spawn(move || {
                std::thread::sleep(after);
                control.abort();
            });
        }
        match case.workers {
            None => run_single(pipeline, &drive, &shared),
            Some(_) => run_split(pipeline, &drive, &shared).unwrap(),
        }
    });
    assert_eq!(pool.outstanding(), 0, "no buffer is lost");
    let seen = Arc::try_unwrap(seen).unwrap().into_inner().unwrap();
    let mut ordered = seen.clone();
    ordered.sort_unstable();
    ordered.dedup();
    assert_eq!(ordered, seen, "in order, none twice");
    (tally, seen)
}

fn accounted(tally: &Tally) -> u64 {
    tally.tx.packets
        + tally.dropped_overload
        + tally.dropped_verdict
        + tally.dropped_invalid
        + tally.dropped_unsent
}

const ALL: [Option<usize>; 3] = [None, Some(1), Some(3)];

#[test]
fn everything_arrives() {
    for workers in ALL {
        let (tally, seen) = run_case(&Case { workers, ..Case::default() });
        assert_eq!(seen, (0..1000).collect::<Vec<_>>(), "{workers:?}");
        assert!(tally.errors.is_empty());
        assert_eq!((tally.rx.packets, tally.tx.packets), (1000, 1000));
        assert_eq!(tally.stages.total.count(), 1000);
    }
}

#[test]
fn a_source_that_fails_loses_nothing_that_came_before() {
    for workers in ALL {
        let (tally, seen) = run_case(&Case { workers, end: End::Error, ..Case::default() });
        assert_eq!(seen.len(), 1000);
        assert!(tally.errors[0].to_string().contains("unplugged"), "{:?}", tally.errors);
    }
}

#[test]
fn a_sink_that_fails_ends_the_run_with_all_counted() {
    for workers in ALL {
        let sink_fails = Some((20, End::Error));
        let (tally, seen) = run_case(&Case { workers, sink_fails, ..Case::default() });
        assert!(seen.len() < 1000);
        assert_eq!(accounted(&tally), tally.rx.packets, "{workers:?}");
        assert!(tally.errors.iter().any(|error| error.to_string().contains("unplugged")));
    }
}

#[test]
fn panics_end_the_run_in_order() {
    for workers in ALL {
        for (end, sink_fails) in [(End::Panic, None), (End::Exhausted, Some((20, End::Panic)))] {
            let (tally, _) = run_case(&Case { workers, end, sink_fails, packets: 5000, ..Case::default() });
            let text = tally.errors.iter().map(ToString::to_string).collect::<String>();
            assert!(text.contains("panicked") && text.contains("as a defect would"), "{text}");
        }
    }
}

#[test]
fn what_is_with_workers_when_a_run_breaks_is_counted_and_comes_back() {
    for workers in [1, 3] {
        let (work, abort_after) = (Duration::from_millis(2), Some(Duration::from_millis(40)));
        let (tally, seen) = run_case(&Case {
            workers: Some(workers),
            work,
            abort_after,
            packets: 100_000,
            ..Case::default()
        });
        assert!(tally.dropped_unsent > 0, "items were out");
        assert_eq!(accounted(&tally), tally.rx.packets);
        assert!(seen.len() < 100_000);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..Default::default() })]

    #[test]
    fn every_packet_is_sent_or_counted(
        packets in 0u64..3000,
        workers in prop_oneof![Just(None), (1usize..4).prop_map(Some)],
        overload in prop_oneof![Just(Overload::Wait), Just(Overload::Drop), Just(Overload::Shrink)],
        most in 1usize..12,
    ) {
        let (tally, seen) = run_case(&Case { packets, workers, overload, most, ..Case::default() });
        prop_assert_eq!(tally.rx.packets, packets);
        prop_assert_eq!(accounted(&tally), packets);
        prop_assert_eq!(seen.len() as u64, tally.tx.packets);
        if overload != Overload::Drop {
            prop_assert_eq!(tally.tx.packets, packets);
        }
    }
}
