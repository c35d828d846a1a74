//! Ancillary data of datagrams: the addresses, TTL and traffic class that programs set and read by control
//! messages.

use crate::real;
use inlane_offload_protocol::address::is_possible;
use inlane_offload_protocol::datagram::{Header, receive, send};
use libc::{c_int, cmsghdr, msghdr};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The index of the loopback interface, which the library reports for loopback addresses. For other addresses
/// it reports 0, because the engine's port has no index in the program's network namespace.
const LOOPBACK: c_int = 1;

/// The most bytes of one control message's data.
const MOST: usize = 20;

/// Returns the number in a control message. The number may have one or four bytes, as on Linux. Returns
/// `None` for other lengths.
fn number(bytes: &[u8]) -> Option<c_int> {
    match *bytes {
        [byte] => Some(byte.into()),
        [a, b, c, d] => Some(c_int::from_ne_bytes([a, b, c, d])),
        _ => None,
    }
}

/// Reads the control messages of `message`, a datagram to send, and stores their values in `header`. Fails
/// with an errno.
///
/// # Safety
/// As for sendmsg.
pub unsafe fn read(message: &msghdr, header: &mut Header) -> Result<(), c_int> {
    let len = real::length(message.msg_controllen as _);
    if message.msg_control.is_null() || len == 0 {
        return Ok(());
    }
    if len > c_int::MAX as usize {
        return Err(libc::ENOBUFS);
    }
    if !is_possible(message.msg_control, len) {
        return Err(libc::EFAULT);
    }
    // SAFETY: the program passes `len` readable bytes.
    let mut rest = unsafe { std::slice::from_raw_parts(message.msg_control.cast::<u8>(), len) };
    while rest.len() >= size_of::<cmsghdr>() {
        // SAFETY: the bytes of the structure were checked to be there.
        let head = unsafe { rest.as_ptr().cast::<cmsghdr>().read_unaligned() };
        let end = real::length(head.cmsg_len as _);
        let data = rest.get(size_of::<cmsghdr>()..end).ok_or(libc::EINVAL)?;
        read_one((head.cmsg_level, head.cmsg_type), data, header)?;
        rest = rest.get(end.next_multiple_of(size_of::<usize>())..).unwrap_or_default();
    }
    Ok(())
}

