//! A TUN device in a separate network namespace. Linux's TCP has the address [`KERNEL`]. The test has the
//! address [`OURS`], and reads and writes its IPv4 packets.

use crate::network::Ring;
use inlane_tcp::{Ecn, Header};
use inlane_wire::{ipv4, tcp as wire};
use std::fs::File;
use std::os::fd::AsRawFd;

pub const OURS: [u8; 4] = [10, 9, 0, 2];
pub const KERNEL: [u8; 4] = [10, 9, 0, 1];

/// Enters a new network namespace and creates a TUN device with the kernel's address. If this machine does
/// not allow that, returns the reason as the error.
pub fn device() -> Result<File, String> {
    let check = |what: &str, result: i32| {
        if result >= 0 { Ok(()) } else { Err(format!("{what}: {}", std::io::Error::last_os_error())) }
    };
    // SAFETY: the call affects only this thread and the threads that it creates later.
    check("unshare(CLONE_NEWNET)", unsafe { libc::unshare(libc::CLONE_NEWNET) })?;
    let tun = File::options()
        .read(true)
        .write(true)
        .open("/dev/net/tun")
        .map_err(|error| format!("/dev/net/tun: {error}"))?;
    // SAFETY: an all-zero ifreq is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"tcp0") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as i16;
    // SAFETY: the request lives during the call and has the type that the ioctl expects.
    check("TUNSETIFF", unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF as _, &request) })?;
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").or_else(|_| std::net::UdpSocket::bind("0.0.0.0:0"));
    let socket = socket.map_err(|error| format!("socket: {error}"))?;
    let mut address = |what: &str, code: u64, value: [u8; 4]| {
        request.ifr_ifru.ifru_addr.sa_family = libc::AF_INET as _;
        request.ifr_ifru.ifru_addr.sa_data = [0; 14];
        // SAFETY: only the address member of the union is used.
        let data = unsafe { &mut request.ifr_ifru.ifru_addr.sa_data };
        for (to, from) in data[2..].iter_mut().zip(value) {
            *to = from as libc::c_char;
        }
        // SAFETY: as above.
        check(what, unsafe { libc::ioctl(socket.as_raw_fd(), code as _, &request) })
    };
    address("SIOCSIFADDR", libc::SIOCSIFADDR, KERNEL)?;
    address("SIOCSIFNETMASK", libc::SIOCSIFNETMASK, [255, 255, 255, 0])?;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
    // SAFETY: as above.
    check("SIOCSIFFLAGS", unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &request) })?;
    // SAFETY: sets a flag of a file descriptor that this function owns.
    check("O_NONBLOCK", unsafe { libc::fcntl(tun.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) })?;
    Ok(tun)
}

/// Builds an IPv4 packet from [`OURS`] to [`KERNEL`]. `ports` are the segment's source and destination.
pub fn frame(
    header: &Header,
    payload: std::ops::Range<u64>,
    ring: &Ring,
    ports: (u16, u16),
    ecn: Ecn,
) -> Vec<u8> {
    let len = (payload.end - payload.start) as usize;
    let mut bytes = vec![0; 20 + header.wire_len() + len];
    let mut packet = ipv4::Packet::init(&mut bytes[..]).unwrap();
    packet.set_protocol(ipv4::TCP);
    packet.set_ttl(64);
    packet.set_source(OURS.into());
    packet.set_destination(KERNEL.into());
    packet.set_tos(ecn as u8);
    packet.fill_checksum();
    let pseudo = packet.pseudo_sum();
    let at = header.write(ports.0, ports.1, packet.payload_mut()).unwrap();
    ring.read(payload.start, &mut packet.payload_mut()[at..]);
    wire::Segment::new(packet.payload_mut()).unwrap().fill_checksum(pseudo);
    bytes
}
