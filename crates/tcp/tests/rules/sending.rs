//! Tests of when a connection sends data, and in which segments: Nagle's algorithm, cork, segmentation
//! offload, PSH.

use crate::*;

#[test]
fn rfc9293_nagle_holds_a_small_segment_while_another_is_unacknowledged() {
    let mut script = Script::open(&config(), plain());
    let mut written = 0;
    script.write(100, &mut written);
    assert_eq!(script.ranges(), [(0, 100)]);
    script.write(100, &mut written);
    script.silent();
    script.write(1460, &mut written);
    assert_eq!(script.ranges(), [(100, 1560)], "a full segment is sent");
    script.receive(ack(100));
    assert_eq!(script.ranges(), [(1560, 1660)]);
}

#[test]
fn rfc9293_without_nagle_small_segments_are_sent_at_once() {
    let mut script = Script::open(&config(), plain());
    script.connection.set_no_delay(true);
    let mut written = 0;
    for n in 0..5 {
        script.write(10, &mut written);
        assert_eq!(script.ranges(), [(n * 10, n * 10 + 10)]);
    }
}

#[test]
fn a_cork_holds_small_segments_for_200_ms_at_most() {
    let mut script = Script::open(&config(), plain());
    script.connection.set_cork(true);
    let mut written = 0;
    script.write(2000, &mut written);
    assert_eq!(script.ranges(), [(0, 1460)]);
    script.receive(ack(1460));
    script.silent();
    assert_eq!(script.next_timer(), 200 * MILLISECOND);
    assert_eq!(script.ranges(), [(1460, 2000)]);
    script.receive(ack(2000));
    script.write(10, &mut written);
    script.silent();
    script.connection.set_cork(false);
    assert_eq!(script.ranges(), [(2000, 2010)]);
}

/// The cork's time passes while Nagle's algorithm holds the bytes back. Then further bytes fill the segment,
/// and it is sent. Later bytes must be held by the cork again.
#[test]
fn an_expired_cork_holds_again_after_the_bytes_have_filled_a_segment() {
    let mut script = Script::open(&config(), plain());
    let mut written = 0;
    script.write(10, &mut written);
    assert_eq!(script.ranges(), [(0, 10)]);
    script.connection.set_cork(true);
    script.write(460, &mut written);
    script.silent();
    script.sleep(200 * MILLISECOND);
    script.write(1000, &mut written);
    script.receive(ack(10));
    let ranges = script.ranges();
    assert_eq!(ranges.last(), Some(&(10, 1470)), "{ranges:?}");
    script.receive(ack(1470));
    script.write(10, &mut written);
    script.silent();
    // The cork's time limit of 200 ms starts when the cork first holds back bytes, not when the application
    // sets it.
    assert_eq!(script.next_timer(), 200 * MILLISECOND);
    assert_eq!(script.ranges(), [(1470, 1480)]);
}

#[test]
fn no_delay_sends_what_a_cork_held_and_leaves_the_cork() {
    let mut script = Script::open(&config(), plain());
    script.connection.set_cork(true);
    let mut written = 0;
    script.connection.set_no_delay(true);
    script.write(10, &mut written);
    script.silent();
    script.connection.set_no_delay(true);
    assert_eq!(script.ranges(), [(0, 10)]);
    script.receive(ack(10));
    script.write(10, &mut written);
    script.silent();
}

#[test]
fn a_close_sends_what_a_cork_held() {
    let mut script = Script::open(&config(), plain());
    script.connection.set_cork(true);
    script.connection.set_written(10).unwrap();
    script.silent();
    script.connection.shutdown_write();
    assert_eq!(script.one().header.flags, FIN | ACK | PSH);
}

#[test]
fn segmentation_offload_sends_whole_segments_in_one_transmission() {
    let mut script = Script::open(&Config { gso_bytes: 4 * 1460, ..Config::default() }, plain());
    script.connection.set_written(9000).unwrap();
    script.connection.shutdown_write();
    let sent = script.sent();
    assert_eq!(sent.iter().map(|t| t.payload.clone()).collect::<Vec<_>>(), [0..5840, 5840..9000]);
    let parts: Vec<_> = sent[1].segments().collect();
    assert_eq!(parts.len(), 3);
    assert_eq!((parts[0].0.flags, parts[0].1.clone()), (ACK, 5840..7300));
    assert_eq!(parts[1].0.sequence, ISS + 1 + 7300);
    assert_eq!((parts[2].0.flags, parts[2].1.clone()), (ACK | PSH | FIN, 8760..9000));
    assert_eq!(script.connection.counters().segments_out, 2 + 4 + 3);
}

#[test]
fn rfc9293_psh_marks_the_end_of_what_was_written() {
    let mut script = Script::open(&config(), plain());
    script.connection.set_written(3000).unwrap();
    let flags: Vec<_> = script.sent().iter().map(|t| t.header.flags).collect();
    assert_eq!(flags, [ACK, ACK, ACK | PSH]);
}

#[test]
fn rfc9293_the_ring_may_be_used_up_to_what_is_acknowledged() {
    let mut script = Script::open(&Config { send_capacity: 1000, ..config() }, plain());
    script.connection.set_written(1000).unwrap();
    script.sent();
    script.receive(ack(400));
    assert!(script.events.contains(Events::WRITABLE));
    assert_eq!(script.connection.acknowledged(), 400);
    script.connection.set_written(1400).unwrap();
}