fn read_one(kind: (c_int, c_int), data: &[u8], header: &mut Header) -> Result<(), c_int> {
    let set_hops = |header: &mut Header, hops: u8| {
        (header.hops, header.flags) = (hops, header.flags | send::HOPS);
    };
    let set_class = |header: &mut Header, class: u8| {
        (header.class, header.flags) = (class, header.flags | send::CLASS);
    };
    match kind {
        // Ignore descriptors and credentials, because they cannot be sent over a network.
        (libc::SOL_SOCKET, libc::SCM_RIGHTS | libc::SCM_CREDENTIALS) => {}
        (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
            let info: &[u8; 12] = data.try_into().map_err(|_| libc::EINVAL)?;
            let source = Ipv4Addr::new(info[4], info[5], info[6], info[7]);
            header.local = (!source.is_unspecified()).then(|| (source, 0).into());
        }
        (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
            let octets: [u8; 16] = data
                .get(..16)
                .filter(|_| data.len() == 20)
                .ok_or(libc::EINVAL)?
                .try_into()
                .unwrap_or([0; 16]);
            let source = IpAddr::from(octets).to_canonical();
            header.local = (!source.is_unspecified()).then(|| (source, 0).into());
        }
        (libc::IPPROTO_IP, libc::IP_TTL) => match number(data) {
            Some(hops @ 1..=255) => set_hops(header, hops as u8),
            _ => return Err(libc::EINVAL),
        },
        (libc::IPPROTO_IP, libc::IP_TOS) => match number(data) {
            Some(class @ 0..=255) => set_class(header, class as u8),
            _ => return Err(libc::EINVAL),
        },
        // A hop limit or traffic class of -1 leaves the header unchanged, so the datagram gets the socket's
        // own value.
        (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => match number(data).filter(|_| data.len() == 4) {
            Some(-1) => {}
            Some(hops @ 0..=255) => set_hops(header, hops as u8),
            _ => return Err(libc::EINVAL),
        },
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => match number(data).filter(|_| data.len() == 4) {
            Some(-1) => {}
            Some(class @ 0..=255) => set_class(header, class as u8),
            _ => return Err(libc::EINVAL),
        },
        _ => return Err(libc::EINVAL),
    }
    Ok(())
}

/// Writes control messages to the unused rest of the program's buffer, `room` bytes at `next`. Sets `cut` if
/// a message does not fit (MSG_CTRUNC).
struct Writer {
    next: *mut u8,
    room: usize,
    cut: bool,
}

impl Writer {
    /// Adds a control message. If the message does not fit, cuts it, as the kernel does.
    ///
    /// # Safety
    /// `room` bytes at `next` are writable.
    unsafe fn put(&mut self, level: c_int, kind: c_int, data: &[u8]) {
        debug_assert!(data.len() <= MOST);
        let head = size_of::<cmsghdr>();
        if self.room < head {
            self.cut = true;
            return;
        }
        // SAFETY: the header fits, and `len` is at most the room left.
        unsafe {
            let wanted = libc::CMSG_LEN(data.len() as u32) as usize;
            let len = wanted.min(self.room);
            self.cut |= len < wanted;
            let mut header: cmsghdr = std::mem::zeroed();
            (header.cmsg_len, header.cmsg_level, header.cmsg_type) = (len as _, level, kind);
            self.next.cast::<cmsghdr>().write_unaligned(header);
            self.next.add(head).copy_from(data.as_ptr(), len - head);
            let space = (libc::CMSG_SPACE(data.len() as u32) as usize).min(self.room);
            (self.next, self.room) = (self.next.add(space), self.room - space);
        }
    }
}

/// Adds the control messages that the program has asked for. The kernel has already used `used` bytes of the
/// buffer for control messages.
///
/// # Safety
/// As for recvmsg.
pub unsafe fn write(message: &mut msghdr, used: usize, header: &Header) {
    let capacity = if message.msg_control.is_null() { 0 } else { real::length(message.msg_controllen as _) };
    let used = used.min(capacity);
    if header.flags == 0 {
        message.msg_controllen = used as _;
        return;
    }
    // SAFETY: the kernel has written `used` bytes of the control data, and the program owns the rest.
    let next = unsafe { message.msg_control.cast::<u8>().add(used) };
    let mut writer = Writer { next, room: capacity - used, cut: false };
    let wants = |flag: u8| header.flags & flag != 0;
    let ip = header.local.map(|local| local.ip());
    let index = if ip.is_some_and(|ip| ip.is_loopback()) { LOOPBACK } else { 0 };
    // SAFETY: the writer's bytes are the rest of the program's buffer.
    unsafe {
        if let Some(IpAddr::V4(ip)) = ip {
            if wants(receive::INFO_V4) {
                let mut info = [0; 12];
                info[..4].copy_from_slice(&index.to_ne_bytes());
                info[4..8].copy_from_slice(&ip.octets());
                info[8..].copy_from_slice(&ip.octets());
                writer.put(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
            }
            if wants(receive::HOPS_V4) {
                writer.put(libc::IPPROTO_IP, libc::IP_TTL, &c_int::from(header.hops).to_ne_bytes());
            }
            if wants(receive::CLASS_V4) {
                writer.put(libc::IPPROTO_IP, libc::IP_TOS, &[header.class]);
            }
        }
        if let Some(ip) = ip.filter(|_| wants(receive::INFO_V6)) {
            let octets = match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                IpAddr::V6(ip) => Ipv6Addr::octets(&ip),
            };
            let mut info = [0; 20];
            info[..16].copy_from_slice(&octets);
            info[16..].copy_from_slice(&index.to_ne_bytes());
            writer.put(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
        }
        if ip.is_some_and(|ip| ip.is_ipv6()) {
            if wants(receive::HOPS_V6) {
                writer.put(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, &c_int::from(header.hops).to_ne_bytes());
            }
            if wants(receive::CLASS_V6) {
                writer.put(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &c_int::from(header.class).to_ne_bytes());
            }
        }
    }
    if writer.cut {
        message.msg_flags |= libc::MSG_CTRUNC;
    }
    message.msg_controllen = (capacity - writer.room) as _;
}
