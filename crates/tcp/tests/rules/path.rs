//! Tests of the path MTU: reports by ICMP, black holes, and probing with larger segments.

use crate::*;

fn large() -> (Script, u64) {
    let mut script = Script::open(&config(), plain());
    let mut written = 0;
    script.write(10_000, &mut written);
    assert_eq!(script.ranges()[0], (0, 1460));
    (script, written)
}

#[test]
fn rfc1191_a_reported_mtu_reduces_the_segments_at_once() {
    let (mut script, _) = large();
    let window = script.connection.congestion_window();
    script.connection.on_packet_too_big(script.now, ISS + 1, 1200);
    let again = script.ranges();
    assert_eq!(again[..2], [(0, 1200), (1200, 2400)]);
    assert_eq!(again.last().unwrap().1, 10_000);
    assert_eq!(script.connection.congestion_window(), window, "this is not congestion");
    script.receive(ack(10_000));
    assert_eq!(script.connection.counters().recoveries, 0);
}

#[test]
fn rfc5927_a_report_that_quotes_nothing_in_flight_is_ignored() {
    let (mut script, _) = large();
    for (sequence, mss) in [(ISS, 1200), (ISS + 1 + 10_000, 1200), (ISS + 1, 1460), (ISS + 1, 5000)] {
        script.connection.on_packet_too_big(script.now, sequence, mss);
        script.silent();
        assert_eq!(script.connection.segment_size(), 1460);
    }
    // Report an MTU that is too small for any real path. The MSS must then be 512.
    script.connection.on_packet_too_big(script.now, ISS + 1, 10);
    assert_eq!(script.connection.segment_size(), 512);
}

#[test]
fn rfc8899_repeated_timeouts_reveal_a_black_hole() {
    let (mut script, _) = large();
    let mut sizes = vec![];
    for _ in 0..5 {
        script.next_timer();
        sizes.extend(script.ranges().iter().map(|range| range.1 - range.0));
    }
    assert_eq!(script.connection.counters().black_holes, 1);
    assert_eq!(sizes.last(), Some(&1160));
    assert_eq!(script.connection.segment_size(), 1160);
}

#[test]
fn rfc8899_small_segments_do_not_reveal_a_black_hole() {
    let mut script = Script::open(&config(), plain());
    script.connection.set_written(500).unwrap();
    script.sent();
    for _ in 0..5 {
        script.next_timer();
        script.sent();
    }
    assert_eq!(script.connection.counters().black_holes, 0);
}

/// Transfers data for 400 round trips. The path drops segments with more than `carries` bytes of payload.
/// Returns the segment size that the search for the path MTU found, and the number of loss recoveries.
fn search(carries: u64) -> (u32, u32) {
    let mut script = Script::open(&config(), plain());
    let mut written = 0;
    script.write(20_000, &mut written);
    script.sent();
    script.connection.on_packet_too_big(script.now, ISS + 1, 600);
    script.now += 700 * SECOND;
    let (mut next, mut beyond) = (0, Vec::<(u64, u64)>::new());
    let mut idle = 0;
    for _ in 0..400 {
        let sent = script.ranges();
        idle = if sent.is_empty() { idle + 1 } else { 0 };
        if idle > 3 {
            script.next_timer();
        }
        script.now += RTT;
        for (start, end) in sent {
            if end - start > carries {
                continue;
            }
            beyond.push((start, end));
            beyond.sort();
            while let Some(at) = beyond.iter().position(|range| range.0 <= next) {
                next = next.max(beyond.remove(at).1);
            }
            let blocks: Vec<_> = beyond.iter().copied().rev().take(3).collect();
            script.receive(ack(next).sack(&blocks));
        }
        if script.connection.acknowledged() + 10_000 > written {
            script.write(10_000, &mut written);
        }
    }
    let counters = script.connection.counters();
    assert_eq!(counters.timeouts, 0, "{counters:?}");
    (script.connection.segment_size(), counters.recoveries)
}

#[test]
fn rfc8899_larger_segments_are_probed_after_ten_minutes() {
    assert_eq!(search(1460), (1460, 0));
}

#[test]
fn rfc8899_the_search_finds_what_the_path_carries_and_losses_of_probes_are_not_congestion() {
    let (size, recoveries) = search(1000);
    assert!((968..=1000).contains(&size), "{size}");
    assert_eq!(recoveries, 0);
}
