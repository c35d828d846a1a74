mod authentication;
mod flow_control;
mod recovery;

use super::*;
use crate::initiator::{HostIdentity, QueueOptions};
use crate::target::subsystem::Limits;
use crate::target::{Config, Hosts, Target};
use crate::wire::pdu::Kind;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const NQN: &str = "nqn.2026-11.inlane:session-test";
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn target(listen: &str, namespace: &str) -> Target {
    target_with(listen, namespace, 1, Limits::default())
}

fn target_with(listen: &str, namespace: &str, threads: usize, limits: Limits) -> Target {
    let config = Config {
        listen: vec![listen.parse().unwrap()],
        namespaces: vec![namespace.parse().unwrap()],
        nqn: Some(NQN.into()),
        hosts: Hosts::Any,
        cores: Vec::new(),
        threads,
        spin: Duration::ZERO,
        limits,
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

/// A target that accepts the connection and then stays silent must not block the session's thread. After the
/// silent target is gone, the session reconnects.
#[test]
fn a_silent_target_does_not_block_the_thread_that_uses_the_session() {
    // Use a loopback address that no other program uses. When the target has stopped, its address is then
    // free for the listener that acts as a silent target.
    let folder = tempfile::tempdir().unwrap();
    let namespace = format!("file:{},size=1M", folder.path().join("disk").display());
    let first = target("127.0.77.1:0", &namespace);
    let address = first.subsystem().listeners[0];
    let mut session = Session::open(&options(address)).unwrap();
    first.stop().unwrap();
    let silent = TcpListener::bind(address).unwrap();
    let accepted = Arc::new(AtomicBool::new(false));
    let seen = accepted.clone();
    let holder = std::thread::spawn(move || {
        let stream = silent.accept().unwrap().0;
        seen.store(true, Ordering::SeqCst);
        stream
    });
    let start = Instant::now();
    while !accepted.load(Ordering::SeqCst) {
        session.progress(false).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    // The session is now reconnecting. The silent target does not answer for up to 60 s. The calls below must
    // return without waiting for its answer.
    for _ in 0..10 {
        session.progress(false).unwrap();
        session.progress(true).unwrap();
        assert_eq!(session.available(), 0);
    }
    assert!(start.elapsed() < PATIENCE, "the session has blocked its thread");
    // Close the connection that the silent listener accepted. This ends the session's attempt to connect. The
    // listener itself is already closed, so the second target can bind the same address.
    drop(holder.join().unwrap());
    let second = target(&address.to_string(), &namespace);
    while session.available() == 0 {
        session.progress(true).unwrap();
        assert!(start.elapsed() < PATIENCE, "the session did not reconnect");
    }
    assert_eq!(session.failovers(), 1);
    session.close();
    second.stop().unwrap();
}

/// Opens a session to a target with a file namespace, and then ends the target. Only a silent listener
/// remains at the target's address. Connections to it are accepted by the kernel, but nobody answers them.
fn session_with_silent_target(
    listen: &str,
    options: impl Fn(SocketAddr) -> SessionOptions,
) -> (Session, TcpListener) {
    let folder = tempfile::tempdir().unwrap();
    let first = target(listen, &format!("file:{},size=1M", folder.path().join("disk").display()));
    let address = first.subsystem().listeners[0];
    let session = Session::open(&options(address)).unwrap();
    first.stop().unwrap();
    (session, TcpListener::bind(address).unwrap())
}

/// The silent target would end the attempt only after an hour. The session must not wait for the attempt.
#[test]
fn a_session_gives_up_in_time_although_the_target_does_not_answer() {
    let reconnect = Duration::from_secs(1);
    let (mut session, silent) = session_with_silent_target("127.0.77.3:0", |address| {
        let mut options = options(address);
        options.connect.queue.timeout = Duration::from_secs(3600);
        SessionOptions { reconnect, ..options }
    });
    let start = Instant::now();
    let error = loop {
        match session.progress(true) {
            Ok(()) => assert!(start.elapsed() < PATIENCE, "the session did not give up"),
            Err(error) => break error,
        }
    };
    assert!(start.elapsed() >= reconnect, "{error}");
    assert!(error.to_string().contains("not restored within 1 s: the last attempt got no answer"), "{error}");
    drop(silent);
}

/// Opens a session with three paths. The first path fails, and the second one does not answer. The third path
/// must still be used, although the attempts over the first two take an hour.
#[test]
fn a_path_that_does_not_answer_does_not_delay_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let namespace = format!("file:{},size=1M", folder.path().join("disk").display());
    let first = target("127.0.77.4:0", &namespace);
    let address = first.subsystem().listeners[0];
    let (second, third) =
        (TcpListener::bind("127.0.77.5:0").unwrap(), TcpListener::bind("127.0.77.6:0").unwrap());
    let (silent, working) = (second.local_addr().unwrap(), third.local_addr().unwrap());
    let mut options = options(address);
    options.paths.extend([silent, working].map(|address| address.to_string().parse().unwrap()));
    options.connect.queue.timeout = Duration::from_secs(3600);
    let mut session = Session::open(&options).unwrap();
    first.stop().unwrap();
    let also_silent = TcpListener::bind(address).unwrap();
    drop(third);
    let last = target(&working.to_string(), &namespace);
    let start = Instant::now();
    while session.failovers() == 0 {
        session.progress(true).unwrap();
        assert!(start.elapsed() < PATIENCE, "the session did not use the path that works");
    }
    assert_eq!(session.path().to_string(), working.to_string());
    drop((second, also_silent));
    session.close();
    last.stop().unwrap();
}

/// The second target's memory lacks the first one's data, so the session must fail rather than read zeros.
#[test]
fn a_session_ends_if_the_target_has_another_namespace_after_a_restart() {
    // Use an address at which no other program listens. The second target can then reuse the first target's
    // port.
    let first = target("127.0.77.2:0", "memory:1M");
    let address = first.subsystem().listeners[0];
    let mut session = Session::open(&options(address)).unwrap();
    first.stop().unwrap();
    let second = target(&address.to_string(), "memory:1M");
    let start = Instant::now();
    let error = loop {
        if let Err(error) = session.progress(true) {
            break error;
        }
        assert_eq!(session.failovers(), 0, "the session uses the other namespace");
        assert!(start.elapsed() < PATIENCE, "the session did not reconnect");
    };
    assert!(error.to_string().contains("is another one than before"), "{error}");
    second.stop().unwrap();
}

#[test]
fn a_namespace_is_the_same_only_with_the_same_identity_and_size() {
    let target = target("127.0.0.1:0", "memory:1M");
    let session = Session::open(&options(target.subsystem().listeners[0])).unwrap();
    let found = *session.namespace();
    session.close();
    target.stop().unwrap();
    assert!(found.identity.uuid.is_some() && found.identity.nguid.is_some());
    assert_eq!(found.check_is_same(&found), Ok(()));
    assert_eq!(found.check_is_same(&NamespaceInfo { blocks: found.blocks + 1, ..found }), Ok(()));
    let refused = |before: NamespaceInfo, now| before.check_is_same(&now).unwrap_err();
    assert!(refused(found, NamespaceInfo { blocks: found.blocks - 1, ..found }).contains("smaller"));
    assert!(refused(found, NamespaceInfo { block_bytes: 4096, ..found }).contains("block size"));
    let mut other = found;
    other.identity.nguid = None;
    assert!(refused(found, other).contains("another one"));
    other.identity.uuid = None;
    assert!(refused(other, other).contains("cannot be told"));
}

/// Waits for `count` completions, and returns their tokens in ascending order.
fn completions(session: &mut Session, count: usize) -> Vec<u64> {
    let start = Instant::now();
    let mut tokens = Vec::new();
    while tokens.len() < count {
        session.progress(true).unwrap();
        while let Some(done) = session.next_done() {
            assert!(done.status().is_success(), "{}", done.status());
            tokens.push(done.token);
        }
        assert!(start.elapsed() < PATIENCE, "{} of {count} commands completed", tokens.len());
    }
    tokens.sort_unstable();
    tokens
}

/// Submits reads of the first block until the session takes no more. Returns their number.
fn submit_reads(session: &mut Session) -> u64 {
    let mut token = 0;
    while session.available() > 0 {
        let command = crate::wire::command::Command::blocks(
            crate::wire::command::io::READ,
            1,
            0,
            1,
            crate::wire::command::Sgl::NONE,
        );
        let buffer = Some(crate::initiator::Buffer::new(512).unwrap());
        session.submit(Submission { token, command, buffer }).unwrap();
        token += 1;
    }
    token
}

#[test]
fn commands_take_turns_over_the_queues_and_each_thread_of_the_target_serves_one() {
    let limits = Limits { io_queues: 4, ..Limits::default() };
    let target = target_with("127.0.0.1:0", "memory:1M", 4, limits);
    let mut options = options(target.subsystem().listeners[0]);
    options.io_queues = 4;
    options.connect.queue.entries = 3;
    for spin in [Duration::ZERO, Duration::from_micros(200)] {
        options.connect.queue.spin = spin;
        let mut session = Session::open(&options).unwrap();
        assert_eq!((session.io_queues(), session.depth()), (4, 8));
        let mut queues = target.io_queues();
        queues.sort_unstable();
        assert_eq!(queues, [1, 1, 1, 1]);
        assert_eq!(submit_reads(&mut session), 8);
        // Look at the 4 I/O queues only. The fifth and last queue is the admin queue.
        let in_flight: Vec<_> = session.queues().take(4).map(|queue| queue.connection.in_flight()).collect();
        assert_eq!(in_flight, [2, 2, 2, 2]);
        let start = Instant::now();
        while session.live.as_ref().unwrap().queues.available() < 8 {
            session.progress(true).unwrap();
            assert!(start.elapsed() < PATIENCE, "the commands did not complete");
        }
        // Completed commands that the caller has not taken no longer occupy a queue.
        assert_eq!((session.in_flight(), session.depth()), (8, 8));
        assert_eq!(completions(&mut session, 8), (0..8).collect::<Vec<_>>());
        session.close();
        let start = Instant::now();
        while target.connections() > 0 {
            std::thread::sleep(Duration::from_millis(1));
            assert!(start.elapsed() < PATIENCE, "the connections did not end");
        }
    }
    target.stop().unwrap();
}

#[test]
fn a_session_uses_as_many_queues_as_the_controller_grants() {
    let limits = Limits { io_queues: 2, ..Limits::default() };
    let target = target_with("127.0.0.1:0", "memory:1M", 1, limits);
    let mut options = options(target.subsystem().listeners[0]);
    options.io_queues = 5;
    let mut session = Session::open(&options).unwrap();
    assert_eq!(session.io_queues(), 2);
    let count = submit_reads(&mut session);
    assert_eq!(completions(&mut session, count as usize).len() as u64, count);
    session.close();
    target.stop().unwrap();
}

/// Commands wait on all queues when the target ends. All of them must complete on the queues of the next
/// connection.
#[test]
fn all_queues_of_a_failed_path_are_replaced_and_no_command_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let namespace = format!("file:{},size=1M", folder.path().join("disk").display());
    let first = target_with("127.0.77.7:0", &namespace, 2, Limits::default());
    let address = first.subsystem().listeners[0];
    let mut options = options(address);
    options.io_queues = 3;
    let mut session = Session::open(&options).unwrap();
    // Submit reads, but end the first target before any read is sent. This target then answers no read, and
    // the session must send all reads to the second target.
    let count = submit_reads(&mut session);
    first.stop().unwrap();
    let second = target_with(&address.to_string(), &namespace, 2, Limits::default());
    assert_eq!(completions(&mut session, count as usize), (0..count).collect::<Vec<_>>());
    assert_eq!((session.failovers(), session.io_queues()), (1, 3));
    session.close();
    second.stop().unwrap();
}

/// Starts a proxy in front of a target. The proxy answers every command on I/O queues with *Asymmetric Access
/// Inaccessible*. Returns its address. The proxy's threads end with their connections.
fn inaccessible_path(target: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for host in listener.incoming() {
            let (mut host, mut controller) = (host.unwrap(), TcpStream::connect(target).unwrap());
            let (mut commands, mut to) = (host.try_clone().unwrap(), controller.try_clone().unwrap());
            let carries_io = Arc::new(AtomicBool::new(false));
            let is_io = carries_io.clone();
            std::thread::spawn(move || {
                // Read the ICReq and the capsule of Connect. The capsule shows whether the connection carries
                // I/O: the queue's identifier is in bytes 42 and 43 of the command, which follows a header of
                // 8 bytes.
                let mut start = [0; 128 + 72];
                for part in [0..128, 128..200] {
                    if commands.read_exact(&mut start[part.clone()]).is_err() {
                        return;
                    }
                    carries_io.store(start[128 + 8 + 42..][..2] != [0, 0], Ordering::SeqCst);
                    let _ = to.write_all(&start[part]);
                }
                let _ = std::io::copy(&mut commands, &mut to);
                let _ = to.shutdown(Shutdown::Both);
            });
            std::thread::spawn(move || {
                let (mut header, mut responses) = ([0; 8], 0);
                while controller.read_exact(&mut header).is_ok() {
                    let length = u32::from_le_bytes(header[4..].try_into().unwrap()) as usize;
                    let mut pdu = vec![0; length];
                    pdu[..8].copy_from_slice(&header);
                    controller.read_exact(&mut pdu[8..]).unwrap();
                    if header[0] == Kind::CapsuleResp as u8 {
                        responses += 1;
                        // Leave the first response unchanged, because it answers Connect.
                        if is_io.load(Ordering::SeqCst) && responses > 1 {
                            let status = Status::ANA_INACCESSIBLE.0 << 1;
                            pdu[22..].copy_from_slice(&status.to_le_bytes());
                        }
                    }
                    if host.write_all(&pdu).is_err() {
                        break;
                    }
                }
                let _ = host.shutdown(Shutdown::Both);
            });
        }
    });
    address
}

