//! Tests of loss detection, retransmission, and the congestion window.

use crate::*;

const MSS: u64 = 1460;

/// Returns a connection with `segments` full segments in flight, sent one microsecond apart.
fn in_flight(options: Options, segments: u64) -> Script {
    let mut script = Script::open(&Config { initial_window: 40, ..config() }, options);
    script.connection.set_no_delay(true);
    let mut written = 0;
    for n in 0..segments {
        script.now += 1000;
        script.write(MSS, &mut written);
        assert_eq!(script.ranges(), [(n * MSS, n * MSS + MSS)]);
    }
    script.now += RTT;
    script
}

fn edges(from: u64, to: u64) -> (u64, u64) {
    (from * MSS, to * MSS)
}

#[test]
fn rfc6298_the_timeout_retransmits_the_first_segment_with_backoff() {
    let config = Config { base_mss: 1460, ..config() };
    let mut script = Script::open(&config, Options { sack_permitted: false, ..plain() });
    script.connection.set_written(3 * MSS).unwrap();
    script.sent();
    for timeout in [200, 400, 800, 1600] {
        assert_eq!(script.next_timer(), timeout * MILLISECOND);
        assert_eq!(script.ranges(), [edges(0, 1)]);
    }
    assert_eq!(script.connection.congestion_window(), MSS);
    // Progress ends the backoff.
    script.receive(ack(MSS));
    assert_eq!(script.ranges(), [edges(1, 2), edges(2, 3)]);
    assert_eq!(script.next_timer(), 200 * MILLISECOND);
}

#[test]
fn rfc6675_a_timeout_within_a_recovery_does_not_reduce_the_threshold_again() {
    let mut script = in_flight(plain(), 40);
    script.receive(ack(0).sack(&[edges(1, 5)]));
    script.sent();
    let threshold = script.connection.slow_start_threshold();
    script.next_timer();
    script.sent();
    assert_eq!(script.connection.counters().timeouts, 1);
    assert_eq!(script.connection.slow_start_threshold(), threshold);
    assert_eq!(script.connection.congestion_window(), MSS);
}

#[test]
fn rfc6298_an_acknowledged_retransmission_gives_no_sample() {
    let mut script = Script::open(&config(), plain());
    script.connection.set_written(100).unwrap();
    script.sent();
    let before = script.connection.smoothed_rtt();
    for _ in 0..2 {
        script.next_timer();
        script.sent();
    }
    script.now += 5 * RTT;
    script.receive(ack(100));
    assert_eq!(script.connection.smoothed_rtt(), before);
}

#[test]
fn rfc9293_a_connection_is_aborted_after_the_last_retransmission() {
    let mut script =
        Script::open(&Config { retries: 4, ..config() }, Options { sack_permitted: false, ..plain() });
    script.connection.set_written(100).unwrap();
    script.sent();
    for _ in 0..4 {
        script.next_timer();
        assert_eq!(script.ranges(), [(0, 100)]);
    }
    script.next_timer();
    assert_eq!((script.state(), script.connection.reason()), (State::Closed, Some(EndReason::TimedOut)));
    assert_eq!(script.one().header.flags, RST | ACK);
}

#[test]
fn rfc6675_three_segments_beyond_a_gap_cause_a_fast_retransmit() {
    let mut script = in_flight(plain(), 10);
    for n in 1..=3 {
        assert_eq!(script.ranges(), [], "{n}");
        script.receive(ack(0).sack(&[edges(1, 1 + n)]));
    }
    assert_eq!(script.ranges(), [edges(0, 1)]);
    assert_eq!(script.connection.counters().recoveries, 1);
    script.now += RTT;
    script.receive(ack(10 * MSS));
    assert_eq!(script.connection.congestion_window(), script.connection.slow_start_threshold());
}

