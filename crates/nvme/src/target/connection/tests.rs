//! Drives a connection by bytes in memory and plays the host.

use super::*;
use crate::command::{
    Command, Completion, ConnectData, DISCOVERY_NQN, Sgl, admin, async_event, cc, connect, csts, dsm,
    feature, io, io_flags, log, property,
};
use crate::identify::{self, DiscoveryHeader, cns};
use crate::namespace::Namespace;
use crate::pdu::{CapsuleCmd, Data, Header, IcReq, Kind, Layout, MAX_HEADER, data_flags, digest, encode};
use crate::target::buffer::Pool;
use crate::target::inbox::{ConnectionId, Inbox, Message};
use crate::target::storage;
use crate::target::subsystem::{Definition, Limits};
use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

const NQN: &str = "nqn.2026-11.inlane:test";
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:0f01fb42-9f7f-4856-b0b3-51e60b8de349";

fn subsystem(namespaces: &[&str], change: impl FnOnce(&mut Definition)) -> Arc<Subsystem> {
    let open = |(text, id): (&&str, u32)| Namespace::open(&text.parse().unwrap(), id, NQN).unwrap();
    let mut definition = Definition {
        nqn: NQN.into(),
        namespaces: namespaces.iter().zip(1..).map(open).collect(),
        hosts: None,
        listeners: vec!["127.0.0.1:4420".parse().unwrap()],
        limits: Limits::default(),
    };
    change(&mut definition);
    Arc::new(Subsystem::new(definition).unwrap())
}

/// A PDU from the target.
#[derive(Debug)]
enum Answer {
    Initialized,
    Completed(Completion),
    Data(Data, u8, Vec<u8>),
    R2t { cid: u16, tag: u16, offset: u32, length: u32 },
    Terminated(u16),
}

/// The host's side of one connection.
struct Host {
    connection: Connection,
    pool: Pool,
    inbox: Arc<Inbox>,
    digests: Digests,
    received: Vec<u8>,
    now_ms: u64,
    /// The bytes of both directions as a hex dump, if they are recorded.
    trace: Option<String>,
}

impl Host {
    fn new(subsystem: &Arc<Subsystem>) -> Self {
        Self::with_pool(subsystem, Pool::new(subsystem.limits.buffer_bytes))
    }

    fn with_pool(subsystem: &Arc<Subsystem>, pool: Pool) -> Self {
        let inbox = Arc::new(Inbox::new().unwrap());
        let setup = Setup {
            subsystem: subsystem.clone(),
            share: pool.share(subsystem.limits.connection_bytes),
            reach: Reach { inbox: inbox.clone(), connection: ConnectionId(7) },
            peer: "127.0.0.1:1".parse().unwrap(),
            local: "127.0.0.1:4420".parse().unwrap(),
        };
        let connection = Connection::new(setup);
        Self {
            connection,
            pool,
            inbox,
            digests: Digests::default(),
            received: Vec::new(),
            now_ms: 1,
            trace: None,
        }
    }

    /// Sends bytes as the host, and makes the system calls that the connection asks for.
    fn send(&mut self, mut bytes: &[u8]) {
        if let Some(trace) = &mut self.trace {
            dump('O', bytes, trace);
        }
        let answered = self.received.len();
        while !bytes.is_empty() {
            let Some(space) = self.connection.space() else { break };
            let count = space.len().min(bytes.len());
            space[..count].copy_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
            self.connection.received(count, self.now_ms);
            self.run();
        }
        if let Some(trace) = &mut self.trace {
            dump('I', &self.received[answered..], trace);
        }
    }

    fn run(&mut self) {
        while let Some(slot) = self.connection.next_operation() {
            loop {
                let (descriptor, call) = self.connection.call(slot);
                if !self.connection.returned(slot, storage::make(call, descriptor), self.now_ms) {
                    break;
                }
            }
        }
        self.connection.output().take(&mut self.received);
        self.connection.resume(self.now_ms);
        self.connection.output().take(&mut self.received);
    }

