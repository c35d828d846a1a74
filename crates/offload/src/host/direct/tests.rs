//! Tests of the engine's side of shared memory. The test code plays the program.

mod publishing;

use super::*;
use inlane_offload_protocol::slots::SLOTS;
use inlane_tcp::ReceiveBuffer;
use proptest::prelude::*;
use std::os::fd::AsRawFd;

const DEVICE: u64 = 8;

const RING: usize = 65536;

fn area() -> Arc<SharedArea> {
    Arc::new(SharedArea::new(1, 1000, RING).unwrap().0)
}

fn connection_in(area: &Arc<SharedArea>, written: u64) -> Option<Direct> {
    let mut direct =
        Direct::new(0, Polled::new(area, 0), (Key::from_u64(3), 1), (7, DEVICE), written, false, None)?;
    direct.publish(written, RING as u64);
    Some(direct)
}

fn connection() -> Direct {
    connection_in(&area(), 0).unwrap()
}

/// Claims the send ring as the engine does.
fn claim(direct: &mut Direct) -> Claim {
    match direct.claim(1) {
        Turn::Claimed(claim) => claim,
        turn => panic!("{turn:?}"),
    }
}

/// Commits bytes as the preloaded library does.
fn commit(direct: &Direct, bytes: &[u8]) {
    let claim = direct.slot.send().claim().unwrap();
    assert!(direct.slot.room(claim.index) >= bytes.len());
    // SAFETY: the test has claimed the ring.
    unsafe { direct.slot.write_send(claim.index, bytes.as_ptr(), bytes.len()) };
    assert!(direct.slot.send().commit(claim, bytes.len() as u64));
}

#[test]
fn committed_bytes_are_in_the_ring_in_front_of_those_of_the_pair() {
    let mut direct = connection_in(&area(), 7).unwrap();
    let [mut ring, _] = direct.rings();
    commit(&direct, &[3; 5000]);
    assert_eq!(direct.uncollected(), 5000);
    let held = claim(&mut direct);
    assert!(direct.slot.send().claim().is_none() && direct.is_claimed(1));
    assert_eq!((direct.collect(1, RING as u64), held.index), (Ok(5000), 5007));
    // The engine reads 3 bytes of the pair, and the peer acknowledges 1000 bytes.
    ring.write(5007, &[4; 3]);
    assert_eq!(direct.commit(held, 3), Ok(()));
    direct.publish(1007, RING as u64);
    assert_eq!(direct.slot.room(direct.slot.send().next().unwrap()), RING - 4003);
    commit(&direct, &[5; 1000]);
    assert_eq!(direct.collect(1, RING as u64 - 4003), Ok(1000));
    let mut bytes = vec![0; 6003];
    ring.read(7..6010, &mut bytes);
    assert_eq!(bytes, [vec![3; 5000], vec![4; 3], vec![5; 1000]].concat());
    assert_eq!(direct.sent, 6000);
    let held = claim(&mut direct);
    assert_eq!((direct.end(held), direct.claim(1)), (Ok(()), Turn::Closed));
}

#[test]
fn more_committed_bytes_than_fit_are_hostile() {
    let mut direct = connection();
    direct.publish(0, 1000);
    let claim = direct.slot.send().claim().unwrap();
    assert_eq!(direct.slot.room(claim.index), 1000);
    assert!(direct.slot.send().commit(claim, 1001));
    assert_eq!(direct.collect(1, 1000), Err(Hostile));
}

#[test]
fn a_program_that_takes_the_engines_claim_is_hostile() {
    for ends in [false, true] {
        let mut direct = connection();
        let held = claim(&mut direct);
        direct.slot.send().open(held.index);
        assert_eq!(if ends { direct.end(held) } else { direct.commit(held, 1) }, Err(Hostile));
    }
}

#[test]
fn a_claim_that_lasts_too_long_is_ended_and_its_slot_is_not_used_again() {
    let area = area();
    let mut direct = connection_in(&area, 0).unwrap();
    commit(&direct, b"sent");
    let claim = direct.slot.send().claim().unwrap();
    assert!(direct.is_claimed(1) && !direct.is_stuck(1) && direct.claim(1) == Turn::Busy && !direct.close());
    assert!(direct.is_claimed(1 + CLAIM_LIMIT_NS) && direct.is_stuck(1 + CLAIM_LIMIT_NS));
    assert_eq!((direct.abandon(), direct.claim(1)), (Ok(4), Turn::Closed));
    assert!(!direct.slot.send().commit(claim, 5) && !direct.is_claimed(2 + CLAIM_LIMIT_NS));
    assert!(direct.slot.send().claim().is_none());
    drop(direct);
    let next: Vec<_> = (0..SLOTS).map_while(|_| connection_in(&area, 0)).collect();
    assert_eq!(next.len(), SLOTS - 1);
    assert!(next.iter().all(|direct| direct.index != 0));
}

