//! Tests of the engine's side of shared memory. The test code plays the program.

use super::*;
use inlane_offload_protocol::lease::SLOTS;
use inlane_tcp::ReceiveBuffer;
use proptest::prelude::*;
use std::os::fd::AsRawFd;

const DEVICE: u64 = 8;

const RING: usize = 65536;

fn area() -> Arc<SharedArea> {
    Arc::new(SharedArea::new(1, 1000, RING).unwrap().0)
}

fn connection() -> Direct {
    Direct::new(0, &area(), 7, DEVICE).unwrap()
}

/// Commits bytes as the preloaded library does.
fn commit(direct: &Direct, bytes: &[u8]) {
    let claim = direct.slot.send().claim().unwrap();
    assert!(direct.slot.room(claim.position) >= bytes.len());
    // SAFETY: the test has claimed the ring.
    unsafe { direct.slot.write_send(claim.position, bytes.as_ptr(), bytes.len()) };
    assert!(direct.slot.send().commit(claim, bytes.len() as u64));
}

#[test]
fn committed_bytes_are_in_the_ring_in_front_of_those_of_the_pair() {
    let mut direct = connection();
    let [mut ring, _] = direct.rings();
    assert!(direct.slot.send().claim().is_none(), "no lease was granted");
    direct.publish(7, 7, RING as u64);
    direct.grant(1);
    commit(&direct, &[3; 5000]);
    assert!(direct.has_work(1, true) && direct.uncollected() == 5000);
    assert_eq!(direct.end_lease(1), Ok(Turn::Behind));
    assert_eq!(direct.collect(1, RING as u64), Ok(5000));
    assert_eq!(direct.end_lease(1), Ok(Turn::Pair));
    assert!(!direct.has_work(1, true) && direct.slot.send().claim().is_none());
    // The engine reads 3 bytes of the pair, and the peer acknowledges 1000 bytes.
    ring.write(5007, &[4; 3]);
    direct.publish(5010, 1007, RING as u64);
    direct.grant(1);
    assert_eq!(direct.slot.room(direct.slot.send().granted().unwrap()), RING - 4003);
    commit(&direct, &[5; 1000]);
    assert_eq!(direct.collect(1, RING as u64 - 4003), Ok(1000));
    let mut bytes = vec![0; 6003];
    ring.read(7..6010, &mut bytes);
    assert_eq!(bytes, [vec![3; 5000], vec![4; 3], vec![5; 1000]].concat());
}

#[test]
fn more_committed_bytes_than_fit_are_hostile() {
    let mut direct = connection();
    direct.publish(0, 0, 1000);
    direct.grant(1);
    let claim = direct.slot.send().claim().unwrap();
    assert_eq!(direct.slot.room(claim.position), 1000);
    assert!(direct.slot.send().commit(claim, 1001));
    assert_eq!(direct.collect(1, 1000), Err(Hostile));
}

#[test]
fn a_claim_that_lasts_too_long_is_ended_and_its_slot_is_not_used_again() {
    let area = area();
    let mut direct = Direct::new(0, &area, 7, DEVICE).unwrap();
    direct.grant(1);
    let claim = direct.slot.send().claim().unwrap();
    assert_eq!(direct.end_lease(1), Ok(Turn::Claimed));
    assert_eq!(direct.end_lease(1 + CLAIM_LIMIT_NS), Ok(Turn::Pair));
    assert!(direct.take_leaves_ring() && !direct.take_leaves_ring());
    assert!(!direct.slot.send().commit(claim, 5));
    direct.grant(2);
    assert!(direct.slot.send().claim().is_none());
    drop(direct);
    let next: Vec<_> = (0..SLOTS).map_while(|_| Direct::new(0, &area, 8, DEVICE)).collect();
    assert_eq!(next.len(), SLOTS - 1);
    assert!(next.iter().all(|direct| direct.index != 0));
}

#[test]
fn a_receive_is_offered_as_much_as_fits() {
    let (engine, _program) = std::os::unix::net::UnixStream::pair().unwrap();
    let area = Arc::new(SharedArea::new(1, 1000, 2 * LEAST_OFFER).unwrap().0);
    let mut direct = Direct::new(0, &area, 7, DEVICE).unwrap();
    let [_, mut ring] = direct.rings();
    let start = 2 * LEAST_OFFER as u64 - 3000;
    ring.write(start, &[1; 3000]);
    ring.write(start + 3000, &[2; LEAST_OFFER]);
    assert!(direct.slot.receive().post());
    assert!(direct.offer(1, engine.as_raw_fd(), start, 3000 + LEAST_OFFER as u64));
    let offer = direct.slot.receive().offered().unwrap();
    assert_eq!(offer.len, LEAST_OFFER as u64);
    let mut bytes = vec![0; LEAST_OFFER];
    // SAFETY: the vector has room for the bytes.
    unsafe { direct.slot.read_offered(offer, 0, bytes.as_mut_ptr(), LEAST_OFFER) };
    assert_eq!((&bytes[..3000], &bytes[3000..]), (&[1; 3000][..], &[2; LEAST_OFFER - 3000][..]));
}

