use super::*;
use proptest::prelude::*;

const CONTEXT: AckContext = AckContext { now: 1_000, min_rtt: 0, echo: None };
const BASE: Sequence = 1 << 32;

/// A simple and slow model of the scoreboard with one entry per byte. The tests compare the scoreboard with
/// this model.
#[derive(Default)]
struct Model {
    /// For each byte from SND.UNA on: whether it is sacked, and whether it is marked lost.
    bytes: VecDeque<(bool, bool)>,
    una: Sequence,
}

#[derive(Clone, Debug)]
enum Step {
    Send(u32),
    Ack(u64),
    Sack(u64, u64),
    Detect,
    TimeOut,
    Retransmit(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1u32..400).prop_map(Step::Send),
        2 => (0u64..300).prop_map(Step::Ack),
        4 => (0u64..900, 1u64..200).prop_map(|(start, len)| Step::Sack(start, len)),
        2 => Just(Step::Detect),
        1 => Just(Step::TimeOut),
        3 => (1u32..300).prop_map(Step::Retransmit),
    ]
}

proptest! {
    #[test]
    fn rfc6675_the_scoreboard_equals_a_model_of_single_bytes(steps in proptest::collection::vec(step(), 1..120)) {
        let mut board = Scoreboard::default();
        let mut model = Model { una: BASE, ..Model::default() };
        for (now, step) in steps.into_iter().enumerate() {
            let now = now as u64 / 2;
            let context = AckContext { now, ..CONTEXT };
            let mut delivered = Delivered::default();
            match step {
                Step::Send(len) => {
                    board.push(model.una + model.bytes.len() as u64, len, now);
                    model.bytes.extend(std::iter::repeat_n((false, false), len as usize));
                }
                Step::Ack(len) => {
                    let len = len.min(model.bytes.len() as u64);
                    model.una += len;
                    board.acknowledge(model.una, &context, &mut delivered);
                    let fresh = model.bytes.drain(..len as usize).filter(|byte| !byte.0).count();
                    prop_assert_eq!(delivered.bytes, fresh as u64);
                }
                Step::Sack(start, len) => {
                    let start = start.min(model.bytes.len() as u64);
                    let end = (start + len).min(model.bytes.len() as u64);
                    if start < end {
                        board.sack(model.una + start, model.una + end, 1, &context, &mut delivered);
                        let mut fresh = 0;
                        for byte in model.bytes.range_mut(start as usize..end as usize) {
                            fresh += !byte.0 as u64;
                            *byte = (true, false);
                        }
                        prop_assert_eq!(delivered.bytes, fresh);
                    }
                }
                Step::Detect => {
                    let lost = board.lost();
                    let (marked, _) = board.detect_loss(now, 3);
                    prop_assert_eq!(board.lost(), lost + marked);
                    copy_lost(&board, &mut model);
                }
                Step::TimeOut => {
                    board.mark_timed_out(now, 5);
                    prop_assert!(board.is_empty() || board.lost() > 0);
                    if model.bytes.front().is_some_and(|byte| byte.0) {
                        model.bytes.iter_mut().for_each(|byte| byte.0 = false);
                    }
                    copy_lost(&board, &mut model);
                }
                Step::Retransmit(most) => {
                    let first = model.bytes.iter().position(|byte| byte.1);
                    let next = board.next_lost();
                    prop_assert_eq!(next.map(|next| next.0), first.map(|first| model.una + first as u64));
                    if let Some((start, len)) = next {
                        let len = len.min(most);
                        board.retransmitted(start, len, now);
                        let start = (start - model.una) as usize;
                        model.bytes.range_mut(start..start + len as usize).for_each(|byte| byte.1 = false);
                    }
                }
            }
            board.check();
            prop_assert_eq!(board.sacked(), model.bytes.iter().filter(|byte| byte.0).count() as u64);
            prop_assert_eq!(board.lost(), model.bytes.iter().filter(|byte| byte.1).count() as u64);
            prop_assert_eq!(board.in_flight(), model.bytes.iter().filter(|byte| !byte.0 && !byte.1).count() as u64);
        }
    }
}

