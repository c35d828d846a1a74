//! Tests of reads, writes and other commands on blocks.

use super::*;

#[test]
fn data_comes_back_as_written_on_memory_and_files_with_all_digests() {
    let directory = tempfile::tempdir().unwrap();
    let file = format!("file:{}/disk,size=4M", directory.path().display());
    for storage in ["memory:4M", "memory:4M,lba=4096", &file] {
        for digests in ALL_DIGESTS {
            let subsystem = subsystem(&[storage], |_| {});
            let block = subsystem.namespaces[0].block_bytes();
            let (_admin, mut queue) = connected(&subsystem, digests);
            for (size, pieces) in [(4096, 1), (8192, 2), (64 << 10, 1), (1 << 20, 3)] {
                let data = pattern(size, size as u8 ^ pieces as u8);
                assert!(write(&mut queue, 8, &data, block, pieces).is_success());
                let (status, found) = read(&mut queue, 1, 8, size as u32 / block, block);
                assert!(status.is_success() && found == data, "{storage} {digests:?} {size}");
            }
            let in_capsule = pattern(4096, 77);
            let command = Command::blocks(io::WRITE, 1, 16, 4096 / block, Sgl::in_capsule(4096));
            assert!(queue.call(command, &in_capsule).0.status().is_success());
            assert_eq!(read(&mut queue, 1, 16, 4096 / block, block).1, in_capsule);
            assert!(queue.call(Command::new(io::FLUSH, 1), &[]).0.status().is_success());
        }
    }
}

/// Checks that of the data of large writes only the first bytes go through the input buffer, from which they are copied, also
/// if the PDUs of several writes follow one another.
#[test]
fn the_data_of_large_writes_is_received_into_their_buffers() {
    const BYTES: usize = 128 << 10;
    for digests in ALL_DIGESTS {
        let subsystem = subsystem(&["memory:1M"], |_| {});
        let (_admin, mut queue) = connected(&subsystem, digests);
        assert!(queue.connection.space().unwrap().len() > 4096, "many small commands arrive at once");
        queue.connection.received(0, 1);
        let writes: Vec<_> = (0..4).map(|number| (number, pattern(BYTES, number as u8))).collect();
        let mut bytes = Vec::new();
        for (cid, data) in &writes {
            let lba = u64::from(*cid) * BYTES as u64 / 512;
            let mut command =
                Command::blocks(io::WRITE, 1, lba, BYTES as u32 / 512, Sgl::transport(BYTES as u32));
            command.cid = (*cid).into();
            queue.command(command, &[]);
            let Some(Answer::R2t { tag, .. }) = queue.answer() else { panic!("no R2T") };
            bytes.extend(data_pdus(digests, (*cid, tag), data, 1).concat());
        }
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let spaces = queue.connection.spaces().unwrap();
            let in_place = if spaces[1].is_empty() { 0 } else { spaces[0].len() };
            let input = if in_place == 0 { spaces[0].len() } else { spaces[1].len() };
            assert!(input <= 4096, "{input} bytes of data would be copied");
            let count = rest.len().min(in_place + input);
            let (first, second) = rest[..count].split_at(count.min(spaces[0].len()));
            let [space, further] = spaces;
            space[..first.len()].copy_from_slice(first);
            further[..second.len()].copy_from_slice(second);
            rest = &rest[count..];
            queue.connection.received(count, 1);
            queue.run();
        }
        for (cid, _) in &writes {
            let Some(Answer::Completed(completion)) = queue.answer() else { panic!("no completion") };
            assert_eq!((completion.cid.get(), completion.status()), (*cid, Status::SUCCESS));
        }
        for (cid, data) in writes {
            let lba = u64::from(cid) * BYTES as u64 / 512;
            assert!(read(&mut queue, 1, lba, BYTES as u32 / 512, 512).1 == data);
        }
        assert!(queue.connection.space().unwrap().len() > 4096);
    }
}

/// The kernel may send the data of a read in several parts. A write between two parts must not tear a block.
#[test]
fn a_write_does_not_change_a_block_that_is_being_sent() {
    for (length, sent) in [(4096, 1000), (256 << 10, 5000), (256 << 10, 8192)] {
        let subsystem = subsystem(&["memory:1M,lba=4096"], |_| {});
        let (_admin, mut reader) = connected(&subsystem, Digests::default());
        let (_other, mut writer) = connected(&subsystem, Digests::default());
        let (old, new) = (pattern(length, 1), pattern(length, 2));
        assert!(write(&mut writer, 0, &old, 4096, 1).is_success());
        let blocks = length as u32 / 4096;
        let capsule =
            reader.capsule(Command::blocks(io::READ, 1, 0, blocks, Sgl::transport(length as u32)), &[]);
        reader.connection.space().unwrap()[..capsule.len()].copy_from_slice(&capsule);
        reader.connection.received(capsule.len(), 1);
        // The data follows a header of 24 bytes.
        reader.send_part(24 + sent);
        assert!(write(&mut writer, 0, &new, 4096, 1).is_success());
        reader.run();
        let Some(Answer::Data(_, _, data)) = reader.answer() else { panic!("no data") };
        let begun = sent.next_multiple_of(4096);
        assert!(data[..begun] == old[..begun] && data[begun..] == new[begun..], "{length}");
    }
}

