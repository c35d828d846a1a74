//! Tests of when the session gives up, and of the order in which it tries paths.

use super::*;
use crate::initiator::Buffer;
use crate::wire::command::{Command, Completion, Sgl, io};
use std::net::TcpStream;

/// Returns the address of a port where nothing listens. Other programs do not use this IP address.
fn closed_port() -> SocketAddr {
    TcpListener::bind("127.0.77.8:0").unwrap().local_addr().unwrap()
}

fn answer(token: u64, status: Status) -> Done {
    let command = Command::new(io::FLUSH, 1);
    Done { token, command, completion: Completion::new(0, status, 0, 0, 0), buffer: None }
}

/// A session without commands gets no answers. Only the new connection shows that the path works again.
#[test]
fn an_idle_session_has_the_whole_time_to_reconnect_after_each_loss() {
    let folder = tempfile::tempdir().unwrap();
    let namespace = format!("file:{},size=1M", folder.path().join("disk").display());
    let mut current = target("127.0.77.9:0", &namespace);
    let address = current.subsystem().listeners[0];
    let mut session = Session::open(&options(address)).unwrap();
    for losses in 1..=2 {
        current.stop().unwrap();
        current = target(&address.to_string(), &namespace);
        let start = Instant::now();
        while session.failovers() < losses {
            session.progress(true).unwrap();
            assert!(start.elapsed() < PATIENCE, "the session did not reconnect");
        }
        assert_eq!(session.lost_since, None);
        assert!(session.errors.is_empty());
    }
    session.close();
    current.stop().unwrap();
}

#[test]
fn a_session_that_never_gives_up_and_never_sleeps_reconnects() {
    let folder = tempfile::tempdir().unwrap();
    let namespace = format!("file:{},size=1M", folder.path().join("disk").display());
    let first = target("127.0.77.11:0", &namespace);
    let address = first.subsystem().listeners[0];
    let mut options = options(address);
    (options.reconnect, options.connect.queue.spin) = (Duration::MAX, Duration::MAX);
    let mut session = Session::open(&options).unwrap();
    first.stop().unwrap();
    let second = target(&address.to_string(), &namespace);
    let start = Instant::now();
    while session.failovers() == 0 {
        session.progress(true).unwrap();
        assert!(start.elapsed() < PATIENCE, "the session did not reconnect");
    }
    session.close();
    second.stop().unwrap();
}

#[test]
fn an_error_status_shows_that_the_path_works() {
    let target = target("127.0.0.1:0", "memory:1M");
    let mut session = Session::open(&options(target.subsystem().listeners[0])).unwrap();
    session.lost_since = Some(Instant::now());
    let command = Command::blocks(io::READ, 1, u64::MAX - 1, 1, Sgl::NONE);
    session.submit(Submission { token: 1, command, buffer: Some(Buffer::new(512).unwrap()) }).unwrap();
    let start = Instant::now();
    let done = loop {
        session.progress(true).unwrap();
        if let Some(done) = session.next_done() {
            break done;
        }
        assert!(start.elapsed() < PATIENCE, "the read was not answered");
    };
    assert!(!done.status().is_success());
    assert_eq!(session.lost_since, None);
    session.close();
    target.stop().unwrap();
}

/// Starts a proxy in front of a target. The proxy begins to forward a connection only after 1 s.
fn slow_path(target: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for host in listener.incoming() {
            let host = host.unwrap();
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_secs(1));
                let Ok(controller) = TcpStream::connect(target) else { return };
                for (mut from, mut to) in [(&host, &controller), (&controller, &host)]
                    .map(|(from, to)| (from.try_clone().unwrap(), to.try_clone().unwrap()))
                {
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            });
        }
    });
    address
}

#[test]
fn a_slow_path_is_used_if_the_fast_paths_cannot_access_the_namespace() {
    let target = target("127.0.0.1:0", "memory:1M");
    let direct = target.subsystem().listeners[0];
    let slow = slow_path(direct);
    let mut options = options(inaccessible_path(direct));
    options.paths.extend([inaccessible_path(direct), slow].map(|path| path.to_string().parse().unwrap()));
    let mut session = Session::open(&options).unwrap();
    submit_flushes(&mut session, 20);
    assert_eq!(completions(&mut session, 20), (0..20).collect::<Vec<_>>());
    assert_eq!(session.path().to_string(), slow.to_string());
    assert!(session.inaccessible.is_empty());
    session.close();
    target.stop().unwrap();
}

/// Opens a session with two paths. Both answer every command with path errors. The session must switch
/// between the paths again and again, so that each path is tried more than once.
#[test]
fn paths_that_cannot_access_the_namespace_are_tried_in_turn() {
    let target = target("127.0.0.1:0", "memory:1M");
    let direct = target.subsystem().listeners[0];
    let mut options = options(inaccessible_path(direct));
    options.paths.push(inaccessible_path(direct).to_string().parse().unwrap());
    let mut session = Session::open(&options).unwrap();
    submit_flushes(&mut session, 1);
    let (start, mut used) = (Instant::now(), BTreeMap::new());
    while used.values().any(|count| *count < 2) || used.len() < 2 {
        let before = session.failovers();
        session.progress(true).unwrap();
        if session.failovers() > before {
            *used.entry(session.path).or_insert(0) += 1;
        }
        assert!(session.next_done().is_none());
        assert!(start.elapsed() < PATIENCE, "paths used: {used:?}");
    }
    target.stop().unwrap();
}