#[test]
fn rfc6675_every_gap_is_retransmitted_once() {
    let mut script = in_flight(plain(), 20);
    let mut retransmitted = vec![];
    for n in 1..=9 {
        let blocks: Vec<_> = (1..=n).rev().take(3).map(|k| edges(2 * k - 1, 2 * k)).collect();
        script.receive(ack(0).sack(&blocks));
        retransmitted.extend(script.ranges());
    }
    let expected: Vec<_> = (0..=8).map(|k| edges(2 * k, 2 * k + 1)).collect();
    assert!(retransmitted.iter().all(|range| expected.contains(range)), "{retransmitted:?}");
    let mut unique = retransmitted.clone();
    unique.dedup();
    assert_eq!(unique, retransmitted);
    assert!(retransmitted.len() >= 5, "{retransmitted:?}");
}

#[test]
fn rfc8985_a_lost_retransmission_is_detected_without_a_timeout() {
    let mut script = in_flight(plain(), 10);
    script.receive(ack(0).sack(&[edges(1, 5)]));
    assert_eq!(script.ranges(), [edges(0, 1)]);
    let mut written = 10 * MSS;
    script.now += 1000;
    script.write(2 * MSS, &mut written);
    script.receive(ack(0).sack(&[edges(1, 10)]));
    let new = script.ranges();
    assert!(new.contains(&edges(10, 11)), "{new:?}");
    script.now += RTT;
    // Acknowledge segment 10, but not segment 0, whose retransmission was sent before segment 10. The
    // retransmission must count as lost.
    script.receive(ack(0).sack(&[edges(1, 11)]));
    assert_eq!(script.ranges()[0], edges(0, 1));
    assert_eq!(script.connection.counters().timeouts, 0);
}

#[test]
fn rfc8985_reordering_delays_the_retransmission_by_a_quarter_of_the_rtt() {
    let mut script = in_flight(plain(), 10);
    // Segment 1 is delivered before segment 0, so this path reorders segments. A later gap must then not
    // count as a loss at once.
    script.receive(ack(0).sack(&[edges(1, 2)]));
    script.silent();
    script.receive(ack(2 * MSS));
    script.silent();
    script.now += 1000;
    script.receive(ack(2 * MSS).sack(&[edges(3, 7)]));
    script.silent();
    let elapsed = script.next_timer();
    assert!(elapsed > 0 && elapsed <= RTT / 4, "{elapsed}");
    assert_eq!(script.ranges(), [edges(2, 3)]);
}

#[test]
fn rfc8985_a_loss_probe_repairs_a_lost_tail() {
    let mut script = in_flight(plain(), 5);
    script.receive(ack(3 * MSS));
    script.silent();
    let elapsed = script.next_timer();
    assert!(elapsed < 50 * MILLISECOND, "two round trips, not a timeout: {elapsed}");
    assert_eq!(script.ranges(), [edges(4, 5)]);
    assert_eq!(script.connection.counters().loss_probes, 1);
    // Let the peer report the probe (segment 4) by SACK, but not segment 3. The connection must then detect
    // that segment 3 is lost.
    script.now += RTT;
    script.receive(ack(3 * MSS).sack(&[edges(4, 5)]));
    if script.ranges() != [edges(3, 4)] {
        script.next_timer();
        assert_eq!(script.ranges(), [edges(3, 4)]);
    }
    assert_eq!(script.connection.counters().timeouts, 0);
}

#[test]
fn rfc8985_a_loss_probe_prefers_new_data() {
    let mut script = in_flight(plain(), 3);
    script.connection.set_no_delay(false);
    script.connection.set_cork(true);
    script.connection.set_written(3 * MSS + 10).unwrap();
    script.silent();
    script.sleep(45 * MILLISECOND);
    assert_eq!(script.ranges(), [(3 * MSS, 3 * MSS + 10)]);
}

