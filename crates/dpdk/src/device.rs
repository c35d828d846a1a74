//! From a port specification to a DPDK device: what must be there first, what the driver is told, what a refusal means.

use crate::endpoint::OPENED;
use crate::error::{Error, Result};
use crate::interface::{self, Capability, Interface};
use crate::oversize::{self, Oversize};
use crate::spec::{Kind, Spec};
use crate::{drops, log, sys};
use std::ffi::{CStr, CString};
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A device that DPDK attached.
pub(crate) struct Device {
    /// DPDK's port number.
    pub(crate) port: u16,
    /// The bus it hangs on and its name there, to detach it.
    pub(crate) bus: &'static CStr,
    pub(crate) name: CString,
    /// What carries packets, for results.
    pub(crate) path: String,
    /// The kernel interface under it.
    pub(crate) interface: Option<Interface>,
    /// Bytes that each buffer must have room for, where the driver insists.
    pub(crate) slot: Option<u32>,
    /// The packet sockets that the driver opened, and who counts what does not fit their slots.
    pub(crate) rings: Vec<RawFd>,
    pub(crate) oversize: Option<Oversize>,
}

/// Held for every call that sets a device up or takes it down: drivers keep lists of their devices without a lock.
pub(crate) fn control() -> MutexGuard<'static, ()> {
    static CONTROL: Mutex<()> = Mutex::new(());
    CONTROL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Checks what can be checked, and attaches the device.
pub(crate) fn attach(spec: &Spec) -> Result<Device> {
    let number = OPENED.fetch_add(1, Ordering::Relaxed);
    let vdev = |driver: &str, arguments: String| {
        (c"vdev", format!("{driver}{number}"), arguments, driver.to_owned())
    };
    let (mut kernel_interface, mut slot, mut longest) = (None, None, None);
    let (bus, name, arguments, driver) = match &spec.kind {
        Kind::Null { size, copy } => vdev("net_null", format!("size={size},copy={}", u8::from(*copy))),
        Kind::Ring { .. } => vdev("net_ring", String::new()),
        Kind::AfXdp { interface, queue, busy, copy } => {
            let found = find(spec, interface)?;
            need(spec, &[Capability::NetAdmin, Capability::NetRaw], "cap_net_admin,cap_net_raw,cap_bpf+ep")?;
            if !Capability::Bpf.is_held() && !Capability::SysAdmin.is_held() {
                return Err(refused(spec, "load an XDP program", "cap_net_admin,cap_net_raw,cap_bpf+ep"));
            }
            let queue = queue.unwrap_or(0);
            let there = found.queues();
            if queue >= there.receive {
                let last = there.receive - 1;
                let why =
                    format!("queue={queue}: {interface} has queues 0 to {last} (ethtool -l {interface})");
                return Err(Error::Spec { spec: spec.text.clone(), why });
            }
            // Where queues are no pairs the driver takes one alone: `joined` puts several devices together.
            let queues = there.pairs.saturating_sub(queue).max(1);
            kernel_interface = Some(found);
            unlimited_locked_memory();
            let mut arguments =
                format!("iface={interface},start_queue={queue},queue_count={queues},busy_budget={busy}");
            if *copy {
                arguments += ",force_copy=1";
            }
            vdev("net_af_xdp", arguments)
        }
        Kind::AfPacket { interface, queues, frame, bypass } => {
            let found = find(spec, interface)?;
            need(spec, &[Capability::NetRaw], "cap_net_raw+ep")?;
            let frame = frame.unwrap_or_else(|| frame_for(spec.mtu.map_or(found.mtu(), u32::from)));
            kernel_interface = Some(found);
            slot = Some(room_of_slot(frame));
            longest = Some(oversize::longest(frame));
            // Whole slots in a block, whole pages of it.
            let block = frame.next_multiple_of(4096);
            vdev(
                "net_af_packet",
                format!(
                    "iface={interface},qpairs={},blocksz={block},framesz={frame},framecnt={},qdisc_bypass={}",
                    queues.unwrap_or(1),
                    u32::from(spec.descriptors.unwrap_or(1024)).next_multiple_of(block / frame),
                    u8::from(*bypass)
                ),
            )
        }
        Kind::Tap { interface, fixed_mac } => {
            if interface::exists(interface) {
                return Err(Error::Busy {
                    port: spec.text.clone(),
                    what: format!("the name {interface}"),
                    remedy: format!("choose another, or remove it: ip link delete {interface}"),
                });
            }
            need(spec, &[Capability::NetAdmin], "cap_net_admin+ep")?;
            if let Err(error) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun") {
                return Err(Error::Missing {
                    port: spec.text.clone(),
                    what: format!("/dev/net/tun ({error})"),
                    remedy: "load the driver: modprobe tun".into(),
                });
            }
            let mac = if *fixed_mac { ",mac=fixed" } else { "" };
            vdev("net_tap", format!("iface={interface}{mac}"))
        }
        Kind::Memif { socket, server, id, secret, .. } => {
            memif_socket(spec, socket, *server)?;
            let role = if *server { "server" } else { "client" };
            // A path that does not begin with '@' is a file; the driver takes abstract names by default.
            let mut arguments = format!("role={role},id={id},socket={socket},socket-abstract=no");
            arguments += &format!(",bsize={}", memif_buffer(spec));
            if let Some(secret) = secret {
                arguments += &format!(",secret={secret}");
            }
            vdev("net_memif", arguments)
        }
        Kind::Pci { address } => {
            pci_ready(spec, address)?;
            (c"pci", address.clone(), String::new(), "PCI".to_owned())
        }
    };
    let c_string = |text: String| {
        CString::new(text)
            .map_err(|_| Error::Spec { spec: spec.text.clone(), why: "it holds a zero byte".into() })
    };
    let (name, arguments) = (c_string(name)?, c_string(arguments)?);
    let mark = log::Mark::new();
    let _alone = control();
    let others = kernel_interface.as_ref().map(drops::packet_sockets).unwrap_or_default();
    // SAFETY: terminated strings, read during the call; the environment is up.
    let code = unsafe { sys::rte_eal_hotplug_add(bus.as_ptr(), name.as_ptr(), arguments.as_ptr()) };
    if code != 0 {
        return Err(failed(spec, "attaching the device", code, &mark));
    }
    let mut port = 0;
    // SAFETY: as above; the number is written.
    let code = unsafe { sys::rte_eth_dev_get_port_by_name(name.as_ptr(), &mut port) };
    if code != 0 {
        let error = failed(spec, "finding the device's port", code, &mark);
        // SAFETY: attached above.
        unsafe { sys::rte_eal_hotplug_remove(bus.as_ptr(), name.as_ptr()) };
        return Err(error);
    }
    if let Kind::Tap { interface, .. } = &spec.kind {
        kernel_interface = Interface::find_own_tap(interface).ok();
    }
    let path = match &kernel_interface {
        Some(_) => format!("DPDK {driver} on {}", spec.text.split([':', ',']).nth(1).unwrap_or_default()),
        None => format!("DPDK {driver}"),
    };
    let (mut rings, mut oversize) = (Vec::new(), None);
    if let (Some(interface), Some(longest)) = (&kernel_interface, longest) {
        rings = drops::packet_sockets(interface);
        rings.retain(|ring| !others.contains(ring));
        match Oversize::refuse(interface, &rings, longest) {
            Ok(counter) => oversize = Some(counter),
            Err(error) => {
                // SAFETY: attached above.
                unsafe { sys::rte_eal_hotplug_remove(bus.as_ptr(), name.as_ptr()) };
                return Err(Error::Device {
                    port: spec.text.clone(),
                    doing: "refusing frames that do not fit a slot".into(),
                    why: error.to_string(),
                });
            }
        }
    }
    Ok(Device { port, bus, name, path, interface: kernel_interface, slot, rings, oversize })
}

