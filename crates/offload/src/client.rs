//! Asks a running engine for its state, as `inlane offload status` does.

use crate::error::{ANSWER_SECONDS, Error, Result, address_of, kind_of_no_socket, not_connected};
use crate::field::SOCKET;
use crate::host::pair;
use crate::status::EngineStatus;
use inlane_offload_protocol::message::{self, Message, Operation};
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

/// Asks an engine for its state. `path` is the engine's control socket.
///
/// # Errors
/// If no engine listens at `path`, or its answer is invalid.
pub fn fetch(path: &Path) -> Result<EngineStatus> {
    fetch_within(path, Duration::from_secs(ANSWER_SECONDS))
}

/// Asks the engine as [`fetch`] does, and waits for at most `limit`.
///
/// # Errors
/// As for [`fetch`].
pub fn fetch_within(path: &Path, limit: Duration) -> Result<EngineStatus> {
    let shown = path.display().to_string();
    if let Some(kind) = kind_of_no_socket(path) {
        let why = format!("it is {kind}, not a socket; give the control socket of an engine");
        return Err(Error::Setting { what: SOCKET.with(shown).into(), why });
    }
    let no_engine = |error: io::Error| not_connected(path, error);
    let address = address_of(path)?;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(|error| Error::os("creating a socket")(error.into()))?;
    net::connect(&socket, &address).map_err(|error| no_engine(error.into()))?;
    let fd = socket.as_raw_fd();
    pair::send_descriptor(fd, &Message::new(Operation::Status).encode(), None).map_err(no_engine)?;
    let timeout = rustix::event::Timespec::try_from(limit).ok();
    let mut poll = [rustix::event::PollFd::new(&socket, rustix::event::PollFlags::IN)];
    if rustix::event::poll(&mut poll, timeout.as_ref()).map_err(|error| no_engine(error.into()))? == 0 {
        return Err(Error::Silent(shown));
    }
    let mut bytes = [0; message::LEN];
    let (len, file) = pair::receive_descriptor(fd, &mut bytes).map_err(no_engine)?;
    if let Some(engine) = message::other_version(&bytes[..len]) {
        return Err(Error::Version { path: shown, engine, command: message::VERSION });
    }
    let reply = Message::decode(&bytes[..len]).filter(|reply| reply.status == 0);
    let (Some(_), Some(file)) = (reply, file) else { return Err(Error::Answer(shown)) };
    let mut text = String::new();
    let mut file = File::from(file);
    file.rewind()
        .and_then(|()| file.read_to_string(&mut text))
        .map_err(Error::os("reading the engine's answer"))?;
    serde_json::from_str(&text).map_err(|_| Error::Answer(shown))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::SocketAddrUnix;
    use std::os::fd::OwnedFd;

    fn listener(path: &Path, kind: SocketType) -> OwnedFd {
        let socket = net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        net::bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        net::listen(&socket, 1).unwrap();
        socket
    }

    fn message(path: &Path) -> String {
        fetch_within(path, Duration::from_millis(20)).unwrap_err().to_string()
    }

    #[test]
    fn errors_say_what_was_found_at_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        assert!(message(&path).contains("a: there is no such socket; start one with"), "{}", message(&path));
        let engine = listener(&path, SocketType::SEQPACKET);
        assert!(message(&path).contains("a has not answered for 10 s; check that its process runs"));
        drop(engine);
        assert!(message(&path).contains("a: the engine of this socket has ended; start one with"));
        let other = folder.path().join("b");
        let _other = listener(&other, SocketType::STREAM);
        assert!(message(&other).contains("b: it belongs to another program; give the control socket of an"));
        let long = folder.path().join("c".repeat(108));
        assert!(message(&long).contains("bytes; give at most 107"), "{}", message(&long));
    }
}
