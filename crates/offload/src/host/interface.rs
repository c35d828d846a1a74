//! Watches the kernel's interface of the engine's port. A port does not report by itself that its interface is gone.
//!
//! The kernel announces changes of interfaces on a netlink socket, which the engine's epoll watches. The engine then asks
//! the kernel for the state of its interface.

use inlane_offload_protocol::address::read_sockaddr;
use inlane_ports::spec::PortSpec;
use std::ffi::CStr;
use std::io;
use std::mem::zeroed;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The state of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterfaceState {
    /// The interface carries packets.
    Up,
    /// The interface is down. It carries packets again once it is up.
    Down,
    /// The interface does not exist any more, or is in another network namespace.
    Removed,
}

/// Returns the IP addresses that the kernel has on the interface `name`. Returns none if the kernel does not say.
pub fn kernel_addresses(name: &str) -> Vec<IpAddr> {
    let mut first = std::ptr::null_mut();
    // SAFETY: the call stores a pointer to a new list in `first`. The list is freed below.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Vec::new();
    }
    let (mut addresses, mut next) = (Vec::new(), first);
    // SAFETY: each element of the list is valid until the list is freed. Names are terminated strings, and addresses are null or
    // have the length of their family's structure.
    while let Some(interface) = unsafe { next.as_ref() } {
        next = interface.ifa_next;
        // SAFETY: as above.
        unsafe {
            if CStr::from_ptr(interface.ifa_name).to_bytes() != name.as_bytes()
                || interface.ifa_addr.is_null()
            {
                continue;
            }
            let len = match i32::from((*interface.ifa_addr).sa_family) {
                libc::AF_INET => size_of::<libc::sockaddr_in>(),
                libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
                _ => continue,
            };
            let address = read_sockaddr(interface.ifa_addr, len as libc::socklen_t);
            addresses.extend(address.map(|address| address.ip()));
        }
    }
    // SAFETY: `getifaddrs` allocated the list. It is freed only here.
    unsafe { libc::freeifaddrs(first) };
    addresses
}

/// The watched interface of a port.
pub struct WatchedInterface {
    name: String,
    /// A new interface of the same name has another number.
    number: i32,
    netlink: OwnedFd,
}

impl WatchedInterface {
    /// Begins to watch the interface of a port. Returns `None` if the port has none.
    ///
    /// # Errors
    /// Errors of the system, for example if there is no such interface.
    pub fn of(port: &PortSpec) -> crate::Result<Option<Self>> {
        let Some(name) = port.interface() else { return Ok(None) };
        let what = format!("watching the interface {name}");
        Self::new(name).map(Some).map_err(crate::Error::os(what))
    }

    fn new(name: &str) -> io::Result<Self> {
        /// RTMGRP_LINK of Linux's rtnetlink.h.
        const LINKS: u32 = 1;
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: the address lives through the call, and no other code owns the new descriptor.
        let netlink = unsafe {
            let fd = libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            let netlink = OwnedFd::from_raw_fd(fd);
            let mut address: libc::sockaddr_nl = zeroed();
            address.nl_family = libc::AF_NETLINK as u16;
            address.nl_groups = LINKS;
            if libc::bind(fd, (&raw const address).cast(), size_of_val(&address) as u32) != 0 {
                return Err(io::Error::last_os_error());
            }
            netlink
        };
        let c_name = std::ffi::CString::new(name)?;
        // SAFETY: the name lives through the call.
        let number = unsafe { libc::if_nametoindex(c_name.as_ptr()) };
        match i32::try_from(number) {
            Ok(number) if number > 0 => Ok(Self { name: name.to_owned(), number, netlink }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Returns the interface's name when the engine was started.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns a descriptor that is readable after an interface has changed.
    pub fn descriptor(&self) -> &OwnedFd {
        &self.netlink
    }

    /// As [`WatchedInterface::state`].
    ///
    /// # Errors
    /// If the interface was removed.
    pub fn present_state(&self) -> crate::Result<InterfaceState> {
        let state = self.state();
        if state != InterfaceState::Removed {
            return Ok(state);
        }
        let why = "it was removed while it was used; create it again, and start this command again";
        Err(inlane_core::Error::device_environment(format!("interface {}", self.name), why).into())
    }

    /// Drops the announcements that wait at the descriptor. Returns the state of the interface.
    fn state(&self) -> InterfaceState {
        let fd = self.netlink.as_raw_fd();
        let mut scrap = [0u8; 8192];
        loop {
            // SAFETY: the kernel writes at most as many bytes as there are.
            let len = unsafe { libc::recv(fd, scrap.as_mut_ptr().cast(), scrap.len(), 0) };
            // After ENOBUFS, announcements are lost. The others can still be read.
            if len < 0 && io::Error::last_os_error().raw_os_error() != Some(libc::ENOBUFS) {
                break;
            }
        }
        loop {
            // SAFETY: an all-zero ifreq is valid. The structure lives through the calls. The first call writes the
            // present name of the interface, which the second call reads.
            unsafe {
                let mut request: libc::ifreq = zeroed();
                request.ifr_ifru.ifru_ifindex = self.number;
                if libc::ioctl(fd, libc::SIOCGIFNAME as _, &mut request) != 0 {
                    return InterfaceState::Removed;
                }
                if libc::ioctl(fd, libc::SIOCGIFFLAGS as _, &mut request) == 0 {
                    return match i32::from(request.ifr_ifru.ifru_flags) & libc::IFF_UP {
                        0 => InterfaceState::Down,
                        _ => InterfaceState::Up,
                    };
                }
            }
            // After ENODEV, the interface was renamed or removed between the calls. Ask again for its name.
            if io::Error::last_os_error().raw_os_error() != Some(libc::ENODEV) {
                return InterfaceState::Removed;
            }
        }
    }
}

/// Takes the pending error of a socket. Epoll reports a socket again and again until then.
pub fn clear_error(fd: i32) {
    let (mut error, mut len) = (0i32, 4);
    // SAFETY: value and length outlive the call.
    unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, (&raw mut error).cast(), &mut len) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_exists_and_others_may_not() {
        let loopback = WatchedInterface::new("lo").unwrap();
        assert_ne!(loopback.state(), InterfaceState::Removed);
        assert!(WatchedInterface::new("no-such-if").is_err());
        let removed = WatchedInterface { number: i32::MAX, ..loopback };
        assert_eq!(removed.state(), InterfaceState::Removed);
    }
}
