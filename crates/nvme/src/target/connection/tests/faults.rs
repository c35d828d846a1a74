//! Injected faults of the storage: failed flushes, full disks, and resets while writes are in flight. The tests play
//! the kernel: they receive the target's system calls, and choose their results and the order of the results.

use super::*;
use crate::target::inbox::Note;
use crate::target::storage::Call;

/// Hands bytes to a connection without making system calls. Returns the calls that the connection asks for.
fn start(host: &mut Host, command: Command, data: &[u8]) -> Vec<(u16, Call)> {
    let bytes = host.capsule(command, data);
    host.connection.space().unwrap()[..bytes.len()].copy_from_slice(&bytes);
    host.connection.received(bytes.len(), 1);
    calls(host)
}

fn calls(host: &mut Host) -> Vec<(u16, Call)> {
    std::iter::from_fn(|| host.connection.next_operation())
        .collect::<Vec<_>>()
        .into_iter()
        .filter_map(|slot| host.connection.call(slot).map(|(_, call)| (slot, call)))
        .collect()
}

/// Ends a system call. Returns the command's next call, if it has one.
fn end(host: &mut Host, slot: u16, result: i32) -> Option<Call> {
    host.connection.returned(slot, result, 1).then(|| host.connection.call(slot).expect("a call").1)
}

/// Takes the messages about flushes from the inbox of a connection: results, and turns to call `fdatasync`. Returns the
/// calls of the latter.
fn messages(host: &mut Host) -> Vec<(u16, Call)> {
    let mut started = Vec::new();
    for message in host.inbox.take() {
        let Message::To(_, Note::Flush(slot, result)) = message else { continue };
        match result {
            Some(result) => assert!(!host.connection.returned(slot, result, 1)),
            None => started.push((slot, host.connection.call(slot).expect("its turn").1)),
        }
    }
    started
}

/// Returns the statuses of the completions that were sent.
fn statuses(host: &mut Host) -> Vec<Status> {
    host.connection.take_output(&mut host.received);
    std::iter::from_fn(|| match host.answer()? {
        Answer::Completed(completion) => Some(completion.status()),
        other => panic!("{other:?}"),
    })
    .collect()
}

fn file(options: &str) -> (tempfile::TempDir, Arc<Subsystem>) {
    let directory = tempfile::tempdir().unwrap();
    let name = format!("file:{}/disk,size=1M{options}", directory.path().display());
    let subsystem = subsystem(&[&name], |_| {});
    (directory, subsystem)
}

fn flush(cid: u16) -> Command {
    Command { cid: cid.into(), ..Command::new(io::FLUSH, 1) }
}

/// The kernel reports lost data to one of several concurrent calls of `fdatasync`. The others succeed.
#[test]
fn of_concurrent_flushes_none_succeeds_if_one_fails() {
    let (_directory, subsystem) = file("");
    let (_admin, mut first) = connected(&subsystem, Digests::default());
    let (_other, mut second) = connected(&subsystem, Digests::default());
    let running = start(&mut first, flush(1), &[]);
    assert_eq!((running.len(), running[0].1), (1, Call::Sync));
    assert_eq!(start(&mut second, flush(1), &[]), [], "a second fdatasync runs at the same time");
    assert_eq!(start(&mut first, flush(2), &[]), []);
    assert_eq!(end(&mut first, running[0].0, -libc::EIO), None);
    // The next fdatasync serves both waiting flushes. It succeeds, but earlier data is lost.
    let next = messages(&mut second);
    assert_eq!((next.len(), messages(&mut first).len()), (1, 0));
    assert_eq!(end(&mut second, next[0].0, 0), None);
    messages(&mut first);
    assert_eq!(statuses(&mut second), [Status::WRITE_FAULT.dnr()]);
    assert_eq!(statuses(&mut first), [Status::WRITE_FAULT.dnr(); 2]);
}

#[test]
fn a_flush_is_not_served_by_one_that_began_before() {
    let (_directory, subsystem) = file("");
    let (_admin, mut first) = connected(&subsystem, Digests::default());
    let (_other, mut second) = connected(&subsystem, Digests::default());
    let running = start(&mut first, flush(1), &[]);
    assert!(start(&mut second, flush(1), &[]).is_empty() && start(&mut second, flush(2), &[]).is_empty());
    end(&mut first, running[0].0, 0);
    assert_eq!(statuses(&mut first), [Status::SUCCESS]);
    assert!(statuses(&mut second).is_empty(), "its writes may be younger than the flush");
    let next = messages(&mut second);
    assert_eq!(next.len(), 1);
    end(&mut second, next[0].0, 0);
    assert!(messages(&mut second).is_empty());
    assert_eq!(statuses(&mut second), [Status::SUCCESS; 2]);
    // Afterwards, a flush starts at once again.
    assert_eq!(start(&mut first, flush(3), &[]).len(), 1);
}

