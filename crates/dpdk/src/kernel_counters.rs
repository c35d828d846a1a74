//! Counters of packets that the kernel dropped because nobody read a port's sockets in time. DPDK's drivers
//! do not report these packets.

use crate::interface::Interface;
use crate::xdp;
use std::mem::zeroed;
use std::os::fd::RawFd;

/// Returns how many packets the packet sockets dropped since the last call. Reading clears the counters.
pub(crate) fn dropped_by_packet_sockets(sockets: &[RawFd]) -> u64 {
    let statistics = sockets.iter().filter_map(|&socket| packet_statistics(socket));
    statistics.map(|[_, dropped]| u64::from(dropped)).sum()
}

/// Returns two counts of a packet socket since the last call (`struct tpacket_stats`): received packets and
/// dropped packets. The received packets include the dropped ones.
pub(crate) fn packet_statistics(socket: RawFd) -> Option<[u32; 2]> {
    let mut statistics = [0u32; 2];
    read(socket, libc::SOL_PACKET, libc::PACKET_STATISTICS, &mut statistics).map(|()| statistics)
}

/// Returns the packet sockets on `interface` that DPDK's driver has created in this process. These sockets
/// have rings of version 2.
pub(crate) fn packet_sockets(interface: &Interface) -> Vec<RawFd> {
    const TPACKET_V2: i32 = 1;
    let has_ring = |&descriptor: &RawFd| {
        let mut version = 0i32;
        is_bound_to(descriptor, interface.index())
            && read(descriptor, libc::SOL_PACKET, libc::PACKET_VERSION, &mut version).is_some()
            && version == TPACKET_V2
    };
    open_descriptors().filter(has_ring).collect()
}

/// Returns the number of packets that the AF_XDP sockets dropped because their receive rings were full.
/// DPDK's driver does not count these packets. It counts packets dropped for other reasons, such as the lack
/// of a buffer.
pub(crate) fn dropped_by_full_xdp_rings(sockets: &[xdp::Socket]) -> u64 {
    const XDP_STATISTICS: i32 = 7;
    let dropped = |socket: &xdp::Socket| {
        // The kernel fills in a `struct xdp_statistics`, whose fourth number is `rx_ring_full`.
        let mut statistics = [0u64; 6];
        read(socket.descriptor(), libc::SOL_XDP, XDP_STATISTICS, &mut statistics)
            .map_or(0, |()| statistics[3])
    };
    sockets.iter().map(dropped).sum()
}

fn read<T>(descriptor: RawFd, level: i32, option: i32, value: &mut T) -> Option<()> {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: at most `length` bytes are written, into plain integers. The call fails on other descriptors.
    let code = unsafe { libc::getsockopt(descriptor, level, option, (&raw mut *value).cast(), &mut length) };
    (code == 0).then_some(())
}

/// Returns the descriptors that this process has open.
fn open_descriptors() -> impl Iterator<Item = RawFd> {
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let all: Vec<RawFd> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    all.into_iter()
}

/// Returns true if `descriptor` is a packet socket that is bound to the interface with number `index`.
fn is_bound_to(descriptor: RawFd, index: u32) -> bool {
    // SAFETY: an all-zero address is valid and has no family.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    let mut length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: at most `length` bytes are written. The call fails if the descriptor is no socket.
    let code = unsafe { libc::getsockname(descriptor, (&raw mut address).cast(), &mut length) };
    code == 0
        && i32::from(address.sll_family) == libc::AF_PACKET
        && u32::try_from(address.sll_ifindex) == Ok(index)
}
