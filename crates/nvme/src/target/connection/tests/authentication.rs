//! Hosts that must authenticate themselves (DH-HMAC-CHAP).

use super::*;
use crate::authentication::{
    AuthenticationFailure, AuthenticationMessage, Credentials, Group, Hash, HostSide, MAX_MESSAGE, Names,
    Secret,
};
use crate::target::subsystem;
use crate::wire::command::fabrics;

fn names() -> Names {
    Names { host: HOST.into(), subsystem: NQN.into() }
}

/// Returns a subsystem that requires authentication of the host with `group`, and the host's secrets.
fn protected(group: Group) -> (Arc<Subsystem>, Arc<Credentials>) {
    let secret = || Secret::generate(None);
    let credentials = Arc::new(Credentials { host: secret(), target: Some(secret()) });
    let authentication =
        subsystem::Authentication { credentials: credentials.clone(), hash: Hash::Sha256, group };
    let hosts = [(HOST.to_string(), Some(authentication))].into();
    (super::subsystem(&["memory:1M"], |it| it.hosts = Some(hosts)), credentials)
}

impl Host {
    fn send_message(&mut self, message: &[u8]) -> Status {
        let length = message.len() as u32;
        let mut command = Command::authentication(fabrics::AUTHENTICATION_SEND, length);
        command.sgl = Sgl::in_capsule(length);
        self.call(command, message).0.status()
    }

    fn receive_message(&mut self, length: u32) -> (Status, Vec<u8>) {
        let mut command = Command::authentication(fabrics::AUTHENTICATION_RECEIVE, length);
        command.sgl = Sgl::transport(length);
        let (completion, data) = self.call(command, &[]);
        (completion.status(), data)
    }

    /// Authenticates the host. Returns the first failure that the target reports.
    fn authenticate(&mut self, credentials: &Credentials) -> Result<(), AuthenticationFailure> {
        let names = names();
        let mut side = HostSide::new(credentials, &names, 5);
        assert_eq!(self.send_message(&side.begin()), Status::SUCCESS);
        let (status, challenge) = self.receive_message(MAX_MESSAGE as u32);
        assert_eq!((status, challenge.len()), (Status::SUCCESS, MAX_MESSAGE));
        assert_eq!(self.send_message(&side.challenged(&challenge).unwrap()), Status::SUCCESS);
        let (status, success) = self.receive_message(MAX_MESSAGE as u32);
        assert_eq!(status, Status::SUCCESS);
        match AuthenticationMessage::decode(&success).unwrap().1 {
            AuthenticationMessage::Failure1(failure) => return Err(failure),
            _ => assert_eq!(self.send_message(&side.succeeded(&success).unwrap().unwrap()), Status::SUCCESS),
        }
        Ok(())
    }
}

fn property(host: &mut Host) -> Status {
    host.call(Command::property_get(property::CSTS, false), &[]).0.status()
}

#[test]
fn every_queue_is_usable_only_after_its_authentication() {
    for group in [Group::Null, Group::Ffdhe2048] {
        let (subsystem, credentials) = protected(group);
        let (mut admin, mut queue) = (Host::new(&subsystem), Host::new(&subsystem));
        admin.initialize(Digests::default());
        let connected = admin.connect(0, connect::ANY_CONTROLLER, NQN);
        assert!(connected.status().is_success());
        assert_eq!(connected.dw0.get() >> 16, connect::AUTHENTICATION_REQUIRED >> 16);
        let controller = connected.dw0.get() as u16;
        assert_eq!(property(&mut admin), Status::AUTHENTICATION_REQUIRED.dnr());
        let keep_alive = Command::new(admin::KEEP_ALIVE, 0);
        assert_eq!(admin.call(keep_alive, &[]).0.status(), Status::AUTHENTICATION_REQUIRED.dnr());
        assert!(!admin.connection.is_connected());
        admin.authenticate(&credentials).unwrap();
        assert!(admin.connection.is_connected());
        let enable = Command::property_set(property::CC, cc::ENABLE | cc::ENTRY_SIZES);
        assert!(admin.call(enable, &[]).0.status().is_success());
        let mut queues = Command::new(admin::SET_FEATURES, 0);
        queues.cdw10 = u32::from(feature::NUMBER_OF_QUEUES).into();
        assert!(admin.call(queues, &[]).0.status().is_success());

        queue.initialize(Digests::default());
        let connected = queue.connect(1, controller, NQN);
        assert_eq!(connected.dw0.get(), u32::from(controller) | connect::AUTHENTICATION_REQUIRED);
        assert_eq!(read(&mut queue, 1, 0, 1, 512).0, Status::AUTHENTICATION_REQUIRED.dnr());
        queue.authenticate(&credentials).unwrap();
        assert_eq!(queue.connection.authenticating_since_ms(), None);
        assert_eq!(read(&mut queue, 1, 0, 1, 512).0, Status::SUCCESS);
        // The host may authenticate itself again. The queue stays usable meanwhile.
        admin.authenticate(&credentials).unwrap();
        let names = names();
        let side = HostSide::new(&credentials, &names, 6);
        assert_eq!(queue.send_message(&side.begin()), Status::SUCCESS);
        assert_eq!(queue.connection.authenticating_since_ms(), Some(1));
        assert_eq!(read(&mut queue, 1, 0, 1, 512).0, Status::SUCCESS);
    }
}