#[test]
fn the_head_of_the_queue_counts_commands_and_wraps() {
    let subsystem = subsystem(&["memory:1M"], |_| {});
    let (_admin, mut queue) = connected(&subsystem, Digests::default());
    // The queue has 32 entries. Connect took entry 0, so the queue's head (SQHD) is 2 after the first
    // command.
    for n in 2..70_u16 {
        let completion = queue.call(Command::new(io::FLUSH, 1), &[]).0;
        assert_eq!(completion.sqhd.get(), n % 32);
    }
}

#[test]
fn without_flow_control_reads_have_no_completion() {
    let subsystem = subsystem(&["memory:1M"], |_| {});
    let mut admin = Host::new(&subsystem);
    admin.initialize(Digests::default());
    let controller = admin.enable(NQN);
    let mut queue = Host::new(&subsystem);
    queue.initialize(Digests::default());
    let data = ConnectData::new([1; 16], controller, NQN, HOST);
    let command = Command::connect(1, 32, connect::DISABLE_FLOW_CONTROL, 0);
    let completion = queue.call(command, data.as_bytes()).0;
    assert_eq!((completion.status(), completion.sqhd.get()), (Status::SUCCESS, 0xFFFF));
    queue.command(Command::blocks(io::READ, 1, 0, 8, Sgl::transport(4096)), &[]);
    let Some(Answer::Data(_, flags, bytes)) = queue.answer() else { panic!("no data") };
    assert_eq!((flags & 0x0C, bytes.len()), (data_flags::LAST | data_flags::SUCCESS, 4096));
    assert!(queue.answer().is_none());
}

#[test]
fn what_is_outside_the_namespace_is_neither_read_nor_written() {
    let subsystem = subsystem(&["memory:1M", "memory:1M,ro"], |_| {});
    let (_admin, mut queue) = connected(&subsystem, Digests::default());
    for (lba, blocks) in [(2048, 1), (2047, 2), (u64::MAX, 1), (u64::MAX - 6, 8), (1 << 55, 8)] {
        assert_eq!(read(&mut queue, 1, lba, blocks, 512).0, Status::LBA_OUT_OF_RANGE.dnr());
        assert_eq!(
            write(&mut queue, lba, &pattern(blocks as usize * 512, 1), 512, 1),
            Status::LBA_OUT_OF_RANGE.dnr()
        );
        let zero = Command::blocks(io::WRITE_ZEROES, 1, lba, blocks, Sgl::NONE);
        assert_eq!(queue.call(zero, &[]).0.status(), Status::LBA_OUT_OF_RANGE.dnr());
    }
    assert_eq!(read(&mut queue, 3, 0, 1, 512).0, Status::INVALID_NAMESPACE.dnr());
    assert_eq!(read(&mut queue, 0, 0, 1, 512).0, Status::INVALID_NAMESPACE.dnr());
    for opcode in [io::WRITE, io::WRITE_ZEROES] {
        let mut command = Command::blocks(opcode, 2, 0, 1, Sgl::transport(512));
        command.cid = 3.into();
        assert_eq!(queue.call(command, &[]).0.status(), Status::WRITE_PROTECTED.dnr());
    }
    // Unadvertised commands.
    for opcode in [0x0D, 0x04, 0x0C, 0x7E, 0x80, 0xFF] {
        assert_eq!(queue.call(Command::new(opcode, 1), &[]).0.status(), Status::INVALID_OPCODE.dnr());
    }
}

#[test]
fn lengths_that_differ_from_the_sgl_are_refused() {
    let subsystem = subsystem(&["memory:4M"], |_| {});
    let (_admin, mut queue) = connected(&subsystem, Digests::default());
    let with = |opcode, blocks, sgl| Command::blocks(opcode, 1, 0, blocks, sgl);
    let bad = |identifier| Sgl { identifier, ..Sgl::transport(512) };
    for (command, data, status) in [
        (with(io::READ, 2, Sgl::transport(512)), 0, Status::INVALID_SGL_LENGTH),
        (with(io::READ, 1, Sgl::transport(1024)), 0, Status::INVALID_SGL_LENGTH),
        (with(io::READ, 1, Sgl::in_capsule(512)), 0, Status::INVALID_SGL_TYPE),
        (with(io::READ, 1, Sgl::in_capsule(512)), 512, Status::INVALID_SGL_LENGTH),
        (with(io::WRITE, 1, Sgl::transport(511)), 0, Status::INVALID_SGL_LENGTH),
        (with(io::WRITE, 1, Sgl::in_capsule(512)), 0, Status::INVALID_SGL_LENGTH),
        (with(io::WRITE, 1, Sgl::in_capsule(512)), 1024, Status::INVALID_SGL_LENGTH),
        (
            with(io::WRITE, 1, Sgl { address: 8.into(), ..Sgl::in_capsule(512) }),
            512,
            Status::INVALID_SGL_OFFSET,
        ),
        (with(io::WRITE, 1, bad(0x00)), 0, Status::INVALID_SGL_TYPE),
        (with(io::READ, 1, bad(0x30)), 0, Status::INVALID_SGL_TYPE),
        (Command { flags: 0, ..with(io::READ, 1, Sgl::transport(512)) }, 0, Status::INVALID_FIELD),
        (Command { flags: 0x41, ..with(io::READ, 1, Sgl::transport(512)) }, 0, Status::INVALID_FIELD),
        (with(io::READ, 4096, Sgl::transport(2 << 20)), 0, Status::INVALID_FIELD),
    ] {
        let found = queue.call(command, &vec![0; data]).0.status();
        assert_eq!(found, status.dnr(), "{command:?}");
    }
    assert!(read(&mut queue, 1, 0, 8, 512).0.is_success(), "the queue still works");
}