/// Stops, closes and takes a device off its bus, after which no buffer is in its driver's hands. `closed` runs when the device
/// touches memory no more and is still there.
pub(crate) fn close(device: &Device, started: bool, closed: impl FnOnce()) {
    let _alone = control();
    // SAFETY: the port is valid, and its ends are out of the driver.
    unsafe {
        if started {
            sys::rte_eth_dev_stop(device.port);
        }
        sys::rte_eth_dev_close(device.port);
    }
    closed();
    // SAFETY: terminated strings; DPDK refuses what it does not know.
    unsafe { sys::rte_eal_hotplug_remove(device.bus.as_ptr(), device.name.as_ptr()) };
}

/// Takes a device off its bus that was never used.
pub(crate) fn detach(bus: &CStr, name: &CStr) {
    let _alone = control();
    // SAFETY: terminated strings; DPDK refuses what it does not know.
    unsafe { sys::rte_eal_hotplug_remove(bus.as_ptr(), name.as_ptr()) };
}

/// A refusal of DPDK, in words.
pub(crate) fn failed(spec: &Spec, doing: &str, code: i32, mark: &log::Mark) -> Error {
    let port = spec.text.clone();
    let code = if code == -1 { -sys::last_error() } else { code };
    // The driver of AF_XDP loses the kernel's code: a queue that another socket has is by far the commonest reason.
    let taken =
        matches!(spec.kind, Kind::AfXdp { .. }) && mark.since().contains("Failed to create xsk socket");
    match code {
        _ if code == -libc::EBUSY || taken => Error::Busy {
            port,
            what: mark.explain(format!("the device ({doing})")),
            remedy: "stop the program that holds it (ip link shows an XDP program, ss --xdp the sockets)"
                .into(),
        },
        0 => Error::Device { port, doing: doing.into(), why: mark.explain("the driver refused") },
        _ => Error::Device { port, doing: doing.into(), why: mark.explain(sys::error_text(code)) },
    }
}

fn find(spec: &Spec, name: &str) -> Result<Interface> {
    Interface::find(name).map_err(|error| Error::Missing {
        port: spec.text.clone(),
        what: format!("interface {name} ({error})"),
        remedy: "ip link lists those of this network namespace".into(),
    })
}

