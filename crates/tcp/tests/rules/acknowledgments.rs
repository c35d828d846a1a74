//! Tests of the receiver: when it acknowledges, what it reports by SACK, and how it reassembles segments.

use crate::*;

/// Opens a connection and sends it 16 segments, which the connection acknowledges at once. It delays later
/// acknowledgments. Returns the script and the stream offset of the next segment.
fn settled(options: Options) -> (Script, i64) {
    let mut script = Script::open(&config(), options);
    for n in 0..16 {
        script.receive(data(n * 1000, 1000));
        script.acknowledges(n as u64 * 1000 + 1000);
    }
    script.consume(0);
    (script, 16_000)
}

#[test]
fn rfc9293_every_second_full_segment_is_acknowledged() {
    let (mut script, at) = settled(plain());
    script.receive(data(at, 1000));
    script.silent();
    script.receive(data(at + 1000, 1000));
    script.acknowledges(at as u64 + 2000);
}

#[test]
fn a_run_of_segments_is_acknowledged_once_it_pauses_or_is_long() {
    let config = Config { ack_gap: MILLISECOND / 100, receive_capacity: 1 << 20, ..config() };
    let mut script = Script::open(&config, plain());
    let mut at = 0;
    let mut receive = |script: &mut Script| {
        script.receive(data(at, 1000));
        script.consume(0);
        at += 1000;
        at as u64
    };
    for _ in 0..16 {
        let end = receive(&mut script);
        script.acknowledges(end);
    }
    receive(&mut script);
    script.silent();
    assert!(!script.connection.holds_acknowledgment(), "one segment is delayed as usual");
    for _ in 1..Connection::MOST_HELD - 1 {
        receive(&mut script);
        script.silent();
        assert!(script.connection.holds_acknowledgment());
    }
    let end = receive(&mut script);
    script.acknowledges(end);
    assert!(!script.connection.holds_acknowledgment());
    for _ in 0..5 {
        receive(&mut script);
    }
    let end = receive(&mut script);
    script.silent();
    assert_eq!(script.next_timer(), MILLISECOND / 100, "since the last segment");
    script.acknowledges(end);
    receive(&mut script);
    let end = receive(&mut script);
    script.silent();
    script.connection.release_acknowledgment();
    script.acknowledges(end);
    script.connection.release_acknowledgment();
    script.silent();
    // Data out of order is reported at once.
    receive(&mut script);
    let end = receive(&mut script);
    script.silent();
    script.receive(data(end as i64 + 100, 100));
    script.acknowledges(end);
}

#[test]
fn rfc9293_an_acknowledgment_is_delayed_for_40_ms_at_most() {
    let (mut script, at) = settled(plain());
    script.receive(data(at, 100));
    script.silent();
    assert_eq!(script.next_timer(), 40 * MILLISECOND);
    script.acknowledges(at as u64 + 100);
    assert_eq!(script.connection.next_deadline(), None);
}

#[test]
fn rfc9293_data_carries_the_delayed_acknowledgment() {
    let (mut script, at) = settled(plain());
    script.receive(data(at, 100));
    script.connection.set_written(10).unwrap();
    let sent = script.one();
    assert_eq!(sent.header.acknowledgment, IRS.wrapping_add(1 + at as u32 + 100));
    assert_eq!(sent.payload, 0..10);
    script.receive(ack(10).at(at + 100));
    assert_eq!(script.connection.next_deadline(), None);
}

#[test]
fn rfc9293_a_short_segment_of_a_new_connection_waits_for_the_answer() {
    let config = Config { quick_ack: MILLISECOND / 5, ..config() };
    let mut script = Script::open(&config, plain());
    script.receive(data(0, 100));
    script.silent();
    assert_eq!(script.next_timer(), MILLISECOND / 5);
    script.acknowledges(100);
    let long = config.mss as usize / 2 + 1;
    script.receive(data(100, long));
    script.acknowledges(100 + long as u64);
    script.receive(data(100 + long as i64, 100));
    script.silent();
    script.connection.set_written(10).unwrap();
    let sent = script.one();
    assert_eq!(sent.header.acknowledgment, IRS.wrapping_add(1 + 100 + long as u32 + 100));
    assert_eq!(sent.payload, 0..10);
}

#[test]
fn rfc5681_out_of_order_data_is_acknowledged_at_once() {
    let (mut script, at) = settled(modern());
    script.receive(data(at + 100, 100));
    script.acknowledges(at as u64);
    script.receive(data(at, 100)); // fills the gap
    script.acknowledges(at as u64 + 200);
}

#[test]
fn rfc2018_blocks_report_what_lies_beyond_a_gap() {
    let mut script = Script::open(&config(), plain());
    let block = |left: u32, right: u32| (IRS.wrapping_add(1 + left), IRS.wrapping_add(1 + right));
    script.receive(data(1000, 1000));
    assert_eq!(script.acknowledges(0).options.sack.as_slice(), [block(1000, 2000)]);
    script.receive(data(3000, 1000));
    assert_eq!(script.acknowledges(0).options.sack.as_slice(), [block(3000, 4000), block(1000, 2000)]);
    script.receive(data(2000, 1000));
    assert_eq!(script.acknowledges(0).options.sack.as_slice(), [block(1000, 4000)]);
    script.receive(data(0, 1000));
    assert!(script.acknowledges(4000).options.sack.is_empty());
    assert_eq!(script.consume(0), (0..4000).map(|at| at as u8).collect::<Vec<u8>>());
}

