//! Tests of Connect, discovery, asynchronous events, and the creation and end of controllers.

use super::*;
use crate::target::inbox::Note;

#[test]
fn connect_names_the_parameter_that_it_refuses() {
    let subsystem = subsystem(&["memory:1M"], |it| it.hosts = Some([(HOST.to_string(), None)].into()));
    let refused = |command: Command, data: ConnectData| {
        let mut host = Host::new(&subsystem);
        host.initialize(Digests::default());
        let completion = host.call(command, data.as_bytes()).0;
        (completion.status(), completion.dw0.get())
    };
    let any = connect::ANY_CONTROLLER;
    let invalid = Status::CONNECT_INVALID_PARAMETERS.dnr();
    let good = ConnectData::new([1; 16], any, NQN, HOST);
    let admin = Command::connect(0, 32, 0, 0);
    assert_eq!(
        refused(admin, ConnectData::new([1; 16], any, "nqn.x:other", HOST)),
        (invalid, 0x1_0000 | 256)
    );
    assert_eq!(
        refused(admin, ConnectData::new([1; 16], any, NQN, "nqn.x:stranger")).0,
        Status::CONNECT_INVALID_HOST.dnr()
    );
    assert_eq!(refused(admin, ConnectData::new([1; 16], 1, NQN, HOST)), (invalid, 0x1_0000 | 16));
    assert_eq!(refused(admin, ConnectData { host_nqn: [b'x'; 256], ..good }), (invalid, 0x1_0000 | 512));
    assert_eq!(refused(Command { cdw11: 0.into(), ..admin }, good), (invalid, 44));
    assert_eq!(refused(Command { cdw11: 0xFFFF.into(), ..admin }, good), (invalid, 44));
    assert_eq!(
        refused(Command { cdw10: 1.into(), ..admin }, good).0,
        Status::CONNECT_INCOMPATIBLE_FORMAT.dnr()
    );
    // Connect of an I/O queue must fail in two cases: the controller does not exist, or the queue number is
    // above the granted number of queues.
    assert_eq!(
        refused(Command::connect(1, 32, 0, 0), ConnectData::new([1; 16], 99, NQN, HOST)),
        (invalid, 0x1_0000 | 16)
    );
    let mut host = Host::new(&subsystem);
    host.initialize(Digests::default());
    let id = host.enable(NQN);
    let own = ConnectData::new([1; 16], id, NQN, HOST);
    const OTHER: &str = "nqn.2026-11.inlane:other-host";
    subsystem.set_hosts(Some([(HOST.to_string(), None), (OTHER.to_string(), None)].into())).unwrap();
    assert_eq!(refused(Command::connect(5, 32, 0, 0), own), (invalid, 42));
    assert_eq!(
        refused(Command::connect(1, 32, 0, 0), ConnectData::new([1; 16], id, NQN, OTHER)),
        (invalid, 0x1_0000 | 16)
    );
    let mut queue = Host::new(&subsystem);
    queue.initialize(Digests::default());
    let early = queue.call(Command::new(io::FLUSH, 1), &[]).0;
    assert_eq!(early.status(), Status::SEQUENCE_ERROR.dnr());
    assert!(queue.connect(1, id, NQN).status().is_success());
    assert_eq!(
        refused(Command::connect(1, 32, 0, 0), own).0,
        Status::SEQUENCE_ERROR.dnr(),
        "the queue exists"
    );
}

