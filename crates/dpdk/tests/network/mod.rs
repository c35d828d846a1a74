//! Helpers for tests of kernel interfaces: network namespaces, test frames, raw sockets, XDP programs.

#![allow(dead_code, reason = "each test program uses a part of it")]

pub mod xdp;

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

/// Moves this thread into a new, empty network namespace. Without the privilege, prints that `test` is
/// skipped and returns false.
pub fn private_network(test: &str) -> bool {
    // SAFETY: affects the namespace of this thread alone.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        let error = std::io::Error::last_os_error();
        eprintln!("SKIPPED {test}: no network namespace of its own ({error}); run as root");
        return false;
    }
    if Command::new("ip").arg("-V").output().is_err() {
        eprintln!("SKIPPED {test}: the program ip is missing; install iproute2");
        return false;
    }
    // Disable IPv6, because the kernel would otherwise send frames of its own on the test's interfaces.
    let _ = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
    ip("link set lo up");
    true
}

pub fn ip(arguments: &str) {
    output_of_ip(arguments);
}

/// Runs `ip` with `arguments` in this thread's namespace, and returns its output.
pub fn output_of_ip(arguments: &str) -> String {
    let output = Command::new("ip").args(arguments.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Waits up to 20 seconds until a condition is true. Returns false if it does not become true. Closing a
/// descriptor can take that long to release its resource, because a process that another test is starting may
/// hold a copy of the descriptor.
pub fn eventually(condition: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !condition() {
        if start.elapsed() > Duration::from_secs(20) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}

/// Returns a frame of `size` bytes with an experimental EtherType and a payload from `seed`.
pub fn frame(size: usize, seed: u8) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];
    frame.extend((frame.len()..size).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)));
    frame
}

/// A packet socket on one interface for frames of the test's EtherType.
pub struct RawSocket(pub OwnedFd);

impl RawSocket {
    pub fn open(interface: &str) -> Self {
        let ether_type = 0x88b5u16.to_be();
        let name = std::ffi::CString::new(interface).unwrap();
        // SAFETY: the socket is new. The address outlives the call.
        unsafe {
            let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW, ether_type as i32);
            assert!(fd >= 0, "{}", std::io::Error::last_os_error());
            let socket = OwnedFd::from_raw_fd(fd);
            let mut address: libc::sockaddr_ll = std::mem::zeroed();
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = ether_type;
            address.sll_ifindex = libc::if_nametoindex(name.as_ptr()) as i32;
            assert!(address.sll_ifindex > 0, "no interface {interface}");
            let length = size_of::<libc::sockaddr_ll>() as u32;
            assert_eq!(libc::bind(fd, (&raw const address).cast(), length), 0);
            Self(socket)
        }
    }

    pub fn send(&self, frame: &[u8]) {
        // SAFETY: the frame outlives the call.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        assert_eq!(sent, frame.len() as isize, "{}", std::io::Error::last_os_error());
    }

    /// Returns the next received frame, or `None` after `timeout`. This socket's own frames are not received.
    pub fn receive(&self, timeout: Duration) -> Option<Vec<u8>> {
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let mut buffer = vec![0u8; 65536];
        // SAFETY: structures and buffer outlive the calls.
        unsafe {
            if libc::poll(&mut poll, 1, timeout.as_millis() as i32) <= 0 {
                return None;
            }
            let length = libc::recv(self.0.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0);
            buffer.truncate(usize::try_from(length).ok()?);
        }
        Some(buffer)
    }
}
