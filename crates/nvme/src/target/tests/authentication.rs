//! Hosts that authenticate themselves with a Diffie-Hellman group.

use super::*;
use crate::authentication::{Credentials, Group, Hash, HostSide, Names, Secret};
use crate::wire::command::fabrics;
use std::os::unix::fs::OpenOptionsExt;

const NQN: &str = "nqn.2026-11.inlane:test";

/// Starts a target at which the host [`HOST`] must authenticate itself. It uses the slowest Diffie-Hellman
/// group, so authentications take long. Returns the target, the host's secret, and the folder with the
/// secrets file.
fn protected(limits: Limits) -> (Target, Credentials, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secrets");
    let credentials = Credentials { host: Secret::generate(None), target: None };
    let mut options = std::fs::OpenOptions::new();
    let mut writer = options.write(true).create_new(true).mode(0o600).open(&file).unwrap();
    writeln!(writer, "{HOST} {}", *credentials.host.to_text()).unwrap();
    let config = Config {
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        namespaces: vec!["memory:1M".parse().unwrap()],
        nqn: Some(NQN.into()),
        hosts: Hosts::Secrets { file, hash: Hash::Sha256, group: Group::Ffdhe8192 },
        cores: Vec::new(),
        threads: 2,
        spin: Duration::ZERO,
        limits,
    };
    (Target::start(config).unwrap(), credentials, folder)
}

#[test]
fn authentications_of_ended_connections_and_of_an_ended_target_are_not_computed() {
    let (target, credentials, _folder) =
        protected(Limits { handshake_timeout: PATIENCE, ..Limits::default() });
    let names = Names { host: HOST.into(), subsystem: NQN.into() };
    let message = HostSide::new(&credentials, &names, 5).begin();
    let begin = || {
        let mut stream = initialize(&target).unwrap();
        let data = ConnectData::new([1; 16], connect::ANY_CONTROLLER, NQN, HOST);
        call(&mut stream, Command::connect(0, 32, 0, 0), data.as_bytes()).unwrap();
        let mut command = Command::authentication(fabrics::AUTHENTICATION_SEND, message.len() as u32);
        command.sgl = Sgl::in_capsule(message.len() as u32);
        send(&mut stream, command, &message);
        stream
    };
    let streams: Vec<_> = (0..60).map(|_| begin()).collect();
    drop(streams);
    let start = Instant::now();
    while target.connections() > 0 {
        assert!(start.elapsed() < PATIENCE, "the connections did not end");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(target.waiting_jobs(), 0);
    let _streams: Vec<_> = (0..60).map(|_| begin()).collect();
    target.stop().unwrap();
}