#[test]
fn a_slot_whose_ring_is_claimed_at_the_end_is_not_used_again() {
    let area = area();
    let direct = connection_in(&area, 0).unwrap();
    let (slot, claim) = (direct.slot, direct.slot.send().claim().unwrap());
    drop(direct);
    assert!(!slot.send().commit(claim, 1));
    assert_eq!(connection_in(&area, 0).unwrap().index, 1);
}

/// Takes `len` bytes as the preloaded library does.
fn take(direct: &Direct, len: usize) -> Vec<u8> {
    let received = direct.slot.received().unwrap();
    let mut bytes = vec![0; len];
    // SAFETY: the vector has room for the bytes.
    unsafe { direct.slot.read_received(received, 0, bytes.as_mut_ptr(), len) };
    assert!(direct.slot.receive().take(received, len as u64));
    bytes
}

#[test]
fn received_bytes_are_in_the_ring_as_long_as_the_program_takes_them() {
    let (engine, _program) = std::os::unix::net::UnixStream::pair().unwrap();
    let fd = engine.as_raw_fd();
    let mut direct = connection();
    let ready = |direct: &Direct| direct.area.area().ready().swap(0, Ordering::Acquire);
    let [_, mut ring] = direct.rings();
    let start = RING as u64 - 3000;
    ring.write(start, &[1; 3000]);
    ring.write(start + 3000, &[2; 5000]);
    assert!(!direct.fill(1, fd, start, 3000), "the program has not asked for the ring");
    assert!(direct.slot.receive().ask());
    assert!(direct.fill(1, fd, start, 3000) && ready(&direct) == 1 && direct.has_unread());
    assert!(direct.fill(2, fd, start, 8000) && ready(&direct) == 1);
    assert_eq!(take(&direct, 4000), [[1; 3000].as_slice(), &[2; 1000]].concat());
    assert!(direct.has_receive_work(2, true) && !direct.has_receive_work(2, false));
    assert_eq!(direct.settle(2), Ok(4000));
    assert!(!direct.has_receive_work(2, true) && direct.has_untaken() && direct.has_unread());
    assert_eq!(take(&direct, 4000), [2; 4000]);
    assert!(direct.has_receive_work(2, true) && !direct.has_receive_work(2, false) && !direct.has_unread());
    direct.ends = true;
    assert!(direct.has_receive_work(2, false));
    assert_eq!(direct.settle(3 + UNTAKEN_LIMIT_NS), Ok(4000));
    assert!(direct.slot.received().is_none() && direct.fill(4 + UNTAKEN_LIMIT_NS, fd, start + 8000, 0));
    assert_eq!(ready(&direct), 0);
}

#[test]
fn the_end_of_the_stream_is_in_the_ring_until_the_program_leaves_it() {
    let (engine, _program) = std::os::unix::net::UnixStream::pair().unwrap();
    let fd = engine.as_raw_fd();
    let mut direct = connection();
    assert!(!direct.pass_end(1), "the ring is not open");
    assert!(direct.slot.receive().ask() && direct.fill(2, fd, 8, 5) && direct.pass_end(2));
    assert!(direct.slot.receive().has_end() && !direct.slot.receive().is_at_end());
    take(&direct, 5);
    assert!(direct.slot.receive().is_at_end() && direct.slot.received().is_none());
    assert_eq!(direct.settle(3), Ok(5));
    assert!(direct.has_untaken() && !direct.has_unread(), "the end is no byte that the program has left");
    assert!(direct.pass_end(3) && !direct.has_receive_work(3, false));
    assert!(direct.slot.receive().leave() && direct.has_receive_work(4, false));
    assert_eq!(direct.settle(4), Ok(0));
    assert!(!direct.pass_end(4) && direct.slot.receive().is_moving());
    direct.note_end_in_pair();
    assert!(!direct.slot.receive().is_moving() && !direct.has_untaken());
    assert!(direct.slot.receive().ask(), "the program may ask for the ring at once");
}

#[test]
fn an_end_that_the_program_does_not_see_or_may_not_have_goes_to_the_pair() {
    let (engine, _program) = std::os::unix::net::UnixStream::pair().unwrap();
    let fd = engine.as_raw_fd();
    let mut direct = connection();
    assert!(direct.slot.receive().ask() && direct.fill(2, fd, 8, 5));
    take(&direct, 5);
    assert!(direct.settle(3) == Ok(5) && direct.pass_end(3));
    assert!(!direct.has_receive_work(2 + UNTAKEN_LIMIT_NS, true));
    let end = 3 + UNTAKEN_LIMIT_NS;
    assert!(direct.has_receive_work(end, false));
    assert_eq!(direct.settle(end), Ok(0));
    assert!(!direct.pass_end(end) && !direct.has_unread());

    let mut direct = connection();
    assert!(direct.slot.receive().ask() && direct.fill(2, fd, 8, 5));
    direct.slot.header().shut.store(1, Ordering::Relaxed);
    assert!(!direct.pass_end(2), "the pair must hang up");

    let mut direct = connection();
    assert!(direct.slot.receive().ask() && direct.fill(2, fd, 8, 5) && direct.pass_end(2));
    let received = direct.slot.received().unwrap();
    assert!(direct.slot.receive().take(received, 6));
    assert_eq!(direct.settle(3), Err(Hostile), "nobody can take the end");
}

