//! Tests of log pages, features and the reset of a controller.

use super::*;

fn set_feature(id: u8, nsid: u32, value: u32) -> Command {
    let mut command = Command::new(admin::SET_FEATURES, nsid);
    (command.cdw10, command.cdw11) = (u32::from(id).into(), value.into());
    command
}

fn status(host: &mut Host, command: Command) -> Status {
    host.call(command, &[]).0.status()
}

fn number(page: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(page[at..at + 8].try_into().unwrap())
}

#[test]
fn the_error_log_has_the_failed_commands_of_all_queues_the_newest_first() {
    let subsystem = subsystem(&["memory:1M"], |_| {});
    let (mut admin, mut queue) = connected(&subsystem, Digests::default());
    let errors = |host: &mut Host| -> Vec<_> {
        let page = host.log_page(log::ERROR_INFORMATION, 64 * error_log::ENTRIES as u32);
        let entries = <[ErrorEntry]>::ref_from_bytes(&page).unwrap().to_vec();
        entries.into_iter().filter(|entry| entry.count.get() > 0).collect()
    };
    assert_eq!(errors(&mut admin), []);
    let mut beyond = Command::blocks(io::READ, 1, 5000, 1, Sgl::transport(512));
    beyond.cid = 77.into();
    assert_eq!(status(&mut queue, beyond), Status::LBA_OUT_OF_RANGE.dnr());
    let mut unknown = Command::new(0xC5, 3);
    unknown.cid = 78.into();
    assert_eq!(status(&mut admin, unknown), Status::INVALID_OPCODE.dnr());
    let found = errors(&mut admin);
    let entry = |count: u64, queue: u16, cid: u16, status: Status, lba: u64, nsid: u32| ErrorEntry {
        count: count.into(),
        queue: queue.into(),
        cid: cid.into(),
        status: (status.0 << 1).into(),
        location: u16::MAX.into(),
        lba: lba.into(),
        nsid: nsid.into(),
        reserved: [0; 36],
    };
    // A Fabrics command names no namespace: its bytes 4 to 7 have another meaning.
    let mut fabrics_command = Command::property_get(0x44, false);
    fabrics_command.cid = 79.into();
    assert_eq!(status(&mut admin, fabrics_command), Status::INVALID_FIELD);
    assert_eq!(errors(&mut admin)[0], entry(3, 0, 79, Status::INVALID_FIELD, 0, 0));
    assert_eq!(
        found,
        [
            entry(2, 0, 78, Status::INVALID_OPCODE.dnr(), 0, 3),
            entry(1, 1, 77, Status::LBA_OUT_OF_RANGE.dnr(), 5000, 1)
        ]
    );
    for _ in 0..error_log::ENTRIES {
        status(&mut queue, beyond);
    }
    let found = errors(&mut admin);
    assert_eq!((found.len(), found[0].count.get(), found[63].count.get()), (64, 67, 4));
    let health = admin.log_page(log::HEALTH, 512);
    assert_eq!(number(&health, 176), 67, "the number of error log entries");
}

#[test]
fn health_is_that_of_the_named_namespace_or_of_all() {
    let subsystem = subsystem(&["memory:1M", "memory:1M"], |_| {});
    let (mut admin, mut queue) = connected(&subsystem, Digests::default());
    assert!(read(&mut queue, 1, 0, 1, 512).0.is_success());
    assert!(read(&mut queue, 2, 0, 1, 512).0.is_success());
    assert!(read(&mut queue, 2, 0, 1, 512).0.is_success());
    let mut health = |nsid| {
        let mut command = Command { sgl: Sgl::transport(512), ..Command::new(admin::GET_LOG_PAGE, nsid) };
        command.cdw10 = (u32::from(log::HEALTH) | 127 << 16).into();
        let (completion, page) = admin.call(command, &[]);
        completion.status().is_success().then(|| number(&page, 64)).ok_or(completion.status())
    };
    let reads = [0, u32::MAX, 1, 2].map(&mut health);
    assert_eq!(reads, [Ok(3), Ok(3), Ok(1), Ok(2)]);
    assert_eq!(health(3), Err(Status::INVALID_NAMESPACE.dnr()));
    let controller = admin.identify(cns::CONTROLLER, 0);
    let controller = identify::IdentifyController::ref_from_bytes(&controller).unwrap();
    assert_eq!((controller.lpa & 1, controller.elpe), (1, 63), "both are advertised");
    let nvm = admin.identify(cns::COMMAND_SET_CONTROLLER, 0);
    assert_eq!(4096_u64 << nvm[1], 512 << 16, "WZSL covers 65,536 blocks of 512 bytes");
}

#[test]
fn features_of_the_controller_name_no_namespace() {
    let subsystem = subsystem(&["memory:1M"], |_| {});
    let (mut admin, _queue) = connected(&subsystem, Digests::default());
    let keep_alive = feature::KEEP_ALIVE_TIMER;
    assert_eq!(
        status(&mut admin, set_feature(keep_alive, 1, 5000)),
        Status::FEATURE_NOT_NAMESPACE_SPECIFIC.dnr()
    );
    assert!(status(&mut admin, set_feature(keep_alive, u32::MAX, 5000)).is_success());
    assert!(status(&mut admin, set_feature(feature::ERROR_RECOVERY, 1, 3)).is_success());
    let with_dulbe = set_feature(feature::ERROR_RECOVERY, 1, 1 << 16);
    assert_eq!(status(&mut admin, with_dulbe), Status::INVALID_FIELD.dnr());
    assert_eq!(status(&mut admin, set_feature(0x7E, 1, 0)), Status::INVALID_FIELD.dnr());
}

