//! Tests of how a connection ends: close, half-close, TIME-WAIT, resets.

use crate::*;

#[test]
fn rfc9293_active_close() {
    let mut script = Script::open(&config(), modern());
    script.connection.shutdown_write();
    assert_eq!(script.state(), State::FinWait1);
    assert_eq!(script.one().header.flags, FIN | ACK);
    script.receive(ack(1));
    assert_eq!(script.state(), State::FinWait2);
    script.receive(seg(FIN | ACK, 0, 0));
    assert_eq!(script.state(), State::TimeWait);
    assert!(script.events.contains(Events::PEER_CLOSED | Events::ENDED));
    script.acknowledges(1);
    assert_eq!(script.next_timer(), 60 * SECOND);
    assert_eq!((script.state(), script.connection.reason()), (State::Closed, None));
}

#[test]
fn rfc9293_passive_close() {
    let mut script = Script::open(&config(), modern());
    script.receive(seg(FIN | ACK, 0, 0));
    assert_eq!(script.state(), State::CloseWait);
    script.acknowledges(1);
    script.connection.shutdown_write();
    assert_eq!(script.state(), State::LastAck);
    assert_eq!(script.one().header.flags, FIN | ACK);
    script.receive(ack(1).at(1));
    assert_eq!(script.state(), State::Closed);
    assert!(script.events.contains(Events::ENDED));
    assert_eq!(script.connection.next_deadline(), None);
}

#[test]
fn rfc9293_simultaneous_close() {
    let mut script = Script::open(&config(), modern());
    script.connection.shutdown_write();
    script.one();
    script.receive(seg(FIN | ACK, 0, 0));
    assert_eq!(script.state(), State::Closing);
    script.acknowledges(1);
    script.receive(ack(1).at(1));
    assert_eq!(script.state(), State::TimeWait);
}

#[test]
fn rfc9293_fin_and_its_acknowledgment_in_one_segment() {
    let mut script = Script::open(&config(), modern());
    script.connection.shutdown_write();
    script.one();
    script.receive(seg(FIN | ACK, 0, 0).acking(1));
    assert_eq!(script.state(), State::TimeWait);
}

#[test]
fn rfc9293_a_half_closed_connection_still_carries_data_the_other_way() {
    let mut script = Script::open(&config(), modern());
    script.connection.shutdown_write();
    script.one();
    script.receive(ack(1));
    script.receive(data(0, 100));
    assert_eq!(script.connection.received(), 100);
    let mut script = Script::open(&config(), modern());
    script.receive(seg(FIN | ACK, 0, 0));
    script.connection.set_written(100).unwrap();
    assert_eq!(script.ranges(), [(0, 100)]);
}

#[test]
fn rfc9293_the_fin_waits_for_all_data_and_is_retransmitted() {
    let mut script = Script::open(&config(), plain());
    script.connection.set_written(2000).unwrap();
    script.connection.shutdown_write();
    assert!(script.connection.set_written(2001).is_err(), "nothing can be written after a close");
    let sent = script.sent();
    assert_eq!((sent[0].payload.clone(), sent[0].header.flags), (0..1460, ACK));
    assert_eq!((sent[1].payload.clone(), sent[1].header.flags), (1460..2000, ACK | PSH | FIN));
    script.receive(ack(2000));
    assert_eq!(script.state(), State::FinWait1);
    script.next_timer();
    let fin = script.one();
    assert_eq!((fin.header.flags, fin.header.sequence), (FIN | ACK, ISS + 1 + 2000));
    script.receive(ack(2001));
    assert_eq!(script.state(), State::FinWait2);
    assert_eq!(script.connection.acknowledged(), 2000);
}

