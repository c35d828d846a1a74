//! Tests with hosts that violate the protocol or send wrong digests.

use super::*;

#[test]
fn a_wrong_data_digest_fails_the_command_and_not_the_connection() {
    let subsystem = subsystem(&["memory:1M"], |_| {});
    let (_admin, mut queue) = connected(&subsystem, Digests { header: true, data: true });
    let command = Command::blocks(io::WRITE, 1, 0, 8, Sgl::in_capsule(4096));
    let mut bytes = queue.capsule(command, &pattern(4096, 1));
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    queue.send(&bytes);
    let Some(Answer::Completed(completion)) = queue.answer() else { panic!("no completion") };
    assert_eq!(completion.status(), Status::TRANSIENT_TRANSPORT_ERROR);
    assert_eq!(read(&mut queue, 1, 0, 8, 512), (Status::SUCCESS, vec![0; 4096]), "nothing was written");
    assert_eq!(subsystem.counters.digest_errors.load(Relaxed), 1);
}

#[test]
fn violations_end_the_connection_with_a_termination_request() {
    let subsystem = subsystem(&["memory:1M"], |_| {});
    let h2c = |cid: u16, tag: u16, offset: u32, length: u32, flags: u8| {
        let mut bytes = vec![0; MAX_HEADER];
        let header = Pdu::transfer(Kind::H2cData, flags, cid, tag, offset, length);
        let end = encode(&header, length, Digests::default(), 4, &mut bytes);
        bytes.truncate(end);
        bytes.resize(end + length as usize, 0);
        bytes
    };
    // Each case: the host sends a write command of 8 KiB, receives its R2T, and then sends these bytes. The
    // number is the status of the expected termination request.
    for (status, bytes) in [
        (1, h2c(9, 999, 0, 8192, data_flags::LAST)),
        (1, h2c(8, 0, 0, 8192, data_flags::LAST)),
        (4, h2c(9, 0, 4096, 4096, data_flags::LAST)),
        (4, h2c(9, 0, 0, 8196, data_flags::LAST)),
        (2, h2c(9, 0, 0, 4096, data_flags::LAST)),
        (1, vec![0xAA; 200]),
        (1, vec![Kind::CapsuleResp as u8, 0, 24, 0, 24, 0, 0, 0]),
        (1, vec![Kind::CapsuleCmd as u8, 1, 72, 0, 76, 0, 0, 0]),
        (1, vec![Kind::CapsuleCmd as u8, 0, 72, 0, 0xFF, 0xFF, 0xFF, 0xFF]),
    ] {
        let (_admin, mut queue) = connected(&subsystem, Digests::default());
        let mut command = Command::blocks(io::WRITE, 1, 0, 16, Sgl::transport(8192));
        command.cid = 9.into();
        queue.command(command, &[]);
        assert!(matches!(queue.answer(), Some(Answer::R2t { tag: 0, .. })));
        queue.send(&bytes);
        match queue.answer() {
            Some(Answer::Terminated(found, header)) => {
                // The termination request contains the header of the faulty PDU. If the first 8 bytes (the
                // common header) are invalid, the request contains only these 8 bytes.
                let length = if bytes[0] == Kind::H2cData as u8 { 24 } else { 8 };
                assert_eq!((found, &header[..]), (status, &bytes[..length]), "{:x?}", &bytes[..8]);
            }
            other => panic!("{other:?} for {:x?}", &bytes[..8]),
        }
        assert!(
            matches!(queue.connection.end(), Some(End::Violation(_))) && queue.connection.space().is_none()
        );
    }
    let mut host = Host::new(&subsystem);
    let bytes = host.capsule(Command::new(admin::KEEP_ALIVE, 0), &[]);
    host.send(&bytes);
    assert!(matches!(host.answer(), Some(Answer::Terminated(2, _))));
}

#[test]
fn overlapping_data_is_refused() {
    let subsystem = subsystem(&["memory:1M"], |_| {});
    let (_admin, mut queue) = connected(&subsystem, Digests::default());
    let command = Command::blocks(io::WRITE, 1, 0, 16, Sgl::transport(8192));
    queue.command(command, &[]);
    assert!(matches!(queue.answer(), Some(Answer::R2t { .. })));
    for expected in [false, true] {
        let mut bytes = vec![0; MAX_HEADER];
        let end =
            encode(&Pdu::transfer(Kind::H2cData, 0, 0, 0, 0, 4096), 4096, Digests::default(), 4, &mut bytes);
        bytes.truncate(end);
        bytes.resize(end + 4096, 1);
        queue.send(&bytes);
        assert_eq!(matches!(queue.answer(), Some(Answer::Terminated(4, _))), expected);
    }
}

proptest! {
    /// Whatever bytes a host sends, the target answers with valid PDUs and never panics.
    #[test]
    fn any_change_of_any_byte_is_survived(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        digests in 0_usize..4,
        cut in any::<prop::sample::Index>(),
    ) {
        let subsystem = subsystem(&["memory:64K"], |it| it.limits.buffer_bytes = 1 << 20);
        let (mut admin, mut queue) = connected(&subsystem, ALL_DIGESTS[digests]);
        for host in [&mut admin, &mut queue] {
            let mut bytes = Vec::new();
            for command in [
                Command::blocks(io::WRITE, 1, 0, 1, Sgl::in_capsule(512)),
                Command::blocks(io::READ, 1, 0, 8, Sgl::transport(4096)),
                Command::blocks(io::WRITE, 1, 0, 8, Sgl::transport(4096)),
                Command::new(admin::IDENTIFY, 1),
            ] {
                let data = if command.sgl.identifier == Sgl::IN_CAPSULE { vec![1; 512] } else { Vec::new() };
                bytes.extend(host.capsule(command, &data));
            }
            for (at, value) in &changes {
                let at = at.index(bytes.len());
                bytes[at] ^= value;
            }
            let cut = cut.index(bytes.len());
            host.send(&bytes[..cut]);
            host.send(&bytes[cut..]);
            while host.answer().is_some() {}
        }
    }
}
