//! Tests of listeners: SYN queue, SYN cookies, accept queue.

use crate::*;

fn flow(port: u16) -> Flow {
    Flow { local: ([10, 0, 0, 2], 80).into(), remote: ([10, 0, 0, 1], port).into() }
}

fn listener(backlog: usize) -> Listener {
    Listener::new(&Config { ecn: EcnMode::Accept, ..config() }, Secrets::new([5; 16]), backlog).unwrap()
}

fn syn(options: Options) -> Header {
    Header { sequence: IRS, window: 65_535, flags: SYN, options, ..Header::default() }
}

fn reply(verdict: Verdict) -> Header {
    match verdict {
        Verdict::Reply(header) => header,
        other => panic!("{other:?}"),
    }
}

fn last(syn_ack: &Header) -> Header {
    Header {
        sequence: IRS.wrapping_add(1),
        acknowledgment: syn_ack.sequence.wrapping_add(1),
        window: 500,
        flags: ACK,
        options: Options {
            timestamps: syn_ack.options.timestamps.map(|t| Timestamps { value: 501, echo: t.value }),
            ..Options::default()
        },
    }
}

#[test]
fn rfc9293_passive_open() {
    let mut listener = listener(4);
    let answer = reply(listener.on_segment(0, &flow(1), &raw(syn(modern())), None));
    assert_eq!((answer.flags, answer.acknowledgment), (SYN | ACK, IRS + 1));
    assert_eq!((answer.options.mss, answer.options.window_scale), (Some(1460), Some(5)));
    assert!(answer.options.sack_permitted);
    assert_eq!(answer.options.timestamps.unwrap().echo, 500);
    let verdict = listener.on_segment(RTT, &flow(1), &raw(last(&answer)), None);
    let Verdict::Established(handshake) = verdict else { panic!("{verdict:?}") };
    let mut connection = Connection::accept(RTT, listener.config(), &handshake).unwrap();
    assert_eq!(connection.state(), State::Established);
    assert_eq!(connection.smoothed_rtt(), Some(RTT));
    assert_eq!(connection.send_window(), 500 << 7);
    let segment = Segment { header: last(&answer), payload: b"GET", ecn: Ecn::NotEct };
    let mut memory = Memory(vec![0; 1 << 20]);
    assert!(connection.on_segment(RTT, &segment, &mut memory).contains(Events::READABLE));
    assert_eq!(listener.half_open(), 0);
}

#[test]
fn an_accepted_connection_sends_no_ack_only_to_announce_its_window() {
    let mut listener = listener(4);
    let answer = reply(listener.on_segment(0, &flow(1), &raw(syn(modern())), None));
    let verdict = listener.on_segment(RTT, &flow(1), &raw(last(&answer)), None);
    let Verdict::Established(handshake) = verdict else { panic!("{verdict:?}") };
    let mut connection = Connection::accept(RTT, listener.config(), &handshake).unwrap();
    let capacity = listener.config().receive_capacity;
    connection.set_receive_capacity(capacity);
    assert_eq!(connection.poll_transmit(RTT), None);
    // Reduce the limit, then restore it. The connection must announce its window only after the increase.
    connection.set_receive_capacity(capacity / 2);
    assert_eq!(connection.poll_transmit(RTT), None);
    connection.set_receive_capacity(capacity);
    assert_eq!(connection.poll_transmit(RTT).unwrap().len(), 0);
}

#[test]
fn an_accepted_connection_announces_its_window_with_the_acknowledgment_of_its_first_request() {
    for quick_ack in [0, MILLISECOND / 5] {
        let config = Config { quick_ack, ..config() };
        let mut listener = Listener::new(&config, Secrets::new([5; 16]), 4).unwrap();
        let answer = reply(listener.on_segment(0, &flow(1), &raw(syn(modern())), None));
        let verdict = listener.on_segment(RTT, &flow(1), &raw(last(&answer)), None);
        let Verdict::Established(handshake) = verdict else { panic!("{verdict:?}") };
        let mut connection = Connection::accept(RTT, &config, &handshake).unwrap();
        let segment = Segment { header: last(&answer), payload: b"GET", ecn: Ecn::NotEct };
        connection.on_segment(RTT, &segment, &mut Memory(vec![0; 1 << 20]));
        connection.set_consumed(3).unwrap();
        let mut now = RTT;
        if quick_ack > 0 {
            assert_eq!(connection.poll_transmit(now), None, "the answer may still carry the window");
            now = connection.next_deadline().unwrap();
            assert_eq!(now, RTT + quick_ack);
            connection.on_timer(now);
        }
        let sent = connection.poll_transmit(now).unwrap();
        let window = u64::from(sent.header.window) << 5;
        assert!(sent.payload.is_empty() && window > 65_535, "{quick_ack}: {window}");
    }
}