#[test]
fn bytes_that_nobody_takes_go_to_the_pair() {
    let (engine, _program) = std::os::unix::net::UnixStream::pair().unwrap();
    let fd = engine.as_raw_fd();
    let mut direct = connection();
    assert!(direct.slot.receive().ask() && direct.fill(3, fd, 8, 5));
    take(&direct, 4);
    let end = 3 + UNTAKEN_LIMIT_NS;
    assert!(direct.has_receive_work(end, false));
    assert_eq!(direct.settle(end), Ok(4));
    assert!(direct.has_untaken(), "the program has just taken bytes");
    let end = end + UNTAKEN_LIMIT_NS;
    assert!(direct.has_receive_work(end, false));
    assert_eq!(direct.settle(end), Ok(0));
    assert!(direct.slot.receive().is_moving() && !direct.slot.receive().ask());
    assert!(!direct.fill(end, fd, 12, 1));
    direct.note_pair_written();
    assert!(direct.slot.receive().ask());
    assert!(!direct.fill(end, fd, 13, 5), "the program did not look at its slot");
    assert!(direct.fill(end + SHUN_NS, fd, 13, 5));
}

#[test]
fn a_program_that_leaves_the_ring_gets_the_rest_through_the_pair() {
    let (engine, _program) = std::os::unix::net::UnixStream::pair().unwrap();
    let fd = engine.as_raw_fd();
    let mut direct = connection();
    assert!(direct.slot.receive().ask() && direct.fill(1, fd, 0, 8));
    take(&direct, 8);
    assert!(direct.slot.receive().stop() && !direct.has_receive_work(2, false));
    assert_eq!(direct.settle(2), Ok(8));
    assert!(!direct.fill(2, fd, 8, 1));
    direct.note_pair_written();
    std::io::Write::write_all(&mut &engine, b"x").unwrap();
    assert!(direct.slot.receive().ask());
    assert!(!direct.fill(3, fd, 9, 1), "the pair has earlier bytes");
    std::io::Read::read_exact(&mut &_program, &mut [0]).unwrap();
    assert!(direct.fill(3, fd, 9, 1) && direct.slot.receive().leave());
    assert!(direct.has_receive_work(3, false));
    assert_eq!(direct.settle(3), Ok(0));
    assert!(!direct.fill(3, fd, 9, 1));
    direct.note_pair_written();
    // The program leaves the ring and asks for it again while the engine adds bytes.
    let later = 3 + SHUN_NS;
    assert!(direct.slot.receive().ask() && direct.fill(later, fd, 10, 1));
    take(&direct, 1);
    assert!(direct.slot.receive().stop() && direct.slot.receive().ask());
    direct.filled += 1;
    direct.slot.receive().fill(direct.filled);
    assert_eq!(direct.settle(later), Ok(1));
    assert!(direct.fill(later, fd, 11, 1));
    take(&direct, 1);
    assert_eq!(direct.settle(later), Ok(1));
}

#[test]
fn discarded_bytes_count_as_unread() {
    let (engine, _program) = std::os::unix::net::UnixStream::pair().unwrap();
    for left_by_age in [true, false] {
        let mut direct = connection();
        assert!(direct.slot.receive().ask() && direct.fill(1, engine.as_raw_fd(), 0, 8));
        if left_by_age {
            assert_eq!(direct.settle(1 + UNTAKEN_LIMIT_NS), Ok(0));
            assert!(direct.slot.receive().is_moving());
        }
        direct.discard();
        assert!(direct.has_unread() && direct.slot.receive().ask());
    }
    let mut direct = connection();
    assert!(direct.slot.receive().ask() && direct.fill(1, engine.as_raw_fd(), 0, 8));
    take(&direct, 8);
    direct.discard();
    assert!(!direct.has_unread(), "the program has taken all bytes");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn random_words_harm_nothing(words in proptest::collection::vec((0usize..5, any::<u64>(), any::<bool>()), 1..60)) {
        let (engine, _program) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut direct = connection();
        let (mut delivered, mut now) = (0, 0);
        for (index, word, small) in words {
            let header = direct.slot.header();
            // Keep only the state bits and a small position or length. Many random words then look valid.
            let word = if small { word & (3 << 62 | 0xffff) } else { word };
            let target = [&header.send.ring, &header.receive.0, &header.filled, &header.room.acknowledged, &header.inode][index];
            target.store(word, Ordering::Relaxed);
            now += CLAIM_LIMIT_NS / 3;
            let Ok(len) = direct.collect(now, RING as u64) else { break };
            prop_assert!(len <= RING as u64);
            if direct.is_claimed(now) && direct.is_stuck(now) && direct.abandon().is_err() {
                break;
            }
            if let Turn::Claimed(claim) = direct.claim(now)
                && direct.commit(claim, 0).is_err()
            {
                break;
            }
            direct.fill(now, engine.as_raw_fd(), delivered, 200);
            match direct.settle(now) {
                Ok(taken) => {
                    prop_assert!(taken <= 200);
                    delivered += taken;
                }
                Err(Hostile) => break,
            }
        }
    }
}

