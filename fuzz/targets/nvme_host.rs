//! A hostile host. It completes the handshakes of an admin queue and an I/O queue. Then it sends arbitrary
//! bytes, or well-formed command capsules with arbitrary fields. The target must answer with well-formed
//! PDUs. It must not stop, and must not access a byte outside the namespace.

use inlane_nvme::namespace::Namespace;
use inlane_nvme::target::buffer::Pool;
use inlane_nvme::target::connection::{Setup, TargetConnection};
use inlane_nvme::target::controller::Reach;
use inlane_nvme::target::inbox::{ConnectionId, Inbox};
use inlane_nvme::target::storage;
use inlane_nvme::target::subsystem::{Definition, Limits, Subsystem};
use inlane_nvme::wire::command::{Command, ConnectData, Sgl, admin, cc, connect, feature, io, property};
use inlane_nvme::wire::pdu::{Digests, Header, Kind, Layout, MAX_HEADER, Pdu, Rules, Sender, digest, encode};
use std::sync::{Arc, OnceLock};
use zerocopy::{FromBytes, IntoBytes};

const NQN: &str = "nqn.2026-11.inlane:fuzz";
const HOST: &str = "nqn.2026-11.inlane:host";

struct Host {
    connection: TargetConnection,
    digests: Digests,
    received: Vec<u8>,
}

impl Host {
    fn new(subsystem: &Arc<Subsystem>, pool: &Pool, inbox: &Arc<Inbox>, digests: Digests) -> Self {
        let setup = Setup {
            subsystem: subsystem.clone(),
            share: pool.share([127, 0, 0, 1].into(), subsystem.limits.connection_bytes),
            reach: Reach { inbox: inbox.clone(), connection: ConnectionId(1) },
            peer: "127.0.0.1:1".parse().expect("an address"),
            local: "127.0.0.1:4420".parse().expect("an address"),
        };
        let mut host = Self { connection: TargetConnection::new(setup), digests, received: Vec::new() };
        let mut bytes = [0; MAX_HEADER];
        let length =
            encode(&Pdu::initialization(Kind::IcReq, digests, 0), 0, Digests::default(), 4, &mut bytes);
        host.send(&bytes[..length]);
        host.received.clear();
        host
    }

    /// Hands bytes from the host to the target's connection, and makes the system calls that the connection
    /// then asks for.
    fn send(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let Some(spaces) = self.connection.spaces() else { return };
            let mut total = 0;
            for space in spaces {
                let count = space.len().min(bytes.len());
                space[..count].copy_from_slice(&bytes[..count]);
                bytes = &bytes[count..];
                total += count;
            }
            self.connection.received(total, 1);
            while let Some(slot) = self.connection.next_operation() {
                while let Some((descriptor, call)) = self.connection.call(slot) {
                    if !self.connection.returned(slot, storage::make(call, descriptor), 1) {
                        break;
                    }
                }
            }
            self.connection.take_output(&mut self.received);
            self.connection.resume(1);
            self.connection.take_output(&mut self.received);
        }
    }

    fn command(&mut self, command: Command, data: &[u8]) {
        let mut bytes = vec![0; MAX_HEADER];
        let length =
            encode(&Pdu::new(Kind::CapsuleCmd, 0, command), data.len() as u32, self.digests, 4, &mut bytes);
        bytes.truncate(length);
        bytes.extend_from_slice(data);
        if self.digests.data && !data.is_empty() {
            bytes.extend_from_slice(&digest(data));
        }
        self.send(&bytes);
    }

    /// Checks that everything received consists of well-formed PDUs. Returns dword 0 of the last completion.
    fn check(&mut self) -> u32 {
        let rules = Rules {
            sender: Sender::Controller,
            digests: self.digests,
            alignment: 4,
            max_capsule_data: 0,
            max_data: u32::MAX,
        };
        let (mut rest, mut result) = (&self.received[..], 0);
        while let Some(common) = rest.first_chunk() {
            let layout = Layout::decode(common, &rules).expect("a well-formed PDU");
            layout.check_digest(rest).expect("a correct digest");
            let header = Header::decode(&layout, rest).expect("a well-formed header");
            if let Header::CapsuleResp(completion) = header {
                result = completion.dw0.get();
            }
            rest = &rest[layout.total_bytes()..];
        }
        self.received.clear();
        result
    }
}