fn durable_write(cid: u16) -> Command {
    let mut command = Command::blocks(io::WRITE, 1, 0, 8, Sgl::in_capsule(4096));
    command.cid = cid.into();
    command.cdw12 = (command.cdw12.get() | io_flags::FUA).into();
    command
}

#[test]
fn a_durable_write_to_a_full_disk_fails_alone() {
    for options in [",direct=on", ",direct=off"] {
        let (_directory, subsystem) = file(options);
        let (_admin, mut queue) = connected(&subsystem, Digests::default());
        for error in [libc::ENOSPC, libc::EDQUOT] {
            let started = start(&mut queue, durable_write(1), &[7; 4096]);
            assert!(matches!(started[0].1, Call::Write { .. }));
            assert_eq!(end(&mut queue, started[0].0, -error), None);
            assert_eq!(statuses(&mut queue), [Status::CAPACITY_EXCEEDED.dnr()], "{options}");
        }
        assert!(!subsystem.namespaces[0].flush_failed());
        assert!(write(&mut queue, 0, &[1; 512], 512, 1).is_success());
    }
}

#[test]
fn a_durable_write_that_fails_otherwise_ends_writing() {
    for options in [",direct=on", ",direct=off"] {
        let (_directory, subsystem) = file(options);
        let (_admin, mut queue) = connected(&subsystem, Digests::default());
        let started = start(&mut queue, durable_write(1), &[7; 4096]);
        let (slot, Call::Write { durable, .. }) = started[0] else { panic!("{started:?}") };
        if durable {
            assert_eq!(end(&mut queue, slot, -libc::EIO), None);
        } else {
            // Through the page cache, a flush follows the write.
            assert_eq!(end(&mut queue, slot, 4096), Some(Call::Sync));
            assert_eq!(start(&mut queue, flush(2), &[]), []);
            assert_eq!(end(&mut queue, slot, -libc::EIO), None);
            let next = messages(&mut queue);
            end(&mut queue, next[0].0, 0);
        }
        assert!(statuses(&mut queue).iter().all(|status| *status == Status::WRITE_FAULT.dnr()));
        assert!(subsystem.namespaces[0].flush_failed());
        assert_eq!(write(&mut queue, 0, &[1; 512], 512, 1), Status::WRITE_FAULT.dnr());
    }
}

/// An error of a system call fails its command, with the status that the specification gives it, and no other command.
#[test]
fn each_error_of_the_storage_has_its_status() {
    let (_directory, subsystem) = file("");
    let (_admin, mut queue) = connected(&subsystem, Digests::default());
    let blocks = |opcode, sgl| Command::blocks(opcode, 1, 0, 8, sgl);
    let read = (blocks(io::READ, Sgl::transport(4096)), 0);
    let write = (blocks(io::WRITE, Sgl::in_capsule(4096)), 4096);
    let compare = (blocks(io::COMPARE, Sgl::in_capsule(4096)), 4096);
    let zeroes = (blocks(io::WRITE_ZEROES, Sgl::NONE), 0);
    let mut deallocate = Command { sgl: Sgl::in_capsule(16), ..Command::new(io::DATASET_MANAGEMENT, 1) };
    deallocate.cdw11 = dsm::DEALLOCATE.into();
    let range = dsm::Range { attributes: 0.into(), blocks: 8.into(), lba: 0.into() };
    let deallocate = (deallocate, 16);
    for ((command, bytes), error, status) in [
        (read, libc::EIO, Status::UNRECOVERED_READ_ERROR),
        (compare, libc::EIO, Status::UNRECOVERED_READ_ERROR),
        (write, libc::EIO, Status::WRITE_FAULT),
        (zeroes, libc::EIO, Status::WRITE_FAULT),
        (deallocate, libc::EIO, Status::WRITE_FAULT),
        (write, libc::ENOSPC, Status::CAPACITY_EXCEEDED.dnr()),
        (zeroes, libc::EDQUOT, Status::CAPACITY_EXCEEDED.dnr()),
        (write, libc::EFBIG, Status::CAPACITY_EXCEEDED.dnr()),
        (write, libc::EROFS, Status::WRITE_PROTECTED.dnr()),
        (read, libc::ENODEV, Status::NAMESPACE_NOT_READY.dnr()),
        // Deallocation is a hint.
        (deallocate, libc::EOPNOTSUPP, Status::SUCCESS),
    ] {
        let data = if bytes == 16 { range.as_bytes().to_vec() } else { vec![7; bytes] };
        let started = start(&mut queue, command, &data);
        assert_eq!(started.len(), 1, "{command:?}");
        // A call that a signal interrupts is repeated.
        assert_eq!(end(&mut queue, started[0].0, -libc::EINTR), Some(started[0].1));
        assert_eq!(end(&mut queue, started[0].0, -error), None);
        assert_eq!(statuses(&mut queue), [status], "error {error} of {command:?}");
    }
    // A disk becomes full, or a file shorter, while a command has moved a part of its data.
    let started = start(&mut queue, write.0, &[7; 4096]);
    assert!(matches!(end(&mut queue, started[0].0, 1024), Some(Call::Write { length: 3072, .. })));
    assert_eq!(end(&mut queue, started[0].0, -libc::ENOSPC), None);
    let started = start(&mut queue, read.0, &[]);
    assert!(matches!(end(&mut queue, started[0].0, 512), Some(Call::Read { length: 3584, .. })));
    assert_eq!(end(&mut queue, started[0].0, 0), None);
    let expected = [Status::CAPACITY_EXCEEDED.dnr(), Status::LBA_OUT_OF_RANGE.dnr()];
    assert_eq!(statuses(&mut queue), expected);
    assert!(!subsystem.namespaces[0].flush_failed());
    assert!(super::write(&mut queue, 0, &[1; 512], 512, 1).is_success());
}

