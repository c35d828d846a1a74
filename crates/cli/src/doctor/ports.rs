//! Checks whether this machine and this build can open each kind of port: DPDK, AF_XDP, packet sockets, TUN,
//! memif.

use super::check::{Check, Name};
use super::{Machine, rights};
use rustix::io::Errno;

/// The first Linux release that can attach an XDP program by a BPF link, as af_xdp ports do. If a program is
/// attached by a link, the kernel removes it when the process ends.
const LINKS_SINCE: (u32, u32) = (5, 9);

pub fn dpdk(machine: &Machine) -> Check {
    let matters = "its drivers are the ports af_packet, af_xdp, tap, memif, ring, net_null and pci";
    match &machine.trials.dpdk {
        Some(release) => Check::ok(Name::Dpdk, matters, format!("{release}, linked into this program")),
        None => Check::ok(Name::Dpdk, matters, "this program was built without the cargo feature dpdk")
            .missing("cargo build --release -p inlane --features dpdk"),
    }
}

pub fn af_xdp(machine: &Machine) -> Check {
    let matters = "af_xdp ports share buffers with the network driver and bypass the kernel's stack";
    let check = |evidence: String| Check::ok(Name::AfXdp, matters, evidence);
    if let Some(kernel) = kernel_before(machine, LINKS_SINCE) {
        return check(format!("Linux {kernel} cannot attach an XDP program by a BPF link"))
            .missing("use Linux 5.9 or newer, or af_packet ports");
    }
    match machine.trials.af_xdp {
        Ok(()) if rights::can_load_bpf(machine) => {
            check("sockets open, and XDP programs can be loaded".into())
        }
        Ok(()) => check("sockets open, but this process may not load XDP programs".into())
            .degraded(rights::setcap(machine)),
        Err(Errno::AFNOSUPPORT) => check("the kernel has no AF_XDP sockets".into())
            .missing("use a kernel with CONFIG_XDP_SOCKETS=y, as Debian's and Ubuntu's, or af_packet ports"),
        Err(Errno::PERM | Errno::ACCESS) => {
            check("this process may not open AF_XDP sockets".into()).missing(rights::setcap(machine))
        }
        Err(error) => check(format!("AF_XDP sockets do not open: {error}")).missing("use af_packet ports"),
    }
}

/// Returns the kernel's release if it is older than `version`, else `None`.
fn kernel_before(machine: &Machine, version: (u32, u32)) -> Option<String> {
    let release = machine.files.text("/proc/sys/kernel/osrelease")?;
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse().ok());
    let found = (numbers.next()?, numbers.next()?);
    (found < version).then_some(release)
}

pub fn af_packet(machine: &Machine) -> Check {
    let matters = "af_packet ports work on every network interface, through the kernel's stack";
    match machine.trials.af_packet {
        Ok(()) if rights::has(machine, rights::NET_ADMIN) => {
            Check::ok(Name::AfPacket, matters, "packet sockets open")
        }
        Ok(()) => Check::ok(
            Name::AfPacket,
            matters,
            "packet sockets open, but this process may not change network interfaces",
        )
        .degraded(rights::setcap(machine)),
        Err(Errno::PERM | Errno::ACCESS) => {
            Check::ok(Name::AfPacket, matters, "this process may not open packet sockets")
                .missing(rights::setcap(machine))
        }
        Err(error) => Check::ok(Name::AfPacket, matters, format!("packet sockets do not open: {error}"))
            .missing("use a kernel with CONFIG_PACKET=y"),
    }
}

pub fn tun(machine: &Machine) -> Check {
    let matters = "tap ports exchange packets with the kernel's own network stack";
    let check = |evidence: &str| Check::ok(Name::Tun, matters, evidence);
    match machine.trials.tun {
        Ok(()) if rights::has(machine, rights::NET_ADMIN) => check("/dev/net/tun opens"),
        Ok(()) => check("/dev/net/tun opens, but this process may not create interfaces")
            .degraded(rights::setcap(machine)),
        Err(Errno::NOENT | Errno::NXIO | Errno::NODEV) => check("/dev/net/tun does not exist")
            .missing("sudo modprobe tun; start a container with --device /dev/net/tun"),
        Err(Errno::PERM | Errno::ACCESS) => {
            check("this process may not open /dev/net/tun").missing("sudo chmod a+rw /dev/net/tun")
        }
        Err(error) => check(&format!("/dev/net/tun does not open: {error}")).missing("sudo modprobe tun"),
    }
}

pub fn memif(machine: &Machine) -> Check {
    let matters = "memif ports exchange packets with other DPDK programs and VPP through shared memory, without privileges";
    match machine.trials.memfd {
        Ok(()) => Check::ok(Name::Memif, matters, "memory can be shared by file descriptor"),
        Err(error) => {
            Check::ok(Name::Memif, matters, format!("memory cannot be shared by file descriptor: {error}"))
                .missing(
                    "use Linux 3.17 or newer; in a container, a seccomp profile that allows memfd_create",
                )
        }
    }
}
