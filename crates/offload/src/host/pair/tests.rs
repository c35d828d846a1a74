//! Tests of socket pairs.

use super::super::closer::Closer;
use super::*;
use inlane_offload_protocol::name::SocketKind;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;

#[test]
fn an_end_is_closed_when_its_last_descriptor_is() {
    let local = "10.0.0.1:80".parse().unwrap();
    let name =
        SocketName { engine: 0x1234_5678, socket: 9, kind: SocketKind::StreamV4, local, remote: Some(local) };
    let (engine, program) = create(&name).unwrap();
    let fd = engine.as_raw_fd();
    // SAFETY: has no preconditions.
    assert_eq!(unsafe { libc::shutdown(program.as_raw_fd(), libc::SHUT_RDWR) }, 0);
    let other = program.try_clone().unwrap();
    drop(program);
    assert!(hung_up(fd) && !is_closed(fd));
    drop(other);
    assert!(hung_up(fd) && is_closed(fd) && is_closed(fd));
}

#[test]
fn bytes_of_a_program_are_no_filler() {
    let (end, program) = UnixStream::pair().unwrap();
    let (end, program) = (OwnedFd::from(end), OwnedFd::from(program));
    // A thread of the program sends after the engine has dropped all bytes, and before it fills the pair.
    send_descriptor(program.as_raw_fd(), b"x", Some(program.as_raw_fd())).unwrap();
    let filled = fill_behind(&program).unwrap();
    assert_eq!(unread(end.as_raw_fd()), Some(filled + 1));
    let closer = Closer::with_room(1000, 1 << 20).of_user(1);
    let filled = fill_listener(end.as_raw_fd(), &program, &closer).unwrap();
    assert_eq!(unread(end.as_raw_fd()), Some(filled));
}

#[test]
fn a_listener_is_not_filled_behind_too_much() {
    let (end, program) = UnixStream::pair().unwrap();
    let (end, program) = (OwnedFd::from(end), OwnedFd::from(program));
    let full = Closer::with_room(0, 1 << 20).of_user(1);
    send_descriptor(program.as_raw_fd(), b"x", Some(program.as_raw_fd())).unwrap();
    let error = fill_listener(end.as_raw_fd(), &program, &full).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENFILE));
    let closer = Closer::with_room(1000, 1 << 20).of_user(1);
    // A read of a stream ends behind a descriptor.
    for _ in 0..100 {
        send_descriptor(program.as_raw_fd(), b"x", Some(program.as_raw_fd())).unwrap();
    }
    let error = fill_listener(end.as_raw_fd(), &program, &closer).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EAGAIN));
}

#[test]
fn only_unix_sockets_have_a_cookie_that_identifies_them() {
    let (one, other) = UnixStream::pair().unwrap();
    let (one, other) = (OwnedFd::from(one), OwnedFd::from(other));
    assert_ne!(cookie(&one).unwrap(), cookie(&other).unwrap());
    assert_eq!(cookie(&one).unwrap(), cookie(&one.try_clone().unwrap()).unwrap());
    // The kernel gives the inode number of a closed socket to other sockets once its numbers wrap.
    let mut known: Vec<u64> = [&one, &other].map(|end| cookie(end).unwrap()).into();
    for _ in 0..100 {
        known.push(cookie(&UnixStream::pair().unwrap().0.into()).unwrap());
    }
    known.sort_unstable();
    known.dedup();
    assert_eq!(known.len(), 102);
    let tcp = OwnedFd::from(std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    assert_eq!(checked_cookie(&tcp).unwrap_err().raw_os_error(), Some(libc::EBADF));
    let file = OwnedFd::from(tempfile::tempfile().unwrap());
    assert_eq!(checked_cookie(&file).unwrap_err().raw_os_error(), Some(libc::EBADF));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let named =
        OwnedFd::from(std::fs::OpenOptions::new().custom_flags(libc::O_PATH).read(true).open(path).unwrap());
    assert_eq!(checked_cookie(&named).unwrap_err().raw_os_error(), Some(libc::EBADF));
}
