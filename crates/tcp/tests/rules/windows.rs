//! Tests of zero windows, probes, shrinking windows, and silly-window avoidance (RFC 9293, section 3.8.6).

use crate::*;

#[test]
fn rfc9293_a_window_limits_what_is_sent() {
    let mut script = Script::open(&config(), plain());
    script.receive(ack(0).window(3000));
    script.connection.set_written(10_000).unwrap();
    assert_eq!(script.ranges(), [(0, 1460), (1460, 2920)], "80 more bytes would be a silly segment");
    script.receive(ack(1460).window(3000));
    assert_eq!(script.ranges(), [(2920, 4380)]);
}

#[test]
fn rfc9293_a_small_window_is_used_if_it_is_half_of_the_largest() {
    let mut script = Script::open(&config(), plain());
    let mut options = plain();
    options.mss = Some(1460);
    let reply_window = 1000;
    let mut small = Script::new(&config());
    small.one();
    let reply =
        Header { sequence: IRS, acknowledgment: ISS + 1, window: reply_window, flags: SYN | ACK, options };
    small.connection.on_segment(small.now, &raw(reply), &mut small.memory);
    small.sent();
    small.connection.set_written(5000).unwrap();
    assert_eq!(
        small.ranges(),
        [(0, 500), (500, 1000)],
        "half of the window, so that the peer acknowledges soon"
    );
    // The largest window of this peer was 64 KiB. The window is now 1000 bytes, less than half of that, so
    // nothing is sent.
    script.receive(ack(0).window(1000));
    script.connection.set_written(5000).unwrap();
    assert_eq!(script.ranges(), []);
    // Let the override timeout expire. The bytes that fit into the window must then be sent.
    script.next_timer();
    assert_eq!(script.ranges(), [(0, 1000)]);
}

/// A peer acknowledges every second segment at once. With one segment in flight, the sender would wait for the peer's timer.
#[test]
fn two_segments_fit_into_a_window_that_is_smaller_than_the_mss() {
    let wide = Config { mss: 65_483, ..config() };
    for (window, segments) in [(4096, [(0, 2048), (2048, 4096)]), (536, [(0, 536), (536, 1072)])] {
        let mut script = Script::new(&wide);
        script.one();
        let options = Options { mss: Some(65_483), ..plain() };
        let reply = Header { sequence: IRS, acknowledgment: ISS + 1, window, flags: SYN | ACK, options };
        script.connection.on_segment(script.now, &raw(reply), &mut script.memory);
        script.sent();
        script.connection.set_written(50_000).unwrap();
        let first = script.ranges();
        script.receive(ack(first.last().unwrap().1).window(window));
        let all: Vec<_> = first.into_iter().chain(script.ranges()).take(2).collect();
        assert_eq!(all, segments, "window {window}");
    }
}

#[test]
fn two_segments_fit_into_a_small_send_buffer() {
    let mut script = Script::open(&config(), plain());
    script.connection.set_send_limit(2304);
    script.connection.set_written(2304).unwrap();
    assert_eq!(script.ranges(), [(0, 1152), (1152, 2304)]);
    script.connection.set_send_limit(1 << 20);
    script.receive(ack(2304));
    script.connection.set_written(2304 + 1460).unwrap();
    assert_eq!(script.ranges(), [(2304, 2304 + 1460)]);
}

#[test]
fn rfc9293_a_zero_window_is_probed_with_backoff_for_as_long_as_the_peer_answers() {
    let mut script = Script::open(&config(), plain());
    script.receive(ack(0).window(0));
    script.connection.set_written(10_000).unwrap();
    assert_eq!(script.ranges(), []);
    let mut last = 0;
    for n in 0..30 {
        let elapsed = script.next_timer();
        assert!(elapsed >= last && elapsed <= 120 * SECOND, "probe {n} after {elapsed}");
        last = elapsed;
        assert_eq!(script.ranges(), [(0, 1)], "probe {n}");
        script.now += RTT;
        script.receive(ack(0).window(0));
        assert_eq!(script.ranges(), []);
    }
    assert_eq!(script.state(), State::Established);
    assert_eq!(script.connection.counters().window_probes, 30);
    assert_eq!(script.connection.counters().timeouts, 29);
    script.receive(ack(0).window(65_535));
    let sent = script.ranges();
    assert_eq!((sent[0].0, sent.last().unwrap().1), (0, 10_000), "Nagle's algorithm holds nothing back");
}