/// On a file system without operations to zero or deallocate a range, the target writes zeros. With FUA, these zeros must be
/// durable before the command completes.
#[test]
fn durable_zeroes_are_durable_however_they_are_made() {
    let (_directory, subsystem) = file("");
    let (_admin, mut queue) = connected(&subsystem, Digests::default());
    let mut command = Command::blocks(io::WRITE_ZEROES, 1, 0, 8, Sgl::NONE);
    command.cdw12 = (command.cdw12.get() | io_flags::FUA).into();
    let started = start(&mut queue, command, &[]);
    let (slot, Call::Allocate { .. }) = started[0] else { panic!("{started:?}") };
    assert!(matches!(end(&mut queue, slot, -libc::EOPNOTSUPP), Some(Call::Allocate { .. })));
    assert!(matches!(end(&mut queue, slot, -libc::EOPNOTSUPP), Some(Call::Write { length: 4096, .. })));
    assert!(matches!(end(&mut queue, slot, 1024), Some(Call::Write { length: 3072, offset: 1024, .. })));
    assert_eq!(end(&mut queue, slot, 3072), Some(Call::Sync));
    assert_eq!(statuses(&mut queue), []);
    assert_eq!(end(&mut queue, slot, -libc::EIO), None);
    assert_eq!(statuses(&mut queue), [Status::WRITE_FAULT.dnr()]);
    assert!(subsystem.namespaces[0].flush_failed());
    assert_eq!(super::write(&mut queue, 0, &[1; 512], 512, 1), Status::WRITE_FAULT.dnr());
}

#[test]
fn a_shutdown_whose_flush_fails_is_not_complete() {
    let (_directory, subsystem) = file("");
    let mut host = Host::new(&subsystem);
    host.initialize(Digests::default());
    host.enable(NQN);
    let shutdown = Command::property_set(property::CC, cc::ENABLE | cc::ENTRY_SIZES | cc::SHUTDOWN_NORMAL);
    let started = start(&mut host, shutdown, &[]);
    end(&mut host, started[0].0, -libc::EIO);
    let status = host.connection.queue.as_ref().unwrap().controller.status();
    assert_ne!(status & csts::SHUTDOWN_MASK, csts::SHUTDOWN_COMPLETE);
    assert_ne!(status & csts::FATAL, 0);
}

/// A write in flight must not land after the host has seen that the reset is complete.
#[test]
fn a_reset_is_complete_when_no_write_is_in_flight() {
    let (_directory, subsystem) = file("");
    let (mut admin, mut queue) = connected(&subsystem, Digests::default());
    let command = Command::blocks(io::WRITE, 1, 0, 8, Sgl::in_capsule(4096));
    let started = start(&mut queue, command, &[7; 4096]);
    assert_eq!(started.len(), 1);
    let ready = |admin: &mut Host| {
        let status = admin.call(Command::property_get(property::CSTS, false), &[]).0.dw0.get();
        status & csts::READY != 0
    };
    let set = |admin: &mut Host, value| {
        assert!(admin.call(Command::property_set(property::CC, value), &[]).0.status().is_success());
    };
    set(&mut admin, cc::ENTRY_SIZES);
    assert!(matches!(queue.inbox.take()[..], [Message::To(_, Note::Close)]));
    queue.connection.disconnected();
    assert!(ready(&mut admin), "the write may still land");
    // A host that does not wait is not served before the write has ended.
    set(&mut admin, cc::ENABLE | cc::ENTRY_SIZES);
    assert!(!ready(&mut admin));
    assert_eq!(admin.call(Command::new(admin::KEEP_ALIVE, 0), &[]).0.status(), Status::SEQUENCE_ERROR.dnr());
    set(&mut admin, cc::ENTRY_SIZES);
    assert!(ready(&mut admin));
    end(&mut queue, started[0].0, 4096);
    drop(queue);
    assert!(!ready(&mut admin));
    set(&mut admin, cc::ENABLE | cc::ENTRY_SIZES);
    assert!(ready(&mut admin));
}

