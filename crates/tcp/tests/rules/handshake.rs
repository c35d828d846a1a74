//! Tests of opening a connection: segments, options, lost SYNs, and failed attempts.

use crate::*;

#[test]
fn rfc9293_active_open_offers_options_and_acknowledges() {
    let mut script = Script::new(&config());
    let syn = script.one().header;
    assert_eq!(syn.options.mss, Some(1460));
    assert_eq!(syn.options.window_scale, Some(5), "1 MiB needs a shift of 5");
    assert!(syn.options.sack_permitted && syn.options.timestamps.is_some());
    assert_eq!(syn.window, 65_535);
    let script = Script::open(&config(), modern());
    assert_eq!(script.state(), State::Established);
    assert_eq!(script.connection.send_window(), 65_535, "the window of a SYN is not scaled");
}

#[test]
fn rfc9293_simultaneous_open() {
    let mut script = Script::new(&config());
    script.one();
    script.now += RTT;
    let syn = Header { sequence: IRS, window: 1000, flags: SYN, options: modern(), ..Header::default() };
    script.connection.on_segment(script.now, &raw(syn), &mut script.memory);
    assert_eq!(script.state(), State::SynReceived);
    let reply = script.one().header;
    assert_eq!((reply.flags, reply.sequence, reply.acknowledgment), (SYN | ACK, ISS, IRS + 1));
    let options = Options { timestamps: Some(Timestamps { value: 510, echo: 7000 }), ..modern() };
    let syn_ack = Header { flags: SYN | ACK, acknowledgment: ISS + 1, options, ..syn };
    script.events |= script.connection.on_segment(script.now, &raw(syn_ack), &mut script.memory);
    assert_eq!(script.state(), State::Established);
    assert!(script.events.contains(Events::CONNECTED));
    assert_eq!(script.connection.send_window(), 1000, "the window of a SYN,ACK is not scaled");
}

#[test]
fn rfc9293_simultaneous_open_repeats_the_syn_ack_for_a_repeated_syn() {
    let mut script = Script::new(&config());
    script.one();
    let syn = Header { sequence: IRS, window: 1000, flags: SYN, options: modern(), ..Header::default() };
    for _ in 0..2 {
        script.connection.on_segment(script.now, &raw(syn), &mut script.memory);
        assert_eq!(script.one().header.flags, SYN | ACK);
    }
}

#[test]
fn rfc9293_syn_sent_ignores_an_acknowledgment_of_something_else() {
    let mut script = Script::new(&config());
    script.one();
    for (flags, acknowledgment) in
        [(ACK, ISS + 7), (ACK | RST, ISS + 7), (SYN | ACK, ISS), (RST, 0), (ACK, ISS + 1)]
    {
        let header = Header { sequence: IRS, acknowledgment, flags, ..Header::default() };
        script.connection.on_segment(script.now, &raw(header), &mut script.memory);
        assert_eq!(script.state(), State::SynSent, "{flags:#x} {acknowledgment}");
    }
}

#[test]
fn rfc9293_an_acknowledgment_from_before_a_restart_is_reset_and_the_attempt_goes_on() {
    let mut script = Script::new(&config());
    script.one();
    let old = Header { sequence: IRS, acknowledgment: 77, flags: ACK, ..Header::default() };
    script.connection.on_segment(script.now, &raw(old), &mut script.memory);
    let reset = script.one().header;
    assert_eq!((reset.flags, reset.sequence), (RST, 77));
    assert_eq!(script.state(), State::SynSent);
    assert_eq!(script.next_timer(), SECOND);
    assert_eq!(script.one().header.flags, SYN);
}

#[test]
fn rfc9293_a_reset_refuses_the_connection() {
    let mut script = Script::new(&config());
    script.one();
    let header = Header { sequence: 0, acknowledgment: ISS + 1, flags: RST | ACK, ..Header::default() };
    script.events |= script.connection.on_segment(script.now, &raw(header), &mut script.memory);
    assert_eq!((script.state(), script.connection.reason()), (State::Closed, Some(EndReason::Refused)));
    assert!(script.events.contains(Events::ENDED));
    script.silent();
}

#[test]
fn rfc6298_the_syn_is_retransmitted_with_backoff_until_the_attempt_fails() {
    let mut script = Script::new(&Config { syn_retries: 3, ..config() });
    script.one();
    for seconds in [1, 2, 4] {
        assert_eq!(script.next_timer(), seconds * SECOND);
        assert_eq!(script.one().header.flags, SYN);
    }
    assert_eq!(script.next_timer(), 8 * SECOND);
    assert_eq!((script.state(), script.connection.reason()), (State::Closed, Some(EndReason::TimedOut)));
    script.silent();
    assert_eq!(script.connection.next_deadline(), None);
}

#[test]
fn rfc6928_the_initial_window_is_ten_segments() {
    let mut script = Script::open(&config(), modern());
    script.connection.set_written(100_000).unwrap();
    assert_eq!(script.ranges().len(), 10);
}