#[test]
fn rfc9293_a_fin_beyond_a_gap_waits_for_the_gap() {
    let mut script = Script::open(&config(), modern());
    script.receive(seg(FIN | ACK, 100, 50));
    assert_eq!(script.state(), State::Established);
    script.acknowledges(0);
    script.receive(data(0, 100));
    assert_eq!(script.state(), State::CloseWait);
    script.acknowledges(151);
    assert_eq!(script.consume(0).len(), 150);
}

#[test]
fn rfc9293_data_beyond_the_fin_is_ignored() {
    let mut script = Script::open(&config(), modern());
    script.receive(seg(FIN | ACK, 100, 50));
    script.receive(data(150, 50));
    script.receive(data(0, 200));
    assert_eq!(script.connection.received(), 150);
    assert_eq!(script.state(), State::CloseWait);
}

#[test]
fn a_fin_that_contradicts_received_data_is_ignored() {
    let mut script = Script::open(&config(), modern());
    script.receive(data(200, 100));
    script.receive(seg(FIN | ACK, 100, 50));
    script.receive(data(0, 250));
    assert_eq!(script.connection.received(), 300);
    assert_eq!(script.state(), State::Established);
}

#[test]
fn a_fin_before_received_data_is_ignored() {
    let mut script = Script::open(&config(), modern());
    script.receive(seg(FIN | ACK, -1, 0));
    assert_eq!((script.state(), script.connection.received()), (State::Established, 0));
    script.receive(data(0, 100));
    script.receive(seg(FIN | ACK, 99, 0));
    script.receive(seg(FIN | ACK, 89, 10));
    assert!(!script.connection.peer_closed());
    assert_eq!((script.state(), script.connection.received()), (State::Established, 100));
    script.receive(seg(FIN | ACK, 100, 0));
    assert_eq!((script.state(), script.connection.received()), (State::CloseWait, 100));
}

#[test]
fn rfc9293_a_repeated_fin_is_acknowledged_and_restarts_time_wait() {
    let mut script = Script::open(&config(), modern());
    script.connection.shutdown_write();
    script.one();
    script.receive(seg(FIN | ACK, 0, 0).acking(1));
    script.acknowledges(1);
    script.sleep(20 * SECOND);
    script.receive(seg(FIN | ACK, 0, 0));
    script.acknowledges(1);
    assert_eq!(script.next_timer(), 60 * SECOND);
}

#[test]
fn rfc2525_close_with_unread_data_resets() {
    let mut script = Script::open(&config(), modern());
    script.receive(data(0, 10));
    script.acknowledges(10);
    script.connection.close(script.now);
    assert_eq!((script.state(), script.connection.reason()), (State::Closed, Some(EndReason::Aborted)));
    let reset = script.one().header;
    assert_eq!((reset.flags, reset.sequence), (RST | ACK, ISS + 1));
    script.silent();
}

#[test]
fn rfc9293_data_after_close_resets() {
    let mut script = Script::open(&config(), modern());
    script.connection.close(script.now);
    script.one();
    script.receive(ack(1));
    script.receive(data(0, 10));
    assert_eq!(script.state(), State::Closed);
    assert_eq!(script.one().header.flags, RST | ACK);
}

#[test]
fn a_closed_connection_does_not_wait_for_ever_in_fin_wait_2() {
    let mut script = Script::open(&config(), modern());
    script.connection.close(script.now);
    script.one();
    script.receive(ack(1));
    assert_eq!(script.state(), State::FinWait2);
    assert_eq!(script.next_timer(), 60 * SECOND);
    assert_eq!(script.state(), State::Closed);
    // If the application has shut down only its sending direction, the connection waits for the peer's FIN
    // without a time limit.
    let mut script = Script::open(&config(), modern());
    script.connection.shutdown_write();
    script.one();
    script.receive(ack(1));
    assert_eq!(script.connection.next_deadline(), None);
}

#[test]
fn rfc9293_abort_resets_the_peer() {
    let mut script = Script::open(&config(), modern());
    script.connection.set_written(10_000).unwrap();
    script.sent();
    script.connection.abort();
    let reset = script.one().header;
    assert_eq!((reset.flags, reset.sequence), (RST | ACK, ISS + 1 + 10_000));
    assert_eq!(script.connection.next_deadline(), None);
}

