//! Frames that are longer than a slot of a packet socket's ring, as a kernel peer sends them that leaves segments to the card (TSO) or
//! joins received ones (GRO).
//!
//! The kernel cuts them to fit, DPDK's driver passes on what is left, and no counter of either tells. Here a filter has the ring's
//! sockets refuse them, and one more socket, which nobody reads, counts them: its own filter takes nothing else.

use crate::drops;
use crate::interface::Interface;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Where a frame begins in a slot of version 2: behind the kernel's header and an address, so that what follows the link header is
/// aligned to 16 (`tpacket_rcv` of Linux's `net/packet/af_packet.c`).
const FRAME_AT: u32 = 66;

/// The longest frame that a slot of `frame` bytes holds whole.
pub(crate) fn longest(frame: u32) -> u32 {
    frame - FRAME_AT
}

/// Counts frames that an interface received and that are longer than some.
pub(crate) struct Oversize {
    socket: OwnedFd,
    longest: u32,
    counted: AtomicU64,
}

impl Oversize {
    /// Has `rings`, the sockets of a port on `interface`, refuse frames of more than `longest` bytes, and counts those from now on.
    pub(crate) fn refuse(interface: &Interface, rings: &[RawFd], longest: u32) -> io::Result<Self> {
        // SAFETY: no memory is passed. Of no protocol: nothing comes before it is bound.
        let descriptor = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened, and nobody else's.
        let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
        // What it keeps until it is full is of no use to anyone.
        set(descriptor, libc::SOL_SOCKET, libc::SO_RCVBUF, &1i32)?;
        filter(descriptor, &only_longer(longest))?;
        // SAFETY: all zero is an address of no family.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = interface.index() as i32;
        let length = size_of_val(&address) as libc::socklen_t;
        // SAFETY: the address lives through the call.
        if unsafe { libc::bind(descriptor, (&raw const address).cast(), length) } != 0 {
            return Err(io::Error::last_os_error());
        }
        rings.iter().try_for_each(|&ring| filter(ring, &none_longer(longest)))?;
        Ok(Self { socket, longest, counted: AtomicU64::new(0) })
    }

    /// How many there were.
    pub(crate) fn count(&self) -> u64 {
        // The kernel's counter starts anew with each look; it counts what did not fit the socket, too.
        let new = drops::packet_statistics(self.socket.as_raw_fd()).map_or(0, |[packets, _]| packets.into());
        self.counted.fetch_add(new, Ordering::Relaxed) + new
    }

    /// Says of `port` what it refused, and what to do about it.
    pub(crate) fn warn(&self, port: &str) {
        let (count, longest) = (self.count(), self.longest);
        if count > 0 {
            tracing::warn!(
                "port {port}: {count} frames of more than {longest} bytes were dropped, which is what its ring holds; let the peer finish \
                 its segments and the interface not join them (ethtool -K INTERFACE tso off gso off gro off at both ends), or give \
                 frame=BYTES and --room"
            );
        }
    }
}

type Instruction = libc::sock_filter;

const fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> Instruction {
    Instruction { code: code as u16, jt, jf, k }
}

const LOAD_LENGTH: Instruction = instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_LEN, 0, 0, 0);
const ALL: Instruction = instruction(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX);
const NOTHING: Instruction = instruction(libc::BPF_RET | libc::BPF_K, 0, 0, 0);

const fn if_longer(than: u32, then: u8, otherwise: u8) -> Instruction {
    instruction(libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K, then, otherwise, than)
}

fn none_longer(longest: u32) -> [Instruction; 4] {
    [LOAD_LENGTH, if_longer(longest, 1, 0), ALL, NOTHING]
}

/// One byte of what is longer; not what this machine sends, which such a socket sees, too.
fn only_longer(longest: u32) -> [Instruction; 6] {
    const TYPE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE) as u32;
    const OUTGOING: u32 = libc::PACKET_OUTGOING as u32;
    [
        instruction(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, 0, TYPE),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 2, 0, OUTGOING),
        LOAD_LENGTH,
        if_longer(longest, 1, 0),
        NOTHING,
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, 1),
    ]
}

fn filter(descriptor: RawFd, program: &[Instruction]) -> io::Result<()> {
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    set(descriptor, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

fn set<T>(descriptor: RawFd, level: i32, option: i32, value: &T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value, and what it points to, is read during the call; other descriptors refuse.
    match unsafe { libc::setsockopt(descriptor, level, option, (&raw const *value).cast(), length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
