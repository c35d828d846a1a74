//! Ports on kernel interfaces (AF_XDP, packet sockets, tap): checks the interface and the privileges, and
//! writes the driver's arguments.

use super::{LINK_HEADERS, Plan};
use crate::error::{Error, Result};
use crate::interface::{self, Interface};
use crate::spec::EthSpec;
use crate::xdp::{Program, Refusal};
use inlane_process::privileges::{self, Capability};
use std::path::{Path, PathBuf};

/// The alignment of slots in a packet socket's ring: the kernel's `TPACKET_ALIGNMENT`.
const SLOT_ALIGNMENT: u32 = 16;
/// The page size. The blocks of a packet socket's ring consist of whole pages.
const PAGE: u32 = 4096;
/// The largest slot in bytes. It holds the largest frame that a packet socket can receive.
const LARGEST_SLOT: u32 = 1 << 17;

/// The slot size and the block size of a packet socket's ring. The block size is a common multiple of the
/// slot size and the page size, because DPDK's driver expects no unused space at the end of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RingSizes {
    /// The size of a slot in bytes. A slot holds one frame.
    slot: u32,
    /// The size of a block in bytes. It is a multiple of the slot size and of the page size.
    block: u32,
}

impl RingSizes {
    /// Returns the sizes for the ring of a packet socket. The slot is the smallest one of at least `bytes`
    /// bytes. The block is the smallest one for such slots.
    fn of(bytes: u32) -> Self {
        let slot = bytes.next_multiple_of(SLOT_ALIGNMENT);
        // The greatest common divisor of slot size and page size. A page is a power of two, so the divisor is
        // one, too. The next line computes the least common multiple from it.
        let shared = (1 << slot.trailing_zeros()).min(PAGE);
        Self { slot, block: slot * (PAGE / shared) }
    }

    /// Returns the sizes for a ring that receives the frames of an interface with this MTU.
    fn for_mtu(mtu: u32) -> Self {
        /// The most bytes before a frame in its slot: the kernel's header, an address and padding.
        const BEFORE_FRAME: u32 = 80;
        // A block must be a whole number of slots and of pages. If the slot size is a multiple of 256 bytes,
        // 16 slots always fill whole pages, because 16 * 256 bytes are a page. Fewer slots may be enough.
        Self::of((mtu + BEFORE_FRAME + LINK_HEADERS).next_multiple_of(256).clamp(2048, LARGEST_SLOT))
    }

    /// Returns the smallest number of slots that fills whole blocks and is at least `count`.
    fn count(self, count: u16) -> u32 {
        u32::from(count).next_multiple_of(self.block / self.slot)
    }

    /// Returns the data room that the AF_PACKET driver needs in each buffer: the slot size of the packet
    /// socket's ring, minus the kernel's header.
    pub(super) fn required_room(self) -> u32 {
        const HEADER: u32 = 32;
        self.slot - HEADER
    }

    /// Returns the length of the longest frame that fits into a slot of the ring. With TPACKET_V2, the first
    /// 66 bytes of a slot hold the kernel's header, an address, and padding (`tpacket_rcv` in Linux's
    /// `net/packet/af_packet.c`).
    pub(super) fn longest_frame(self) -> u32 {
        const FRAME_OFFSET: u32 = 66;
        self.slot - FRAME_OFFSET
    }
}

pub(super) fn af_packet(
    spec: &EthSpec,
    interface: &str,
    queues: u16,
    frame: Option<u32>,
    bypass: bool,
) -> Result<Plan> {
    let found = find(spec, interface)?;
    need(spec, &[Capability::NetRaw], "open packet sockets")?;
    // DPDK's driver sets the interface's address and promiscuous mode when the port starts.
    need(spec, &[Capability::NetAdmin], "change network interfaces")?;
    let slots = match frame {
        Some(bytes) => RingSizes::of(bytes),
        None => RingSizes::for_mtu(spec.mtu.map_or(found.mtu(), u32::from)),
    };
    let arguments = format!(
        "iface={interface},qpairs={queues},blocksz={},framesz={},framecnt={},qdisc_bypass={}",
        slots.block,
        slots.slot,
        slots.count(spec.descriptors.unwrap_or(1024)),
        u8::from(bypass)
    );
    Ok(Plan { interface: Some(found), slots: Some(slots), ..Plan::new("net_af_packet", arguments) })
}