#[test]
fn a_changed_size_is_reported_once_until_the_log_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    let subsystem = subsystem(&[&format!("file:{},size=1M", path.display())], |_| {});
    let mut host = Host::new(&subsystem);
    host.initialize(Digests::default());
    host.enable(NQN);
    let mut configure = Command::new(admin::SET_FEATURES, 0);
    configure.cdw10 = u32::from(feature::ASYNC_EVENT_CONFIGURATION).into();
    configure.cdw11 = async_event::NAMESPACE_NOTICES.into();
    assert!(host.call(configure, &[]).0.status().is_success());
    let mut wait = Command::new(admin::ASYNC_EVENT_REQUEST, 0);
    for cid in [100_u16, 101, 102, 103] {
        wait.cid = cid.into();
        host.command(wait, &[]);
        assert!(host.answer().is_none());
    }
    wait.cid = 104.into();
    assert_eq!(host.call(wait, &[]).0.status(), Status::ASYNC_EVENT_LIMIT.dnr());
    let resize = |bytes| {
        std::fs::File::options().write(true).open(&path).unwrap().set_len(bytes).unwrap();
        subsystem.refresh().unwrap();
    };
    resize(2 << 20);
    assert!(matches!(host.inbox.take()[..], [Message::To(ConnectionId(7), Note::Event)]));
    host.connection.report_events();
    host.run();
    let Some(Answer::Completed(event)) = host.answer() else { panic!("no event") };
    assert_eq!((event.cid.get(), event.dw0.get()), (100, async_event::NAMESPACE_CHANGED));
    // Change the size again before the host has read the log page of the first change. The target must send
    // no second event.
    resize(3 << 20);
    host.connection.report_events();
    host.run();
    assert!(host.answer().is_none());
    host.command(
        {
            let mut command = Command { sgl: Sgl::transport(4096), ..Command::new(admin::GET_LOG_PAGE, 0) };
            command.cdw10 = (u32::from(log::CHANGED_NAMESPACES) | 1023 << 16).into();
            command
        },
        &[],
    );
    let Some(Answer::Data(_, _, page)) = host.answer() else { panic!("no page") };
    assert_eq!(page[..8], [1, 0, 0, 0, 0, 0, 0, 0]);
    assert!(matches!(host.answer(), Some(Answer::Completed(_))));
    let Some(Answer::Completed(event)) = host.answer() else { panic!("no second event") };
    assert_eq!(event.cid.get(), 101);
    let page = host.identify(cns::NAMESPACE, 1);
    assert_eq!(identify::IdentifyNamespace::ref_from_bytes(&page).unwrap().nsze.get(), (3 << 20) / 512);
    let mut abort = Command::new(admin::ABORT, 0);
    abort.cdw10 = (103 << 16).into();
    host.command(abort, &[]);
    let Some(Answer::Completed(aborted)) = host.answer() else { panic!("no answer") };
    assert_eq!((aborted.cid.get(), aborted.status()), (103, Status::ABORT_REQUESTED));
    let Some(Answer::Completed(abort)) = host.answer() else { panic!("no answer") };
    assert_eq!((abort.status(), abort.dw0.get()), (Status::SUCCESS, 0));
}

#[test]
fn discovery_lists_what_the_host_may_use_and_reports_changes() {
    let subsystem = subsystem(&["memory:1M"], |it| it.hosts = Some(Default::default()));
    let mut host = Host::new(&subsystem);
    host.initialize(Digests::default());
    host.enable(nqn::DISCOVERY);
    let records = |host: &mut Host| {
        let page = host.log_page(log::DISCOVERY, 1024);
        let header = DiscoveryHeader::ref_from_bytes(&page).unwrap();
        (header.numrec.get(), header.genctr.get())
    };
    assert_eq!(records(&mut host), (1, 1), "only the discovery service itself");
    let mut configure = Command::new(admin::SET_FEATURES, 0);
    configure.cdw10 = u32::from(feature::ASYNC_EVENT_CONFIGURATION).into();
    configure.cdw11 = async_event::DISCOVERY_NOTICES.into();
    assert!(host.call(configure, &[]).0.status().is_success());
    let mut wait = Command::new(admin::ASYNC_EVENT_REQUEST, 0);
    wait.cid = 50.into();
    host.command(wait, &[]);
    assert!(subsystem.set_hosts(Some([(HOST.to_string(), None)].into())).unwrap());
    host.connection.report_events();
    host.run();
    let Some(Answer::Completed(event)) = host.answer() else { panic!("no event") };
    assert_eq!((event.cid.get(), event.dw0.get()), (50, async_event::DISCOVERY_CHANGED));
    assert_eq!(records(&mut host), (2, 2));
    let page = host.log_page(log::DISCOVERY, 3072);
    let entry = identify::DiscoveryEntry::ref_from_bytes(&page[2048..]).unwrap();
    assert_eq!(identify::text(&entry.subnqn), NQN);
    assert_eq!(
        (identify::text(&entry.traddr), identify::text(&entry.trsvcid)),
        ("127.0.0.1".into(), "4420".into())
    );
    // Identify a namespace at a discovery controller. It must refuse, because it has no namespaces.
    let mut identify = Command { sgl: Sgl::transport(4096), ..Command::new(admin::IDENTIFY, 1) };
    identify.cdw10 = u32::from(cns::NAMESPACE).into();
    assert_eq!(host.call(identify, &[]).0.status(), Status::INVALID_FIELD.dnr());
}

