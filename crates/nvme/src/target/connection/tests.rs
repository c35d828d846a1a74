//! Tests of a connection without sockets: the test plays the host, and passes bytes to and from the
//! connection in memory.

mod admin_commands;
mod authentication;
mod data;
mod dissect;
mod faults;
mod flow;
mod service;
mod violation;
mod warnings;

use super::output::copy;
use super::*;
use crate::namespace::Namespace;
use crate::target::buffer::Pool;
use crate::target::error_log::{self, ErrorEntry};
use crate::target::inbox::{ConnectionId, Inbox, Message};
use crate::target::storage;
use crate::target::subsystem::{Definition, Limits};
use crate::wire::command::{
    Command, Completion, ConnectData, Sgl, admin, async_event, cc, connect, csts, dsm, feature, io, io_flags,
    log, property,
};
use crate::wire::identify::{self, DiscoveryHeader, cns};
use crate::wire::nqn;
use crate::wire::pdu::{Header, Kind, Layout, MAX_HEADER, Pdu, Transfer, data_flags, digest, encode};
use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

const NQN: &str = "nqn.2026-11.inlane:test";
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:0f01fb42-9f7f-4856-b0b3-51e60b8de349";

pub(super) fn subsystem(namespaces: &[&str], change: impl FnOnce(&mut Definition)) -> Arc<Subsystem> {
    let open = |(text, id): (&&str, u32)| Namespace::open(&text.parse().unwrap(), id, NQN, 1).unwrap();
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

#[derive(Debug)]
enum Answer {
    Initialized,
    Completed(Completion),
    Data(Transfer, u8, Vec<u8>),
    R2t {
        cid: u16,
        tag: u16,
        offset: u32,
        length: u32,
    },
    /// A termination request: its fatal error status, and the header of the faulty PDU.
    Terminated(u16, Vec<u8>),
}

/// The host that a test plays on one connection.
struct Host {
    connection: TargetConnection,
    pool: Pool,
    inbox: Arc<Inbox>,
    digests: Digests,
    received: Vec<u8>,
    now_ms: u64,
    /// A hex dump of the bytes in both directions. `None` if they are not recorded.
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
            share: pool.share([127, 0, 0, 1].into(), subsystem.limits.connection_bytes),
            reach: Reach { inbox: inbox.clone(), connection: ConnectionId(7) },
            peer: "127.0.0.1:1".parse().unwrap(),
            local: "127.0.0.1:4420".parse().unwrap(),
        };
        let connection = TargetConnection::new(setup);
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
            let Some(spaces) = self.connection.spaces() else { break };
            let mut total = 0;
            for space in spaces {
                let count = space.len().min(bytes.len());
                space[..count].copy_from_slice(&bytes[..count]);
                bytes = &bytes[count..];
                total += count;
            }
            self.connection.received(total, self.now_ms);
            self.run();
        }
        if let Some(trace) = &mut self.trace {
            dump('I', &self.received[answered..], trace);
        }
    }

    fn run(&mut self) {
        while let Some(slot) = self.connection.next_operation() {
            while let Some((descriptor, call)) = self.connection.call(slot) {
                if !self.connection.returned(slot, storage::make(call, descriptor), self.now_ms) {
                    break;
                }
            }
        }
        if let Some(job) = self.connection.take_job() {
            self.connection.authentication_computed(job.run(), self.now_ms);
        }
        self.connection.take_output(&mut self.received);
        self.connection.resume(self.now_ms);
        self.connection.take_output(&mut self.received);
    }

    /// Receives at most `most` bytes as the host.
    fn send_part(&mut self, most: usize) {
        let received = &mut self.received;
        self.connection.send(0, &mut Vec::new(), |vectors| copy(vectors, most, received) as isize);
    }

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
            Header::IcResp { digests, .. } => {
                self.digests = digests;
                Answer::Initialized
            }
            Header::CapsuleResp(completion) => Answer::Completed(completion),
            Header::C2hData(header) => Answer::Data(header, layout.flags, data),
            Header::R2t(it) => Answer::R2t {
                cid: it.cccid.get(),
                tag: it.ttag.get(),
                offset: it.offset.get(),
                length: it.length.get(),
            },
            Header::TermReq(termination) => Answer::Terminated(termination.status, data),
            other => panic!("{other:?} from a target"),
        };
        self.received.drain(..layout.total_bytes());
        Some(answer)
    }

    fn initialize(&mut self, digests: Digests) {
        let mut bytes = [0; MAX_HEADER];
        let length =
            encode(&Pdu::initialization(Kind::IcReq, digests, 0), 0, Digests::default(), 4, &mut bytes);
        self.send(&bytes[..length]);
        assert!(matches!(self.answer(), Some(Answer::Initialized)));
        assert_eq!(self.digests, digests);
    }

    fn capsule(&self, command: Command, data: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; MAX_HEADER];
        let length =
            encode(&Pdu::new(Kind::CapsuleCmd, 0, command), data.len() as u32, self.digests, 4, &mut bytes);
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

    /// Sends a command with `data` in its capsule. Returns the completion and the data that the target sent.
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
                    assert_eq!((header.cccid, header.offset.get() as usize), (command.cid, received.len()));
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

    /// Connects an admin queue and enables its controller. Requests I/O queues, except from a discovery
    /// controller. Returns the controller's identifier.
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
        if nqn != nqn::DISCOVERY {
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

/// Writes blocks as a host whose data does not travel in the capsule: sends the command, waits for the R2T,
/// and sends the data in `pieces` H2CData PDUs. Returns the status of the completion.
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
    for pdu in data_pdus(host.digests, (9, tag), data, pieces) {
        host.send(&pdu);
    }
    let Some(Answer::Completed(completion)) = host.answer() else { panic!("no completion") };
    completion.status()
}

/// Returns the PDUs that send `data` in pieces, for a command and the tag of its R2T.
fn data_pdus(digests: Digests, (cid, tag): (u16, u16), data: &[u8], pieces: usize) -> Vec<Vec<u8>> {
    let mut offset = 0;
    let pieces = data.chunks(data.len().div_ceil(pieces));
    let pdus = pieces.map(|piece| {
        let last = if offset + piece.len() == data.len() { data_flags::LAST } else { 0 };
        let header = Pdu::transfer(Kind::H2cData, last, cid, tag, offset as u32, piece.len() as u32);
        let mut bytes = vec![0; MAX_HEADER];
        let length = encode(&header, piece.len() as u32, digests, 4, &mut bytes);
        bytes.truncate(length);
        bytes.extend_from_slice(piece);
        if digests.data {
            bytes.extend_from_slice(&digest(piece));
        }
        offset += piece.len();
        bytes
    });
    pdus.collect()
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

/// Appends a packet to a hex dump in text2pcap's format. `direction` is `O` for the host, `I` for the target.
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