#[test]
fn a_wrong_secret_ends_the_connection_after_the_failure_was_sent() {
    for group in [Group::Null, Group::Ffdhe2048] {
        let (subsystem, credentials) = protected(group);
        let mut host = Host::new(&subsystem);
        host.initialize(Digests::default());
        host.connect(0, connect::ANY_CONTROLLER, NQN);
        let wrong = Credentials { host: Secret::generate(None), ..(*credentials).clone() };
        assert_eq!(host.authenticate(&wrong), Err(AuthenticationFailure::FAILED));
        assert_eq!(host.connection.end(), Some(&End::Unauthenticated));
        assert_eq!(subsystem.counters.refused.load(Relaxed), 1);
        host.connection.disconnected();
        assert_eq!(subsystem.controller_count(), 0);
    }
}

#[test]
fn a_failed_repetition_ends_a_queue_that_was_usable() {
    let (subsystem, credentials) = protected(Group::Null);
    let mut host = Host::new(&subsystem);
    host.initialize(Digests::default());
    host.connect(0, connect::ANY_CONTROLLER, NQN);
    host.authenticate(&credentials).unwrap();
    let wrong = Credentials { host: Secret::generate(None), ..(*credentials).clone() };
    assert_eq!(host.authenticate(&wrong), Err(AuthenticationFailure::FAILED));
    assert_eq!(host.connection.end(), Some(&End::Unauthenticated));
}

#[test]
fn the_failure_of_a_host_ends_the_connection() {
    let (subsystem, credentials) = protected(Group::Null);
    let mut host = Host::new(&subsystem);
    host.initialize(Digests::default());
    host.connect(0, connect::ANY_CONTROLLER, NQN);
    let names = names();
    let side = HostSide::new(&credentials, &names, 5);
    host.send_message(&side.begin());
    host.send_message(&AuthenticationMessage::Failure2(AuthenticationFailure::FAILED).encode(5));
    assert_eq!(host.connection.end(), Some(&End::Unauthenticated));
}

