//! Tests in which order jobs run, and how jobs are removed and ended.

use super::*;
use crate::authentication::{ControllerSide, Credentials, Group, Hash, Names, Secret};
use crate::target::inbox::{ConnectionId, Inbox};

fn job() -> AuthenticationJob {
    let secret = Secret::generate(None);
    let credentials = Arc::new(Credentials { host: secret, target: None });
    let names = Names { host: "nqn.host".into(), subsystem: "nqn.subsystem".into() };
    AuthenticationJob::new(
        Box::new(ControllerSide::new(credentials, Hash::Sha256, Group::Null, names)),
        Vec::new(),
    )
}

#[test]
fn addresses_are_served_in_turn_and_jobs_of_ended_connections_are_removed() {
    let (jobs, inbox) = (Jobs::default(), Arc::new(Inbox::new().unwrap()));
    let reach = |number| Reach { inbox: inbox.clone(), connection: ConnectionId(number) };
    let [busy, calm] = ["2001:db8::1", "192.0.2.1"].map(|text| text.parse::<IpAddr>().unwrap());
    for number in 0..100 {
        jobs.add(busy, reach(number), job());
    }
    // The address 2001:db8::2 is in the same network as `busy`, so its job waits behind the jobs of `busy`.
    // The address `calm` is in another network. Jobs of the two networks take turns.
    jobs.add("2001:db8::2".parse().unwrap(), reach(100), job());
    jobs.add(calm, reach(200), job());
    jobs.add(calm, reach(201), job());
    (1..99).for_each(|number| jobs.remove(busy, &reach(number)));
    let other_thread = Reach { inbox: Arc::new(Inbox::new().unwrap()), connection: ConnectionId(99) };
    jobs.remove(busy, &other_thread);
    assert_eq!(jobs.count(), 5);
    let order: Vec<_> = (0..5).map(|_| jobs.next().unwrap().0.connection.0).collect();
    assert_eq!(order, [0, 200, 99, 201, 100]);
    jobs.add(busy, reach(1), job());
    jobs.remove(busy, &reach(1));
    assert_eq!(jobs.count(), 0);
}

#[test]
fn the_end_removes_all_jobs() {
    let (jobs, inbox) = (Jobs::default(), Arc::new(Inbox::new().unwrap()));
    let address: IpAddr = "192.0.2.1".parse().unwrap();
    for number in 0..10 {
        let reach = Reach { inbox: inbox.clone(), connection: ConnectionId(number) };
        jobs.add(address, reach, job());
    }
    jobs.end();
    assert!(jobs.next().is_none());
    jobs.add(address, Reach { inbox, connection: ConnectionId(11) }, job());
    assert_eq!(jobs.count(), 0);
    let (jobs, thread) = start_jobs().unwrap();
    jobs.end();
    thread.join().unwrap();
}
