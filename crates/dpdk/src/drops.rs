//! Packets that the kernel dropped because a port was not read in time, where DPDK's driver does not count them.

use crate::interface::Interface;
use crate::xdp_sockets;
use std::mem::zeroed;
use std::os::fd::RawFd;

/// Dropped by these packet sockets since last asked: the kernel's counter starts anew.
pub(crate) fn of_packet_sockets(sockets: &[RawFd]) -> u64 {
    sockets
        .iter()
        .filter_map(|&socket| packet_statistics(socket))
        .map(|[_, dropped]| u64::from(dropped))
        .sum()
}

/// `struct tpacket_stats` of a packet socket since last asked: packets, and of those dropped.
pub(crate) fn packet_statistics(socket: RawFd) -> Option<[u32; 2]> {
    let mut statistics = [0u32; 2];
    read(socket, libc::SOL_PACKET, libc::PACKET_STATISTICS, &mut statistics).map(|()| statistics)
}

/// The packet sockets of this process on `interface` that have a ring as DPDK's driver makes them.
pub(crate) fn packet_sockets(interface: &Interface) -> Vec<RawFd> {
    const TPACKET_V2: i32 = 1;
    let has_ring = |&descriptor: &RawFd| {
        let mut version = 0i32;
        is_bound_to(descriptor, interface.index())
            && read(descriptor, libc::SOL_PACKET, libc::PACKET_VERSION, &mut version).is_some()
            && version == TPACKET_V2
    };
    xdp_sockets::descriptors().filter(has_ring).collect()
}

/// Dropped by AF_XDP sockets because their ring was full; what found no buffer, the driver counts.
pub(crate) fn of_full_rings(sockets: &[xdp_sockets::Socket]) -> u64 {
    const XDP_STATISTICS: i32 = 7;
    let dropped = |socket: &xdp_sockets::Socket| {
        // `struct xdp_statistics`; the fourth is `rx_ring_full`.
        let mut statistics = [0u64; 6];
        read(socket.descriptor(), libc::SOL_XDP, XDP_STATISTICS, &mut statistics)
            .map_or(0, |()| statistics[3])
    };
    sockets.iter().map(dropped).sum()
}

fn read<T>(descriptor: RawFd, level: i32, option: i32, value: &mut T) -> Option<()> {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: at most `length` bytes are written into plain integers; other descriptors refuse.
    let code = unsafe { libc::getsockopt(descriptor, level, option, (&raw mut *value).cast(), &mut length) };
    (code == 0).then_some(())
}

/// A packet socket bound to the interface of this number.
fn is_bound_to(descriptor: RawFd, index: u32) -> bool {
    // SAFETY: all zero is an address of no family.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    let mut length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: at most `length` bytes are written; what is no socket refuses.
    let code = unsafe { libc::getsockname(descriptor, (&raw mut address).cast(), &mut length) };
    code == 0
        && i32::from(address.sll_family) == libc::AF_PACKET
        && u32::try_from(address.sll_ifindex) == Ok(index)
}
