//! Tests of sessions in which inlane's host and inlane's target authenticate each other.

use super::*;
use crate::authentication::{Credentials, Group, Hash, Secret};
use crate::initiator::{flush, read_range, write_range};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

const HOST: &str = "nqn.2026-11.inlane:host";

fn secret() -> Secret {
    Secret::generate(Some(Hash::Sha256))
}

fn write_file(path: &Path, lines: &[String]) {
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path).unwrap();
    file.write_all(lines.join("\n").as_bytes()).unwrap();
}

fn line(host: &str, host_secret: &Secret, target_secret: Option<&Secret>) -> String {
    let target_secret = target_secret.map(|secret| secret.to_text().to_string()).unwrap_or_default();
    format!("{host} {} {target_secret}", *host_secret.to_text())
}

fn protected(file: &Path, group: Group) -> Target {
    let config = Config {
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        namespaces: vec!["memory:1M".parse().unwrap()],
        nqn: Some(NQN.into()),
        hosts: Hosts::Secrets { file: file.into(), hash: Hash::Sha512, group },
        cores: Vec::new(),
        threads: 2,
        spin: Duration::ZERO,
        limits: Limits { handshake_timeout: PATIENCE, ..Limits::default() },
    };
    Target::start(config).unwrap()
}

fn options_with(target: &Target, credentials: Option<Credentials>) -> SessionOptions {
    let mut options = options(target.subsystem().listeners[0]);
    options.connect.host = HostIdentity::this_machine().with_nqn(HOST).unwrap();
    options.connect.host.credentials = credentials.map(Arc::new);
    options.io_queues = 2;
    options
}

fn refusal(target: &Target, credentials: Option<Credentials>) -> String {
    Session::open(&options_with(target, credentials)).unwrap_err().to_string()
}

#[test]
fn host_and_target_authenticate_each_other_on_every_queue() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secrets");
    let (host, target_secret) = (secret(), secret());
    write_file(&file, &[line(HOST, &host, Some(&target_secret))]);
    for group in [Group::Null, Group::Ffdhe2048] {
        let target = protected(&file, group);
        for with_target in [false, true] {
            let credentials =
                Credentials { host: host.clone(), target: with_target.then(|| target_secret.clone()) };
            let mut session = Session::open(&options_with(&target, Some(credentials))).unwrap();
            assert_eq!(session.io_queues(), 2);
            let stop = AtomicBool::new(false);
            let data: Vec<u8> = (0..8192).map(|n| n as u8).collect();
            write_range(&mut session, 0, Some(data.len() as u64), &mut &data[..], &stop).unwrap();
            flush(&mut session, &stop).unwrap();
            let mut back = Vec::new();
            read_range(&mut session, 0, data.len() as u64, &mut back, &stop).unwrap();
            assert_eq!(back, data);
            session.close();
        }
        let wrong = |host: &Secret, target: Option<Secret>| Some(Credentials { host: host.clone(), target });
        assert!(refusal(&target, None).contains("give the secrets with secrets-file"));
        assert!(refusal(&target, wrong(&secret(), None)).contains("refused this host's secret"));
        assert!(refusal(&target, wrong(&host, Some(secret()))).contains("did not prove"));
        let result = target.stop().unwrap();
        assert_eq!(result.protocol_violations, 0);
    }
}

#[test]
fn a_host_with_the_targets_secret_refuses_a_target_that_proves_nothing() {
    let target = target("127.0.0.1:0", "memory:1M");
    let secrets = |target| Some(Credentials { host: secret(), target });
    assert!(refusal(&target, secrets(Some(secret()))).contains("does not prove its identity"));
    Session::open(&options_with(&target, secrets(None))).unwrap().close();
    target.stop().unwrap();
}

#[test]
fn secrets_are_read_again_when_the_file_changes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secrets");
    let (old, new) = (secret(), secret());
    write_file(&file, &[line(HOST, &old, None)]);
    let target = protected(&file, Group::Null);
    let open = |host: &Secret| {
        Session::open(&options_with(&target, Some(Credentials { host: host.clone(), target: None })))
    };
    open(&old).unwrap().close();
    write_file(&file, &[line(HOST, &new, None)]);
    let start = Instant::now();
    let session = loop {
        match open(&new) {
            Ok(session) => break session,
            Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(open(&old).is_err());
    session.close();
    target.stop().unwrap();
}

#[test]
fn a_session_whose_secret_is_refused_ends_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secrets");
    let (old, new) = (secret(), secret());
    write_file(&file, &[line(HOST, &old, None)]);
    let target = protected(&file, Group::Null);
    let mut options = options_with(&target, Some(Credentials { host: old, target: None }));
    // Allow a longer time to reconnect than the test waits. So the test fails if the session tries again with
    // the refused secret.
    options.reconnect = PATIENCE * 10;
    let mut session = Session::open(&options).unwrap();
    write_file(&file, &[line(HOST, &new, None)]);
    let start = Instant::now();
    let open = |host: &Secret| {
        Session::open(&options_with(&target, Some(Credentials { host: host.clone(), target: None })))
    };
    while let Err(error) = open(&new).map(Session::close) {
        assert!(start.elapsed() < PATIENCE, "{error}");
        std::thread::sleep(Duration::from_millis(20));
    }
    let lost = Error::disconnected("the target", "the test cuts the connection");
    session.lost(lost).unwrap();
    let error = loop {
        match session.progress(true) {
            Ok(()) => assert!(start.elapsed() < PATIENCE, "the session goes on"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Unauthenticated { .. }), "{error}");
    assert!(error.to_string().contains("refused this host's secret"));
    target.stop().unwrap();
}