#[test]
fn wrong_fields_of_the_commands_are_refused() {
    let (subsystem, credentials) = protected(Group::Ffdhe2048);
    let mut host = Host::new(&subsystem);
    host.initialize(Digests::default());
    let early = Command::authentication(fabrics::AUTHENTICATION_RECEIVE, 64);
    assert_eq!(host.call(early, &[]).0.status(), Status::SEQUENCE_ERROR.dnr(), "before Connect");
    host.connect(0, connect::ANY_CONTROLLER, NQN);
    let names = names();
    let message = HostSide::new(&credentials, &names, 5).begin();
    let length = message.len() as u32;
    let send = Command {
        sgl: Sgl::in_capsule(length),
        ..Command::authentication(fabrics::AUTHENTICATION_SEND, length)
    };
    const RIGHT: u32 = fabrics::DH_HMAC_CHAP;
    for protocol in [0, RIGHT ^ 1 << 8, RIGHT ^ 1 << 16, RIGHT ^ 1 << 31] {
        let command = Command { cdw10: protocol.into(), ..send };
        assert_eq!(host.call(command, &message).0.status(), Status::INVALID_FIELD.dnr());
    }
    for wrong in [0, length - 1, length + 1, u32::MAX] {
        let command = Command { cdw11: wrong.into(), ..send };
        assert_eq!(host.call(command, &message).0.status(), Status::INVALID_FIELD.dnr());
    }
    let oversized = Command { sgl: Sgl::transport(1 << 20), cdw11: (1 << 20).into(), ..send };
    assert_eq!(host.call(oversized, &[]).0.status(), Status::INVALID_SGL_LENGTH.dnr());
    // No message waits yet.
    assert_eq!(host.receive_message(MAX_MESSAGE as u32).0, Status::SEQUENCE_ERROR.dnr());
    assert_eq!(host.receive_message(0).0, Status::INVALID_FIELD.dnr());
    // The challenge is longer than 64 bytes, so a request for 64 bytes fails. A longer request then receives
    // the challenge.
    assert_eq!(host.send_message(&message), Status::SUCCESS);
    assert_eq!(host.receive_message(64).0, Status::SEQUENCE_ERROR.dnr());
    let (status, challenge) = host.receive_message(1 << 20);
    assert_eq!((status, challenge.len()), (Status::SUCCESS, MAX_MESSAGE));
    assert!(host.connection.end().is_none());
}

#[test]
fn messages_during_a_computation_are_refused() {
    let (subsystem, credentials) = protected(Group::Ffdhe2048);
    let mut host = Host::new(&subsystem);
    host.initialize(Digests::default());
    host.connect(0, connect::ANY_CONTROLLER, NQN);
    let names = names();
    let message = HostSide::new(&credentials, &names, 5).begin();
    let mut command = Command::authentication(fabrics::AUTHENTICATION_SEND, message.len() as u32);
    command.sgl = Sgl::in_capsule(message.len() as u32);
    let first = host.capsule(command, &message);
    command.cid = 1.into();
    let second = host.capsule(command, &message);
    // Both commands arrive together. So the connection reads the second command before the answer to the
    // first command has been computed.
    host.send(&[first, second].concat());
    let mut statuses = Vec::new();
    while let Some(Answer::Completed(completion)) = host.answer() {
        statuses.push((completion.cid.get(), completion.status()));
    }
    assert_eq!(statuses, [(1, Status::SEQUENCE_ERROR.dnr()), (0, Status::SUCCESS)]);
}

#[test]
fn hosts_without_authentication_need_none() {
    let (subsystem, credentials) = protected(Group::Null);
    // The discovery service requires no authentication: it refuses the message as an unsupported command.
    let mut discovery = Host::new(&subsystem);
    discovery.initialize(Digests::default());
    discovery.enable(nqn::DISCOVERY);
    let message = HostSide::new(&credentials, &names(), 5).begin();
    assert_eq!(discovery.send_message(&message), Status::INVALID_OPCODE.dnr());
    // If a host is removed from the list of allowed hosts, its controller ends. The discovery controller
    // stays.
    let mut host = Host::new(&subsystem);
    host.initialize(Digests::default());
    host.connect(0, connect::ANY_CONTROLLER, NQN);
    host.authenticate(&credentials).unwrap();
    assert_eq!(subsystem.controller_count(), 2);
    assert!(subsystem.set_hosts(Some(Default::default())).unwrap());
    assert_eq!(subsystem.controller_count(), 1);
}

/// Returns the secrets as the entry of a list of allowed hosts.
fn entry(credentials: &Credentials, group: Group) -> subsystem::AllowedHosts {
    let credentials = Arc::new(credentials.clone());
    let authentication = subsystem::Authentication { credentials, hash: Hash::Sha256, group };
    [(HOST.to_string(), Some(authentication))].into()
}

/// Connects an admin queue, authenticates the host, and enables the controller with 4 I/O queues. Returns the
/// controller's identifier.
fn ready(host: &mut Host, credentials: &Credentials) -> u16 {
    host.initialize(Digests::default());
    let connected = host.connect(0, connect::ANY_CONTROLLER, NQN);
    assert!(connected.status().is_success());
    host.authenticate(credentials).unwrap();
    let enable = Command::property_set(property::CC, cc::ENABLE | cc::ENTRY_SIZES);
    assert!(host.call(enable, &[]).0.status().is_success());
    let mut queues = Command::new(admin::SET_FEATURES, 0);
    queues.cdw10 = u32::from(feature::NUMBER_OF_QUEUES).into();
    queues.cdw11 = 0x0003_0003.into();
    assert!(host.call(queues, &[]).0.status().is_success());
    connected.dw0.get() as u16
}

