//! Counts the connections that wait in a listener's pair.

use super::send_descriptor;
use inlane_offload_protocol::name::SOCKET_LEN;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Returns the number of connections that the engine has sent to a listener's pair and that the program has not received.
/// `end` is the engine's end. Returns `None` if the kernel gives no answer.
pub fn waiting_connections(end: &OwnedFd) -> Option<usize> {
    Some(memory_of_unread(end.as_raw_fd())? / memory_of_a_record()?)
}

/// Returns how many bytes of the kernel's memory one record takes. All records have the same length, so all take the same.
/// Measures this once. A measurement for which the kernel refuses the sockets is tried again at the next call.
fn memory_of_a_record() -> Option<usize> {
    static RECORD: AtomicUsize = AtomicUsize::new(0);
    let kept = RECORD.load(Ordering::Relaxed);
    if kept > 0 {
        return Some(kept);
    }
    let (one, _other) = UnixStream::pair().ok()?;
    send_descriptor(one.as_raw_fd(), &[0; SOCKET_LEN], None).ok()?;
    let memory = memory_of_unread(one.as_raw_fd()).filter(|&memory| memory > 0)?;
    RECORD.store(memory, Ordering::Relaxed);
    Some(memory)
}

/// Returns how many bytes of the kernel's memory the unread messages take that were sent from the UNIX socket `fd`.
fn memory_of_unread(fd: RawFd) -> Option<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes one c_int to `bytes`, which outlives the call.
    let code = unsafe { libc::ioctl(fd, libc::TIOCOUTQ, &mut bytes) };
    (code == 0).then_some(bytes.max(0) as usize)
}

#[cfg(test)]
mod tests {
    use super::super::{create_unnamed, receive, send_descriptor};
    use super::waiting_connections;
    use inlane_offload_protocol::name::{SOCKET_LEN, SocketKind};
    use std::os::fd::AsRawFd;

    #[test]
    fn records_that_the_program_has_not_received_are_counted() {
        let (engine, program) = create_unnamed(SocketKind::BoundV4).unwrap();
        for sent in 1..=9 {
            let passed = (sent % 2 == 0).then_some(program.as_raw_fd());
            send_descriptor(engine.as_raw_fd(), &[1; SOCKET_LEN], passed).unwrap();
            assert_eq!(waiting_connections(&engine), Some(sent));
        }
        for left in (0..9).rev() {
            assert_eq!(receive(program.as_raw_fd(), &mut [0; SOCKET_LEN]).unwrap(), SOCKET_LEN);
            assert_eq!(waiting_connections(&engine), Some(left));
        }
    }
}
