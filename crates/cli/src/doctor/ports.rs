//! What ports need: DPDK, AF_XDP, AF_PACKET, TUN, memif.

use super::check::{Check, Name};
use super::{Machine, rights};
use rustix::io::Errno;

pub fn dpdk(machine: &Machine) -> Check {
    let matters = "its drivers are the ports af_packet, af_xdp, tap, memif, ring, null and pci";
    Check::ok(Name::Dpdk, matters, format!("{}, part of this program", machine.trials.dpdk))
}

pub fn af_xdp(machine: &Machine) -> Check {
    let matters = "af_xdp ports share buffers with the network driver and skip the kernel's stack";
    let load = rights::can_load_bpf(machine);
    match machine.trials.af_xdp {
        Ok(()) if load => Check::ok(Name::AfXdp, matters, "a socket opens, and programs may be loaded"),
        Ok(()) => Check::ok(Name::AfXdp, matters, "a socket opens, but this process may not load programs")
            .degraded(rights::setcap(machine)),
        Err(Errno::AFNOSUPPORT) => Check::ok(Name::AfXdp, matters, "the kernel has no AF_XDP sockets")
            .missing(
                "use a kernel with CONFIG_XDP_SOCKETS=y (Debian's and Ubuntu's have it), or af_packet ports",
            ),
        Err(Errno::PERM | Errno::ACCESS) => {
            Check::ok(Name::AfXdp, matters, "the kernel has it; this process may not open a socket")
                .missing(rights::setcap(machine))
        }
        Err(error) => Check::ok(Name::AfXdp, matters, format!("no socket opens: {error}"))
            .missing("use af_packet ports"),
    }
}

pub fn af_packet(machine: &Machine) -> Check {
    let matters = "af_packet ports run on any network interface, through the kernel's stack";
    match machine.trials.af_packet {
        Ok(()) => Check::ok(Name::AfPacket, matters, "a socket opens"),
        Err(Errno::PERM | Errno::ACCESS) => {
            Check::ok(Name::AfPacket, matters, "this process may not open a socket")
                .missing(rights::setcap(machine))
        }
        Err(error) => Check::ok(Name::AfPacket, matters, format!("no socket opens: {error}"))
            .missing("use a kernel with CONFIG_PACKET=y"),
    }
}

pub fn tun(machine: &Machine) -> Check {
    let matters = "tap ports exchange packets with the kernel's own network stack";
    let check = |evidence: &str| Check::ok(Name::Tun, matters, evidence);
    match machine.trials.tun {
        Ok(()) if rights::has(machine, rights::NET_ADMIN) => check("/dev/net/tun opens"),
        Ok(()) => check("/dev/net/tun opens, but this process may not make interfaces")
            .degraded(rights::setcap(machine)),
        Err(Errno::NOENT | Errno::NXIO | Errno::NODEV) => check("no /dev/net/tun")
            .missing("sudo modprobe tun; in a container: start it with --device /dev/net/tun"),
        Err(Errno::PERM | Errno::ACCESS) => {
            check("/dev/net/tun may not be opened").missing("sudo chmod a+rw /dev/net/tun")
        }
        Err(error) => check(&format!("/dev/net/tun does not open: {error}")).missing("sudo modprobe tun"),
    }
}

pub fn memif(machine: &Machine) -> Check {
    let matters = "memif ports reach other DPDK programs and VPP through shared memory, without privileges";
    match machine.trials.memfd {
        Ok(()) => Check::ok(Name::Memif, matters, "memory can be shared by descriptor"),
        Err(error) => Check::ok(Name::Memif, matters, format!("memory cannot be shared: {error}"))
            .missing("use Linux 3.17 or newer, and a container whose seccomp profile allows memfd_create"),
    }
}
