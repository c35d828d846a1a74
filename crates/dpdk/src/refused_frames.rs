//! Refuses and counts frames that the ring of a packet socket cannot deliver unchanged:
//!
//! * Frames longer than a slot of the ring, because the kernel would cut them. They come from a peer whose
//!   card does segmentation (TSO), or from received segments that the kernel joins (GRO).
//! * Frames with an 802.1ad tag. The kernel takes the outer VLAN tag out of a frame, and DPDK's driver puts
//!   it back as an 802.1Q tag.
//!
//! A filter on the ring's sockets refuses these frames. Another socket receives only the refused frames. No
//! thread reads that socket. The kernel counts its frames, and the port reports the count.

use crate::interface::Interface;
use crate::kernel_counters;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// The EtherType of an 802.1ad tag (service tag).
const ETHERTYPE_8021AD: u32 = 0x88a8;

/// A filter on a port's packet sockets, which refuses frames longer than `longest` bytes. A separate socket
/// counts the refused frames.
pub(crate) struct RefusedFrames {
    socket: OwnedFd,
    longest: u32,
    counted: AtomicU64,
}

impl RefusedFrames {
    /// Installs the filter on `rings`, the packet sockets of a port on `interface`, and begins to count.
    /// Frames of more than `longest` bytes are refused.
    pub(crate) fn begin(interface: &Interface, rings: &[RawFd], longest: u32) -> io::Result<Self> {
        // SAFETY: the call gets no pointer. A socket without a protocol receives nothing before it is bound.
        let descriptor = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just opened, and no other code owns it.
        let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
        // No thread reads this socket, so the smallest buffer suffices.
        set(descriptor, libc::SOL_SOCKET, libc::SO_RCVBUF, &1i32)?;
        set_filter(descriptor, &keep_refused(longest))?;
        // SAFETY: an all-zero address is valid and has no family.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = interface.index() as i32;
        let length = size_of_val(&address) as libc::socklen_t;
        // SAFETY: the address lives through the call.
        if unsafe { libc::bind(descriptor, (&raw const address).cast(), length) } != 0 {
            return Err(io::Error::last_os_error());
        }
        rings.iter().try_for_each(|&ring| set_filter(ring, &keep_deliverable(longest)))?;
        Ok(Self { socket, longest, counted: AtomicU64::new(0) })
    }

    /// Returns how many frames were refused so far.
    pub(crate) fn count(&self) -> u64 {
        // Reading the kernel's counter clears it, so keep the sum in `counted`. No thread reads from the
        // socket, so the socket's buffer fills up. The counter is complete all the same, because it also
        // counts frames that the full buffer drops.
        let new = kernel_counters::packet_statistics(self.socket.as_raw_fd())
            .map_or(0, |[packets, _]| packets.into());
        self.counted.fetch_add(new, Ordering::Relaxed) + new
    }

    /// Warns if frames were refused on `port`.
    pub(crate) fn warn(&self, port: &str) {
        let (count, longest) = (self.count(), self.longest);
        if count > 0 {
            tracing::warn!(
                "port {port}: dropped {count} frames longer than {longest} bytes or with an 802.1ad tag. Longer frames: give frame=BYTES \
                 and {}, or switch segmentation offload off at both ends (ethtool -K INTERFACE tso off gso off gro off). 802.1ad tags: \
                 use an af_xdp port",
                crate::field::ROOM
            );
        }
    }
}

type Instruction = libc::sock_filter;

const fn instruction(code: u32, then: u8, otherwise: u8, operand: u32) -> Instruction {
    Instruction { code: code as u16, jt: then, jf: otherwise, k: operand }
}

const fn load_word(offset: i32) -> Instruction {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, (libc::SKF_AD_OFF + offset) as u32)
}

const LOAD_LENGTH: Instruction = instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_LEN, 0, 0, 0);
const LOAD_TYPE: Instruction = load_word(libc::SKF_AD_PKTTYPE);
const LOAD_TAG_PRESENT: Instruction = load_word(libc::SKF_AD_VLAN_TAG_PRESENT);
const LOAD_TAG_TYPE: Instruction = load_word(libc::SKF_AD_VLAN_TPID);

const fn keep(bytes: u32) -> Instruction {
    instruction(libc::BPF_RET | libc::BPF_K, 0, 0, bytes)
}

const fn if_greater(than: u32, then: u8, otherwise: u8) -> Instruction {
    instruction(libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K, then, otherwise, than)
}

const fn if_equal(to: u32, then: u8, otherwise: u8) -> Instruction {
    instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, then, otherwise, to)
}

/// Returns the filter for the receiving packet sockets. It drops frames that the port refuses.
fn keep_deliverable(longest: u32) -> [Instruction; 8] {
    [
        LOAD_LENGTH,
        if_greater(longest, 4, 0),
        LOAD_TAG_PRESENT,
        if_equal(0, 3, 0),
        LOAD_TAG_TYPE,
        if_equal(ETHERTYPE_8021AD, 0, 1),
        keep(0),
        keep(u32::MAX),
    ]
}

/// Returns the filter of the counting socket. It passes one byte of each frame that the port refuses. It
/// drops all frames that this machine sends, and all frames that the port accepts.
fn keep_refused(longest: u32) -> [Instruction; 10] {
    const OUTGOING: u32 = libc::PACKET_OUTGOING as u32;
    [
        LOAD_TYPE,
        if_equal(OUTGOING, 6, 0),
        LOAD_LENGTH,
        if_greater(longest, 5, 0),
        LOAD_TAG_PRESENT,
        if_equal(0, 2, 0),
        LOAD_TAG_TYPE,
        if_equal(ETHERTYPE_8021AD, 1, 0),
        keep(0),
        keep(1),
    ]
}

fn set_filter(descriptor: RawFd, program: &[Instruction]) -> io::Result<()> {
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    set(descriptor, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

fn set<T>(descriptor: RawFd, level: i32, option: i32, value: &T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value and what it points to outlive the call. For a descriptor that is no socket, the call
    // fails.
    match unsafe { libc::setsockopt(descriptor, level, option, (&raw const *value).cast(), length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