#[test]
fn a_revoked_host_and_a_silent_host_lose_their_controllers() {
    let subsystem = subsystem(&["memory:1M"], |it| it.hosts = Some([(HOST.to_string(), None)].into()));
    let (admin, queue) = connected(&subsystem, Digests::default());
    assert!(subsystem.set_hosts(Some(Default::default())).unwrap());
    for host in [&admin, &queue] {
        assert!(matches!(host.inbox.take()[..], [Message::To(_, Note::Close)]));
    }
    drop((admin, queue));
    assert_eq!(subsystem.controller_count(), 0);
    assert!(subsystem.set_hosts(None).unwrap());
    let (mut admin, _queue) = connected(&subsystem, Digests::default());
    let mut keep_alive = Command::new(admin::SET_FEATURES, 0);
    keep_alive.cdw10 = u32::from(feature::KEEP_ALIVE_TIMER).into();
    keep_alive.cdw11 = 1.into();
    assert!(admin.call(keep_alive, &[]).0.status().is_success());
    // The target rounds the keep-alive timeout of 1 ms up to 100 ms. Wait until it has expired.
    std::thread::sleep(std::time::Duration::from_millis(120));
    assert_eq!(subsystem.end_expired(), 1);
    assert!(matches!(admin.inbox.take()[..], [Message::To(_, Note::Close)]));
}

#[test]
fn a_shutdown_makes_data_durable_before_it_is_complete() {
    let directory = tempfile::tempdir().unwrap();
    let subsystem = subsystem(&[&format!("file:{}/disk,size=1M", directory.path().display())], |_| {});
    let mut host = Host::new(&subsystem);
    host.initialize(Digests::default());
    host.enable(NQN);
    let shutdown = Command::property_set(property::CC, cc::ENABLE | cc::ENTRY_SIZES | cc::SHUTDOWN_NORMAL);
    let bytes = host.capsule(shutdown, &[]);
    let space = host.connection.space().unwrap();
    space[..bytes.len()].copy_from_slice(&bytes);
    host.connection.received(bytes.len(), 1);
    let queue = host.connection.queue.as_ref().unwrap().controller.clone();
    assert_ne!(queue.status() & csts::SHUTDOWN_MASK, csts::SHUTDOWN_COMPLETE, "the flush is not done yet");
    host.run();
    assert_eq!(queue.status() & csts::SHUTDOWN_MASK, csts::SHUTDOWN_COMPLETE);
}

#[test]
fn after_a_failed_flush_writes_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let subsystem = subsystem(&[&format!("file:{}/disk,size=1M", directory.path().display())], |_| {});
    let (_admin, mut queue) = connected(&subsystem, Digests::default());
    queue.command(Command::new(io::FLUSH, 1), &[]);
    assert!(matches!(queue.answer(), Some(Answer::Completed(it)) if it.status().is_success()));
    // Send a second flush. Do not make its system call, but tell the connection that the call failed with an
    // I/O error.
    let bytes = queue.capsule(Command::new(io::FLUSH, 1), &[]);
    let space = queue.connection.space().unwrap();
    space[..bytes.len()].copy_from_slice(&bytes);
    queue.connection.received(bytes.len(), 1);
    let slot = queue.connection.next_operation().unwrap();
    assert!(!queue.connection.returned(slot, -libc::EIO, 1));
    queue.run();
    for _ in 0..2 {
        let Some(Answer::Completed(completion)) = queue.answer() else { panic!("no completion") };
        assert_eq!(completion.status(), Status::WRITE_FAULT.dnr());
        queue.command(Command::new(io::FLUSH, 1), &[]);
    }
    assert!(queue.answer().is_some());
    assert_eq!(write(&mut queue, 0, &[1; 512], 512, 1), Status::WRITE_FAULT.dnr());
    assert!(read(&mut queue, 1, 0, 1, 512).0.is_success());
    // The kernel reports lost data only once, so the last flush succeeds. The end of the target must not.
    assert!(subsystem.namespaces[0].flush().unwrap_err().to_string().contains("an earlier flush failed"));
}

