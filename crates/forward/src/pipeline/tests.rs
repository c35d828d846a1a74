//! Tests of pipelines between ports in memory. Every packet must be sent or counted as dropped, even if a
//! port fails, panics or is full.

use super::burst_buffer::BurstBuffer;
use super::tx_stage::TxStage;
use super::*;
use inlane_core::load::Meter;
use inlane_core::{Error as CoreError, HeapPool, Packet};
use inlane_function::PacketFunction;
use proptest::prelude::*;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// A port that generates `left` packets, 1 to 7 per call. Each has its number in the payload.
struct Source {
    pool: Arc<dyn Pool>,
    left: u64,
    next: u64,
    counters: Counters,
    /// The number of packets generated so far. The test reads this number on another thread.
    given: Arc<AtomicU64>,
    end: End,
}

/// What [`Source`] does when it has no packets left.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Exhausted,
    /// The port returns no packets and does not report that it is exhausted.
    Silent,
    Error,
    Panic,
}

// SAFETY: the packets were just allocated, and are shorter than the data room.
unsafe impl Rx for Source {
    fn receive(&mut self, packets: &mut [Packet]) -> inlane_core::Result<usize> {
        if self.left == 0 {
            match self.end {
                End::Exhausted | End::Silent => return Ok(0),
                End::Error => return Err(CoreError::port_failed("source", "unplugged")),
                End::Panic => panic!("a defect of the port"),
            }
        }
        let want = packets.len().min(self.left as usize).min(1 + (self.next % 7) as usize);
        let got = self.pool.allocate(&mut packets[..want]);
        for packet in &mut packets[..got] {
            packet.length = 60 + (self.next % 100) as u32;
            // SAFETY: this thread has just allocated the packet, in host memory.
            let bytes = unsafe { packet.bytes_mut() };
            bytes.fill(0);
            bytes[20..28].copy_from_slice(&self.next.to_le_bytes());
            bytes[..12].copy_from_slice(b"DSTMACSRCMAC");
            self.next += 1;
            self.counters.packets += 1;
            self.counters.bytes += packet.length as u64;
        }
        self.given.fetch_add(got as u64, Ordering::Relaxed);
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

/// A port that accepts at most `most` packets per call, and none in every third call. Fails or panics after
/// the `fail_after`-th call.
struct Sink {
    pool: Arc<dyn Pool>,
    seen: Arc<Mutex<Vec<u64>>>,
    most: usize,
    calls: u64,
    fail_after: Option<(u64, End)>,
    counters: Counters,
}

// SAFETY: the sink frees exactly the packets that it counts as sent.
unsafe impl Tx for Sink {
    unsafe fn send(&mut self, packets: &[Packet]) -> inlane_core::Result<usize> {
        self.calls += 1;
        if let Some((after, how)) = self.fail_after
            && self.calls > after
        {
            assert_ne!(how, End::Panic, "a defect of the port");
            return Err(CoreError::port_failed("sink", "unplugged"));
        }
        let count = if self.calls.is_multiple_of(3) { 0 } else { packets.len().min(self.most) };
        let mut seen = self.seen.lock().unwrap();
        for packet in &packets[..count] {
            // SAFETY: the packet was handed to this port and lies in host memory.
            let bytes = unsafe { packet.bytes() };
            assert_eq!(&bytes[..12], b"SRCMACDSTMAC", "macswap has run");
            seen.push(u64::from_le_bytes(bytes[20..28].try_into().unwrap()));
            self.counters.packets += 1;
            self.counters.bytes += packet.length as u64;
        }
        // SAFETY: the caller gave the packets to this port. They are of this pool, and are not used again.
        unsafe { self.pool.free(&packets[..count]) };
        Ok(count)
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

struct Case {
    packets: u64,
    /// The number of workers for method split; `None` for method single.
    workers: Option<usize>,
    overload: Overload,
    flush: Duration,
    end: End,
    sink_fails: Option<(u64, End)>,
    most: usize,
    work: Duration,
    abort_after: Option<u64>,
}

impl Default for Case {
    fn default() -> Self {
        Case {
            packets: 1000,
            workers: None,
            overload: Overload::Wait,
            flush: Duration::ZERO,
            end: End::Exhausted,
            sink_fails: None,
            most: 5,
            work: Duration::ZERO,
            abort_after: None,
        }
    }
}

/// Runs a pipeline. Checks that no buffer is lost, and that packets arrive once and in order. Returns the
/// tally of the pipeline, and the numbers of the packets that the sink accepted.
fn run_case(case: &Case) -> (Tally, Vec<u64>) {
    let pool: Arc<dyn Pool> = Arc::new(HeapPool::new(256, 256).unwrap());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (counters, given) = (Counters::default(), Arc::<AtomicU64>::default());
    let function = PacketFunction::parse("macswap").unwrap();
    let pipeline = Pipeline {
        rx: Box::new(Source {
            pool: pool.clone(),
            left: case.packets,
            next: 0,
            counters,
            given: given.clone(),
            end: case.end,
        }),
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
    let Case { overload, work, flush, .. } = *case;
    let settings = PipelineSettings { burst: 8, slots: 4, overload, work, flush, ..Default::default() };
    let settings = PipelineSettings { stages: true, ..settings };
    let (control, clock, meters) = (Control::default(), Clock::new(), [Arc::new(Meter::default())]);
    let context = PipelineContext::new(&control, &meters, &clock, 0, &[]);
    let tally = std::thread::scope(|scope| {
        if let Some(after) = case.abort_after {
            let (control, given) = (&control, &given);
            scope.spawn(move || {
                while given.load(Ordering::Relaxed) < after {
                    std::thread::yield_now();
                }
                control.abort();
            });
        }
        match case.workers {
            None => run_single(pipeline, &settings, &context),
            Some(_) => run_split(pipeline, &settings, &context).unwrap(),
        }
    });
    assert_eq!(pool.outstanding(), 0, "no buffer is lost");
    let seen = Arc::try_unwrap(seen).unwrap().into_inner().unwrap();
    let mut ordered = seen.clone();
    ordered.sort_unstable();
    ordered.dedup();
    assert_eq!(ordered, seen, "packets arrive in order, each once");
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
fn every_packet_arrives() {
    for workers in ALL {
        let (tally, seen) = run_case(&Case { workers, ..Case::default() });
        assert_eq!(seen, (0..1000).collect::<Vec<_>>(), "{workers:?}");
        assert!(tally.errors.is_empty());
        assert_eq!((tally.rx.packets, tally.tx.packets), (1000, 1000));
        assert_eq!(tally.stages.total.count(), 1000);
    }
}

#[test]
fn a_source_that_fails_loses_no_earlier_packet() {
    for workers in ALL {
        let (tally, seen) = run_case(&Case { workers, end: End::Error, ..Case::default() });
        assert_eq!(seen.len(), 1000);
        assert!(tally.errors[0].to_string().contains("unplugged"), "{:?}", tally.errors);
    }
}

#[test]
fn a_sink_that_fails_ends_the_run_and_every_packet_is_counted() {
    for workers in ALL {
        let sink_fails = Some((20, End::Error));
        let (tally, seen) = run_case(&Case { workers, sink_fails, ..Case::default() });
        assert!(seen.len() < 1000);
        assert_eq!(accounted(&tally), tally.rx.packets, "{workers:?}");
        assert!(tally.errors.iter().any(|error| error.to_string().contains("unplugged")));
    }
}

#[test]
fn a_panic_ends_the_run_with_an_error() {
    for workers in ALL {
        for (end, sink_fails) in [(End::Panic, None), (End::Exhausted, Some((20, End::Panic)))] {
            let (tally, _) = run_case(&Case { workers, end, sink_fails, packets: 5000, ..Case::default() });
            let text = tally.errors.iter().map(ToString::to_string).collect::<String>();
            assert!(text.contains("panicked") && text.contains("a defect of the port"), "{text}");
        }
    }
}

#[test]
fn packets_in_flight_when_a_run_is_aborted_are_counted_and_freed() {
    for workers in [1, 3] {
        let (work, abort_after) = (Duration::from_millis(2), Some(64));
        let (tally, seen) = run_case(&Case {
            workers: Some(workers),
            work,
            abort_after,
            packets: 100_000,
            ..Case::default()
        });
        assert!(tally.dropped_unsent > 0, "items were in flight");
        assert_eq!(accounted(&tally), tally.rx.packets);
        assert!(seen.len() < 100_000);
    }
}

#[test]
fn a_partial_burst_of_an_aborted_run_is_unsent_and_no_overload() {
    let case = Case {
        packets: 5,
        workers: Some(1),
        flush: Duration::from_secs(60),
        end: End::Silent,
        abort_after: Some(5),
        ..Case::default()
    };
    let (tally, seen) = run_case(&case);
    assert_eq!((tally.dropped_unsent, tally.dropped_overload, seen.len()), (5, 0, 0));
}

#[test]
fn packets_a_full_port_refuses_are_told_from_those_that_found_the_ring_full() {
    let (tally, _) = run_case(&Case { overload: Overload::Drop, most: 1, ..Case::default() });
    assert!(tally.refused_packets > 0);
    assert_eq!(tally.refused_packets, tally.dropped_overload, "method single has no ring");
}

/// Sends one burst to two sinks; packet i names port `ports[i]`. Returns the numbers of the packets that each
/// sink accepted, and the tally.
fn send_to_two_ports(ports: &[u32]) -> ([Vec<u64>; 2], Tally) {
    let pool: Arc<dyn Pool> = Arc::new(HeapPool::new(64, 256).unwrap());
    let settings = PipelineSettings { burst: 16, ..Default::default() };
    let seen: [Arc<Mutex<Vec<u64>>>; 2] = Default::default();
    let sink = |seen: &Arc<Mutex<Vec<u64>>>| -> Box<dyn Tx> {
        let (pool, seen, counters) = (pool.clone(), seen.clone(), Counters::default());
        Box::new(Sink { pool, seen, most: 16, calls: 0, fail_after: None, counters })
    };
    let mut stage = TxStage::new(seen.iter().map(sink).collect(), &pool, &settings);
    let mut burst = BurstBuffer::new(pool.clone(), 16);
    burst.allocate(ports.len());
    // SAFETY: the loop changes lengths and ports only.
    for (number, (packet, &port)) in unsafe { burst.as_mut_slice() }.iter_mut().zip(ports).enumerate() {
        (packet.length, packet.port) = (60, port);
        // SAFETY: this thread has just allocated the packet, in host memory.
        let bytes = unsafe { packet.bytes_mut() };
        bytes[..12].copy_from_slice(b"SRCMACDSTMAC");
        bytes[20..28].copy_from_slice(&(number as u64).to_le_bytes());
    }
    let (control, clock) = (Control::default(), Clock::new());
    assert!(stage.send(&mut burst, &control, &clock), "nothing had to wait");
    assert!(burst.is_empty());
    let mut tally = Tally::default();
    stage.finish(&control, &mut tally);
    assert_eq!(pool.outstanding(), 0);
    (seen.map(|seen| seen.lock().unwrap().clone()), tally)
}

#[test]
fn packets_go_to_the_port_that_they_name_in_order() {
    let (seen, tally) = send_to_two_ports(&[1, 0, 7, 1, 0, 65_535, 1]);
    assert_eq!(seen, [vec![1, 4], vec![0, 3, 6]]);
    assert_eq!((tally.tx.packets, tally.dropped_invalid), (5, 2), "ports 7 and 65535 do not exist");
    let (seen, tally) = send_to_two_ports(&[1, 1, 1]);
    assert_eq!((seen, tally.dropped_invalid), ([vec![], vec![0, 1, 2]], 0));
    let (seen, tally) = send_to_two_ports(&[9, 9]);
    assert_eq!((seen, tally.dropped_invalid), ([vec![], vec![]], 2));
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
