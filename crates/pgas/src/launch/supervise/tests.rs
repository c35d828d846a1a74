//! Tests which failure a job reports. The result must not depend on the order of the events.

use super::*;

fn running(pes: usize) -> Vec<Running> {
    let one = || Running {
        pidfd: std::fs::File::open("/dev/null").unwrap().into(),
        attached: true,
        finished: false,
        gone: false,
        may_abort: false,
        lost: None,
        ended: None,
    };
    (0..pes).map(|_| one()).collect()
}

fn exited(status: i32) -> ExitStatus {
    ExitStatus::from_raw(status << 8)
}

#[test]
fn the_cause_is_reported_whatever_the_order_of_the_events() {
    let events = || {
        vec![
            JobEvent::Ended(1, exited(5)),
            JobEvent::Hub(1, PortEvent::Gone),
            JobEvent::Hub(0, PortEvent::Lost(1)),
            JobEvent::Hub(0, PortEvent::Gone),
            JobEvent::Ended(0, exited(1)),
        ]
    };
    // Try every order of the five events in which PE 0 reports a lost peer (`Lost`) before its socket closes
    // (`Gone`). The other orders cannot occur, because one thread reads PE 0's socket until it closes.
    for order in permutations(5) {
        let place = |index: usize| order.iter().position(|one| *one == index).unwrap();
        if place(2) > place(3) {
            continue;
        }
        let mut running = running(3);
        let mut events: Vec<Option<JobEvent>> = events().into_iter().map(Some).collect();
        let verdict = order.iter().find_map(|index| {
            record(&mut running, events[*index].take().unwrap());
            verdict(&running)
        });
        assert_eq!(verdict.as_ref().map(|(status, _)| *status), Some(5), "{order:?}: {verdict:?}");
    }
}

#[test]
fn an_abort_by_ucx_is_no_cause() {
    let aborted = || ExitStatus::from_raw(libc::SIGABRT);
    let mut running = running(3);
    running.iter_mut().for_each(|process| process.may_abort = true);
    record(&mut running, JobEvent::Ended(0, aborted()));
    record(&mut running, JobEvent::Hub(0, PortEvent::Gone));
    assert_eq!(verdict(&running), None, "another PE may have ended");
    record(&mut running, JobEvent::Hub(1, PortEvent::Gone));
    record(&mut running, JobEvent::Ended(1, ExitStatus::from_raw(libc::SIGKILL)));
    assert_eq!(verdict(&running).map(|(status, _)| status), Some(128 + libc::SIGKILL));
    // Let all PEs abort. The job must report the abort of one PE, because no PE ended in another way.
    for process in &mut running {
        process.ended = Some((aborted(), Instant::now()));
        process.gone = true;
    }
    assert_eq!(verdict(&running).map(|(status, _)| status), Some(128 + libc::SIGABRT));
}

#[test]
fn the_cause_is_found_through_a_chain_of_lost_peers() {
    let mut running = running(3);
    for (pe, lost) in [(1, 2), (0, 1)] {
        for events in [
            JobEvent::Hub(pe, PortEvent::Lost(lost)),
            JobEvent::Hub(pe, PortEvent::Gone),
            JobEvent::Ended(pe, exited(1)),
        ] {
            record(&mut running, events);
            assert_eq!(verdict(&running), None, "PE 2 may have ended");
        }
    }
    record(&mut running, JobEvent::Ended(2, exited(5)));
    record(&mut running, JobEvent::Hub(2, PortEvent::Gone));
    assert_eq!(verdict(&running).unwrap().0, 5);
}

#[test]
fn a_lost_link_to_a_running_process_is_a_failure() {
    let mut running = running(2);
    for events in [
        JobEvent::Hub(0, PortEvent::Lost(1)),
        JobEvent::Hub(0, PortEvent::Gone),
        JobEvent::Ended(0, exited(1)),
    ] {
        record(&mut running, events);
    }
    assert_eq!(verdict(&running), None, "PE 1 may be about to end");
    running[0].ended = Some((exited(1), Instant::now() - SETTLE_TIME - Duration::from_millis(1)));
    assert_eq!(verdict(&running).unwrap().0, 1);
    // PE 77 does not exist, so PE 0's own failure must be reported.
    running[0].lost = Some(77);
    assert_eq!(verdict(&running).unwrap().0, 1);
}

#[test]
fn two_pes_that_lost_each_other_end_the_job() {
    let mut running = running(2);
    for pe in 0..2 {
        for events in [
            JobEvent::Hub(pe, PortEvent::Lost(1 - pe)),
            JobEvent::Hub(pe, PortEvent::Gone),
            JobEvent::Ended(pe, exited(1)),
        ] {
            record(&mut running, events);
        }
    }
    assert_eq!(verdict(&running).unwrap().0, 1);
}

fn permutations(length: usize) -> Vec<Vec<usize>> {
    if length == 0 {
        return vec![Vec::new()];
    }
    let shorter = permutations(length - 1);
    let with = |one: &Vec<usize>, at: usize| {
        let mut one = one.clone();
        one.insert(at, length - 1);
        one
    };
    shorter.iter().flat_map(|one| (0..length).map(move |at| with(one, at))).collect()
}