#[test]
fn a_slot_is_free_once_the_peers_engine_has_ended_its_store() {
    let area = area();
    let direct = connection_in(&area, 0).unwrap();
    let slot = direct.slot();
    slot.stores().ring.open(9);
    let store = slot.stores().ring.claim_at(9).unwrap();
    drop(direct);
    let all: Vec<Direct> = std::iter::from_fn(|| connection_in(&area, 0)).collect();
    assert_eq!((all.len(), area.is_full()), (SLOTS - 1, true));
    assert!(slot.stores().ring.commit(store, 5) && !area.is_full());
    assert!(
        connection_in(&area, 0).is_some_and(|direct| direct.slot() == slot)
            && slot.stores().ring.claim_at(14).is_none()
    );
}

/// Records that a thread of the program sleeps until slot `slots` have bytes.
fn sleep(direct: &Direct, slots: u64) {
    direct.area.area().sleepers().fall_asleep(3, slots);
}

#[test]
fn one_connection_leaves_its_ring_to_wake_a_thread() {
    let (engine, _program) = std::os::unix::net::UnixStream::pair().unwrap();
    let fd = engine.as_raw_fd();
    let area = area();
    let [mut first, mut second] = [(); 2].map(|()| connection_in(&area, 0).unwrap());
    for direct in [&mut first, &mut second] {
        assert!(direct.slot.receive().ask() && direct.fill(1, fd, 0, 5));
        take(direct, 5);
        assert_eq!(direct.settle(2), Ok(5));
    }
    sleep(&first, 0);
    assert!(first.fill(3, fd, 5, 1) && !first.must_wake(), "the thread does not wait for this connection");
    take(&first, 1);
    assert_eq!(first.settle(3), Ok(1));
    sleep(&first, 3);
    assert!(second.fill(3, fd, 5, 3) && second.must_wake());
    assert!(first.fill(3, fd, 6, 8) && !first.must_wake(), "the thread is awake");
    assert_eq!(second.leave_to_wake(), Ok(Some(0)));
    assert!(second.is_moving() && second.slot.receive().is_moving() && !second.must_wake());
    assert!(!second.fill(3, fd, 5, 3), "the bytes go to the pair");
    second.note_pair_written();
    assert!(second.slot.receive().ask() && second.fill(4, fd, 8, 1), "the ring is not shunned");
    assert_eq!(area.area().ready().load(Ordering::Relaxed) & 3, 3);
}

#[test]
fn a_wake_that_moves_nothing_is_given_back() {
    let (engine, _program) = std::os::unix::net::UnixStream::pair().unwrap();
    let area = area();
    let asleep = || area.area().sleepers().asleep.load(Ordering::Relaxed);
    for is_dropped in [false, true] {
        let mut direct = connection_in(&area, 0).unwrap();
        assert!(direct.slot.receive().ask());
        sleep(&direct, 1 << direct.index);
        assert!(direct.fill(1, engine.as_raw_fd(), 0, 5) && direct.must_wake() && asleep() == 0);
        take(&direct, 5);
        if !is_dropped {
            assert_eq!(direct.leave_to_wake(), Ok(Some(5)));
            assert!(!direct.is_moving() && asleep() != 0);
        }
        drop(direct);
        assert_ne!(asleep(), 0);
    }
}

#[test]
fn the_end_of_the_stream_wakes_a_thread() {
    let (engine, _program) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut direct = connection();
    assert!(direct.slot.receive().ask() && direct.fill(1, engine.as_raw_fd(), 0, 5));
    take(&direct, 5);
    assert_eq!(direct.settle(2), Ok(5));
    sleep(&direct, 1);
    assert!(direct.pass_end(3) && direct.must_wake());
    assert_eq!(direct.leave_to_wake(), Ok(Some(0)));
    assert!(direct.is_moving() && !direct.pass_end(3));
    direct.note_end_in_pair();
    assert!(!direct.is_moving() && !direct.slot.receive().is_moving());
}