pub(super) fn af_xdp(spec: &EthSpec, interface: &str, queue: u16, busy: u32, copy: bool) -> Result<Plan> {
    let found = find(spec, interface)?;
    need(spec, &[Capability::NetAdmin, Capability::NetRaw], "open AF_XDP sockets")?;
    if !Capability::Bpf.is_held() && !Capability::SysAdmin.is_held() {
        return Err(refused(spec, "load an XDP program"));
    }
    let existing = found.queues();
    if queue >= existing.receive {
        let queues = match existing.receive {
            1 => "only queue 0; leave queue= out".into(),
            count => format!("queues 0 to {}; give one of them", count - 1),
        };
        let why = format!("queue={queue}: {interface} has {queues} (ethtool -l {interface})");
        return Err(Error::Spec { spec: spec.text.clone(), why });
    }
    // One DPDK device serves `queue` and all later pairs of a receive and a transmit queue. DPDK's driver
    // counts only pairs. A receive queue without a transmit queue needs a device of its own, and `xdp_queues`
    // combines these devices.
    let queues = existing.pairs.saturating_sub(queue).max(1);
    remove_limit_of_locked_memory();
    let program = Program::attach(&found).map_err(|refusal| no_program(spec, interface, refusal))?;
    let mut arguments =
        format!("iface={interface},start_queue={queue},queue_count={queues},busy_budget={busy}");
    if copy {
        arguments += ",force_copy=1";
    }
    Ok(Plan { interface: Some(found), program: Some(program), ..Plan::new("net_af_xdp", arguments) })
}

/// Returns the error for an interface on which inlane's XDP program could not be attached or shared.
fn no_program(spec: &EthSpec, interface: &str, refusal: Refusal) -> Error {
    let port = spec.text.clone();
    match refusal {
        Refusal::Taken { program, name } => {
            let name = if name.is_empty() { name } else { format!(", {name}") };
            Error::Unavailable {
                port,
                why: format!(
                    "{interface} has an XDP program of another application (number {program}{name})"
                ),
                remedy: format!(
                    "stop that application, or remove the program: ip link set dev {interface} xdp off; or use af_packet:{interface}"
                ),
            }
        }
        Refusal::NotShared => Error::Unavailable {
            port,
            why: format!("{interface} has an XDP program of another process, which only root may share"),
            remedy: format!("run both as root, end the other process, or use af_packet:{interface}"),
        },
        Refusal::Failed(error) => {
            let why = match error.raw_os_error() {
                Some(libc::ERANGE | libc::EMSGSIZE | libc::E2BIG) => format!(
                    "{error}; the MTU is too large for XDP: lower it at both ends (ip link set {interface} mtu 1500)"
                ),
                Some(libc::ENOSPC) => format!(
                    "{error}; if {interface} is a veth, its peer sends from more queues than {interface} receives on: \
                     'ethtool -L PEER tx N' with the N of 'ethtool -l {interface}'"
                ),
                Some(libc::EINVAL) => format!("{error}; AF_XDP ports need Linux 5.9 or newer"),
                Some(libc::EOPNOTSUPP) => {
                    format!("{error}: this kind of interface takes no XDP program; use af_packet:{interface}")
                }
                _ => error.to_string(),
            };
            Error::Device { port, doing: format!("attaching an XDP program to {interface}"), why }
        }
    }
}