/// A host can write SHN of CC any number of times. Each write of a shutdown used to add a flush of each namespace.
#[test]
fn repeated_shutdowns_do_not_pile_up_flushes() {
    let directory = tempfile::tempdir().unwrap();
    let subsystem = subsystem(&[&format!("file:{}/disk,size=1M", directory.path().display())], |_| {});
    let mut host = Host::new(&subsystem);
    host.initialize(Digests::default());
    host.enable(NQN);
    let mut operations = Vec::new();
    for _ in 0..20 {
        for shutdown in [cc::SHUTDOWN_NORMAL, 0] {
            let bytes = host
                .capsule(Command::property_set(property::CC, cc::ENABLE | cc::ENTRY_SIZES | shutdown), &[]);
            host.connection.space().unwrap()[..bytes.len()].copy_from_slice(&bytes);
            host.connection.received(bytes.len(), 1);
            operations.extend(host.connection.next_operation());
        }
    }
    assert_eq!(operations.len(), 1);
    // The shutdown after the first one needs one more flush, because data may have been written meanwhile.
    assert!(!host.connection.returned(operations[0], 0, 1));
    let again = host.connection.next_operation().expect("a second round");
    let controller = host.connection.queue.as_ref().unwrap().controller.clone();
    assert_ne!(controller.status() & csts::SHUTDOWN_MASK, csts::SHUTDOWN_COMPLETE);
    assert!(!host.connection.returned(again, 0, 1));
    assert_eq!(controller.status() & csts::SHUTDOWN_MASK, csts::SHUTDOWN_COMPLETE);
    assert_eq!(host.connection.next_operation(), None);
}

/// The target lists one host and requires no authentication. Strangers keep the discovery service busy for ever,
/// because their keep-alive timers are off.
#[test]
fn discovery_controllers_of_strangers_leave_controllers_to_listed_hosts() {
    let subsystem = subsystem(&["memory:1M"], |it| {
        it.hosts = Some([(HOST.to_string(), None)].into());
        it.limits.controllers = 8;
    });
    let strangers: Vec<_> = (0..20)
        .map(|_| {
            let mut host = Host::new(&subsystem);
            host.initialize(Digests::default());
            let data =
                ConnectData::new([2; 16], connect::ANY_CONTROLLER, nqn::DISCOVERY, "nqn.2026-11.stranger:x");
            assert!(host.call(Command::connect(0, 32, 0, 0), data.as_bytes()).0.status().is_success());
            host
        })
        .collect();
    let _hosts: Vec<_> = (0..6).map(|_| connected(&subsystem, Digests::default())).collect();
    drop(strangers);
}

/// Some hosts choose all supported command sets (CSS 110b) without a look at the capabilities, connect an I/O queue
/// before they ask for a number of queues, and send another host identifier with it.
#[test]
fn hosts_that_ask_for_too_little_are_served() {
    let subsystem = subsystem(&["memory:1M"], |_| {});
    let (mut admin, mut queue) = (Host::new(&subsystem), Host::new(&subsystem));
    admin.initialize(Digests::default());
    let controller = admin.connect(0, connect::ANY_CONTROLLER, NQN).dw0.get() as u16;
    let all_command_sets = 6 << 4;
    let enable = Command::property_set(property::CC, cc::ENABLE | cc::ENTRY_SIZES | all_command_sets);
    assert!(admin.call(enable, &[]).0.status().is_success());
    let status = admin.call(Command::property_get(property::CSTS, false), &[]).0;
    assert_eq!(status.dw0.get(), csts::READY);
    queue.initialize(Digests::default());
    // Another host identifier than on the admin queue.
    let data = ConnectData::new([2; 16], controller, NQN, HOST);
    assert!(queue.call(Command::connect(1, 32, 0, 0), data.as_bytes()).0.status().is_success());
    assert!(read(&mut queue, 1, 0, 8, 512).0.is_success());
    let mut command = Command { sgl: Sgl::transport(4096), ..Command::new(admin::IDENTIFY, u32::MAX) };
    command.cdw10 = u32::from(cns::NAMESPACE).into();
    assert_eq!(admin.call(command, &[]).0.status(), Status::INVALID_NAMESPACE.dnr());
    let mut beyond = Host::new(&subsystem);
    beyond.initialize(Digests::default());
    let refused = beyond.connect(subsystem.limits.io_queues + 1, controller, NQN);
    assert_eq!(refused.status(), Status::CONNECT_INVALID_PARAMETERS.dnr());
    assert!(crate::target::fabrics::connect_field(refused.dw0.get()).unwrap().contains("QID"));
}
