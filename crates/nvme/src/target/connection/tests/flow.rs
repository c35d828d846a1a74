//! Tests of flow control: commands that wait for buffers, and hosts that do not read their responses.

use super::*;

#[test]
fn commands_wait_for_buffers_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let subsystem = subsystem(&[&format!("file:{}/disk,size=4M", directory.path().display())], |it| {
        it.limits.buffer_bytes = 1 << 20;
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
    let header = Data::new(Kind::H2cData, data_flags::LAST, 0, first, 0, 512 << 10);
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
    assert!(queue.connection.waits_for_host());
}