#[test]
fn rfc7323_the_announced_window_scale_holds_whatever_the_connections_buffer_is() {
    let mut listener = listener(4);
    let answer = reply(listener.on_segment(0, &flow(1), &raw(syn(modern())), None));
    let Verdict::Established(handshake) = listener.on_segment(RTT, &flow(1), &raw(last(&answer)), None)
    else {
        panic!()
    };
    let config = Config { receive_capacity: 1 << 17, mss: 1000, ..config() };
    let mut connection = Connection::accept(RTT, &config, &handshake).unwrap();
    connection.set_written(5000).unwrap();
    let sent = connection.poll_transmit(RTT).unwrap();
    assert_eq!(sent.payload, 0..988);
    assert_eq!((sent.header.window as u64) << 5, 1 << 17);
}

#[test]
fn rfc9293_options_are_answered_only_if_offered() {
    let mut listener = listener(4);
    let answer = reply(listener.on_segment(0, &flow(1), &raw(syn(Options::default())), None));
    assert_eq!(answer.options, Options { mss: Some(1460), ..Options::default() });
}

#[test]
fn rfc6298_the_syn_ack_is_retransmitted_five_times() {
    let mut listener = listener(4);
    listener.on_segment(0, &flow(1), &raw(syn(modern())), None);
    let (mut now, mut times) = (0, vec![]);
    while let Some(at) = listener.next_deadline() {
        now = at;
        listener.on_timer(now, |to, header| {
            assert_eq!((*to, header.flags), (flow(1), SYN | ACK));
            times.push(now / SECOND);
        });
    }
    assert_eq!(times, [1, 3, 7, 15, 31]);
    assert_eq!((now / SECOND, listener.half_open(), listener.counters().expired), (63, 0, 1));
}

#[test]
fn rfc9293_a_repeated_syn_gets_the_same_answer() {
    let mut listener = listener(4);
    let first = reply(listener.on_segment(0, &flow(1), &raw(syn(modern())), None));
    let second = reply(listener.on_segment(SECOND / 2, &flow(1), &raw(syn(modern())), None));
    assert_eq!(first.sequence, second.sequence);
    assert_eq!(listener.half_open(), 1);
}

#[test]
fn rfc5961_a_half_open_connection_survives_forged_segments() {
    let mut listener = listener(4);
    let answer = reply(listener.on_segment(0, &flow(1), &raw(syn(modern())), None));
    let mut on = |header| listener.on_segment(0, &flow(1), &raw(header), None);
    assert_eq!(on(Header { flags: RST, sequence: IRS + 2, ..Header::default() }), Verdict::Drop);
    let other_syn = Header { sequence: IRS + 9, ..syn(modern()) };
    assert_eq!(reply(on(other_syn)).flags, ACK, "a challenge");
    let wrong = Header { acknowledgment: answer.sequence, ..last(&answer) };
    assert_eq!(reply(on(wrong)).flags, RST);
    let outside = Header { sequence: IRS.wrapping_add(100_000), ..last(&answer) };
    assert_eq!(reply(on(outside)).flags, ACK);
    assert!(matches!(on(last(&answer)), Verdict::Established(_)));
}

#[test]
fn rfc9293_a_reset_removes_a_half_open_connection() {
    let mut listener = listener(4);
    listener.on_segment(0, &flow(1), &raw(syn(modern())), None);
    let reset = Header { flags: RST, sequence: IRS + 1, ..Header::default() };
    listener.on_segment(0, &flow(1), &raw(reset), None);
    assert_eq!(listener.half_open(), 0);
}

#[test]
fn rfc9293_an_acknowledgment_for_no_connection_is_reset() {
    let mut listener = listener(4);
    let header = Header { sequence: 5, acknowledgment: 99, flags: ACK, ..Header::default() };
    let reset = reply(listener.on_segment(0, &flow(1), &raw(header), None));
    assert_eq!((reset.flags, reset.sequence), (RST, 99));
    assert_eq!(listener.on_segment(0, &flow(1), &raw(Header { flags: RST, ..header }), None), Verdict::Drop);
    assert_eq!(listener.on_segment(0, &flow(1), &raw(Header { flags: FIN, ..header }), None), Verdict::Drop);
}

