//! Drives a whole target over sockets on loopback.

mod authentication;
mod authentication_time;
mod failed_worker;
mod flood;

use super::subsystem::Limits;
use super::{Config, Hosts, Target};
use crate::wire::command::{Command, ConnectData, Sgl, admin, cc, connect, csts, feature, io, property};
use crate::wire::pdu::{Digests, Kind, MAX_HEADER, Pdu, data_flags, encode};
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:0f01fb42-9f7f-4856-b0b3-51e60b8de349";
const PATIENCE: Duration = Duration::from_secs(30);

fn start(namespace: &str, limits: Limits) -> Target {
    start_polling(namespace, limits, Duration::ZERO)
}

fn start_polling(namespace: &str, limits: Limits, spin: Duration) -> Target {
    let config = Config {
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        namespaces: vec![namespace.parse().unwrap()],
        nqn: Some("nqn.2026-11.inlane:test".into()),
        hosts: Hosts::Any,
        cores: Vec::new(),
        threads: 2,
        spin,
        limits,
    };
    Target::start(config).unwrap()
}

fn open(target: &Target) -> TcpStream {
    let stream = TcpStream::connect(target.subsystem().listeners[0]).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn is_closed(stream: &mut TcpStream) -> bool {
    let mut bytes = [0; 4096];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            // Stopping and continuing the test interrupts a read with a timeout.
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

fn initialize(target: &Target) -> std::io::Result<TcpStream> {
    initialize_on(open(target))
}

fn initialize_on(mut stream: TcpStream) -> std::io::Result<TcpStream> {
    let mut bytes = [0; MAX_HEADER];
    let length = encode(
        &Pdu::initialization(Kind::IcReq, Digests::default(), 0),
        0,
        Digests::default(),
        4,
        &mut bytes,
    );
    stream.write_all(&bytes[..length])?;
    stream.read_exact(&mut bytes)?;
    Ok(stream)
}

fn send(stream: &mut TcpStream, command: Command, data: &[u8]) {
    try_send(stream, command, data).unwrap();
}

fn try_send(stream: &mut TcpStream, command: Command, data: &[u8]) -> std::io::Result<()> {
    let mut bytes = vec![0; MAX_HEADER];
    let length =
        encode(&Pdu::new(Kind::CapsuleCmd, 0, command), data.len() as u32, Digests::default(), 4, &mut bytes);
    bytes.truncate(length);
    bytes.extend_from_slice(data);
    stream.write_all(&bytes)
}

/// Sends a command with `data` in its capsule. Returns dword 0 of the response. The response must not carry
/// data.
fn call(stream: &mut TcpStream, command: Command, data: &[u8]) -> std::io::Result<u32> {
    try_send(stream, command, data)?;
    let mut response = [0; 24];
    stream.read_exact(&mut response)?;
    if u16::from_le_bytes([response[22], response[23]]) >> 1 != 0 {
        return Err(std::io::Error::other(format!("{command:?} failed")));
    }
    Ok(u32::from_le_bytes(response[8..12].try_into().unwrap()))
}

/// Connects an admin queue and an I/O queue. Tries again if the target closes one of them: on a loaded
/// machine, the test can be too slow for a short timeout of the target.
fn attach(target: &Target, keep_alive_ms: u32) -> (TcpStream, TcpStream) {
    let start = Instant::now();
    loop {
        match try_attach(target, keep_alive_ms) {
            Ok(queues) => return queues,
            Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
        }
    }
}

fn try_attach(target: &Target, keep_alive_ms: u32) -> std::io::Result<(TcpStream, TcpStream)> {
    attach_on(target, || Ok(open(target)), keep_alive_ms)
}

/// Connects an admin queue and an I/O queue over connections that `open` returns.
fn attach_on(
    target: &Target,
    open: impl Fn() -> std::io::Result<TcpStream>,
    keep_alive_ms: u32,
) -> std::io::Result<(TcpStream, TcpStream)> {
    let (admin, mut queues) = attach_queues_on(target, open, keep_alive_ms, 1)?;
    Ok((admin, queues.remove(0)))
}

/// Connects an admin queue and `count` I/O queues over connections that `open` returns.
fn attach_queues_on(
    target: &Target,
    open: impl Fn() -> std::io::Result<TcpStream>,
    keep_alive_ms: u32,
    count: u16,
) -> std::io::Result<(TcpStream, Vec<TcpStream>)> {
    let data = |id| ConnectData::new([1; 16], id, &target.subsystem().nqn, HOST);
    let mut admin = initialize_on(open()?)?;
    let any = data(connect::ANY_CONTROLLER);
    let id = call(&mut admin, Command::connect(0, 32, 0, keep_alive_ms), any.as_bytes())? as u16;
    call(&mut admin, Command::property_set(property::CC, cc::ENABLE | cc::ENTRY_SIZES), &[])?;
    // The controller becomes ready when no commands of earlier ones are in progress.
    while call(&mut admin, Command::property_get(property::CSTS, false), &[])? & csts::READY == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut number = Command::new(admin::SET_FEATURES, 0);
    number.cdw10 = u32::from(feature::NUMBER_OF_QUEUES).into();
    number.cdw11 = (u32::from(count - 1) * 0x1_0001).into();
    call(&mut admin, number, &[])?;
    let connect = |id_of_queue| {
        let mut queue = initialize_on(open()?)?;
        call(&mut queue, Command::connect(id_of_queue, 64, 0, 0), data(id).as_bytes())?;
        Ok(queue)
    };
    let queues: std::io::Result<_> = (1..=count).map(connect).collect();
    Ok((admin, queues?))
}

fn read(stream: &mut TcpStream, blocks: u32) -> Vec<u8> {
    send(stream, Command::blocks(io::READ, 1, 0, blocks, Sgl::transport(blocks * 512)), &[]);
    let mut bytes = vec![0; 24 + blocks as usize * 512 + 24];
    stream.read_exact(&mut bytes).unwrap();
    bytes[24..24 + blocks as usize * 512].to_vec()
}

fn write(stream: &mut TcpStream, byte: u8) {
    call(stream, Command::blocks(io::WRITE, 1, 0, 8, Sgl::in_capsule(4096)), &[byte; 4096]).unwrap();
}

#[test]
fn half_open_connections_end_and_do_not_disturb_other_hosts() {
    let limits =
        Limits { connections: 64, handshake_timeout: Duration::from_millis(700), ..Limits::default() };
    let target = start("memory:1M", limits);
    // A process is often limited to 1024 open descriptors. So keep only the last 300 of the 3000 connections
    // open.
    let mut silent = VecDeque::new();
    for number in 0..3000 {
        let mut stream = open(&target);
        // Half of the connections send the start of a PDU and then stop. The others send nothing.
        if number % 2 == 0 {
            let _ = stream.write_all(&[0, 0, 128]);
        }
        silent.push_back(stream);
        if silent.len() > 300 {
            silent.pop_front();
        }
    }
    // The limit is 64 connections. A quarter of them, 16, may be without a queue. Wait until the target has
    // closed all other connections without a queue.
    let start = Instant::now();
    while target.subsystem().counters.connections.load(Relaxed) < 3000 || target.connections() > 16 {
        assert!(start.elapsed() < PATIENCE, "{} connections", target.connections());
        std::thread::sleep(Duration::from_millis(5));
    }
    let (_admin, mut queue) = attach(&target, 0);
    write(&mut queue, 5);
    assert_eq!(read(&mut queue, 8), [5; 4096]);
    assert!(silent.iter_mut().all(is_closed));
    assert_eq!(read(&mut queue, 8), [5; 4096]);
    assert!(target.subsystem().counters.refused.load(Relaxed) >= 200);
}

/// The target allows only 16 half-open connections, which have no queue. Connections with a queue, and
/// connections that have ended, must not count.
#[test]
fn only_connections_without_a_queue_count_as_half_open() {
    let limits = Limits { connections: 64, handshake_timeout: PATIENCE, ..Limits::default() };
    let target = start("memory:1M", limits);
    let _hosts: Vec<_> = (0..15).map(|_| try_attach(&target, 0).unwrap()).collect();
    for _ in 0..100 {
        drop(initialize(&target).unwrap());
    }
    let (_admin, mut queue) = try_attach(&target, 0).unwrap();
    assert_eq!(read(&mut queue, 8).len(), 4096);
    assert_eq!(target.subsystem().counters.refused.load(Relaxed), 0);
}

#[test]
fn a_host_that_stops_reading_is_closed_and_others_are_served() {
    let directory = tempfile::tempdir().unwrap();
    let limits =
        Limits { stall_timeout: Duration::from_millis(500), buffer_bytes: 8 << 20, ..Limits::default() };
    let limits = Limits { connection_bytes: 4 << 20, ..limits };
    let target = start(&format!("file:{}/disk,size=8M", directory.path().display()), limits);
    let (_admin, mut greedy) = attach(&target, 0);
    for cid in 0..40_u16 {
        let mut command = Command::blocks(io::READ, 1, 0, 2048, Sgl::transport(1 << 20));
        command.cid = cid.into();
        send(&mut greedy, command, &[]);
    }
    let (_admin2, mut other) = attach(&target, 0);
    let start = Instant::now();
    while target.subsystem().counters.refused.load(Relaxed) == 0 {
        assert_eq!(read(&mut other, 8).len(), 4096);
        assert!(start.elapsed() < PATIENCE, "the greedy host is not closed");
    }
    assert!(is_closed(&mut greedy));
    // The target must still serve the other host. It does not treat this host as stalled, because the 64 KiB
    // of data fit into the socket's buffers.
    assert_eq!(read(&mut other, 128).len(), 64 << 10);
}

/// A host that sends requested data one byte at a time must not hold its buffer for hours.
#[test]
fn a_host_that_drips_requested_data_is_closed() {
    let limits = Limits { stall_timeout: Duration::from_millis(500), ..Limits::default() };
    let target = start("memory:2M", limits);
    let (_admin, mut slow) = attach(&target, 0);
    send(&mut slow, Command::blocks(io::WRITE, 1, 0, 2048, Sgl::transport(1 << 20)), &[]);
    let mut r2t = [0; 24];
    slow.read_exact(&mut r2t).unwrap();
    let mut bytes = vec![0; MAX_HEADER];
    let header =
        Pdu::transfer(Kind::H2cData, data_flags::LAST, 0, u16::from_le_bytes([r2t[10], r2t[11]]), 0, 1 << 20);
    let length = encode(&header, 1 << 20, Digests::default(), 4, &mut bytes);
    slow.write_all(&bytes[..length]).unwrap();
    let start = Instant::now();
    while slow.write_all(&[1]).is_ok() {
        assert!(start.elapsed() < PATIENCE, "the slow host is not closed");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Most of the commands wait for memory that a few others hold. Their queues must not stay open when those are closed:
/// they would get the memory, and hold it as long.
#[test]
fn a_host_that_stalls_loses_all_its_queues_at_once() {
    let limits =
        Limits { stall_timeout: Duration::from_millis(500), buffer_bytes: 8 << 20, ..Limits::default() };
    let target = start("memory:2M", limits);
    let (mut admin, mut queues) = attach_queues_on(&target, || Ok(open(&target)), 0, 16).unwrap();
    for queue in &mut queues {
        for cid in 0..24_u16 {
            let mut command = Command::blocks(io::WRITE, 1, 0, 2048, Sgl::transport(1 << 20));
            command.cid = cid.into();
            send(queue, command, &[]);
        }
    }
    let (_admin, mut other) = attach(&target, 0);
    let start = Instant::now();
    while target.subsystem().controller_count() > 1 {
        assert_eq!(read(&mut other, 8).len(), 4096);
        assert!(start.elapsed() < PATIENCE, "the host is not closed");
    }
    assert!(is_closed(&mut admin) && queues.iter_mut().all(is_closed));
    assert_eq!(read(&mut other, 8).len(), 4096);
    // Queues whose commands waited for memory were not found to be slow themselves.
    let slow = target.subsystem().counters.refused.load(Relaxed);
    assert!((1..=7).contains(&slow), "{slow} of 16 queues were slow");
}

#[test]
fn a_controller_whose_keep_alive_timer_expires_loses_its_connections() {
    let target = start("memory:1M", Limits::default());
    let (mut admin, mut queue) = attach(&target, 300);
    let (_admin2, mut other) = attach(&target, 0);
    assert!(is_closed(&mut admin) && is_closed(&mut queue));
    assert!(target.subsystem().counters.expired.load(Relaxed) >= 1);
    assert_eq!(read(&mut other, 8).len(), 4096);
}

#[test]
fn the_end_of_the_admin_queue_ends_the_controller() {
    let target = start("memory:1M", Limits::default());
    let (admin, mut queue) = attach(&target, 0);
    drop(admin);
    assert!(is_closed(&mut queue));
    assert_eq!(target.subsystem().controller_count(), 0);
}

#[test]
fn a_target_that_stops_closes_its_connections_and_reports_what_it_served() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    let target = start(&format!("file:{},size=1M", path.display()), Limits::default());
    let (mut admin, mut queue) = attach(&target, 0);
    write(&mut queue, 9);
    assert_eq!(read(&mut queue, 8), [9; 4096]);
    let result = target.stop().unwrap();
    assert!(is_closed(&mut admin) && is_closed(&mut queue));
    let namespace = &result.namespaces[0];
    assert_eq!((namespace.writes, namespace.written_bytes, namespace.reads), (1, 4096, 1));
    assert_eq!(std::fs::read(path).unwrap()[..4096], [9; 4096]);
}

#[test]
fn io_queues_are_spread_over_the_threads() {
    let target = start("memory:1M", Limits::default());
    // Each host opens an admin queue and then an I/O queue. If the target did not count both kinds
    // separately, one of its two threads would get all I/O queues.
    let _hosts: Vec<_> = (0..6).map(|_| attach(&target, 0)).collect();
    assert_eq!(target.io_queues(), [3, 3]);
}

#[test]
fn a_target_that_polls_serves_memory_and_files() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    for namespace in ["memory:1M", &format!("file:{}", file.path().display())] {
        let target = start_polling(namespace, Limits::default(), Duration::from_micros(50));
        let (_admin, mut queue) = attach(&target, 0);
        for byte in 1..50 {
            write(&mut queue, byte);
            assert_eq!(read(&mut queue, 8), [byte; 4096]);
        }
        assert_eq!(target.stop().unwrap().protocol_violations, 0);
    }
}

/// Checks that all reads are answered if more are in flight than the worker processes between two sends.
#[test]
fn many_file_reads_in_flight_are_all_answered() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let bytes: Vec<u8> = (0..64_u32).flat_map(|block| [block as u8 + 1; 4096]).collect();
    file.write_all(&bytes).unwrap();
    let target = start(&format!("file:{}", file.path().display()), Limits::default());
    let (_admin, mut queue) = attach(&target, 0);
    let mut commands = Vec::new();
    for block in 0..60_u16 {
        let mut command = Command::blocks(io::READ, 1, u64::from(block) * 8, 8, Sgl::transport(4096));
        command.cid = block.into();
        let mut capsule = vec![0; MAX_HEADER];
        let length = encode(&Pdu::new(Kind::CapsuleCmd, 0, command), 0, Digests::default(), 4, &mut capsule);
        commands.extend_from_slice(&capsule[..length]);
    }
    queue.write_all(&commands).unwrap();
    let mut found = [false; 60];
    for _ in 0..60 {
        let mut response = vec![0; 24 + 4096 + 24];
        queue.read_exact(&mut response).unwrap();
        let cid = usize::from(u16::from_le_bytes([response[8], response[9]]));
        assert!(!std::mem::replace(&mut found[cid], true), "identifier {cid} twice");
        assert_eq!(response[24..24 + 4096], [cid as u8 + 1; 4096]);
    }
}

#[test]
fn a_target_whose_worker_panics_accepts_no_more_connections() {
    let target = start("memory:1M", Limits::default());
    let (mut admin, _queue) = attach(&target, 0);
    target.panic();
    let start = Instant::now();
    while !target.has_failed() || TcpStream::connect(target.subsystem().listeners[0]).is_ok() {
        assert!(start.elapsed() < PATIENCE, "the target goes on");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(is_closed(&mut admin));
    let error = target.stop().unwrap_err().to_string();
    assert!(error.contains("worker thread"), "{error}");
}