    /// Returns the next PDU of the target.
    fn answer(&mut self) -> Option<Answer> {
        let rules = Rules {
            sender: Sender::Controller,
            digests: self.digests,
            alignment: 4,
            max_capsule_data: 0,
            max_data: u32::MAX,
        };
        let bytes = &self.received[..];
        let layout = Layout::decode(bytes.first_chunk()?, &rules).expect("a valid PDU");
        assert!(bytes.len() >= layout.total_bytes(), "an incomplete PDU");
        layout.check_digest(bytes).expect("a valid digest");
        let data = bytes[layout.data_at()..][..layout.data_bytes as usize].to_vec();
        if layout.data_digest {
            assert_eq!(bytes[layout.total_bytes() - 4..layout.total_bytes()], digest(&data));
        }
        let answer = match Header::decode(&layout, bytes).expect("a valid header") {
            Header::IcResp(response) => {
                self.digests = Digests::from_bits(response.dgst);
                Answer::Initialized
            }
            Header::CapsuleResp(completion) => Answer::Completed(*completion),
            Header::C2hData(header) => Answer::Data(*header, layout.flags, data),
            Header::R2t(it) => Answer::R2t {
                cid: it.cccid.get(),
                tag: it.ttag.get(),
                offset: it.r2to.get(),
                length: it.r2tl.get(),
            },
            Header::TermReq(termination) => Answer::Terminated(termination.status),
            other => panic!("{other:?} from a target"),
        };
        self.received.drain(..layout.total_bytes());
        Some(answer)
    }

    fn initialize(&mut self, digests: Digests) {
        let mut bytes = [0; MAX_HEADER];
        let length = encode(&IcReq::new(digests, 1), 0, Digests::default(), 4, &mut bytes);
        self.send(&bytes[..length]);
        assert!(matches!(self.answer(), Some(Answer::Initialized)));
        assert_eq!(self.digests, digests);
    }

    fn capsule(&self, command: Command, data: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; MAX_HEADER];
        let length = encode(&CapsuleCmd::new(command), data.len() as u32, self.digests, 4, &mut bytes);
        bytes.truncate(length);
        bytes.extend_from_slice(data);
        if self.digests.data && !data.is_empty() {
            bytes.extend_from_slice(&digest(data));
        }
        bytes
    }

    fn command(&mut self, command: Command, data: &[u8]) {
        let bytes = self.capsule(command, data);
        self.send(&bytes);
    }

    /// Sends a command and returns its completion and its data.
    fn call(&mut self, command: Command, data: &[u8]) -> (Completion, Vec<u8>) {
        self.command(command, data);
        let mut received = Vec::new();
        loop {
            match self.answer().expect("an answer") {
                Answer::Completed(completion) => {
                    assert_eq!(completion.cid, command.cid);
                    return (completion, received);
                }
                Answer::Data(header, _, bytes) => {
                    assert_eq!((header.cccid, header.datao.get() as usize), (command.cid, received.len()));
                    received.extend(bytes);
                }
                other => panic!("{other:?} instead of a completion"),
            }
        }
    }

    fn connect(&mut self, queue: u16, controller: u16, nqn: &str) -> Completion {
        let data = ConnectData::new([1; 16], controller, nqn, HOST);
        self.call(Command::connect(queue, 32, 0, 10_000), data.as_bytes()).0
    }

    /// Connects and enables an admin queue. Returns the controller's identifier.
    fn enable(&mut self, nqn: &str) -> u16 {
        let completion = self.connect(0, connect::ANY_CONTROLLER, nqn);
        assert!(completion.status().is_success(), "{}", completion.status());
        let enable = Command::property_set(property::CC, cc::ENABLE | cc::ENTRY_SIZES);
        assert!(self.call(enable, &[]).0.status().is_success());
        let status = self.call(Command::property_get(property::CSTS, false), &[]).0;
        assert_eq!(status.dw0.get(), csts::READY);
        let mut queues = Command::new(admin::SET_FEATURES, 0);
        queues.cdw10 = u32::from(feature::NUMBER_OF_QUEUES).into();
        queues.cdw11 = 0x0003_0003.into();
        if nqn != DISCOVERY_NQN {
            assert_eq!(self.call(queues, &[]).0.dw0.get(), 0x0003_0003);
        }
        completion.dw0.get() as u16
    }

    fn log_page(&mut self, id: u8, bytes: u32) -> Vec<u8> {
        let mut command = Command { sgl: Sgl::transport(bytes), ..Command::new(admin::GET_LOG_PAGE, 0) };
        command.cdw10 = (u32::from(id) | (bytes / 4 - 1) << 16).into();
        let (completion, data) = self.call(command, &[]);
        assert!(completion.status().is_success(), "{}", completion.status());
        data
    }

    fn identify(&mut self, cns: u8, namespace: u32) -> Vec<u8> {
        let mut command = Command { sgl: Sgl::transport(4096), ..Command::new(admin::IDENTIFY, namespace) };
        command.cdw10 = u32::from(cns).into();
        let (completion, data) = self.call(command, &[]);
        assert!(completion.status().is_success(), "{}", completion.status());
        data
    }
}