#[test]
fn rfc9293_acknowledgments_and_resets_beside_a_probe_begin_inside_the_closed_window() {
    let mut script = Script::open(&config(), plain());
    script.receive(ack(0).window(0));
    script.connection.set_written(10_000).unwrap();
    script.ranges();
    script.next_timer();
    assert_eq!(script.ranges(), [(0, 1)]);
    script.receive(data(0, 3000).acking(0).window(0));
    assert_eq!(script.one().header.sequence, ISS + 1, "the peer accepts no number behind its window");
    script.connection.abort();
    assert_eq!(script.one().header.sequence, ISS + 1);
}

#[test]
fn rfc9293_a_probe_that_is_accepted_continues_the_stream() {
    let mut script = Script::open(&config(), plain());
    script.receive(ack(0).window(0));
    script.connection.set_written(10_000).unwrap();
    script.ranges();
    script.next_timer();
    assert_eq!(script.ranges(), [(0, 1)]);
    script.receive(ack(1).window(0));
    assert_eq!(script.ranges(), []);
    script.next_timer();
    assert_eq!(script.ranges(), [(1, 2)]);
    script.receive(ack(2).window(10_000));
    assert_eq!(script.ranges().last().unwrap().1, 10_000);
}

#[test]
fn rfc9293_a_peer_that_does_not_answer_probes_is_given_up() {
    let mut script = Script::open(&Config { retries: 5, ..config() }, plain());
    script.receive(ack(0).window(0));
    script.connection.set_written(10_000).unwrap();
    script.sent();
    let mut probes = 0;
    while script.state() != State::Closed {
        script.next_timer();
        probes += script.ranges().len();
        assert!(probes < 20);
    }
    assert_eq!(script.connection.reason(), Some(EndReason::TimedOut));
}

#[test]
fn a_closed_connection_does_not_probe_a_closed_window_for_ever() {
    let mut script = Script::open(&config(), plain());
    script.receive(ack(0).window(0));
    script.connection.set_written(10_000).unwrap();
    script.connection.close(script.now);
    script.sent();
    for n in 0.. {
        assert!(n < 12, "still probing");
        script.next_timer();
        script.sent();
        if script.state() == State::Closed {
            break;
        }
        script.receive(ack(0).window(0));
    }
    assert_eq!(script.connection.reason(), Some(EndReason::TimedOut));
}

#[test]
fn rfc9293_a_fin_enters_a_closed_window() {
    let mut script = Script::open(&config(), plain());
    script.connection.set_written(100).unwrap();
    script.sent();
    script.receive(ack(100).window(0));
    script.connection.shutdown_write();
    assert_eq!(script.one().header.flags, FIN | ACK);
}

#[test]
fn rfc9293_a_window_that_shrinks_stops_new_data_and_retransmissions_beyond_it() {
    let mut script = Script::open(&config(), plain());
    script.connection.set_written(20_000).unwrap();
    assert_eq!(script.ranges().len(), 10);
    script.receive(ack(0).window(2000));
    assert_eq!(script.ranges(), []);
    script.next_timer();
    script.sent();
    script.next_timer();
    for (start, end) in script.ranges() {
        assert!(start == 0 && end <= 2000 || start >= 13_140, "{start} {end}");
    }
    // The peer may still acknowledge data that was in flight beyond the window's edge when the window shrank.
    script.receive(ack(14_600).window(65_535));
    assert_eq!(script.ranges().last().unwrap().1, 20_000);
}

#[test]
fn rfc9293_an_older_segment_does_not_change_the_window() {
    let mut script = Script::open(&config(), plain());
    script.receive(data(0, 10).window(5000));
    script.receive(data(10, 10).window(6000));
    script.receive(data(5, 5).window(1000));
    assert_eq!(script.connection.send_window(), 6000);
}