#[test]
fn strangers_do_not_affect_the_controller_of_a_host() {
    let (subsystem, credentials) = protected(Group::Null);
    let mut admin = Host::new(&subsystem);
    let id = ready(&mut admin, &credentials);
    let controller = subsystem.controller(id).unwrap();
    // A stranger connects each of the host's I/O queues before the host does, and does not authenticate
    // itself.
    let mut strangers = Vec::new();
    for queue in 1..=4 {
        let mut stranger = Host::new(&subsystem);
        stranger.now_ms = 9_999;
        stranger.initialize(Digests::default());
        assert!(stranger.connect(queue, id, NQN).status().is_success());
        assert_eq!(property(&mut stranger), Status::AUTHENTICATION_REQUIRED.dnr());
        strangers.push(stranger);
    }
    assert!(controller.io_queues().is_empty());
    assert!(controller.is_expired(10_002), "the strangers' commands do not restart the keep-alive timer");
    let logged = admin.log_page(log::ERROR_INFORMATION, 64);
    assert_eq!(logged[..8], [0; 8], "the strangers' failed commands are not in the log");
    let mut queue = Host::new(&subsystem);
    queue.initialize(Digests::default());
    assert!(queue.connect(1, id, NQN).status().is_success());
    queue.authenticate(&credentials).unwrap();
    assert_eq!(controller.io_queues(), [1]);
    // The connections by which strangers asked for queues 1 to 4 end. The controller must keep the host's own
    // queue 1.
    strangers.iter_mut().for_each(|stranger| stranger.connection.disconnected());
    assert_eq!(controller.io_queues(), [1]);
    assert_eq!(read(&mut queue, 1, 0, 1, 512).0, Status::SUCCESS);
    let mut late = Host::new(&subsystem);
    late.initialize(Digests::default());
    assert_eq!(late.connect(1, id, NQN).status(), Status::SEQUENCE_ERROR.dnr());
}

#[test]
fn a_queue_that_exists_or_was_not_granted_is_not_added_after_its_authentication() {
    let (subsystem, credentials) = protected(Group::Null);
    let mut admin = Host::new(&subsystem);
    let id = ready(&mut admin, &credentials);
    let controller = subsystem.controller(id).unwrap();
    let connect = |queue| {
        let mut host = Host::new(&subsystem);
        host.initialize(Digests::default());
        assert!(host.connect(queue, id, NQN).status().is_success());
        host
    };
    let (mut first, mut second, mut third) = (connect(1), connect(1), connect(2));
    first.authenticate(&credentials).unwrap();
    second.authenticate(&credentials).unwrap();
    assert_eq!(second.connection.end(), Some(&End::Unauthenticated));
    second.connection.disconnected();
    assert_eq!(controller.io_queues(), [1]);
    let disable = Command::property_set(property::CC, 0);
    assert!(admin.call(disable, &[]).0.status().is_success());
    third.authenticate(&credentials).unwrap();
    assert_eq!(third.connection.end(), Some(&End::Unauthenticated));
    assert!(controller.io_queues().is_empty());
}

#[test]
fn a_repeated_authentication_uses_the_current_secret() {
    let (subsystem, old) = protected(Group::Null);
    let new = Credentials { host: Secret::generate(None), ..(*old).clone() };
    let connected = || {
        let mut host = Host::new(&subsystem);
        host.initialize(Digests::default());
        host.connect(0, connect::ANY_CONTROLLER, NQN);
        host
    };
    let (mut host, mut other) = (connected(), connected());
    host.authenticate(&old).unwrap();
    other.authenticate(&old).unwrap();
    assert!(subsystem.set_hosts(Some(entry(&new, Group::Ffdhe2048))).unwrap());
    host.authenticate(&new).unwrap();
    assert_eq!(other.authenticate(&old), Err(AuthenticationFailure::FAILED));
    // `late` connects, and then its host is removed from the list of allowed hosts. The authentication of
    // `late` must fail, although its controller still exists.
    let mut late = connected();
    assert!(subsystem.set_hosts(Some(Default::default())).unwrap());
    late.send_message(&HostSide::new(&new, &names(), 5).begin());
    let (status, message) = late.receive_message(MAX_MESSAGE as u32);
    assert_eq!(status, Status::SUCCESS);
    let failure = AuthenticationMessage::Failure1(AuthenticationFailure::FAILED);
    assert_eq!(AuthenticationMessage::decode(&message).unwrap(), (5, failure));
}