/// Connects an admin queue and an I/O queue.
fn connected(subsystem: &Arc<Subsystem>, digests: Digests) -> (Host, Host) {
    let (mut admin, mut queue) = (Host::new(subsystem), Host::new(subsystem));
    admin.initialize(digests);
    let controller = admin.enable(NQN);
    queue.initialize(digests);
    let completion = queue.connect(1, controller, NQN);
    assert!(completion.status().is_success(), "{}", completion.status());
    (admin, queue)
}

fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|n| (n % 251) as u8 ^ seed).collect()
}

/// Writes by R2T.
fn write(host: &mut Host, lba: u64, data: &[u8], block: u32, pieces: usize) -> Status {
    let blocks = data.len() as u32 / block;
    let mut command = Command::blocks(io::WRITE, 1, lba, blocks, Sgl::transport(data.len() as u32));
    command.cid = 9.into();
    host.command(command, &[]);
    let (tag, length) = match host.answer().unwrap() {
        Answer::R2t { cid: 9, tag, offset: 0, length } => (tag, length),
        Answer::Completed(completion) => return completion.status(),
        other => panic!("{other:?}"),
    };
    assert_eq!(length as usize, data.len());
    let mut offset = 0;
    for piece in data.chunks(data.len().div_ceil(pieces)) {
        let last = if offset + piece.len() == data.len() { data_flags::LAST } else { 0 };
        let header = Data::new(Kind::H2cData, last, 9, tag, offset as u32, piece.len() as u32);
        let mut bytes = vec![0; MAX_HEADER];
        let length = encode(&header, piece.len() as u32, host.digests, 4, &mut bytes);
        bytes.truncate(length);
        bytes.extend_from_slice(piece);
        if host.digests.data {
            bytes.extend_from_slice(&digest(piece));
        }
        host.send(&bytes);
        offset += piece.len();
    }
    let Some(Answer::Completed(completion)) = host.answer() else { panic!("no completion") };
    completion.status()
}

fn read(host: &mut Host, namespace: u32, lba: u64, blocks: u32, block: u32) -> (Status, Vec<u8>) {
    let command = Command::blocks(io::READ, namespace, lba, blocks, Sgl::transport(blocks * block));
    let (completion, data) = host.call(command, &[]);
    (completion.status(), data)
}

const ALL_DIGESTS: [Digests; 4] = [
    Digests { header: false, data: false },
    Digests { header: true, data: false },
    Digests { header: false, data: true },
    Digests { header: true, data: true },
];

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

#[test]
fn the_head_of_the_queue_counts_commands_and_wraps() {
    let subsystem = subsystem(&["memory:1M"], |_| {});
    let (_admin, mut queue) = connected(&subsystem, Digests::default());
    // Connect was command 0 of 32, so the first command moves the head to 2.
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
    for opcode in [io::RESERVATION_REGISTER, 0x04, 0x0C, 0x7E, 0x80, 0xFF] {
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
        // Linux sends a list of the full length, of which only the first ranges count.
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
        let header = Data::new(Kind::H2cData, flags, cid, tag, offset, length);
        let end = encode(&header, length, Digests::default(), 4, &mut bytes);
        bytes.truncate(end);
        bytes.resize(end + length as usize, 0);
        bytes
    };
    // Each case: the status of the expected termination request, and what the host sends after a write
    // command of 8 KiB has got its R2T.
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
            Some(Answer::Terminated(found)) => assert_eq!(found, status, "{:x?}", &bytes[..8]),
            other => panic!("{other:?} for {:x?}", &bytes[..8]),
        }
        assert!(
            matches!(queue.connection.end(), Some(End::Violation(_))) && queue.connection.space().is_none()
        );
    }
    // A command before the ICReq ends the connection, too.
    let mut host = Host::new(&subsystem);
    let bytes = host.capsule(Command::new(admin::KEEP_ALIVE, 0), &[]);
    host.send(&bytes);
    assert!(matches!(host.answer(), Some(Answer::Terminated(2))));
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
            encode(&Data::new(Kind::H2cData, 0, 0, 0, 0, 4096), 4096, Digests::default(), 4, &mut bytes);
        bytes.truncate(end);
        bytes.resize(end + 4096, 1);
        queue.send(&bytes);
        assert_eq!(matches!(queue.answer(), Some(Answer::Terminated(4))), expected);
    }
}

