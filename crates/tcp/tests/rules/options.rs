//! Tests of window scaling, timestamps and PAWS (RFC 7323), and of ECN (RFC 3168).

use crate::*;

#[test]
fn rfc7323_windows_are_scaled_in_both_directions() {
    let mut script = Script::open(&config(), modern());
    script.receive(data(0, 10).window(1000));
    assert_eq!(script.connection.send_window(), 1000 << 7);
    script.consume(0);
    let window = script.acknowledges(10).window;
    assert!((window as u32) << 5 > 1_000_000, "{window}");
}

#[test]
fn rfc7323_windows_are_not_scaled_unless_both_sides_offer_it() {
    for (offer, peer) in [(true, None), (false, Some(7))] {
        let config = Config { window_scaling: offer, ..config() };
        let mut script = Script::open(&config, Options { window_scale: peer, ..modern() });
        script.receive(data(0, 10).window(1000));
        assert_eq!(script.connection.send_window(), 1000);
        assert_eq!(script.acknowledges(10).window, 65_535);
    }
}

#[test]
fn rfc7323_timestamps_are_sent_in_every_segment_once_negotiated() {
    let mut script = Script::open(&config(), modern());
    script.connection.set_written(100).unwrap();
    let sent = script.one().header.options.timestamps.unwrap();
    assert_eq!((sent.value, sent.echo), (7000 + 10, 500));
    let mut script = Script::open(&config(), plain());
    script.connection.set_written(100).unwrap();
    assert_eq!(script.one().header.options.timestamps, None);
}

#[test]
fn rfc7323_paws_drops_an_old_segment_and_acknowledges() {
    let mut script = Script::open(&config(), modern());
    script.receive(data(0, 10).stamp(600, 0));
    script.acknowledges(10);
    script.receive(data(10, 10).stamp(599, 0));
    script.acknowledges(10);
    assert_eq!((script.connection.received(), script.connection.counters().bad_timestamps), (10, 1));
    script.receive(data(10, 10).stamp(600, 0));
    assert_eq!(script.connection.received(), 20);
}

#[test]
fn rfc7323_paws_works_when_the_clock_wraps() {
    let options = Options { timestamps: Some(Timestamps { value: u32::MAX - 1, echo: 0 }), ..modern() };
    let mut script = Script::open(&config(), options);
    script.receive(data(0, 10).stamp(3, 0));
    assert_eq!(script.connection.received(), 10);
    script.receive(data(10, 10).stamp(u32::MAX, 0));
    assert_eq!(script.connection.received(), 10);
}

#[test]
fn rfc7323_a_timestamp_older_than_24_days_is_not_used() {
    let mut script = Script::open(&config(), modern());
    script.now += 25 * 24 * 3600 * SECOND;
    script.receive(data(0, 10).stamp(400, 0));
    assert_eq!(script.connection.received(), 10);
}

#[test]
fn rfc7323_a_segment_without_timestamp_is_dropped_unless_it_resets() {
    let mut script = Script::open(&config(), modern());
    let mut bare = data(0, 10);
    bare.timestamps = Some(None);
    script.receive(bare);
    script.silent();
    assert_eq!(script.connection.received(), 0);
    let mut reset = seg(RST, 0, 0);
    reset.timestamps = Some(None);
    script.receive(reset);
    assert_eq!(script.state(), State::Closed);
}

#[test]
fn rfc7323_the_echo_is_that_of_the_segment_at_the_left_edge() {
    let mut script = Script::open(&config(), modern());
    script.receive(data(0, 10).stamp(601, 0));
    assert_eq!(script.acknowledges(10).options.timestamps.unwrap().echo, 601);
    // A segment beyond a gap does not change the echoed timestamp.
    script.receive(data(20, 10).stamp(602, 0));
    assert_eq!(script.acknowledges(10).options.timestamps.unwrap().echo, 601);
    // The segment with bytes 10 to 19 fills the gap, so its timestamp is echoed from now on.
    script.receive(data(10, 10).stamp(603, 0));
    assert_eq!(script.acknowledges(30).options.timestamps.unwrap().echo, 603);
}

#[test]
fn rfc7323_a_delayed_acknowledgment_echoes_the_first_segment() {
    let mut script = Script::open(&config(), modern());
    for n in 0..16 {
        script.receive(data(n * 10, 10).stamp(600 + n as u32, 0));
        script.sent();
    }
    script.receive(data(160, 5).stamp(650, 0));
    script.silent();
    script.receive(data(165, 500).stamp(660, 0));
    script.receive(data(665, 500).stamp(670, 0));
    assert_eq!(script.acknowledges(1165).options.timestamps.unwrap().echo, 650);
}

fn with_ecn() -> (Script, Config) {
    let config = Config { ecn: EcnMode::Request, ..config() };
    (Script::open(&config, modern()), config)
}

#[test]
fn rfc3168_negotiation() {
    let mut script = Script::new(&Config { ecn: EcnMode::Request, ..config() });
    assert_eq!(script.one().header.flags, SYN | ECE | CWR);
    script.next_timer();
    assert_eq!(script.one().header.flags, SYN, "a retransmitted SYN does not ask");
    assert!(with_ecn().0.connection.ecn());
    assert!(!Script::open(&config(), modern()).connection.ecn());
}

#[test]
fn rfc3168_only_new_data_is_ect() {
    let (mut script, _) = with_ecn();
    script.connection.set_written(100).unwrap();
    assert_eq!(script.one().ecn, Ecn::Ect0);
    script.next_timer();
    let again = script.one();
    assert_eq!((again.payload.clone(), again.ecn), (0..100, Ecn::NotEct));
    script.receive(data(0, 10).acking(100));
    assert_eq!(script.one().ecn, Ecn::NotEct);
}

#[test]
fn rfc3168_a_mark_is_echoed_until_the_peer_reports_its_reduction() {
    let (mut script, _) = with_ecn();
    let mut marked = data(0, 10);
    marked.ecn = Ecn::Ce;
    script.receive(marked);
    assert_eq!(script.acknowledges(10).flags & ECE, ECE);
    script.receive(data(10, 10));
    assert_eq!(script.acknowledges(20).flags & ECE, ECE);
    script.receive(seg(ACK | CWR, 20, 10));
    assert_eq!(script.acknowledges(30).flags & ECE, 0);
}

#[test]
fn rfc3168_an_echo_reduces_the_window_once_a_round_trip_and_sets_cwr() {
    let (mut script, _) = with_ecn();
    script.connection.set_written(100_000).unwrap();
    script.sent();
    let before = script.connection.congestion_window();
    let echo = |number| Seg { flags: ACK | ECE, ..ack(number) };
    script.receive(echo(1448));
    let after = script.connection.congestion_window();
    assert!(after < before * 3 / 4, "{before} {after}");
    script.receive(echo(2896));
    assert_eq!(script.connection.congestion_window(), after);
    script.receive(echo(14_480));
    let sent = script.sent();
    assert!(sent[0].header.has(CWR) && !sent[1].header.has(CWR));
    assert_eq!(script.connection.counters().congestion_marks, 1);
}