/// A host that lost its connection may repeat a write over a new one, and then write other data. The first write must not
/// land after these.
#[test]
fn a_new_controller_is_ready_when_no_write_of_a_lost_one_is_in_flight() {
    let (_directory, subsystem) = file("");
    let command = Command::blocks(io::WRITE, 1, 0, 8, Sgl::in_capsule(4096));
    let lost = [(); 2].map(|()| connected(&subsystem, Digests::default())).map(|(mut admin, mut queue)| {
        let slot = start(&mut queue, command, &[7; 4096])[0].0;
        admin.connection.disconnected();
        queue.connection.disconnected();
        (queue, slot)
    });
    let mut admin = Host::new(&subsystem);
    admin.initialize(Digests::default());
    assert!(admin.connect(0, connect::ANY_CONTROLLER, NQN).status().is_success());
    let enable = Command::property_set(property::CC, cc::ENABLE | cc::ENTRY_SIZES);
    assert!(admin.call(enable, &[]).0.status().is_success());
    let ready = |admin: &mut Host| {
        let status = admin.call(Command::property_get(property::CSTS, false), &[]).0.dw0.get();
        status & csts::READY != 0
    };
    for (mut queue, slot) in lost {
        assert!(!ready(&mut admin), "a write may still land");
        end(&mut queue, slot, 4096);
    }
    assert!(ready(&mut admin));
}

proptest! {
    /// Plays a kernel that loses data at arbitrary times and reports each loss to one `fdatasync`. No flush may succeed
    /// after a loss.
    #[test]
    fn no_flush_succeeds_after_data_was_lost(steps in prop::collection::vec((0_u8..4, 0_usize..3), 1..60)) {
        let (_directory, subsystem) = file("");
        let mut hosts: Vec<_> = (0..3).map(|_| connected(&subsystem, Digests::default()).1).collect();
        // The calls in flight, and whether data was lost, and whether the kernel has not yet reported it.
        let (mut running, mut cid) = (Vec::new(), 0);
        let (mut lost, mut unreported) = (false, false);
        for (step, index) in steps {
            match step {
                0 => {
                    let host = &mut hosts[index];
                    cid += 1;
                    running.extend(start(host, flush(cid % 20), &[]).into_iter().map(|(slot, _)| (index, slot)));
                }
                1 => {
                    // Deliver what was decided before the loss. Such a flush may succeed.
                    for _ in 0..hosts.len() {
                        for (index, host) in hosts.iter_mut().enumerate() {
                            running.extend(messages(host).into_iter().map(|(slot, _)| (index, slot)));
                            if !lost {
                                statuses(host);
                            }
                        }
                    }
                    (lost, unreported) = (true, true);
                }
                2 => running.extend(messages(&mut hosts[index]).into_iter().map(|(slot, _)| (index, slot))),
                _ if !running.is_empty() => {
                    let (index, slot) = running.swap_remove(index % running.len());
                    let result = if std::mem::take(&mut unreported) { -libc::EIO } else { 0 };
                    end(&mut hosts[index], slot, result);
                }
                _ => {}
            }
            for host in hosts.iter_mut().filter(|_| lost) {
                let found = statuses(host);
                prop_assert!(!found.contains(&Status::SUCCESS), "{found:?}");
            }
            prop_assert!(running.len() <= 1, "several calls of fdatasync at a time");
        }
    }
}

/// A write beyond the end would extend the file again. The size is read again for a write after at least a millisecond.
#[test]
fn a_truncated_file_is_not_extended_again() {
    let (directory, subsystem) = file("");
    let (_admin, mut host) = connected(&subsystem, Digests::default());
    let write = |cid: u16, lba, now_ms, host: &mut Host| {
        host.now_ms = now_ms;
        let blocks = Command::blocks(io::WRITE, 1, lba, 8, Sgl::in_capsule(4096));
        let command = Command { cid: cid.into(), ..blocks };
        host.call(command, &[5; 4096]).0.status()
    };
    assert_eq!(write(1, 2040, 10, &mut host), Status::SUCCESS);
    let path = directory.path().join("disk");
    std::fs::File::options().write(true).open(&path).unwrap().set_len(512 << 10).unwrap();
    assert_eq!(write(2, 2040, 11, &mut host), Status::LBA_OUT_OF_RANGE.dnr());
    assert_eq!(write(3, 1016, 11, &mut host), Status::SUCCESS);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 512 << 10);
    // Hosts are still told.
    let namespace = &subsystem.namespaces[0];
    assert!(namespace.refresh().unwrap() && !namespace.refresh().unwrap());
}