pub(super) fn tap(spec: &EthSpec, interface: &str, fixed_mac: bool) -> Result<Plan> {
    if interface::exists(interface) {
        return Err(Error::Busy {
            port: spec.text.clone(),
            what: format!("the name {interface}"),
            // An existing tap may be left over from an earlier run, so suggest removing it. Never suggest
            // this for other interfaces.
            remedy: match Path::new("/sys/class/net").join(interface).join("tun_flags").exists() {
                true => format!("choose another, or remove that tap: ip link delete {interface}"),
                false => "choose another".into(),
            },
        });
    }
    need(spec, &[Capability::NetAdmin], "make a network interface")?;
    if let Err(error) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun") {
        return Err(Error::Unavailable {
            port: spec.text.clone(),
            why: format!("cannot open /dev/net/tun: {error}"),
            remedy: "load the driver: modprobe tun".into(),
        });
    }
    let mac = if fixed_mac { ",mac=fixed" } else { "" };
    Ok(Plan::new("net_tap", format!("iface={interface}{mac}")))
}

fn find(spec: &EthSpec, name: &str) -> Result<Interface> {
    let found = Interface::find(name).map_err(|error| Error::Missing {
        port: spec.text.clone(),
        what: match error.raw_os_error() {
            Some(libc::ENODEV) => format!("interface {name}"),
            _ => format!("interface {name} ({error})"),
        },
        remedy: "list the interfaces of this network namespace: ip link".into(),
    })?;
    if !found.is_up() {
        tracing::warn!(
            "port {}: interface {name} is down and carries no packets; bring it up: ip link set {name} up",
            spec.text
        );
    }
    Ok(found)
}

fn need(spec: &EthSpec, capabilities: &[Capability], doing: &str) -> Result<()> {
    if capabilities.iter().all(|capability| capability.is_held()) {
        return Ok(());
    }
    Err(refused(spec, doing))
}

/// Returns what to do if the kernel refused an AF_XDP socket's packet memory. `None` if this process has no
/// limit on locked memory.
pub(super) fn advice_on_locked_memory() -> Option<String> {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the structure is written during the call.
    unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    if limit.rlim_cur == libc::RLIM_INFINITY || Capability::IpcLock.is_held() {
        return None;
    }
    let bytes = inlane_core::units::bytes(limit.rlim_cur);
    let command = privileges::setcap(&program());
    Some(format!(
        "; the packet buffers may exceed the limit on locked memory, {bytes}: raise it (ulimit -l), or give the program \
         the capabilities that ports need: {command}"
    ))
}

/// Returns the path of this program's file.
fn program() -> PathBuf {
    std::env::current_exe().unwrap_or("inlane".into())
}

fn refused(spec: &EthSpec, doing: &str) -> Error {
    Error::Permission {
        port: spec.text.clone(),
        doing: doing.into(),
        command: privileges::setcap(&program()),
    }
}

/// Removes the limit on locked memory, against which older kernels count a socket's packet memory. Ignores a
/// refusal, because newer kernels do not use the limit.
fn remove_limit_of_locked_memory() {
    let limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the structure is read during the call.
    unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_hold_whole_slots_and_whole_pages() {
        for bytes in 256..=LARGEST_SLOT {
            let slots = RingSizes::of(bytes);
            assert!(slots.slot >= bytes && slots.slot < bytes + SLOT_ALIGNMENT);
            assert!(slots.block.is_multiple_of(slots.slot) && slots.block.is_multiple_of(PAGE), "{slots:?}");
            assert!(slots.count(16) >= 16 && (slots.slot * slots.count(16)).is_multiple_of(slots.block));
        }
    }

    #[test]
    fn every_mtu_gets_slots_that_hold_its_frames() {
        for mtu in 68..=65_535 {
            let slots = RingSizes::for_mtu(mtu);
            assert!(slots.longest_frame() >= mtu + LINK_HEADERS, "{mtu}");
            assert!(slots.block <= 16 * slots.slot, "{mtu}");
        }
    }
}