#[test]
fn the_keep_alive_timeout_is_rounded_up_to_its_granularity() {
    let subsystem = subsystem(&["memory:1M"], |_| {});
    let (mut admin, _queue) = connected(&subsystem, Digests::default());
    for (set, found) in [(0, 0), (1, 100), (100, 100), (4321, 4400), (u32::MAX, 4_294_967_200)] {
        assert!(status(&mut admin, set_feature(feature::KEEP_ALIVE_TIMER, 0, set)).is_success());
        let controller = &admin.connection.queue.as_ref().unwrap().controller;
        assert_eq!(controller.keep_alive_ms(), found);
    }
}

#[test]
fn a_reset_ends_waiting_event_requests() {
    let subsystem = subsystem(&["memory:1M"], |_| {});
    let (mut admin, queue) = connected(&subsystem, Digests::default());
    let wait = |host: &mut Host| {
        for cid in 100_u16..104 {
            let mut request = Command::new(admin::ASYNC_EVENT_REQUEST, 0);
            request.cid = cid.into();
            host.command(request, &[]);
            assert!(host.answer().is_none());
        }
    };
    wait(&mut admin);
    let disable = Command::property_set(property::CC, cc::ENTRY_SIZES);
    assert!(status(&mut admin, disable).is_success());
    drop(queue);
    let enable = Command::property_set(property::CC, cc::ENABLE | cc::ENTRY_SIZES);
    assert!(status(&mut admin, enable).is_success());
    // The reset has ended the 4 waiting requests, so the host may send 4 new requests with the same
    // identifiers.
    wait(&mut admin);
}

/// One write to the register CC may both shut the controller down and disable it. Such a reset must also end
/// the waiting Asynchronous Event Requests.
#[test]
fn a_reset_with_a_shutdown_also_ends_waiting_event_requests() {
    let subsystem = subsystem(&["memory:1M"], |_| {});
    let (mut admin, queue) = connected(&subsystem, Digests::default());
    let mut request = Command::new(admin::ASYNC_EVENT_REQUEST, 0);
    request.cid = 100.into();
    host_waits(&mut admin, request);
    let end = Command::property_set(property::CC, cc::ENTRY_SIZES | cc::SHUTDOWN_NORMAL);
    assert!(status(&mut admin, end).is_success());
    drop(queue);
    let controller = admin.connection.queue.as_ref().unwrap().controller.clone();
    assert_eq!(controller.status(), csts::SHUTDOWN_COMPLETE);
    let enable = Command::property_set(property::CC, cc::ENABLE | cc::ENTRY_SIZES);
    assert!(status(&mut admin, enable).is_success());
    // The reset has ended the waiting request, so its command identifier can be used again.
    host_waits(&mut admin, request);
}

fn host_waits(host: &mut Host, request: Command) {
    host.command(request, &[]);
    assert!(host.answer().is_none());
}

#[test]
fn a_shutdown_that_a_reset_ends_is_not_reported_as_complete() {
    let subsystem = subsystem(&["memory:1M"], |_| {});
    let (admin, queue) = connected(&subsystem, Digests::default());
    let controller = admin.connection.queue.as_ref().unwrap().controller.clone();
    controller.configure(cc::ENABLE | cc::ENTRY_SIZES | cc::SHUTDOWN_NORMAL);
    controller.configure(cc::ENTRY_SIZES);
    drop(queue);
    controller.configure(cc::ENABLE | cc::ENTRY_SIZES);
    controller.shut_down();
    assert_eq!(controller.status(), csts::READY);
}

#[test]
fn the_error_recovery_feature_belongs_to_a_namespace() {
    let subsystem = subsystem(&["memory:1M", "memory:1M"], |_| {});
    let (mut admin, _queue) = connected(&subsystem, Digests::default());
    let get = |host: &mut Host, nsid| {
        let mut command = Command::new(admin::GET_FEATURES, nsid);
        command.cdw10 = u32::from(feature::ERROR_RECOVERY).into();
        let completion = host.call(command, &[]).0;
        completion.status().is_success().then(|| completion.result()).ok_or(completion.status())
    };
    let set = |host: &mut Host, nsid, value| status(host, set_feature(feature::ERROR_RECOVERY, nsid, value));
    assert_eq!(set(&mut admin, 3, 5), Status::INVALID_NAMESPACE.dnr());
    assert_eq!(get(&mut admin, 3), Err(Status::INVALID_NAMESPACE.dnr()));
    assert!(set(&mut admin, 1, 5).is_success());
    assert_eq!([1, 2].map(|nsid| get(&mut admin, nsid)), [Ok(5), Ok(0)]);
    assert!(set(&mut admin, u32::MAX, 7).is_success());
    assert_eq!([1, 2].map(|nsid| get(&mut admin, nsid)), [Ok(7), Ok(7)]);
}

#[test]
fn health_counts_a_compare_as_a_read() {
    let subsystem = subsystem(&["memory:1M"], |_| {});
    let (mut admin, mut queue) = connected(&subsystem, Digests::default());
    assert!(read(&mut queue, 1, 0, 1, 512).0.is_success());
    let compare = Command::blocks(io::COMPARE, 1, 0, 8, Sgl::in_capsule(4096));
    assert!(queue.call(compare, &[0; 4096]).0.status().is_success());
    let health = admin.log_page(log::HEALTH, 512);
    assert_eq!((number(&health, 32), number(&health, 64)), (1, 2));
}