#[test]
fn rfc8985_a_loss_that_only_a_probe_repaired_reduces_the_window() {
    let mut script = in_flight(plain(), 5);
    script.receive(ack(4 * MSS));
    let before = script.connection.congestion_window();
    script.next_timer();
    assert_eq!(script.ranges(), [edges(4, 5)]);
    script.now += RTT;
    let mut written = 5 * MSS;
    script.write(MSS, &mut written);
    script.ranges();
    script.receive(ack(6 * MSS));
    assert!(script.connection.congestion_window() < before * 4 / 5);
    // If the acknowledgment has a DSACK, the probe was a duplicate: nothing was lost, so the window stays.
    let mut script = in_flight(plain(), 5);
    script.receive(ack(4 * MSS));
    let before = script.connection.congestion_window();
    script.next_timer();
    script.ranges();
    script.receive(ack(5 * MSS).sack(&[edges(4, 5)]));
    assert!(script.connection.congestion_window() >= before);
}

#[test]
fn rfc6582_without_sack_three_duplicates_and_partial_acknowledgments_retransmit() {
    let mut script = in_flight(Options { sack_permitted: false, ..plain() }, 10);
    for _ in 0..2 {
        script.receive(ack(0));
        script.silent();
    }
    script.receive(ack(0));
    assert_eq!(script.ranges(), [edges(0, 1)]);
    for _ in 0..4 {
        script.receive(ack(0));
    }
    script.now += RTT;
    script.receive(ack(4 * MSS)); // partial: segment 4 is lost, too
    assert_eq!(script.ranges()[0], edges(4, 5));
    script.now += RTT;
    script.receive(ack(10 * MSS));
    assert_eq!(script.connection.counters().recoveries, 1);
    assert_eq!(script.connection.counters().timeouts, 0);
}

#[test]
fn rfc5681_window_updates_and_data_are_no_duplicate_acknowledgments() {
    let mut script = in_flight(Options { sack_permitted: false, ..plain() }, 10);
    for n in 0..6u16 {
        script.receive(ack(0).window(60_000 - n));
        script.receive(data(n as i64 * 10, 10));
    }
    assert_eq!(script.ranges(), []);
}

#[test]
fn rfc9438_a_loss_reduces_the_window_to_seven_tenths() {
    let mut script = in_flight(plain(), 40);
    let before = script.connection.congestion_window();
    script.receive(ack(0).sack(&[edges(1, 5)]));
    script.sent();
    assert_eq!(script.connection.slow_start_threshold(), before * 7 / 10);
    // RFC 6937: during recovery the window depends on the delivered data. After recovery it equals the
    // slow-start threshold.
    assert!(script.connection.congestion_window() >= script.connection.in_flight());
    script.now += RTT;
    script.receive(ack(40 * MSS));
    assert_eq!(script.connection.congestion_window(), before * 7 / 10);
}

#[test]
fn rfc6937_the_rate_is_reduced_in_proportion() {
    let mut script = in_flight(Options { window_scale: Some(7), ..plain() }, 40);
    script.window = 5000;
    let mut written = 40 * MSS;
    script.write(100 * MSS, &mut written);
    assert_eq!(script.ranges(), []);
    let (mut sent, mut acks) = (0, 0);
    for n in 4..40 {
        script.receive(ack(0).sack(&[edges(1, n + 1)]));
        sent += script.ranges().len();
        acks += 1;
    }
    // The window shrinks to 0.7 of its size. So the sender sends seven segments for each ten that are
    // delivered.
    assert!((sent as f64 / acks as f64 - 0.7).abs() < 0.1, "{sent} of {acks}");
}

#[test]
fn rfc3522_a_spurious_timeout_is_undone() {
    let mut script = Script::open(&config(), modern());
    script.connection.set_written(14_480).unwrap();
    let sent = script.sent();
    let stamp = sent[0].header.options.timestamps.unwrap().value;
    let before = script.connection.congestion_window();
    script.next_timer(); // a loss probe
    script.sent();
    script.next_timer();
    script.sent();
    assert_eq!(script.connection.counters().timeouts, 1);
    assert!(script.connection.congestion_window() < before);
    // The acknowledgment echoes the timestamp of the original transmission, so the retransmission was
    // spurious.
    script.receive(ack(1448).stamp(700, stamp));
    assert_eq!(script.connection.counters().undone, 1);
    assert!(script.connection.congestion_window() >= before);
}