#[test]
fn a_failed_authentication_is_counted_once_and_before_the_host_asks_for_the_result() {
    let (subsystem, credentials) = protected(Group::Null);
    let mut host = Host::new(&subsystem);
    host.initialize(Digests::default());
    host.connect(0, connect::ANY_CONTROLLER, NQN);
    let names = names();
    let wrong = Credentials { host: Secret::generate(None), ..(*credentials).clone() };
    let mut side = HostSide::new(&wrong, &names, 5);
    host.send_message(&side.begin());
    let challenge = host.receive_message(MAX_MESSAGE as u32).1;
    host.send_message(&side.challenged(&challenge).unwrap());
    assert_eq!(subsystem.counters.refused.load(Relaxed), 1);
    assert!(host.connection.end().is_none());
    host.receive_message(MAX_MESSAGE as u32);
    assert_eq!(host.connection.end(), Some(&End::Unauthenticated));
    assert_eq!(subsystem.counters.refused.load(Relaxed), 1);
}

/// Connects an admin queue and sends AUTH_Negotiate. Returns the job that another thread would run.
fn with_job(host: &mut Host, credentials: &Credentials) -> AuthenticationJob {
    host.initialize(Digests::default());
    host.connect(0, connect::ANY_CONTROLLER, NQN);
    let message = HostSide::new(credentials, &names(), 5).begin();
    let mut command = Command::authentication(fabrics::AUTHENTICATION_SEND, message.len() as u32);
    command.sgl = Sgl::in_capsule(message.len() as u32);
    let bytes = host.capsule(command, &message);
    host.connection.space().unwrap()[..bytes.len()].copy_from_slice(&bytes);
    host.connection.received(bytes.len(), 1);
    assert!(host.connection.is_computing());
    host.connection.take_job().unwrap()
}

#[test]
fn a_result_that_comes_too_late_changes_nothing() {
    let (subsystem, credentials) = protected(Group::Ffdhe2048);
    let mut violator = Host::new(&subsystem);
    let job = with_job(&mut violator, &credentials);
    violator.send(&[0xFF; 8]);
    assert!(matches!(violator.connection.end(), Some(End::Violation(_))));
    violator.received.clear();
    violator.connection.authentication_computed(job.run(), 1);
    violator.run();
    assert!(violator.received.is_empty());
    // A connection counts as drained even if its authentication job still runs, so that the target can end
    // without waiting for the job. The late result completes the command as aborted.
    let mut host = Host::new(&subsystem);
    let job = with_job(&mut host, &credentials);
    assert!(!host.connection.is_drained());
    host.connection.drain();
    assert!(host.connection.is_drained());
    host.connection.authentication_computed(job.run(), 1);
    host.run();
    let Some(Answer::Completed(completion)) = host.answer() else { panic!("no completion") };
    assert_eq!(completion.status(), Status::ABORT_REQUESTED);
    assert!(host.answer().is_none());
}

#[test]
fn only_messages_with_arithmetic_are_handed_to_another_thread() {
    let (subsystem, credentials) = protected(Group::Ffdhe2048);
    let names = names();
    let negotiate = HostSide::new(&credentials, &names, 5).begin();
    for message in [&[0xFF; 64], &negotiate[..negotiate.len() - 1]] {
        let mut host = Host::new(&subsystem);
        host.initialize(Digests::default());
        host.connect(0, connect::ANY_CONTROLLER, NQN);
        let mut command = Command::authentication(fabrics::AUTHENTICATION_SEND, message.len() as u32);
        command.sgl = Sgl::in_capsule(message.len() as u32);
        let bytes = host.capsule(command, message);
        host.connection.space().unwrap()[..bytes.len()].copy_from_slice(&bytes);
        host.connection.received(bytes.len(), 1);
        assert!(!host.connection.is_computing());
    }
}
