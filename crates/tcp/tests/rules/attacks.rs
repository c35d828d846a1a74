//! Tests with segments that an attacker or an old connection might send.

use crate::*;

#[test]
fn rfc5961_a_reset_counts_only_at_exactly_the_next_number() {
    let mut script = Script::open(&config(), modern());
    script.receive(seg(RST, 1, 0));
    assert_eq!(script.state(), State::Established);
    script.acknowledges(0);
    script.receive(seg(RST, -1, 0));
    script.receive(seg(RST, 2 << 20, 0));
    script.silent();
    assert_eq!(script.state(), State::Established);
    script.receive(seg(RST, 0, 0));
    assert_eq!((script.state(), script.connection.reason()), (State::Closed, Some(EndReason::Reset)));
    script.silent();
}

#[test]
fn rfc5961_a_syn_is_answered_with_a_challenge_ack() {
    let mut script = Script::open(&config(), modern());
    for at in [-1, 0, 100, 5 << 20] {
        script.receive(seg(SYN, at, 0));
        assert_eq!(script.state(), State::Established);
        script.acknowledges(0);
    }
    assert_eq!(script.connection.counters().challenge_acks, 4);
}

#[test]
fn rfc5961_acknowledgments_outside_the_window_are_challenged_and_their_data_is_dropped() {
    let mut script = Script::open(&config(), modern());
    let far_behind = 0u64.wrapping_sub(200_000);
    for number in [1, 1000, far_behind] {
        script.receive(data(0, 10).acking(number));
        script.acknowledges(0);
        assert_eq!(script.connection.received(), 0);
    }
    script.ack = 0;
}

#[test]
fn rfc5961_challenge_acks_are_limited_to_ten_a_second() {
    let mut script = Script::open(&config(), modern());
    let mut answers = 0;
    for _ in 0..100 {
        script.receive(seg(SYN, 5, 0));
        answers += script.sent().len();
    }
    assert_eq!(answers, 10);
    assert_eq!(script.connection.counters().challenge_acks_limited, 90);
    script.sleep(SECOND);
    script.receive(seg(SYN, 5, 0));
    script.acknowledges(0);
}

#[test]
fn rfc9293_a_segment_without_ack_is_dropped() {
    let mut script = Script::open(&config(), modern());
    script.receive(seg(PSH, 0, 10));
    script.receive(seg(FIN, 0, 10));
    script.silent();
    assert_eq!((script.connection.received(), script.state()), (0, State::Established));
}

#[test]
fn rfc9293_data_outside_the_window_is_acknowledged_and_dropped() {
    let mut script = Script::open(&Config { receive_capacity: 1000, ..config() }, plain());
    script.receive(data(2000, 10));
    script.acknowledges(0);
    script.receive(data(990, 100)); // half in the window
    script.acknowledges(0);
    script.receive(data(0, 990));
    script.acknowledges(1000);
    assert_eq!(script.consume(0).len(), 1000);
}

#[test]
fn rfc5961_two_connections_that_disagree_do_not_exchange_acknowledgments_for_ever() {
    let mut script = Script::open(&config(), modern());
    let mut answers = 0;
    for _ in 0..1000 {
        script.receive(ack(0).at(-100));
        answers += script.sent().len();
    }
    assert_eq!(answers, 10);
}

#[test]
fn rfc6093_urgent_data_is_delivered_inline() {
    let mut script = Script::open(&config(), modern());
    script.receive(seg(ACK | URG, 0, 10));
    assert_eq!(script.consume(0), (0..10).collect::<Vec<u8>>());
}

#[test]
fn the_applications_indices_are_checked() {
    let mut script =
        Script::open(&Config { send_capacity: 1000, receive_capacity: 1000, ..config() }, plain());
    let connection = &mut script.connection;
    let message = connection.set_written(1001).unwrap_err().to_string();
    assert_eq!(message, "the application's written index is 1001; it must be from 0 to 1000");
    connection.set_written(1000).unwrap();
    for index in [999, 1001, u64::MAX] {
        assert!(connection.set_written(index).is_err());
    }
    assert!(connection.set_consumed(1).is_err(), "nothing was received");
    script.sent();
    script.receive(data(0, 10).acking(500));
    let connection = &mut script.connection;
    connection.set_written(1500).unwrap();
    assert!(connection.set_written(1501).is_err());
    assert!(connection.set_consumed(11).is_err());
    connection.set_consumed(10).unwrap();
    assert!(connection.set_consumed(9).is_err());
    script.receive(seg(FIN | ACK, 10, 0));
    assert_eq!(script.connection.received(), 10);
    assert!(script.connection.set_consumed(11).is_err());
}