#[test]
fn rfc3708_a_spurious_recovery_is_undone_by_dsack() {
    let mut script = in_flight(plain(), 20);
    let before = script.connection.congestion_window();
    script.receive(ack(0).sack(&[edges(1, 5)]));
    assert_eq!(script.ranges(), [edges(0, 1)]);
    script.receive(ack(6 * MSS));
    script.receive(ack(6 * MSS).sack(&[edges(0, 1)]));
    assert_eq!(script.connection.counters().undone, 1);
    assert!(script.connection.congestion_window() >= before);
}

#[test]
fn rfc2018_blocks_that_make_no_sense_are_ignored() {
    let mut script = in_flight(plain(), 5);
    script.receive(ack(0).sack(&[(3 * MSS, 2 * MSS), (4 * MSS, 40 * MSS), (MSS, MSS)]));
    script.receive(ack(0).sack(&[(0u64.wrapping_sub(500_000), 0u64.wrapping_sub(400_000))]));
    assert_eq!(script.ranges(), []);
    assert_eq!(script.connection.in_flight(), 5 * MSS);
}

#[test]
fn rfc2018_a_receiver_may_discard_what_it_reported() {
    let mut script = in_flight(plain(), 5);
    script.receive(ack(0).sack(&[edges(1, 5)]));
    assert_eq!(script.ranges(), [edges(0, 1)]);
    // The receiver had reported segments 1 to 4 by SACK, but has discarded them. It acknowledges only segment
    // 0.
    script.receive(ack(MSS));
    script.next_timer();
    let mut repaired = script.ranges();
    let mut rounds = 0;
    while repaired.last().is_none_or(|last| last.1 < 5 * MSS) {
        rounds += 1;
        assert!(rounds < 10, "{repaired:?}");
        let acknowledged = repaired.last().map_or(MSS, |last| last.1);
        script.now += RTT;
        script.receive(ack(acknowledged));
        repaired.extend(script.ranges());
    }
    assert_eq!(repaired[0].0, MSS);
}

#[test]
fn rfc5681_an_idle_connection_restarts_with_the_initial_window() {
    let mut script = Script::open(&config(), plain());
    let mut written = 0;
    for _ in 0..6 {
        script.write(100 * MSS, &mut written);
        script.sent();
        while script.connection.acknowledged() < written {
            script.now += RTT;
            let sent = script.connection.in_flight() + script.connection.acknowledged();
            script.receive(ack(sent));
            script.sent();
        }
    }
    assert!(script.connection.congestion_window() > 20 * MSS);
    script.now += SECOND;
    script.write(100 * MSS, &mut written);
    assert_eq!(script.ranges().len(), 10);
}

#[test]
fn rfc7661_the_window_does_not_grow_if_the_application_does_not_use_it() {
    let mut script = Script::open(&config(), plain());
    script.connection.set_no_delay(true);
    let mut written = 0;
    for _ in 0..100 {
        script.write(100, &mut written);
        script.sent();
        script.now += RTT;
        script.receive(ack(written));
    }
    assert_eq!(script.connection.congestion_window(), 10 * MSS);
}

#[test]
fn rfc9293_an_acknowledgment_in_the_middle_of_a_segment_is_followed_exactly() {
    let mut script = in_flight(plain(), 2);
    script.receive(ack(100));
    assert_eq!(script.connection.acknowledged(), 100);
    script.next_timer();
    script.sent();
    script.next_timer();
    let again = script.ranges();
    assert_eq!(again[0].0, 100, "{again:?}");
}
