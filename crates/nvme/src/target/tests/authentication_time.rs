//! Time limits of authentications.

use super::*;
use crate::authentication::{Credentials, Group, Hash, HostSide, MAX_MESSAGE, Names, Secret};
use crate::wire::command::fabrics;
use std::os::unix::fs::OpenOptionsExt;

/// A target that demands authentication of the host, with a short time limit.
pub(super) struct Protected {
    pub(super) target: Target,
    credentials: Credentials,
    names: Names,
    _folder: tempfile::TempDir,
}

impl Protected {
    fn start(group: Group) -> Self {
        let handshake_timeout = Duration::from_millis(700);
        Self::with_limits(group, Limits { handshake_timeout, ..Limits::default() })
    }

    pub(super) fn with_limits(group: Group, limits: Limits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secrets");
        let secret = Secret::generate(None);
        let mut file =
            std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).unwrap();
        writeln!(file, "{HOST} {}", *secret.to_text()).unwrap();
        let config = Config {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            namespaces: vec!["memory:1M".parse().unwrap()],
            nqn: None,
            hosts: Hosts::Secrets { file: path, hash: Hash::Sha256, group },
            cores: Vec::new(),
            threads: 1,
            spin: Duration::ZERO,
            limits,
        };
        let target = Target::start(config).unwrap();
        let names = Names { host: HOST.into(), subsystem: target.subsystem().nqn.clone() };
        Self { target, credentials: Credentials { host: secret, target: None }, names, _folder: folder }
    }

    fn side(&self) -> HostSide<'_> {
        HostSide::new(&self.credentials, &self.names, 1)
    }

    /// Connects an admin queue.
    fn connect(&self) -> std::io::Result<TcpStream> {
        self.connect_on(open(&self.target))
    }

    /// Connects an admin queue over a connection.
    pub(super) fn connect_on(&self, stream: TcpStream) -> std::io::Result<TcpStream> {
        let mut stream = initialize_on(stream)?;
        let data = ConnectData::new([1; 16], connect::ANY_CONTROLLER, &self.names.subsystem, HOST);
        call(&mut stream, Command::connect(0, 32, 0, 0), data.as_bytes())?;
        Ok(stream)
    }

    /// Connects an admin queue and authenticates the host.
    fn authenticate(&self) -> std::io::Result<TcpStream> {
        self.authenticate_on(open(&self.target))
    }

    /// Connects an admin queue over a connection and authenticates the host.
    pub(super) fn authenticate_on(&self, stream: TcpStream) -> std::io::Result<TcpStream> {
        let (mut stream, mut side) = (self.connect_on(stream)?, self.side());
        call(&mut stream, message(&side.begin()), &side.begin())?;
        let reply = side.challenged(&receive(&mut stream)?).unwrap();
        call(&mut stream, message(&reply), &reply)?;
        assert!(side.succeeded(&receive(&mut stream)?).unwrap().is_none());
        Ok(stream)
    }

    pub(super) fn stop(self) {
        let start = Instant::now();
        while self.target.connections() > 0 || self.target.subsystem().controller_count() > 0 {
            assert!(start.elapsed() < PATIENCE, "resources were not returned");
            std::thread::sleep(Duration::from_millis(5));
        }
        self.target.stop().unwrap();
    }
}

/// Returns the Authentication Send of a message.
fn message(bytes: &[u8]) -> Command {
    let length = bytes.len() as u32;
    Command { sgl: Sgl::in_capsule(length), ..Command::authentication(fabrics::AUTHENTICATION_SEND, length) }
}

/// Sends an Authentication Receive. Returns the message that the target answers, padded to the requested
/// length.
fn receive(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let length = MAX_MESSAGE as u32;
    let mut command = Command::authentication(fabrics::AUTHENTICATION_RECEIVE, length);
    command.sgl = Sgl::transport(length);
    try_send(stream, command, &[])?;
    let mut bytes = vec![0; 24 + MAX_MESSAGE + 24];
    stream.read_exact(&mut bytes)?;
    Ok(bytes[24..24 + MAX_MESSAGE].to_vec())
}

/// Repeats steps until all succeed, because a loaded machine can delay the test until the target has closed
/// the connection.
fn reached(mut steps: impl FnMut() -> std::io::Result<TcpStream>) -> TcpStream {
    let start = Instant::now();
    loop {
        match steps() {
            Ok(stream) => return stream,
            Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
        }
    }
}

#[test]
fn hosts_that_stop_during_their_authentication_are_disconnected() {
    let protected = Protected::start(Group::Ffdhe2048);
    let begin = protected.side().begin();
    assert!(is_closed(&mut reached(|| protected.connect())));
    assert!(is_closed(&mut reached(|| {
        let mut stream = protected.connect()?;
        call(&mut stream, message(&begin), &begin)?;
        Ok(stream)
    })));
    // The target also closes the connection if the host closes its sending direction while the target
    // computes.
    assert!(is_closed(&mut reached(|| {
        let mut stream = protected.connect()?;
        try_send(&mut stream, message(&begin), &begin)?;
        stream.shutdown(std::net::Shutdown::Write)?;
        Ok(stream)
    })));
    protected.stop();
}

#[test]
fn hosts_that_stop_during_a_repeated_authentication_are_disconnected() {
    let protected = Protected::start(Group::Null);
    let begin = protected.side().begin();
    let mut stream = reached(|| {
        let mut stream = protected.authenticate()?;
        // The queue is usable.
        call(&mut stream, Command::property_set(property::CC, cc::ENABLE | cc::ENTRY_SIZES), &[])?;
        call(&mut stream, message(&begin), &begin)?;
        Ok(stream)
    });
    assert!(is_closed(&mut stream));
    protected.stop();
}