fn submit_flushes(session: &mut Session, count: u64) {
    for token in 0..count {
        let command = crate::wire::command::Command::new(crate::wire::command::io::FLUSH, 1);
        session.submit(Submission { token, command, buffer: None }).unwrap();
    }
}

#[test]
fn a_path_that_cannot_access_the_namespace_is_replaced() {
    let target = target("127.0.0.1:0", "memory:1M");
    let direct = target.subsystem().listeners[0];
    let mut options = options(inaccessible_path(direct));
    options.paths.push(direct.to_string().parse().unwrap());
    let mut session = Session::open(&options).unwrap();
    submit_flushes(&mut session, 20);
    assert_eq!(completions(&mut session, 20), (0..20).collect::<Vec<_>>());
    assert_eq!(session.path().to_string(), direct.to_string());
    assert!(session.failovers() > 0);
    session.close();
    target.stop().unwrap();
}

#[test]
fn a_session_gives_up_if_no_path_can_access_the_namespace() {
    let target = target("127.0.0.1:0", "memory:1M");
    let mut options = options(inaccessible_path(target.subsystem().listeners[0]));
    options.reconnect = Duration::from_millis(500);
    let mut session = Session::open(&options).unwrap();
    submit_flushes(&mut session, 20);
    let start = Instant::now();
    let error = loop {
        assert!(session.next_done().is_none(), "a command completed");
        match session.progress(true) {
            Ok(()) => assert!(start.elapsed() < PATIENCE, "the session did not give up"),
            Err(error) => break error.to_string(),
        }
    };
    assert!(error.contains("Asymmetric Access Inaccessible"), "{error}");
    target.stop().unwrap();
}

/// A command can name up to 65,536 blocks. With blocks of 4096 bytes, this is 256 MiB. The controller
/// announces a limit of 32 MiB, and the session must not exceed it.
#[test]
fn the_limit_of_write_zeroes_is_that_of_the_controller() {
    let target = target("127.0.0.1:0", "memory:1M,lba=4096");
    let session = Session::open(&options(target.subsystem().listeners[0])).unwrap();
    assert_eq!(session.namespace().max_write_zeroes, 32 << 20);
    session.close();
    target.stop().unwrap();
}
