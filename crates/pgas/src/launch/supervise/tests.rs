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

/// PE 1 ends with `status`. PE 0 then loses PE 1, and ends with status 1. Checks that the failure of PE 1 is
/// reported in every order of the events. `running` makes the state of the processes.
fn check_every_order(status: ExitStatus, reason: &str, running: impl Fn() -> Vec<Running>) {
    let events = || {
        vec![
            JobEvent::Ended(1, status),
            JobEvent::Seen(1, PeEvent::Gone),
            JobEvent::Seen(0, PeEvent::Lost(1)),
            JobEvent::Seen(0, PeEvent::Gone),
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
        let mut running = running();
        let mut events: Vec<Option<JobEvent>> = events().into_iter().map(Some).collect();
        let verdict = order.iter().find_map(|index| {
            record(&mut running, events[*index].take().unwrap());
            verdict(&running)
        });
        assert_eq!(verdict.as_ref().map(|(_, why)| why.as_str()), Some(reason), "{order:?}: {verdict:?}");
    }
}

#[test]
fn the_cause_is_reported_whatever_the_order_of_the_events() {
    check_every_order(exited(5), "PE 1 ended with status 5", || running(3));
}

/// Returns the state of `pes` processes over UCX.
fn running_over_ucx(pes: usize) -> Vec<Running> {
    let mut running = running(pes);
    running.iter_mut().for_each(|process| process.may_abort = true);
    running
}

#[test]
fn an_abort_that_others_lost_is_the_cause() {
    let aborted = ExitStatus::from_raw(libc::SIGABRT);
    check_every_order(aborted, "PE 1 was killed by signal 6", || running_over_ucx(2));
}

#[test]
fn an_abort_that_others_lost_is_reported_after_other_pes_had_time_to_end() {
    let lost_an_aborted_pe = || {
        let mut running = running_over_ucx(4);
        for (pe, lost) in [(2, 1), (0, 2)] {
            record(&mut running, JobEvent::Seen(pe, PeEvent::Lost(lost)));
            record(&mut running, JobEvent::Seen(pe, PeEvent::Gone));
            record(&mut running, JobEvent::Ended(pe, exited(1)));
            assert_eq!(verdict(&running), None, "PE 1 may have ended");
        }
        record(&mut running, JobEvent::Ended(1, ExitStatus::from_raw(libc::SIGABRT)));
        record(&mut running, JobEvent::Seen(1, PeEvent::Gone));
        assert_eq!(verdict(&running), None, "UCX may have aborted PE 1 because PE 3 has ended");
        running
    };
    let mut running = lost_an_aborted_pe();
    record(&mut running, JobEvent::Ended(3, exited(5)));
    record(&mut running, JobEvent::Seen(3, PeEvent::Gone));
    assert_eq!(verdict(&running).unwrap().0, 5);

    // PEs 0 and 2 ended long ago, and PE 1 has just aborted.
    let mut running = lost_an_aborted_pe();
    let long_ago = Instant::now() - SETTLE_TIME - Duration::from_millis(1);
    running[0].ended = Some((exited(1), long_ago));
    running[2].ended = Some((exited(1), long_ago));
    assert_eq!(verdict(&running), None, "UCX may have aborted PE 1 because PE 3 has ended");
    running[1].ended = Some((ExitStatus::from_raw(libc::SIGABRT), long_ago));
    assert_eq!(verdict(&running).unwrap().0, 128 + libc::SIGABRT);
}

#[test]
fn an_abort_by_ucx_is_no_cause() {
    let aborted = || ExitStatus::from_raw(libc::SIGABRT);
    let mut running = running_over_ucx(3);
    record(&mut running, JobEvent::Ended(0, aborted()));
    record(&mut running, JobEvent::Seen(0, PeEvent::Gone));
    assert_eq!(verdict(&running), None, "another PE may have ended");
    record(&mut running, JobEvent::Seen(1, PeEvent::Gone));
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
            JobEvent::Seen(pe, PeEvent::Lost(lost)),
            JobEvent::Seen(pe, PeEvent::Gone),
            JobEvent::Ended(pe, exited(1)),
        ] {
            record(&mut running, events);
            assert_eq!(verdict(&running), None, "PE 2 may have ended");
        }
    }
    record(&mut running, JobEvent::Ended(2, exited(5)));
    record(&mut running, JobEvent::Seen(2, PeEvent::Gone));
    assert_eq!(verdict(&running).unwrap().0, 5);
}

#[test]
fn a_lost_link_to_a_running_process_is_a_failure() {
    let mut running = running(2);
    for events in
        [JobEvent::Seen(0, PeEvent::Lost(1)), JobEvent::Seen(0, PeEvent::Gone), JobEvent::Ended(0, exited(1))]
    {
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
            JobEvent::Seen(pe, PeEvent::Lost(1 - pe)),
            JobEvent::Seen(pe, PeEvent::Gone),
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
