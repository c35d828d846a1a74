//! Tests of flow control: commands that wait for buffers, and hosts that do not read their responses.

use super::*;

#[test]
fn commands_wait_for_buffers_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let subsystem = subsystem(&[&format!("file:{}/disk,size=4M", directory.path().display())], |it| {
        it.limits.buffer_bytes = 5 << 19;
    });
    let (_admin, mut queue) = connected(&subsystem, Digests::default());
    // Three writes of 512 KiB each: two fit into the budget for buffers, so the third waits.
    for cid in 0..3_u16 {
        let mut command =
            Command::blocks(io::WRITE, 1, u64::from(cid) * 1024, 1024, Sgl::transport(512 << 10));
        command.cid = cid.into();
        queue.command(command, &[]);
    }
    let requested = |queue: &mut Host, expected: u16| {
        let Some(Answer::R2t { cid, tag, .. }) = queue.answer() else { panic!("no R2T for {expected}") };
        assert_eq!(cid, expected);
        tag
    };
    let first = requested(&mut queue, 0);
    requested(&mut queue, 1);
    assert!(queue.answer().is_none() && queue.connection.is_starved());
    let header = Pdu::transfer(Kind::H2cData, data_flags::LAST, 0, first, 0, 512 << 10);
    let mut bytes = vec![0; MAX_HEADER];
    let end = encode(&header, 512 << 10, Digests::default(), 4, &mut bytes);
    bytes.truncate(end);
    bytes.resize(end + (512 << 10), 5);
    queue.send(&bytes);
    assert!(matches!(queue.answer(), Some(Answer::Completed(it)) if it.status().is_success()));
    requested(&mut queue, 2);
    assert!(queue.pool.returned() > 0);
}

#[test]
fn a_host_that_does_not_read_is_not_read() {
    let subsystem = subsystem(&["memory:4M"], |_| {});
    let (_admin, mut queue) = connected(&subsystem, Digests::default());
    let command = Command::blocks(io::READ, 1, 0, 2048, Sgl::transport(1 << 20));
    let bytes = queue.capsule(command, &[]);
    let mut sent = 0;
    while let Some(space) = queue.connection.space() {
        space[..bytes.len()].copy_from_slice(&bytes);
        queue.connection.received(bytes.len(), 1);
        sent += 1;
        assert!(sent < 100, "the target takes commands without bound");
    }
    assert!(queue.connection.pending_bytes() > 0);
}

/// A host with many large reads must not keep the thread from the hosts beside it.
#[test]
fn a_connection_sends_a_limited_part_at_a_time() {
    let subsystem = subsystem(&["memory:4M"], |_| {});
    let (_admin, mut queue) = connected(&subsystem, Digests::default());
    for cid in 0..4 {
        let bytes = queue.capsule(large(io::READ, cid), &[]);
        queue.connection.space().unwrap()[..bytes.len()].copy_from_slice(&bytes);
        queue.connection.received(bytes.len(), 1);
    }
    let pending = queue.connection.pending_bytes();
    assert!(pending > 4 << 20, "{pending}");
    let mut offered = 0;
    queue.connection.send(0, &mut Vec::new(), |vectors| {
        offered = vectors.iter().map(|vector| vector.iov_len).sum();
        0
    });
    assert!((1 << 19..=1 << 20).contains(&(offered - 24)), "{offered} of {pending} bytes at a time");
    assert_eq!(queue.connection.pending_bytes(), pending);
}

/// Returns a command that transfers 1 MiB outside its capsule.
fn large(opcode: u8, cid: u16) -> Command {
    let mut command = Command::blocks(opcode, 1, 0, 2048, Sgl::transport(1 << 20));
    command.cid = cid.into();
    command
}

fn file_with_quota() -> (tempfile::TempDir, Arc<Subsystem>) {
    let directory = tempfile::tempdir().unwrap();
    let file = format!("file:{}/disk,size=4M", directory.path().display());
    let subsystem = subsystem(&[&file], |it| it.limits.connection_bytes = 4 << 20);
    (directory, subsystem)
}