#[test]
fn rfc4987_a_flood_of_syns_is_answered_with_cookies_and_real_peers_get_in() {
    let mut listener = listener(8);
    for port in 0..1000 {
        reply(listener.on_segment(0, &flow(port), &raw(syn(modern())), None));
    }
    assert_eq!((listener.half_open(), listener.counters().cookies_sent), (8, 992));
    let answer = reply(listener.on_segment(MILLISECOND, &flow(2000), &raw(syn(modern())), None));
    let mut listener_only = |header: Header, now| listener.on_segment(now, &flow(2000), &raw(header), None);
    let forged = Header { acknowledgment: answer.sequence ^ 0x1000, ..last(&answer) };
    assert_eq!(reply(listener_only(forged, RTT)).flags, RST);
    let Verdict::Established(handshake) = listener_only(last(&answer), 65 * SECOND) else { panic!() };
    let connection = Connection::accept(RTT, &config(), &handshake).unwrap();
    assert!(connection.sack());
    assert_eq!(connection.send_window(), 500 << 7);
    assert_eq!(connection.segment_size(), 1448);
    assert_eq!(reply(listener_only(last(&answer), 129 * SECOND)).flags, RST);
}

#[test]
fn rfc4987_a_cookie_keeps_the_options_in_the_timestamp() {
    for (scale, sack, ecn) in [(None, false, false), (Some(0), true, false), (Some(14), false, true)] {
        let mut listener = listener(1);
        listener.on_segment(0, &flow(1), &raw(syn(modern())), None);
        let options = Options { window_scale: scale, sack_permitted: sack, mss: Some(1300), ..modern() };
        let mut header = syn(options);
        header.flags |= if ecn { ECE | CWR } else { 0 };
        let answer = reply(listener.on_segment(0, &flow(2), &raw(header), None));
        assert_eq!(answer.has(ECE), ecn);
        let Verdict::Established(handshake) = listener.on_segment(RTT, &flow(2), &raw(last(&answer)), None)
        else {
            panic!()
        };
        let connection = Connection::accept(RTT, &config(), &handshake).unwrap();
        assert_eq!(connection.send_window(), 500 << scale.unwrap_or(0));
        assert_eq!((connection.sack(), connection.ecn()), (sack, ecn));
        assert_eq!(connection.segment_size(), 1220 - 12, "the next smaller MSS that a cookie holds");
    }
}

#[test]
fn rfc4987_without_timestamps_a_cookie_keeps_only_the_mss() {
    let mut listener = listener(1);
    listener.on_segment(0, &flow(1), &raw(syn(modern())), None);
    let answer =
        reply(listener.on_segment(0, &flow(2), &raw(syn(Options { timestamps: None, ..modern() })), None));
    assert_eq!(answer.options, Options { mss: Some(1460), ..Options::default() });
    let Verdict::Established(handshake) = listener.on_segment(RTT, &flow(2), &raw(last(&answer)), None)
    else {
        panic!()
    };
    let connection = Connection::accept(RTT, &config(), &handshake).unwrap();
    assert_eq!((connection.sack(), connection.send_window(), connection.segment_size()), (false, 500, 1460));
}

#[test]
fn a_full_accept_queue_delays_the_end_of_handshakes() {
    let mut listener = listener(1);
    listener.set_waiting(1);
    let answer = reply(listener.on_segment(0, &flow(1), &raw(syn(modern())), None));
    listener.set_waiting(2);
    assert_eq!(listener.on_segment(0, &flow(2), &raw(syn(modern())), None), Verdict::Drop);
    assert_eq!(listener.on_segment(0, &flow(1), &raw(last(&answer)), None), Verdict::Drop);
    assert_eq!((listener.counters().accept_queue_full, listener.half_open()), (2, 1));
    listener.set_waiting(1);
    assert!(matches!(listener.on_segment(0, &flow(1), &raw(last(&answer)), None), Verdict::Established(_)));
}

#[test]
fn rfc6191_a_reopened_flow_begins_above_the_old_one() {
    let mut script = Script::open(&config(), modern());
    script.connection.shutdown_write();
    script.one();
    script.receive(seg(FIN | ACK, 0, 0).acking(1));
    let entry = script.connection.time_wait().unwrap();
    let mut listener = listener(4);
    let answer = reply(listener.on_segment(0, &flow(1), &raw(syn(modern())), Some(&entry)));
    assert_eq!(entry.sequence_after(answer.sequence), answer.sequence);
}

#[test]
fn the_memory_of_a_listener_is_bounded_under_churn() {
    let mut listener = listener(16);
    for n in 0..100_000u64 {
        let port = (n % 60_000) as u16;
        let answer = reply(listener.on_segment(n, &flow(port), &raw(syn(modern())), None));
        assert!(matches!(
            listener.on_segment(n, &flow(port), &raw(last(&answer)), None),
            Verdict::Established(_)
        ));
    }
    assert_eq!(listener.half_open(), 0);
    let mut calls = 0;
    listener.on_timer(u64::MAX / 2, |_, _| calls += 1);
    assert_eq!((calls, listener.next_deadline()), (0, None));
}