/// Copies the marks of lost bytes from the scoreboard into the model, because the model cannot determine lost
/// bytes itself. Checks that no delivered byte is marked lost.
fn copy_lost(board: &Scoreboard, model: &mut Model) {
    for record in &board.records {
        for at in record.start..record.end() {
            let byte = &mut model.bytes[(at - model.una) as usize];
            byte.1 = record.has(LOST);
            assert!(!(byte.0 && byte.1), "a delivered byte was marked lost");
        }
    }
}

fn sent(segments: u64, len: u32) -> Scoreboard {
    let mut board = Scoreboard::default();
    for n in 0..segments {
        board.push(BASE + n * len as u64, len, n);
    }
    board
}

#[test]
fn rfc8985_a_segment_is_lost_when_one_sent_later_was_delivered_and_the_window_has_passed() {
    let mut board = sent(5, 100);
    let mut delivered = Delivered::default();
    let context = AckContext { now: 104, ..CONTEXT };
    board.sack(BASE + 400, BASE + 500, 100, &context, &mut delivered);
    // Segment 4 was sent at time 4 and delivered at time 104, so its RTT is 100. With a reordering window of
    // 10, segment 3 counts as lost at time 3 + 100 + 10.
    assert_eq!(board.detect_loss(104, 10), (0, Some(113)));
    assert_eq!(board.detect_loss(111, 10), (200, Some(113)));
    assert_eq!(board.detect_loss(113, 10), (200, None));
    assert_eq!(board.next_lost(), Some((BASE, 400)));
}

#[test]
fn rfc8985_the_window_is_zero_after_three_segments_without_reordering_and_grows_with_dsack() {
    let mut board = sent(6, 100);
    let mut delivered = Delivered::default();
    assert_eq!(board.reordering_window(80, 80, false, 100), 20);
    board.sack(BASE + 300, BASE + 600, 100, &CONTEXT, &mut delivered);
    assert_eq!(board.reordering_window(80, 80, false, 100), 0);
    // Segment 1 was sent only once and is delivered after segments 3 to 5. So the network reorders segments,
    // and the reordering window is no longer zero.
    board.sack(BASE + 100, BASE + 200, 100, &CONTEXT, &mut delivered);
    assert_eq!(board.reordering_window(80, 80, false, 100), 20);
    board.on_dsack(BASE, BASE + 600);
    assert_eq!(board.reordering_window(80, 80, false, 100), 40);
    board.on_dsack(BASE, BASE + 600);
    assert_eq!(board.reordering_window(80, 80, false, 100), 40, "at most once a round trip");
    for _ in 0..16 {
        board.on_recovery_end();
    }
    assert_eq!(board.reordering_window(80, 80, false, 100), 20);
}

#[test]
fn rfc2018_selective_acknowledgments_are_forgotten_if_the_receiver_discarded_the_first_segment() {
    let mut board = sent(3, 100);
    board.sack(BASE, BASE + 200, 100, &CONTEXT, &mut Delivered::default());
    board.mark_timed_out(1_000, 0);
    assert_eq!((board.sacked(), board.lost()), (0, 300));
}

#[test]
fn rfc2018_hostile_blocks_cause_a_bounded_number_of_records() {
    let mut board = sent(1, 100_000);
    for n in 0..50_000 {
        board.sack(BASE + 2 * n, BASE + 2 * n + 1, 1000, &CONTEXT, &mut Delivered::default());
    }
    assert!(board.records() <= SPARE_RECORDS + 2 * 100 + 2, "{}", board.records());
    board.check();
}

#[test]
fn rfc8985_an_acknowledgment_of_an_earlier_transmission_does_not_update_rack() {
    let mut board = sent(2, 100);
    board.mark_timed_out(500, 0);
    board.retransmitted(BASE, 100, 500);
    let mut delivered = Delivered::default();
    board.acknowledge(BASE + 100, &AckContext { now: 510, min_rtt: 100, echo: None }, &mut delivered);
    assert_eq!((delivered.bytes, delivered.oldest), (100, None), "10 is less than the least RTT");
    assert_eq!(board.rack_end, 0);
}