#[test]
fn rfc6928_the_initial_window_is_one_segment_after_two_lost_syns() {
    let mut script = Script::new(&config());
    script.one();
    for _ in 0..2 {
        script.next_timer();
        script.one();
    }
    let reply =
        Header { sequence: IRS, acknowledgment: ISS + 1, window: 65_535, flags: SYN | ACK, options: plain() };
    script.connection.on_segment(script.now, &raw(reply), &mut script.memory);
    script.connection.set_written(100_000).unwrap();
    assert_eq!(script.ranges(), [(0, 1460)]);
    // RFC 6298, rule 5.7: the timeout is 3 s, because SYNs were lost.
    assert_eq!(script.connection.retransmission_timeout(), 3 * SECOND);
}

#[test]
fn rfc9293_data_and_fin_on_a_syn_ack_are_received() {
    let mut script = Script::new(&config());
    script.one();
    let header = Header {
        sequence: IRS,
        acknowledgment: ISS + 1,
        window: 1000,
        flags: SYN | ACK | FIN,
        options: plain(),
    };
    let segment = Segment { header, payload: b"hello", ecn: Ecn::NotEct };
    script.events |= script.connection.on_segment(script.now, &segment, &mut script.memory);
    assert!(script.events.contains(Events::CONNECTED | Events::READABLE | Events::PEER_CLOSED));
    assert_eq!(script.state(), State::CloseWait);
    script.acknowledges(6);
    assert_eq!(script.consume(0), b"hello");
}

#[test]
fn rfc9293_the_mss_is_536_if_the_peer_announces_none_and_never_above_this_sides() {
    let mut script = Script::open(&config(), Options::default());
    script.connection.set_written(10_000).unwrap();
    assert_eq!(script.ranges()[0], (0, 536));
    let mut script = Script::open(&config(), Options { mss: Some(9000), ..Options::default() });
    script.connection.set_written(10_000).unwrap();
    assert_eq!(script.ranges()[0], (0, 1460));
    let script = Script::open(&config(), Options { mss: Some(0), ..Options::default() });
    assert_eq!(script.connection.segment_size(), Config::MIN_MSS as u32);
}

#[test]
fn rfc5927_an_unreachable_host_ends_an_attempt_and_not_a_connection() {
    for (hard, reason) in [(false, EndReason::Unreachable), (true, EndReason::Refused)] {
        let mut script = Script::new(&config());
        assert!(script.connection.on_unreachable(ISS, hard).is_empty(), "nothing was sent");
        script.one();
        assert!(script.connection.on_unreachable(ISS + 1, hard).is_empty(), "not this connection's segment");
        assert!(script.connection.on_unreachable(ISS, hard).contains(Events::ENDED));
        assert_eq!(script.connection.reason(), Some(reason));
    }
    let mut script = Script::open(&config(), modern());
    script.connection.set_written(1).unwrap();
    script.one();
    assert!(script.connection.on_unreachable(ISS + 1, true).is_empty());
    assert_eq!(script.state(), State::Established);
}

/// A connection that times out after an ICMP message "host unreachable" ends with the reason `Unreachable`.
/// If an acknowledgment arrived after the message, the reason is `TimedOut`.
#[test]
fn rfc1122_a_timeout_after_an_unreachable_host_has_that_reason() {
    for (acknowledged, reason) in [(false, EndReason::Unreachable), (true, EndReason::TimedOut)] {
        let mut script = Script::open(&config(), modern());
        script.connection.set_written(1).unwrap();
        script.one();
        assert!(script.connection.on_unreachable(ISS + 1, false).is_empty());
        if acknowledged {
            script.receive(ack(1));
            script.connection.set_written(2).unwrap();
            script.one();
        }
        while script.state() == State::Established {
            script.now = script.connection.next_deadline().unwrap();
            script.connection.on_timer(script.now);
            script.ranges();
        }
        assert_eq!(script.connection.reason(), Some(reason));
    }
}

#[test]
fn a_close_before_the_end_of_the_handshake_sends_data_and_fin_after_it() {
    let mut script = Script::new(&config());
    script.one();
    script.connection.set_written(5).unwrap();
    script.connection.shutdown_write();
    let reply =
        Header { sequence: IRS, acknowledgment: ISS + 1, window: 1000, flags: SYN | ACK, options: plain() };
    script.connection.on_segment(script.now, &raw(reply), &mut script.memory);
    assert_eq!(script.state(), State::FinWait1);
    let last = script.one();
    assert_eq!((last.payload, last.header.flags), (0..5, ACK | PSH | FIN));
}

#[test]
fn settings_out_of_range_are_refused() {
    let refused =
        |config: Config| Connection::connect(0, &config, InitialNumbers::default()).unwrap_err().to_string();
    assert_eq!(
        refused(Config { receive_capacity: 0, ..Config::default() }),
        "TCP setting receive_capacity is 0; it must be from 1 to 1073741824"
    );
    assert!(refused(Config { mss: 10, ..Config::default() }).contains("mss is 10"));
    assert!(refused(Config { quick_ack: SECOND, ..Config::default() }).contains("quick_ack"));
    assert!(refused(Config { delayed_ack: SECOND, ..Config::default() }).contains("delayed_ack"));
}
