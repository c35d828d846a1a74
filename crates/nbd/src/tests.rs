use super::negotiation::{Export, negotiate};
use super::{ListenAddress, Server};
use inlane_nvme::initiator::{
    ConnectOptions, HostIdentity, NamespaceIdentity, NamespaceInfo, QueueOptions, SessionOptions,
};
use inlane_nvme::target::subsystem::Limits;
use inlane_nvme::target::{Config, Hosts, Target};
use proptest::prelude::*;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const NAMESPACE: NamespaceInfo = NamespaceInfo {
    identity: NamespaceIdentity { uuid: None, nguid: None, eui64: None },
    nsid: 1,
    blocks: 2048,
    block_bytes: 4096,
    read_only: false,
    write_zeroes: true,
    deallocate: false,
    volatile_cache: true,
    max_transfer: 1 << 20,
    max_write_zeroes: 1 << 25,
};
const NQN: &str = "nqn.2026-11.inlane:export-test";
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn target(listen: &str, namespace: &str) -> Target {
    let config = Config {
        listen: vec![listen.parse().unwrap()],
        namespaces: vec![namespace.parse().unwrap()],
        nqn: Some(NQN.into()),
        hosts: Hosts::Any,
        cores: Vec::new(),
        threads: 1,
        spin: Duration::ZERO,
        limits: Limits::default(),
    };
    Target::start(config).unwrap()
}

pub(crate) fn options(address: SocketAddr) -> SessionOptions {
    SessionOptions {
        paths: vec![address.to_string().parse().unwrap()],
        connect: ConnectOptions {
            subsystem: NQN.into(),
            host: HostIdentity::this_machine(),
            queue: QueueOptions { timeout: PATIENCE, ..QueueOptions::default() },
            keep_alive: Duration::ZERO,
        },
        nsid: None,
        io_queues: 1,
        reconnect: PATIENCE,
    }
}

const EXPORT: Export<'static> = Export { namespace: &NAMESPACE, name: "nqn.2024-01.org.example:disk" };

/// A client that replaces a socket in tests: the bytes that it sends, and the bytes that it has received.
struct Client<'a> {
    sends: &'a [u8],
    receives: Vec<u8>,
}

impl Read for Client<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.sends.read(buffer)
    }
}

impl Write for Client<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.receives.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn option(code: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT".as_slice(), &code.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data].concat()
}

fn go(name: &str) -> Vec<u8> {
    [&(name.len() as u32).to_be_bytes(), name.as_bytes(), &[0, 1, 0, 3]].concat()
}

/// Runs a negotiation. Returns its result, and what the client received after the greeting.
fn run(options: &[Vec<u8>]) -> (io::Result<bool>, Vec<u8>) {
    let sends = [3_u32.to_be_bytes().to_vec(), options.concat()].concat();
    let mut client = Client { sends: &sends, receives: Vec::new() };
    let result = negotiate(&mut client, &EXPORT);
    (result, client.receives.split_off(18))
}

fn answers(mut received: &[u8]) -> Vec<u32> {
    let mut types = Vec::new();
    while let Some((header, rest)) = received.split_first_chunk::<20>() {
        assert_eq!(header[..8], 0x0003_e889_0455_65a9_u64.to_be_bytes());
        types.push(u32::from_be_bytes(header[12..16].try_into().unwrap()));
        let len = u32::from_be_bytes(header[16..].try_into().unwrap());
        received = &rest[len as usize..];
    }
    types
}

#[test]
fn clients_choose_the_export_by_either_name() {
    const ACK: u32 = 1;
    const SERVER: u32 = 2;
    const INFO: u32 = 3;
    const UNSUPPORTED: u32 = 1 << 31 | 1;
    const UNKNOWN: u32 = 1 << 31 | 6;
    let (starttls, structured_reply) = (option(5, &[]), option(8, &[]));
    let (result, received) =
        run(&[starttls, structured_reply, option(3, &[]), option(7, &go("other")), option(7, &go(""))]);
    assert!(result.unwrap());
    assert_eq!(answers(&received), [UNSUPPORTED, UNSUPPORTED, SERVER, ACK, UNKNOWN, INFO, INFO, ACK]);
    let (result, received) = run(&[option(1, EXPORT.name.as_bytes())]);
    assert!(result.unwrap());
    // The server answers with the size of the export, then the flags HAS_FLAGS, FLUSH, FUA, WRITE_ZEROES and
    // MULTI_CONN.
    assert_eq!(received, [&(8_u64 << 20).to_be_bytes()[..], &[1, 0x4D]].concat());
    assert!(!run(&[option(2, &[])]).0.unwrap());
}

#[test]
fn clients_that_violate_the_protocol_are_disconnected() {
    let mut bad_magic = option(7, &go(""));
    bad_magic[0] = 0;
    for bad in [bad_magic, option(1, b"other"), option(9, &[0; 9000]), b"IHAVEOPT".to_vec()] {
        assert!(run(&[bad]).0.is_err());
    }
    let invalid: u32 = 1 << 31 | 3;
    let (result, received) =
        run(&[option(7, &[0, 0, 0, 9]), option(6, &[]), option(3, b"x"), option(2, &[])]);
    assert!(!result.unwrap());
    assert_eq!(answers(&received), [invalid, invalid, invalid, 1]);
}

/// The greeting of a client, or an empty one if the server closes the connection instead.
fn greeting(server: &Server) -> Vec<u8> {
    let ListenAddress::Tcp(address) = server.address() else { unreachable!("a TCP address") };
    let mut greeting = Vec::new();
    TcpStream::connect(address).unwrap().take(18).read_to_end(&mut greeting).unwrap();
    greeting
}

/// QEMU reconnects by itself and goes on writing. It must not write to the drive that took the place of the first.
#[test]
fn clients_never_get_another_namespace_than_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: u64| {
        let path = folder.path().join(name);
        std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
        format!("file:{}", path.display())
    };
    let first = target("127.0.77.10:0", &file("first", 1 << 20));
    let address = first.subsystem().listeners[0];
    let server = Server::bind(&"127.0.0.1:0".parse().unwrap(), &options(address)).unwrap();
    let (stop, log) = (AtomicBool::new(false), std::sync::Mutex::new(String::new()));
    std::thread::scope(|scope| {
        let server = &server;
        let (stop, log) = (&stop, &log);
        scope.spawn(move || server.run(stop, &|line| log.lock().unwrap().push_str(line)));
        assert_eq!(greeting(server).len(), 18);
        first.stop().unwrap();
        for (name, bytes, why) in [("second", 1 << 20, "another one"), ("first", 1 << 19, "smaller")] {
            let next = target(&address.to_string(), &file(name, bytes));
            assert!(greeting(server).is_empty(), "{name} is served");
            next.stop().unwrap();
            // The server logs the reason after it has closed the connection.
            let start = std::time::Instant::now();
            while !log.lock().unwrap().contains(why) {
                assert!(start.elapsed().as_secs() < 60, "{log:?}");
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
        let next = target(&address.to_string(), &file("first", 2 << 20));
        assert_eq!(greeting(server).len(), 18);
        stop.store(true, Ordering::Relaxed);
        next.stop().unwrap();
    });
}

proptest! {
    #[test]
    fn any_negotiation_ends(
        bytes in proptest::collection::vec(any::<u8>(), 0..400),
        code in 0..12_u32,
        valid in any::<bool>(),
    ) {
        let start = if valid { option(code, &bytes) } else { bytes };
        let _ = run(&[start]);
    }
}