#[test]
fn rfc9293_a_segment_without_connection_is_answered_with_a_reset() {
    let with_ack = Header { sequence: 5, acknowledgment: 77, flags: ACK, ..Header::default() };
    let reset = reset_for(&raw(with_ack)).unwrap();
    assert_eq!((reset.flags, reset.sequence), (RST, 77));
    let without = Header { sequence: 5, flags: SYN | FIN, ..Header::default() };
    let segment = Segment { header: without, payload: b"abc", ecn: Ecn::NotEct };
    let reset = reset_for(&segment).unwrap();
    assert_eq!((reset.flags, reset.acknowledgment, reset.sequence), (RST | ACK, 10, 0));
    assert_eq!(reset_for(&raw(Header { flags: RST, ..Header::default() })), None);
}

fn time_wait(options: Options) -> (TimeWait, Script) {
    let mut script = Script::open(&config(), options);
    assert!(script.connection.time_wait().is_none());
    script.connection.shutdown_write();
    script.one();
    script.receive(seg(FIN | ACK, 0, 0).acking(1));
    script.acknowledges(1);
    (script.connection.time_wait().unwrap(), script)
}

fn next_to(sequence: u32, flags: u8, options: Options) -> Header {
    Header {
        sequence: IRS.wrapping_add(2).wrapping_add(sequence),
        acknowledgment: ISS + 2,
        flags,
        window: 100,
        options,
    }
}

#[test]
fn rfc1337_time_wait_ignores_resets_and_answers_old_segments() {
    let (mut entry, script) = time_wait(modern());
    let mut action = |header| entry.on_segment(script.now, 60 * SECOND, &raw(header));
    assert_eq!(action(next_to(0, RST, Options::default())), TimeWaitAction::Drop);
    assert_eq!(action(next_to(0, ACK, Options::default())), TimeWaitAction::Drop);
    let TimeWaitAction::Reply(reply) = action(next_to(u32::MAX, FIN | ACK, Options::default())) else {
        panic!()
    };
    assert_eq!((reply.flags, reply.sequence, reply.acknowledgment), (ACK, ISS + 2, IRS + 2));
    assert!(reply.options.timestamps.is_some());
}

#[test]
fn rfc9293_a_repeated_fin_restarts_a_time_wait_entry() {
    let (mut entry, script) = time_wait(modern());
    let now = script.now + 10 * SECOND;
    entry.on_segment(now, 60 * SECOND, &raw(next_to(u32::MAX, FIN | ACK, Options::default())));
    assert_eq!(entry.until(), now + 60 * SECOND);
}

#[test]
fn rfc6191_a_newer_timestamp_or_number_reopens_and_an_older_one_does_not() {
    let (mut entry, script) = time_wait(modern());
    let mut action = |sequence, value| {
        let options = Options { timestamps: Some(Timestamps { value, echo: 0 }), ..Options::default() };
        entry.on_segment(script.now, 60 * SECOND, &raw(next_to(sequence, SYN, options)))
    };
    let recent = script.clock;
    assert_eq!(action(0u32.wrapping_sub(1000), recent + 1), TimeWaitAction::Reopen);
    assert!(matches!(action(1000, recent - 1), TimeWaitAction::Reply(_)));
    assert_eq!(action(1, recent), TimeWaitAction::Reopen, "equal timestamps: the number decides");
    let (mut entry, script) = time_wait(plain());
    let mut action =
        |sequence| entry.on_segment(script.now, 60 * SECOND, &raw(next_to(sequence, SYN, plain())));
    assert_eq!(action(1), TimeWaitAction::Reopen);
    assert!(matches!(action(u32::MAX - 10), TimeWaitAction::Reply(_)));
}
