//! Tests of keepalive, the user timeout, and the deadlines that a connection reports.

use crate::*;

#[test]
fn rfc9293_an_idle_peer_is_probed_and_given_up() {
    let keepalive = Keepalive { idle: 60 * SECOND, interval: 10 * SECOND, probes: 3 };
    let mut script = Script::open(&Config { keepalive: Some(keepalive), ..config() }, plain());
    assert_eq!(script.next_timer(), 60 * SECOND);
    let probe = script.one();
    assert_eq!((probe.header.sequence, probe.header.flags, probe.len()), (ISS, ACK, 0));
    script.receive(ack(0)); // the peer answers
    let mut probes = 0;
    let start = script.now;
    while script.state() == State::Established {
        script.next_timer();
        probes += script.sent().len();
    }
    assert_eq!(probes, 3 + 1, "three probes and the reset");
    assert_eq!(script.connection.reason(), Some(EndReason::TimedOut));
    assert_eq!(script.now - start, 60 * SECOND + 3 * 10 * SECOND);
}

#[test]
fn rfc9293_a_probe_of_the_peer_is_answered() {
    let mut script = Script::open(&config(), modern());
    script.receive(ack(0).at(-1));
    script.acknowledges(0);
    script.receive(data(0, 10));
    script.acknowledges(10);
    script.receive(data(9, 1)); // with a byte of garbage, as old systems do
    script.acknowledges(10);
}

#[test]
fn rfc9293_received_data_postpones_the_probe() {
    let mut script = Script::open(&config(), plain());
    let keepalive = Keepalive { idle: 60 * SECOND, interval: 10 * SECOND, probes: 3 };
    script.connection.set_keepalive(script.now, Some(keepalive));
    script.sleep(50 * SECOND);
    script.receive(data(0, 10));
    script.sent();
    script.sleep(10 * SECOND);
    script.silent();
    script.sleep(50 * SECOND);
    assert_eq!(script.one().header.sequence, ISS);
    script.connection.set_keepalive(script.now, None);
    assert_eq!(script.connection.next_deadline(), None);
}

#[test]
fn rfc5482_the_user_timeout_aborts() {
    let mut script = Script::open(&Config { user_timeout: Some(3 * SECOND), ..config() }, plain());
    script.connection.set_written(100).unwrap();
    script.sent();
    let start = script.now;
    while script.state() == State::Established {
        script.next_timer();
        script.sent();
    }
    let elapsed = script.now - start;
    assert!((3 * SECOND..3 * SECOND + SECOND / 2).contains(&elapsed), "{elapsed}");
    assert_eq!(script.connection.reason(), Some(EndReason::TimedOut));
}

#[test]
fn an_early_timer_has_no_effect() {
    let mut script = Script::open(&config(), plain());
    script.connection.set_written(100).unwrap();
    script.sent();
    let deadline = script.connection.next_deadline();
    for _ in 0..10 {
        script.sleep(MILLISECOND);
        script.silent();
    }
    assert_eq!(script.connection.next_deadline(), deadline);
}

#[test]
fn an_idle_connection_has_no_deadline() {
    let mut script = Script::open(&config(), modern());
    script.connection.set_written(1000).unwrap();
    script.sent();
    script.receive(ack(1000));
    script.silent();
    assert_eq!(script.connection.next_deadline(), None);
}

#[test]
fn the_greatest_settings_mean_never() {
    let keepalive = Keepalive { idle: u64::MAX, interval: u64::MAX, probes: 3 };
    let config = Config {
        keepalive: Some(keepalive),
        user_timeout: Some(u64::MAX),
        time_wait: u64::MAX,
        fin_timeout: u64::MAX,
        mss: u16::MAX,
        ..config()
    };
    let mut script = Script::open(&config, Options { mss: Some(u16::MAX), ..plain() });
    script.connection.close(script.now);
    script.one();
    script.receive(ack(1));
    assert_eq!((script.state(), script.connection.next_deadline()), (State::FinWait2, None));
    script.receive(seg(FIN | ACK, 0, 0));
    script.sent();
    assert_eq!((script.state(), script.connection.next_deadline()), (State::TimeWait, None));
}