/// A command fails because of its path each time, while the target answers other commands. The session must
/// return the command. If it retried the command forever, each reconnect would delay all other commands.
#[test]
fn a_command_with_lasting_path_errors_is_returned_if_others_are_answered() {
    let target = target("127.0.0.1:0", "memory:1M");
    let mut session = Session::open(&options(target.subsystem().listeners[0])).unwrap();
    session.options.reconnect = Duration::ZERO;
    // Three commands fail with a path error before the controller has answered any command. The session must
    // treat this as a fault of the path: it keeps the commands to send them again, and returns none of them.
    for _ in 0..3 {
        assert!(session.settled(answer(1, Status::ANA_INACCESSIBLE)).is_none());
    }
    assert_eq!(session.pending.len(), 3);
    session.options.reconnect = PATIENCE;
    assert!(session.settled(answer(2, Status::SUCCESS)).is_some());
    assert!(session.settled(answer(1, Status::ANA_INACCESSIBLE)).is_none());
    session.options.reconnect = Duration::ZERO;
    let done = session.settled(answer(1, Status::ANA_INACCESSIBLE)).expect("the command is returned");
    assert_eq!(done.status(), Status::ANA_INACCESSIBLE);
    assert!(session.retries.is_empty());
    target.stop().unwrap();
}

#[test]
fn a_session_names_the_last_error_of_each_path_when_it_gives_up() {
    let target = target("127.0.0.1:0", "memory:1M");
    let inaccessible = inaccessible_path(target.subsystem().listeners[0]);
    let closed = closed_port();
    let mut options = options(inaccessible);
    options.paths.push(closed.to_string().parse().unwrap());
    let mut session = Session::open(&options).unwrap();
    submit_flushes(&mut session, 1);
    let start = Instant::now();
    while session.errors.len() < 2 {
        session.progress(true).unwrap();
        assert!(session.next_done().is_none());
        assert!(start.elapsed() < PATIENCE, "{:?}", session.errors);
    }
    session.options.reconnect = Duration::ZERO;
    let error = loop {
        match session.progress(true) {
            Ok(()) => assert!(session.next_done().is_none() && start.elapsed() < PATIENCE),
            Err(error) => break error.to_string(),
        }
    };
    let parts = [inaccessible.to_string(), "Asymmetric Access Inaccessible".into(), closed.to_string()];
    for part in parts {
        assert!(error.contains(&part), "{error}");
    }
    target.stop().unwrap();
}

#[test]
fn the_error_of_a_path_that_answered_comes_first() {
    let target = target("127.0.0.1:0", "memory:1M");
    let (answers, closed) = (target.subsystem().listeners[0], closed_port());
    for paths in [[answers, closed], [closed, answers]] {
        let mut options = options(answers);
        options.paths = paths.map(|path| path.to_string().parse().unwrap()).to_vec();
        options.connect.subsystem = "nqn.2026-11.inlane:other".into();
        let error = Session::open(&options).unwrap_err();
        // Whatever the order of the paths, the error must have the class of the path that answered. The error
        // of the other path, a closed port, has the class Environment.
        assert_eq!(error.class(), inlane_core::error::Class::Usage);
        let text = error.to_string();
        let positions = [answers, closed].map(|path| text.find(&path.to_string()));
        assert!(positions[0].is_some() && positions[0] < positions[1], "{text}");
    }
    target.stop().unwrap();
}

/// `has_work` must be true at each step that needs no socket event. A caller that sleeps until a socket is
/// ready would otherwise delay the recovery.
#[test]
fn each_step_of_a_recovery_that_needs_no_socket_is_reported() {
    let target = target("127.0.0.1:0", "memory:1M");
    let direct = target.subsystem().listeners[0];
    let mut options = options(inaccessible_path(direct));
    options.paths.push(direct.to_string().parse().unwrap());
    let mut session = Session::open(&options).unwrap();
    assert!(!session.has_work());
    submit_flushes(&mut session, 1);
    let start = Instant::now();
    while session.path_error.is_none() {
        session.progress(true).unwrap();
        assert!(session.next_done().is_none());
        assert!(start.elapsed() < PATIENCE, "the path error did not arrive");
    }
    assert!(session.has_work(), "the failed path must be given up");
    session.progress(false).unwrap();
    assert!(session.live.is_none() && session.attempt.is_some());
    while session.live.is_none() {
        session.progress(true).unwrap();
        assert!(start.elapsed() < PATIENCE, "the session did not reconnect");
    }
    assert!(session.has_work(), "the command must be sent again");
    assert_eq!(completions(&mut session, 1), [0]);
    assert!(!session.has_work());
    session.close();
    target.stop().unwrap();
}

/// Checks that the session pauses between two attempts to reconnect, even if a command was answered in
/// between. Consider a path that answers one command and then fails, again and again. Without the pause, such
/// a path would cause one connection attempt directly after the other.
#[test]
fn the_pause_between_attempts_also_applies_after_an_answer() {
    let target = target("127.0.0.1:0", "memory:1M");
    let mut session = Session::open(&options(target.subsystem().listeners[0])).unwrap();
    // Set the end of the last attempt one hour into the future. The pause after it then outlasts the test.
    session.attempt_ended = Some(Instant::now() + Duration::from_secs(3600));
    submit_flushes(&mut session, 1);
    assert_eq!(completions(&mut session, 1), [0]);
    session.path_error = Some(Status::ANA_INACCESSIBLE);
    for _ in 0..3 {
        session.progress(true).unwrap();
        assert!(session.live.is_none() && session.attempt.is_none());
        assert!(!session.has_work());
    }
    session.attempt_ended = None;
    let start = Instant::now();
    while session.failovers() == 0 {
        session.progress(true).unwrap();
        assert!(start.elapsed() < PATIENCE, "the session did not reconnect");
    }
    session.close();
    target.stop().unwrap();
}
