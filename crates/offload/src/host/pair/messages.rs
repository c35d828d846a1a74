//! Receives the bytes and messages of programs, with the descriptors that may come with them, and sends descriptors.

use super::super::closer::{Closer, UserCloser};
use super::{is_unix, result, to_iovec};
use crate::stack::ring::Span;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// Receives bytes that a program has written to a pair, without blocking. Returns
/// their number, which is 0 at the end of the stream. Also returns true if the program had sent descriptors with the
/// bytes, which are passed to `closer`. Such a read stops early, so the pair may hold more bytes although there was room
/// for them.
///
/// # Errors
/// Errors of the system; `WouldBlock` if there is nothing to receive; `InvalidData` if the closer is full and the
/// program has sent descriptors. These then stay in the pair.
pub fn take(fd: RawFd, bytes: &mut [u8], closer: &Arc<UserCloser>) -> io::Result<(usize, bool)> {
    let span = Span { start: bytes.as_mut_ptr(), len: bytes.len() };
    // SAFETY: the span is a slice.
    unsafe { take_spans(fd, [span, Span { len: 0, ..span }], closer) }
}

/// Receives bytes into two spans of a ring, as [`take`] does.
///
/// # Errors
/// As [`take`].
///
/// # Safety
/// The spans are writable.
pub unsafe fn take_spans(
    fd: RawFd,
    mut spans: [Span; 2],
    closer: &Arc<UserCloser>,
) -> io::Result<(usize, bool)> {
    if closer.is_full() {
        let (len, descriptors) = peek(fd, &mut to_iovec(spans[0]))?;
        if descriptors {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // Receive only the bytes that were peeked, because descriptors may have arrived behind them.
        (spans[0].len, spans[1].len) = (len, 0);
        if len == 0 {
            return Ok((0, false));
        }
    }
    let mut parts = spans.map(to_iovec);
    let count = 1 + usize::from(parts[1].iov_len > 0);
    let mut room = MaybeUninit::<Room>::uninit();
    // SAFETY: the parts and the room outlive the call, and nothing else accesses them.
    unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        (header.msg_iov, header.msg_iovlen) = (parts.as_mut_ptr(), count);
        (header.msg_control, header.msg_controllen) = (room.as_mut_ptr().cast(), size_of::<Room>() as _);
        let len = result(libc::recvmsg(fd, &mut header, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC))?;
        if header.msg_controllen > 0 {
            closer.close(received(&header), None);
        }
        Ok((len, header.msg_controllen > 0 || header.msg_flags & libc::MSG_CTRUNC != 0))
    }
}

/// The space for the descriptors of a message. The kernel closes descriptors at once for which there is no room, which
/// could block. A message has at most 253 descriptors (SCM_MAX_FD).
#[repr(C, align(8))]
struct Room([u8; 16 + 4 * 254]);

/// Takes the descriptors out of the control data that `recvmsg` has written.
///
/// # Safety
/// The control data is valid, its descriptors have no other owner, and this is called once for it.
#[cold]
unsafe fn received(header: &libc::msghdr) -> Vec<OwnedFd> {
    let mut descriptors = Vec::new();
    // SAFETY: the kernel writes whole control messages within the length that it returns. The length of a message says
    // how many descriptors it holds.
    unsafe {
        let mut part = libc::CMSG_FIRSTHDR(header);
        while let Some(message) = part.as_ref() {
            if (message.cmsg_level, message.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let count = ((*part).cmsg_len as usize - libc::CMSG_LEN(0) as usize) / 4;
                let first = libc::CMSG_DATA(part).cast::<i32>();
                descriptors
                    .extend((0..count).map(|index| OwnedFd::from_raw_fd(first.add(index).read_unaligned())));
            }
            part = libc::CMSG_NXTHDR(header, part);
        }
    }
    descriptors
}

pub(super) fn slice(bytes: &mut [u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
}

/// Reads bytes of a socket, which stay there. Returns their number, and true if descriptors come with them.
///
/// # Errors
/// Errors of the system; `WouldBlock` if there is nothing to receive.
#[cold]
pub(super) fn peek(fd: RawFd, part: &mut libc::iovec) -> io::Result<(usize, bool)> {
    // SAFETY: the structures outlive the call. The callers pass writable bytes.
    unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        (header.msg_iov, header.msg_iovlen) = (part, 1);
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        let len = result(libc::recvmsg(fd, &mut header, flags))?;
        Ok((len, header.msg_flags & libc::MSG_CTRUNC != 0))
    }
}