fn need(spec: &Spec, capabilities: &[Capability], list: &'static str) -> Result<()> {
    if capabilities.iter().all(|capability| capability.is_held()) {
        return Ok(());
    }
    let doing = match spec.kind {
        Kind::Tap { .. } => "make a network interface",
        _ => "open sockets for raw packets",
    };
    Err(refused(spec, doing, list))
}

fn refused(spec: &Spec, doing: &str, capabilities: &'static str) -> Error {
    let program = std::env::current_exe().map(|path| path.display().to_string()).unwrap_or("inlane".into());
    Error::Permission {
        port: spec.text.clone(),
        doing: doing.into(),
        capabilities,
        command: format!("setcap {capabilities} {program}"),
    }
}

/// Of Ethernet, with a VLAN tag.
pub(crate) const LINK_HEADERS: u32 = 18;

/// Bytes of memif's shared buffers, for which the client's word counts. Larger frames go in pieces, of which DPDK's driver
/// loses some.
pub(crate) fn memif_buffer(spec: &Spec) -> u32 {
    spec.mtu.map_or(0, |mtu| u32::from(mtu) + LINK_HEADERS).next_multiple_of(64).max(2048)
}

/// A slot of a packet socket's ring: the kernel's header, link header with a VLAN tag, payload.
fn frame_for(mtu: u32) -> u32 {
    const HEADER_AND_LINK: u32 = 80 + 18;
    (mtu + HEADER_AND_LINK).next_multiple_of(64).clamp(2048, 1 << 17)
}

/// The largest frame that a packet socket's slot of `frame` bytes holds: it is what the driver wants room for.
fn room_of_slot(frame: u32) -> u32 {
    const HEADER: u32 = 32;
    frame - HEADER
}

/// Registered packet memory counts against this limit on older kernels; only a wish.
fn unlimited_locked_memory() {
    let limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the structure is read during the call.
    unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) };
}

/// The directory is there; as server, no other listens. A socket left by a program that died is removed.
fn memif_socket(spec: &Spec, socket: &str, server: bool) -> Result<()> {
    use rustix::fs::Access;
    use std::os::unix::fs::FileTypeExt;
    let path = std::path::Path::new(socket);
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if directory.is_some_and(|directory| !directory.is_dir()) {
        return Err(Error::Missing {
            port: spec.text.clone(),
            what: format!("the directory of {socket}"),
            remedy: "make it first".into(),
        });
    }
    let directory = directory.unwrap_or(std::path::Path::new("."));
    // DPDK's driver asks for that at both ends.
    if rustix::fs::access(directory, Access::READ_OK | Access::WRITE_OK).is_err() {
        let why = format!("this user may not write to {}; name a socket elsewhere", directory.display());
        return Err(Error::Spec { spec: spec.text.clone(), why });
    }
    let Ok(metadata) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        return Err(Error::Spec {
            spec: spec.text.clone(),
            why: format!("{socket} is there and is no socket"),
        });
    }
    if server && std::os::unix::net::UnixStream::connect(path).is_err() {
        // Nobody listens behind it (memif's sockets are of another type, for which connecting fails otherwise).
        if !memif_listens(path) {
            let _ = std::fs::remove_file(path);
        }
    }
    Ok(())
}

/// Someone accepts connections on a memif control socket (SOCK_SEQPACKET).
fn memif_listens(path: &std::path::Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return true;
    }
    // SAFETY: all zero is a sockaddr_un.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, &from) in address.sun_path.iter_mut().zip(path.as_os_str().as_bytes().iter().take(107)) {
        *to = from as libc::c_char;
    }
    let length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: the address lives through the call; the socket is ours and closed after.
    unsafe {
        let connected = libc::connect(fd, (&raw const address).cast(), length) == 0;
        libc::close(fd);
        connected
    }
}

/// The device is there, and bound to a driver that leaves it to user space.
fn pci_ready(spec: &Spec, address: &str) -> Result<()> {
    match interface::pci_driver(address).as_deref() {
        Some(_) if !interface::is_network_card(address) => Err(Error::Spec {
            spec: spec.text.clone(),
            why: format!("{address} is no network card; lspci -D | grep -i net lists those that are there"),
        }),
        None => Err(Error::Missing {
            port: spec.text.clone(),
            what: format!("PCI device {address}"),
            remedy: "lspci -D lists those that are there".into(),
        }),
        Some("vfio-pci" | "uio_pci_generic" | "igb_uio") => Ok(()),
        Some("") => Err(Error::Device {
            port: spec.text.clone(),
            doing: "opening the card".into(),
            why: format!("no driver is bound to it; run: dpdk-devbind.py --bind=vfio-pci {address}"),
        }),
        Some(driver) => Err(Error::Busy {
            port: spec.text.clone(),
            what: format!("the card: the kernel's driver {driver} has it, and it"),
            remedy: format!(
                "take it from the kernel, which loses its network there: dpdk-devbind.py --bind=vfio-pci {address}"
            ),
        }),
    }
}