/// Four writes take the connection's whole quota, and wait for their data. The data in the capsule of the fifth
/// command arrives before theirs, so it must not wait for them.
#[test]
fn data_in_a_capsule_does_not_wait_for_writes_that_hold_all_buffers() {
    let (_directory, subsystem) = file_with_quota();
    let (_admin, mut queue) = connected(&subsystem, Digests::default());
    (0..4).for_each(|cid| queue.command(large(io::WRITE, cid), &[]));
    let mut command = Command::blocks(io::WRITE, 1, 0, 16, Sgl::in_capsule(8192));
    command.cid = 4.into();
    queue.command(command, &pattern(8192, 4));
    let tags: Vec<_> = std::iter::from_fn(|| match queue.answer() {
        Some(Answer::R2t { cid, tag, .. }) => Some((cid, tag)),
        Some(Answer::Completed(it)) if it.cid.get() == 4 => None,
        other => panic!("{other:?}"),
    })
    .collect();
    assert_eq!(tags.len(), 4);
    for tag in tags {
        data_pdus(Digests::default(), tag, &pattern(1 << 20, 1), 1).iter().for_each(|pdu| queue.send(pdu));
        assert!(matches!(queue.answer(), Some(Answer::Completed(it)) if it.status().is_success()));
    }
}

/// A Compare on a file needs room for the host's data and for the blocks. It must not wait for the second while it
/// holds the first.
#[test]
fn compares_on_a_file_that_need_all_buffers_complete() {
    let (_directory, subsystem) = file_with_quota();
    let (_admin, mut queue) = connected(&subsystem, Digests::default());
    (0..4).for_each(|cid| queue.command(large(io::COMPARE, cid), &[]));
    let mut completed = 0;
    while completed < 4 {
        match queue.answer().expect("the target waits for itself") {
            Answer::R2t { cid, tag, .. } => {
                let pdus = data_pdus(Digests::default(), (cid, tag), &vec![0; 1 << 20], 1);
                pdus.iter().for_each(|pdu| queue.send(pdu));
            }
            Answer::Completed(it) if it.status().is_success() => completed += 1,
            other => panic!("{other:?}"),
        }
    }
}

/// 24 writes of 1 MiB on each of 16 queues, whose data never arrives, must not keep other hosts from connecting,
/// reading and writing.
#[test]
fn stalled_writes_of_one_host_leave_buffers_for_others() {
    let directory = tempfile::tempdir().unwrap();
    let file = format!("file:{}/disk,size=4M", directory.path().display());
    let subsystem = subsystem(&[&file], |it| it.limits.io_queues = 16);
    let pool = Pool::new(subsystem.limits.buffer_bytes);
    let connect = |queues: u16| {
        let open = || {
            let mut host = Host::with_pool(&subsystem, pool.clone());
            host.initialize(Digests::default());
            host
        };
        let mut admin = open();
        let controller = admin.enable(NQN);
        let mut all = Command::new(admin::SET_FEATURES, 0);
        all.cdw10 = u32::from(feature::NUMBER_OF_QUEUES).into();
        all.cdw11 = 0x000F_000F.into();
        assert_eq!(admin.call(all, &[]).0.dw0.get(), 0x000F_000F);
        let io = (1..=queues).map(|id| {
            let mut queue = open();
            assert!(queue.connect(id, controller, NQN).status().is_success());
            queue
        });
        (admin, io.collect::<Vec<_>>())
    };
    let (_admin, mut stalled) = connect(16);
    let mut requested = 0;
    for queue in &mut stalled {
        (0..24).for_each(|cid| queue.command(large(io::WRITE, cid), &[]));
        requested += std::iter::from_fn(|| queue.answer()).count();
    }
    assert!((100..150).contains(&requested), "{requested} of 256 MiB");
    let (mut admin, mut queues) = connect(1);
    assert_eq!(admin.identify(cns::CONTROLLER, 0).len(), 4096);
    let queue = &mut queues[0];
    let data = pattern(1 << 20, 5);
    for _ in 0..16 {
        assert!(write(queue, 0, &data, 512, 1).is_success());
    }
    (0..16).for_each(|cid| queue.command(large(io::WRITE, cid), &[]));
    let at_once = std::iter::from_fn(|| queue.answer()).count();
    assert!(at_once >= 8, "{at_once} writes at once");
}