#[test]
fn rfc2018_a_peer_without_sack_gets_an_acknowledgment_for_each_segment_beyond_a_gap() {
    let mut script = Script::open(&config(), Options { sack_permitted: false, ..plain() });
    for n in 1..=4 {
        script.receive(data(n * 1000, 1000));
    }
    let sent = script.sent();
    assert_eq!(sent.len(), 4, "a burst of segments causes as many duplicate acknowledgments");
    assert!(sent.iter().all(|t| t.header.acknowledgment == IRS + 1 && t.header.options.sack.is_empty()));
}

#[test]
fn rfc2883_a_duplicate_is_reported_in_the_first_block() {
    let mut script = Script::open(&config(), plain());
    let block = |left: u32, right: u32| (IRS.wrapping_add(1 + left), IRS.wrapping_add(1 + right));
    script.receive(data(0, 1000));
    script.acknowledges(1000);
    script.receive(data(500, 500));
    assert_eq!(script.acknowledges(1000).options.sack.as_slice(), [block(500, 1000)]);
    script.receive(data(0, 100)); // wholly below what was acknowledged
    assert_eq!(script.acknowledges(1000).options.sack.as_slice(), [block(0, 100)]);
    script.receive(data(2000, 1000));
    script.acknowledges(1000);
    script.receive(data(2100, 100)); // within a block
    assert_eq!(script.acknowledges(1000).options.sack.as_slice(), [block(2100, 2200), block(2000, 3000)]);
    script.receive(data(2500, 1000)); // partly new: an ordinary block
    assert_eq!(script.acknowledges(1000).options.sack.as_slice(), [block(2000, 3500)]);
}

#[test]
fn rfc9293_overlapping_segments_are_trimmed() {
    let mut script = Script::open(&config(), plain());
    script.receive(data(500, 1000));
    script.receive(data(0, 700));
    script.receive(data(1200, 600));
    script.receive(data(1000, 400));
    assert_eq!(script.consume(0), (0..1800).map(|at| at as u8).collect::<Vec<u8>>());
}

#[test]
fn rfc9293_an_acknowledgment_that_data_overtook_still_counts() {
    let (mut script, at) = settled(plain());
    script.connection.set_written(1000).unwrap();
    script.ranges();
    script.receive(data(at, 10).acking(0));
    script.silent();
    script.receive(ack(1000).at(at));
    assert_eq!(script.connection.acknowledged(), 1000);
    script.silent();
}

#[test]
fn rfc9293_data_that_was_received_is_not_overwritten() {
    let mut script = Script::open(&config(), plain());
    script.receive(data(0, 100));
    let mut forged = data(0, 150);
    forged.payload.fill(0xff);
    script.receive(forged);
    let read = script.consume(0);
    assert_eq!(&read[..100], (0..100).collect::<Vec<u8>>());
    assert_eq!(&read[100..], [0xff; 50]);
}

#[test]
fn rfc2018_blocks_are_sent_even_while_full_segments_are() {
    let mut script = Script::open(&config(), modern());
    script.connection.set_written(5000).unwrap();
    script.receive(data(1000, 1000));
    let sent = script.sent();
    assert!(sent[0].is_empty() && sent[0].header.options.sack.len() == 1);
    for transmit in &sent {
        assert!(transmit.header.wire_len() + transmit.len() <= 1460 + 20, "{transmit:?}");
    }
}

/// RFC 9293 drops such a segment. Two sides that both hold numbers behind the window of the other would then never take an
/// acknowledgment.
#[test]
fn an_old_segment_acknowledges_data_if_it_is_at_most_a_window_old() {
    let old = -(2 << 20);
    for (at, taken) in [(5, true), (old, false)] {
        let mut script = Script::open(&config(), plain());
        script.connection.set_written(1000).unwrap();
        script.sent();
        script.receive(data(0, 10).acking(0));
        script.next_timer();
        script.sent();
        script.receive(ack(1000).at(at));
        assert_eq!(script.connection.acknowledged(), if taken { 1000 } else { 0 });
        script.acknowledges(10);
        assert_eq!(script.connection.counters().unacceptable, 1);
    }
}

/// A window probe is one byte beyond the peer's window.
#[test]
fn rfc9293_an_acknowledgment_after_a_window_probe_begins_within_the_window() {
    let mut script = Script::open(&config(), Options { window_scale: Some(7), ..plain() });
    script.connection.set_written(2000).unwrap();
    script.sent();
    script.receive(ack(2000).window(0));
    script.connection.set_written(3000).unwrap();
    script.silent();
    script.next_timer();
    assert_eq!(script.ranges(), [(2000, 2001)]);
    script.receive(data(0, 1460).window(0));
    script.receive(data(1460, 1460).window(0));
    assert_eq!(script.acknowledges(2920).sequence, ISS + 1 + 2000);
}

/// Otherwise a forged segment with any number of the last window could make the connection drop all segments of the peer (RFC 7323, section 5).
#[test]
fn an_old_segment_changes_no_timestamp() {
    let mut script = Script::open(&config(), modern());
    for at in 0..4 {
        script.receive(data(at * 1000, 1000));
    }
    script.sent();
    script.receive(ack(0).at(1000).stamp(1 << 30, 0));
    script.sent();
    script.receive(data(4000, 1000));
    script.receive(data(5000, 1000));
    script.acknowledges(6000);
    assert_eq!(script.connection.counters().bad_timestamps, 0);
}

/// They may have been delayed by the network, and say nothing about a loss now.
#[test]
fn old_acknowledgments_are_no_duplicate_ones() {
    let mut script = Script::open(&config(), Options { sack_permitted: false, ..plain() });
    script.receive(data(0, 1000));
    script.receive(data(1000, 1000));
    script.connection.set_written(5000).unwrap();
    script.sent();
    for _ in 0..4 {
        script.receive(ack(0).at(1000));
    }
    assert_eq!(script.ranges(), []);
}