/// Peeks at the next message. Returns true if it comes with more than two descriptors, or with one that is not a UNIX
/// socket. Passes duplicates of such descriptors to `closer`: a file system may block each close of a file, even while
/// the queue holds the file, too. If the closer has no room for duplicates, either, returns true for each message with
/// descriptors.
#[cold]
fn has_unexpected_descriptors(fd: RawFd, closer: &Arc<UserCloser>) -> io::Result<bool> {
    let mut byte = [0u8];
    if closer.is_overfull() {
        return peek(fd, &mut slice(&mut byte)).map(|(_, descriptors)| descriptors);
    }
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let mut control = Control([0; 32]);
    // SAFETY: the structures outlive the call, and no other code owns the descriptors.
    let (descriptors, more) = unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        (header.msg_iov, header.msg_iovlen) = (&mut part, 1);
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = libc::CMSG_SPACE(4 * 2) as _;
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        result(libc::recvmsg(fd, &mut header, flags))?;
        (received(&header), header.msg_flags & libc::MSG_CTRUNC != 0)
    };
    let others: Vec<OwnedFd> = descriptors.into_iter().filter(|fd| !is_unix(fd)).collect();
    let unexpected = more || !others.is_empty();
    closer.close(others, None);
    Ok(unexpected)
}

/// Reads at most 64 messages of the program from the socket pair, and drops them with their descriptors.
/// Returns true if more messages may wait. An unread message could hold a descriptor of the program's end,
/// and that end would then never close.
///
/// # Errors
/// `InvalidData` if the closer is full and the program has sent descriptors. These then stay in the pair.
pub fn discard(fd: RawFd, closer: &Arc<UserCloser>) -> io::Result<bool> {
    let mut scrap = [0; 4096];
    for _ in 0..64 {
        match take(fd, &mut scrap, closer) {
            Ok((len, _)) if len > 0 => {}
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return Err(error),
            _ => return Ok(false),
        }
    }
    Ok(true)
}

/// The space for one descriptor in a message's control data.
#[repr(C, align(8))]
pub(super) struct Control(pub [u8; 32]);

/// Sends the message `bytes`, with `descriptor` if given, without blocking.
///
/// # Errors
/// Errors of the system; `WouldBlock` if the socket is full.
pub fn send_descriptor(fd: RawFd, bytes: &[u8], descriptor: Option<RawFd>) -> io::Result<usize> {
    let mut control = Control([0; 32]);
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: the structures outlive the call, and the control data has room for one descriptor.
    unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        (header.msg_iov, header.msg_iovlen) = (&mut part, 1);
        if let Some(descriptor) = descriptor {
            header.msg_control = control.0.as_mut_ptr().cast();
            header.msg_controllen = libc::CMSG_SPACE(4) as _;
            let first = libc::CMSG_FIRSTHDR(&header);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(4) as _;
            libc::CMSG_DATA(first).cast::<i32>().write_unaligned(descriptor);
        }
        result(libc::sendmsg(fd, &header, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT))
    }
}

/// Receives a message and the descriptor that came with it, without blocking.
///
/// # Errors
/// As [`receive_descriptors`].
pub fn receive_descriptor(fd: RawFd, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    receive_descriptors(fd, bytes, &Closer::new(1).of_user(0)).map(|(len, [first, _])| (len, first))
}

/// Receives a message and the two descriptors that may come with it, without blocking.
///
/// # Errors
/// Errors of the system; `WouldBlock` if there is no message; `InvalidData` if it has more descriptors. These are then
/// passed to `closer`, or stay with the socket if the closer is full.
pub fn receive_descriptors(
    fd: RawFd,
    bytes: &mut [u8],
    closer: &Arc<UserCloser>,
) -> io::Result<(usize, [Option<OwnedFd>; 2])> {
    if closer.is_full() && has_unexpected_descriptors(fd, closer)? {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut room = MaybeUninit::<Room>::uninit();
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: the structures live through the call, and no other code owns the descriptors.
    unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        (header.msg_iov, header.msg_iovlen) = (&mut part, 1);
        (header.msg_control, header.msg_controllen) = (room.as_mut_ptr().cast(), size_of::<Room>() as _);
        let len = result(libc::recvmsg(fd, &mut header, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC))?;
        if header.msg_controllen == 0 {
            return Ok((len, [None, None]));
        }
        let mut descriptors = received(&header);
        if descriptors.len() > 2 {
            closer.close(descriptors, None);
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut next = descriptors.drain(..);
        Ok((len, [next.next(), next.next()]))
    }
}