#[test]
fn zeroes_compare_and_deallocation_work_on_memory_and_files() {
    let directory = tempfile::tempdir().unwrap();
    let file = format!("file:{}/disk,size=1M", directory.path().display());
    for storage in ["memory:1M", &file] {
        let subsystem = subsystem(&[storage], |_| {});
        let (_admin, mut queue) = connected(&subsystem, Digests::default());
        let data = pattern(64 << 10, 3);
        assert!(write(&mut queue, 0, &data, 512, 1).is_success());
        let compare = |at: u64, bytes: usize| {
            Command::blocks(io::COMPARE, 1, at, bytes as u32 / 512, Sgl::in_capsule(bytes as u32))
        };
        assert!(queue.call(compare(0, 4096), &data[..4096]).0.status().is_success());
        assert_eq!(queue.call(compare(8, 4096), &data[..4096]).0.status(), Status::COMPARE_FAILURE.dnr());
        for (lba, flags) in [(1, 0), (20, io_flags::DEALLOCATE), (40, io_flags::FUA)] {
            let mut command = Command::blocks(io::WRITE_ZEROES, 1, lba, 9, Sgl::NONE);
            command.cdw12 = (command.cdw12.get() | flags).into();
            assert!(queue.call(command, &[]).0.status().is_success());
        }
        // The command announces three ranges, but its list has 4096 bytes, as lists from Linux always have.
        // The target must ignore the rest of the list.
        let ranges: Vec<dsm::Range> = [(60, 4), (70, 0), (100, 16)]
            .map(|(lba, blocks)| dsm::Range {
                attributes: 0.into(),
                blocks: u32::into(blocks),
                lba: u64::into(lba),
            })
            .to_vec();
        let mut list = ranges.as_bytes().to_vec();
        list.resize(4096, 0xFF);
        let mut command = Command { sgl: Sgl::in_capsule(4096), ..Command::new(io::DATASET_MANAGEMENT, 1) };
        (command.cdw10, command.cdw11) = (2.into(), dsm::DEALLOCATE.into());
        assert!(queue.call(command, &list).0.status().is_success());
        command.cdw10 = 3.into();
        assert_eq!(queue.call(command, &list).0.status(), Status::LBA_OUT_OF_RANGE.dnr());
        let found = read(&mut queue, 1, 0, 128, 512).1;
        let zeroed = |block: usize| {
            [(1..10), (20..29), (40..49), (60..64), (100..116)].iter().any(|it| it.contains(&block))
        };
        for block in 0..128 {
            let expected = if zeroed(block) { &[0; 512][..] } else { &data[block * 512..][..512] };
            assert_eq!(&found[block * 512..][..512], expected, "{storage} block {block}");
        }
    }
}

/// A command can name the whole namespace 256 times. The worker must not deallocate it 256 times in a row.
#[test]
fn ranges_to_deallocate_are_merged() {
    let subsystem = subsystem(&["memory:1M"], |_| {});
    let namespace = &subsystem.namespaces[0];
    let ranges = |list: &[(u64, u32)]| {
        let entry = |(lba, blocks): &(u64, u32)| dsm::Range {
            attributes: 0.into(),
            blocks: (*blocks).into(),
            lba: (*lba).into(),
        };
        let list: Vec<_> = list.iter().map(entry).collect();
        let mut command = Command::new(io::DATASET_MANAGEMENT, 1);
        command.cdw11 = dsm::DEALLOCATE.into();
        crate::target::io::ranges(&command, list.len() as u16, list.as_bytes(), namespace).unwrap()
    };
    assert_eq!(ranges(&[(0, 2048); 256]), [(0, 1 << 20)]);
    let blocks = |start: u64, end: u64| (start * 512, (end - start) * 512);
    let found = ranges(&[(30, 5), (0, 10), (5, 2), (8, 4), (12, 1), (20, 5)]);
    assert_eq!(found, [blocks(0, 13), blocks(20, 25), blocks(30, 35)]);
}