/// Returns the subsystem. It has a namespace in memory and one in a file. The file is open, but already
/// removed from its directory.
fn subsystem() -> Arc<Subsystem> {
    static SHARED: OnceLock<Arc<Subsystem>> = OnceLock::new();
    let make = || {
        let path = std::env::temp_dir().join(format!("inlane-fuzz-{}", std::process::id()));
        let texts = ["memory:64K".to_string(), format!("file:{},size=64K,direct=off", path.display())];
        let open = |(text, id): (&String, u32)| {
            Namespace::open(&text.parse().expect("valid"), id, NQN, 1).expect("opened")
        };
        let namespaces = texts.iter().zip(1..).map(open).collect();
        std::fs::remove_file(path).expect("removed");
        let limits = Limits {
            queue_entries: 64,
            buffer_bytes: 4 << 20,
            connection_bytes: 2 << 20,
            ..Limits::default()
        };
        let listeners = vec!["127.0.0.1:4420".parse().expect("an address")];
        let definition = Definition { nqn: NQN.into(), namespaces, hosts: None, listeners, limits };
        Arc::new(Subsystem::new(definition).expect("valid"))
    };
    SHARED.get_or_init(make).clone()
}

pub fn run(data: &[u8]) {
    let [mode, data @ ..] = data else { return };
    let digests = Digests { header: mode & 1 != 0, data: mode & 2 != 0 };
    let (subsystem, pool) = (subsystem(), Pool::new(4 << 20));
    static INBOX: OnceLock<Arc<Inbox>> = OnceLock::new();
    let inbox = INBOX.get_or_init(|| Arc::new(Inbox::new().expect("an inbox")));
    let host = || Host::new(&subsystem, &pool, inbox, digests);

    let mut admin = host();
    let connect = |id| ConnectData::new([1; 16], id, NQN, HOST);
    admin.command(Command::connect(0, 32, 0, 0), connect(connect::ANY_CONTROLLER).as_bytes());
    let id = admin.check() as u16;
    admin.command(Command::property_set(property::CC, cc::ENABLE | cc::ENTRY_SIZES), &[]);
    let mut queues = Command::new(admin::SET_FEATURES, 0);
    queues.cdw10 = u32::from(feature::NUMBER_OF_QUEUES).into();
    admin.command(queues, &[]);
    let mut queue = host();
    queue.command(Command::connect(1, 32, 0, 0), connect(id).as_bytes());
    queue.check();

    let target = if mode & 4 != 0 { &mut admin } else { &mut queue };
    if mode & 8 != 0 {
        target.send(data);
    } else {
        // Each 64 bytes are a command. In half of the commands, the fields that the target compares with
        // limits get small numbers, so that some commands are valid.
        for chunk in data.chunks_exact(64) {
            let Ok(mut command) = Command::read_from_bytes(chunk) else { return };
            let choice = command.flags;
            command.flags = if choice & 0x0F == 0 { command.flags } else { 0x40 };
            if choice & 0x10 != 0 {
                command.nsid = (command.nsid.get() % 4).into();
                (command.cdw10, command.cdw11) =
                    ((command.cdw10.get() % 136).into(), (command.cdw11.get() & 4).into());
                command.cdw12 = (command.cdw12.get() % 16).into();
            }
            let bytes = if choice & 0x20 != 0 { (command.block_count() % 17) * 512 } else { 0 };
            let in_capsule = command.opcode == io::WRITE && choice & 0x40 != 0 && bytes > 0;
            command.sgl = match (in_capsule, choice & 0x20 != 0) {
                (true, _) => Sgl::in_capsule(bytes.min(8192)),
                (false, true) => Sgl::transport(bytes),
                (false, false) => command.sgl,
            };
            target.command(command, &vec![chunk[63]; if in_capsule { bytes.min(8192) as usize } else { 0 }]);
            if choice & 0x80 != 0 {
                let length = u32::from(chunk[60]) * 32 + 4;
                let header = Pdu::transfer(
                    Kind::H2cData,
                    chunk[61] & 4,
                    command.cid.get(),
                    u16::from(chunk[62] & 3),
                    0,
                    length,
                );
                let mut bytes = vec![0; MAX_HEADER];
                let end = encode(&header, length, digests, 4, &mut bytes);
                bytes.truncate(end);
                bytes.resize(end + length as usize, chunk[63]);
                if digests.data {
                    let sum = digest(&bytes[end..]);
                    bytes.extend_from_slice(&sum);
                }
                target.send(&bytes);
            }
        }
    }
    target.check();
    admin.connection.disconnected();
    queue.connection.disconnected();
    inbox.take();
}