#[test]
fn rfc9293_a_full_buffer_announces_zero_and_rejects_data() {
    let mut script = Script::open(&Config { receive_capacity: 2000, ..config() }, plain());
    script.receive(data(0, 1000));
    assert_eq!(script.acknowledges(1000).window, 1000);
    script.receive(data(1000, 1000));
    assert_eq!(script.acknowledges(2000).window, 0);
    script.receive(data(2000, 1));
    assert_eq!(script.acknowledges(2000).window, 0);
    // A FIN takes no room in the receive buffer, so it is accepted although the window is closed.
    script.receive(seg(FIN | ACK, 2000, 0));
    assert_eq!(script.state(), State::CloseWait);
}

#[test]
fn rfc9293_small_increases_of_the_window_are_not_announced() {
    let mut script = Script::open(&Config { receive_capacity: 4000, ..config() }, plain());
    for n in 0..4 {
        script.receive(data(n * 1000, 1000));
        script.sent();
    }
    for index in [1, 100, 999] {
        script.connection.set_consumed(index).unwrap();
        script.silent();
    }
    script.receive(data(4000, 1)); // a probe, for which there is room
    assert_eq!(script.acknowledges(4001).window, 0);
    script.connection.set_consumed(1001).unwrap();
    assert_eq!(script.acknowledges(4001).window, 1000, "a segment fits now");
    script.connection.set_consumed(4001).unwrap();
    assert_eq!(script.acknowledges(4001).window, 4000);
}

#[test]
fn rfc9293_a_reader_that_keeps_up_causes_no_window_updates() {
    let mut script = Script::open(&config(), modern());
    for n in 0..100 {
        script.receive(data(n * 1000, 1000));
        script.sent();
        script.connection.set_consumed(n as u64 * 1000 + 1000).unwrap();
        script.silent();
    }
}

#[test]
fn rfc7323_the_announced_edge_never_moves_back() {
    let mut script = Script::open(&Config { receive_capacity: 300_007, ..config() }, modern());
    let (mut edge, mut at) = (0u64, 0);
    for n in 0..200 {
        let len = 1 + n * 37 % 1400;
        script.receive(data(at, len as usize));
        at += len;
        for transmit in script.sent() {
            let next = at as u64 + ((transmit.header.window as u64) << 3);
            assert!(next + (1 << 3) > edge, "the edge moved from {edge} to {next}");
            edge = edge.max(next);
        }
    }
}

#[test]
fn a_reduced_receive_buffer_takes_back_nothing_and_then_bounds_the_window() {
    let mut script = Script::open(&config(), plain());
    script.connection.set_receive_capacity(3000);
    // Send data within the window that was announced before the reduction. The connection must still accept
    // this data.
    script.receive(data(0, 1460));
    script.receive(data(1460, 1460));
    script.receive(data(2920, 1460));
    assert_eq!(script.connection.received(), 4380);
    script.sent();
    for at in 3..60 {
        script.connection.set_consumed(script.connection.received()).unwrap();
        script.receive(data(at * 1460, 1460));
        let window = script.sent().last().map(|transmit| transmit.header.window);
        // The handshake announced 65,535 bytes, which end in segment 44. Check the windows after segment 45:
        // they must be at most 3000 bytes, the reduced size of the buffer.
        assert!(at < 46 || window.is_none_or(|window| window <= 3000), "{at}: {window:?}");
    }
    script.connection.set_receive_capacity(u32::MAX);
    assert!(script.one().header.window > 3000);
}

/// Linux, too, takes no number for an acknowledgment that a peer may have acknowledged.
#[test]
fn rfc7323_an_acknowledgment_has_the_next_number_although_a_rounded_window_ends_before_it() {
    let mut script = Script::open(&config(), modern());
    script.receive(ack(0).window(10)); // 1280 bytes
    script.connection.set_written(1280).unwrap();
    script.connection.set_no_delay(true);
    let sent = script.ranges().last().unwrap().1;
    for (window, next) in [(9, sent), (8, 100 + 1024)] {
        script.receive(ack(100).window(window));
        script.receive(data(script.connection.received() as i64, 2000).window(window));
        let header = script.sent().last().unwrap().header;
        assert_eq!(header.sequence, ISS + 1 + next as u32, "a window of {window} times 128 bytes");
    }
}