#[test]
fn an_offer_is_announced_renewed_and_shunned_when_nobody_answers() {
    let (engine, program) = std::os::unix::net::UnixStream::pair().unwrap();
    let fd = engine.as_raw_fd();
    let mut direct = connection();
    let ready = |direct: &Direct| direct.area.area().ready().swap(0, Ordering::Acquire);
    assert!(direct.slot.receive().post());
    assert!(direct.offer(1, fd, 0, 8) && ready(&direct) == 1 && direct.has_unread());
    let offer = direct.slot.receive().offered().unwrap();
    assert!(direct.slot.receive().take(offer, 3) && direct.has_unread());
    assert!(!direct.has_work(2, true) && direct.settle(2) == Ok(None));
    let offer = direct.slot.receive().offered().unwrap();
    assert!(direct.slot.receive().take(offer, 5) && !direct.has_unread());
    assert!(!direct.has_work(2, false) && direct.has_work(2, true));
    direct.set_waits(true);
    assert!(direct.has_work(2, false));
    assert_eq!(direct.settle(2), Ok(Some(8)));
    assert!(direct.offer(3, fd, 8, 5) && ready(&direct) == 1);
    let offer = direct.slot.receive().offered().unwrap();
    assert!(direct.slot.receive().take(offer, 4));
    let end = 3 + OFFER_LIMIT_NS;
    assert!(direct.has_work(end, false));
    assert_eq!(direct.settle(end), Ok(Some(4)));
    assert!(direct.slot.receive().is_moving() && !direct.slot.receive().post());
    direct.note_pair_written();
    assert!(direct.slot.receive().post());
    assert!(!direct.offer(end, fd, 12, 5), "the program did not look at its slot");
    assert!(direct.offer(end + SHUN_NS, fd, 12, 5));
    drop(program);
}

#[test]
fn bytes_wait_for_the_next_receive_unless_the_pair_has_earlier_ones() {
    let (engine, program) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut direct = connection();
    assert!(direct.slot.receive().post());
    assert!(direct.offer(1, engine.as_raw_fd(), 0, 8));
    assert_eq!(direct.settle(2), Ok(None));
    assert!(direct.slot.receive().take(direct.slot.receive().offered().unwrap(), 8));
    assert!(direct.slot.receive().stop() && direct.has_work(2, false));
    assert_eq!(direct.settle(2), Ok(Some(8)));
    assert!(direct.expects_post(1 + HOLD_NS) && !direct.expects_post(2 + HOLD_NS));
    assert!(direct.slot.receive().post() && !direct.expects_post(3));
    assert!(direct.slot.receive().stop());
    std::io::Write::write_all(&mut &engine, b"earlier").unwrap();
    direct.note_pair_written();
    assert!(!direct.expects_post(3) && direct.slot.receive().post());
    assert!(!direct.offer(3, engine.as_raw_fd(), 8, 1), "the pair has earlier bytes");
    drop(program);
}

#[test]
fn discarded_bytes_of_a_withdrawn_offer_end_the_move_and_count_as_unread() {
    let (engine, _program) = std::os::unix::net::UnixStream::pair().unwrap();
    for withdrawn_by_age in [true, false] {
        let mut direct = connection();
        assert!(direct.slot.receive().post() && direct.offer(1, engine.as_raw_fd(), 0, 8));
        if withdrawn_by_age {
            assert_eq!(direct.settle(1 + OFFER_LIMIT_NS), Ok(Some(0)));
            assert!(direct.slot.receive().is_moving());
        }
        direct.forget_offer();
        assert!(direct.has_unread() && direct.slot.receive().post());
    }
    let mut direct = connection();
    assert!(direct.slot.receive().post() && direct.offer(1, engine.as_raw_fd(), 0, 8));
    assert!(direct.slot.receive().take(direct.slot.receive().offered().unwrap(), 8));
    direct.forget_offer();
    assert!(!direct.has_unread(), "the program has taken all bytes");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn random_words_harm_nothing(words in proptest::collection::vec((0usize..4, any::<u64>(), any::<bool>()), 1..60)) {
        let (engine, _program) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut direct = connection();
        let (mut written, mut now) = (0, 0);
        for (index, word, small) in words {
            let header = direct.slot.header();
            // Keep only the state bits and a small position or length. Many random words then look valid.
            let word = if small { word & (7 << 61 | 0xffff) } else { word };
            let target = [&header.send.0, &header.receive.0, &header.room.acknowledged, &header.inode][index];
            target.store(word, Ordering::Relaxed);
            now += CLAIM_LIMIT_NS / 3;
            let Ok(len) = direct.collect(now, RING as u64) else { break };
            prop_assert!(len <= RING as u64);
            written += len;
            if direct.end_lease(now).is_err() {
                break;
            }
            direct.grant(now);
            if !direct.has_offer() {
                direct.offer(now, engine.as_raw_fd(), written, 200);
            }
            match direct.settle(now) {
                Ok(taken) => prop_assert!(taken.is_none_or(|taken| taken <= 200)),
                Err(Hostile) => break,
            }
        }
    }
}