#[test]
fn connect_names_the_parameter_that_it_refuses() {
    let subsystem = subsystem(&["memory:1M"], |it| it.hosts = Some([HOST.to_string()].into()));
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
    // Connect fails for an I/O queue of a controller that does not exist, and for one beyond the granted
    // number.
    assert_eq!(
        refused(Command::connect(1, 32, 0, 0), ConnectData::new([1; 16], 99, NQN, HOST)),
        (invalid, 0x1_0000 | 16)
    );
    let mut host = Host::new(&subsystem);
    host.initialize(Digests::default());
    let id = host.enable(NQN);
    let own = ConnectData::new([1; 16], id, NQN, HOST);
    assert_eq!(refused(Command::connect(5, 32, 0, 0), own), (invalid, 42));
    assert_eq!(
        refused(Command::connect(1, 32, 0, 0), ConnectData { host_id: [2; 16], ..own }),
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
        assert_eq!(subsystem.refresh().0, [1]);
    };
    resize(2 << 20);
    assert!(matches!(host.inbox.take()[..], [Message::Event(ConnectionId(7))]));
    host.connection.report_events();
    host.run();
    let Some(Answer::Completed(event)) = host.answer() else { panic!("no event") };
    assert_eq!((event.cid.get(), event.dw0.get()), (100, async_event::NAMESPACE_CHANGED));
    // The event of a further change is not sent until the host has read the log.
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
    assert_eq!(identify::Namespace::ref_from_bytes(&page).unwrap().nsze.get(), (3 << 20) / 512);
    // The host aborts an Asynchronous Event Request.
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
    host.enable(DISCOVERY_NQN);
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
    assert!(subsystem.set_hosts(Some([HOST.to_string()].into())).unwrap());
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
    // A discovery controller has no namespaces, and no I/O queues.
    let mut identify = Command { sgl: Sgl::transport(4096), ..Command::new(admin::IDENTIFY, 1) };
    identify.cdw10 = u32::from(cns::NAMESPACE).into();
    assert_eq!(host.call(identify, &[]).0.status(), Status::INVALID_FIELD.dnr());
}

#[test]
fn a_revoked_host_and_a_silent_host_lose_their_controllers() {
    let subsystem = subsystem(&["memory:1M"], |it| it.hosts = Some([HOST.to_string()].into()));
    let (admin, queue) = connected(&subsystem, Digests::default());
    assert!(subsystem.set_hosts(Some(Default::default())).unwrap());
    for host in [&admin, &queue] {
        assert!(matches!(host.inbox.take()[..], [Message::Close(_)]));
    }
    assert_eq!(subsystem.controller_count(), 0);
    assert!(subsystem.set_hosts(None).unwrap());
    let (mut admin, _queue) = connected(&subsystem, Digests::default());
    let mut keep_alive = Command::new(admin::SET_FEATURES, 0);
    keep_alive.cdw10 = u32::from(feature::KEEP_ALIVE_TIMER).into();
    keep_alive.cdw11 = 1.into();
    assert!(admin.call(keep_alive, &[]).0.status().is_success());
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(subsystem.end_expired().len(), 1);
    assert!(matches!(admin.inbox.take()[..], [Message::Close(_)]));
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
    // The result of the next flush is replaced by an error of the drive.
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
}

#[test]
fn commands_wait_for_buffers_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let subsystem = subsystem(&[&format!("file:{}/disk,size=4M", directory.path().display())], |it| {
        it.limits.buffer_bytes = 1 << 20;
    });
    let (_admin, mut queue) = connected(&subsystem, Digests::default());
    // Three writes of 512 KiB each: two fit into the budget, so the third waits for a buffer.
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

/// A host that does not read its responses makes the target stop reading its commands.
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

/// Writes bytes as a packet of a hex dump that text2pcap reads. `direction` is `O` for the host, `I` for the target.
fn dump(direction: char, bytes: &[u8], dump: &mut String) {
    use std::fmt::Write as _;
    for packet in bytes.chunks(16 << 10) {
        let _ = writeln!(dump, "{direction}");
        for (line, row) in packet.chunks(16).enumerate() {
            let hex: Vec<String> = row.iter().map(|byte| format!("{byte:02x}")).collect();
            let _ = writeln!(dump, "{:06x} {}", line * 16, hex.join(" "));
        }
        dump.push('\n');
    }
}

#[test]
fn tshark_dissects_a_session_without_a_malformed_pdu() {
    const TEST: &str = "tshark_dissects_a_session_without_a_malformed_pdu";
    let missing = |program: &str| {
        std::process::Command::new(program).arg("--version").output().err().map(|_| program.to_string())
    };
    if let Some(program) = missing("text2pcap").or_else(|| missing("tshark")) {
        eprintln!("SKIPPED {TEST}: no {program}; install the package tshark");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for digests in ALL_DIGESTS {
        let subsystem = subsystem(&["memory:4M"], |_| {});
        let (mut admin, mut queue) = (Host::new(&subsystem), Host::new(&subsystem));
        (admin.trace, queue.trace) = (Some(String::new()), Some(String::new()));
        admin.initialize(digests);
        let controller = admin.enable(NQN);
        queue.initialize(digests);
        assert!(queue.connect(1, controller, NQN).status().is_success());
        admin.identify(cns::CONTROLLER, 0);
        admin.identify(cns::NAMESPACE, 1);
        admin.identify(cns::ACTIVE_NAMESPACES, 0);
        admin.log_page(log::HEALTH, 512);
        let data = pattern(64 << 10, 1);
        assert!(write(&mut queue, 0, &data, 512, 3).is_success());
        assert_eq!(read(&mut queue, 1, 0, 128, 512).1, data);
        let in_capsule = Command::blocks(io::WRITE, 1, 0, 8, Sgl::in_capsule(4096));
        assert!(queue.call(in_capsule, &data[..4096]).0.status().is_success());
        assert!(read(&mut queue, 9, 0, 8, 512).0 == Status::INVALID_NAMESPACE.dnr());
        for (name, host) in [("admin", &admin), ("queue", &queue)] {
            let (text, capture) =
                (directory.path().join("dump"), directory.path().join(format!("{name}.pcap")));
            std::fs::write(&text, host.trace.as_ref().unwrap()).unwrap();
            let made = std::process::Command::new("text2pcap")
                .args(["-q", "-D", "-T", "50000,4420"])
                .args([&text, &capture])
                .output()
                .unwrap();
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
            let fields = |filter: &str| {
                let run = std::process::Command::new("tshark")
                    .arg("-r")
                    .arg(&capture)
                    .args([
                        "-d",
                        "tcp.port==4420,nvme-tcp",
                        "-Y",
                        filter,
                        "-T",
                        "fields",
                        "-e",
                        "nvme-tcp.type",
                    ])
                    .output()
                    .unwrap();
                assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
                String::from_utf8_lossy(&run.stdout).into_owned()
            };
            assert_eq!(fields("_ws.malformed || _ws.expert.severity == error"), "", "{name} {digests:?}");
            let types = fields("nvme-tcp");
            let types: Vec<&str> = types.split([',', '\n']).filter(|it| !it.is_empty()).collect();
            assert!(types.len() >= 10, "{name} {digests:?}: {types:?}");
            for expected in if name == "queue" {
                &["0", "1", "4", "5", "6", "7", "9"][..]
            } else {
                &["0", "1", "4", "5", "7"]
            } {
                assert!(
                    types.contains(expected),
                    "{name} {digests:?}: no PDU of type {expected} in {types:?}"
                );
            }
        }
    }
}

proptest! {
    /// Whatever a host sends, the target answers with valid PDUs and never stops with a panic.
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
