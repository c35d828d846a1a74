//! What the kernel says of a network interface: there or not, its MTU and queues, whether it is still the same one; and
//! which capabilities this process has.

use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

/// How many queues an interface has: 1 where it says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Queues {
    /// That receive, alone or paired with one that sends.
    pub(crate) receive: u16,
    /// Of these, pairs, as DPDK's AF_XDP driver counts them.
    pub(crate) pairs: u16,
}

/// A kernel interface that a port uses, in the network namespace where the port was opened.
#[derive(Debug)]
pub(crate) struct Interface {
    name: String,
    index: u32,
    /// Asks in the namespace of the opener, also from threads elsewhere and after privileges are dropped.
    socket: OwnedFd,
    /// The driver's descriptor behind a tap interface, which follows it into other namespaces.
    tap: Option<RawFd>,
}

impl Interface {
    /// Finds it by name.
    pub(crate) fn find(name: &str) -> std::io::Result<Self> {
        let c_name = CString::new(name)?;
        // SAFETY: a terminated string.
        let index = unsafe { libc::if_nametoindex(c_name.as_ptr()) };
        if index == 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: just opened, owned by nobody else.
        Ok(Self { name: name.to_owned(), index, socket: unsafe { OwnedFd::from_raw_fd(fd) }, tap: None })
    }

    /// Finds the tap interface that this process just made.
    pub(crate) fn find_own_tap(name: &str) -> std::io::Result<Self> {
        let descriptors = std::fs::read_dir("/proc/self/fd")?
            .flatten()
            .filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|path| path.ends_with("net/tun")))
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let tap = descriptors.into_iter().find(|&descriptor| tap_name(descriptor).as_deref() == Some(name));
        Ok(Self { tap, ..Self::find(name)? })
    }

    /// The interface is still there, whatever it is called now, and for a tap wherever it was moved.
    pub(crate) fn is_there(&self) -> bool {
        // SAFETY: all zero is an ifreq.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        request.ifr_ifru.ifru_ifindex = self.index as i32;
        // SAFETY: the request lives through the call, which fills in a name.
        let here = unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCGIFNAME as _, &mut request) == 0 };
        here || self.tap.is_some_and(|descriptor| tap_name(descriptor).is_some())
    }

    /// Largest payload of a frame.
    pub(crate) fn mtu(&self) -> u32 {
        // SAFETY: all zero is an ifreq.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        self.write_name(&mut request);
        // SAFETY: the request lives through the call, which fills in the MTU.
        let code = unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCGIFMTU as _, &mut request) };
        // SAFETY: the call filled this member in.
        if code == 0 { unsafe { request.ifr_ifru.ifru_mtu as u32 } } else { 1500 }
    }

    /// The kernel's number for it.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// Packets that the kernel dropped on their way out of it: for a tap interface, because the port was not read in time.
    /// 0 where that cannot be seen (it was moved to another namespace).
    pub(crate) fn dropped_on_sending(&self) -> u64 {
        let table = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
        let counters = table.lines().find_map(|line| {
            line.split_once(':').filter(|(name, _)| name.trim() == self.name).map(|(_, counters)| counters)
        });
        // Eight of receiving, then bytes, packets, errors, dropped of sending.
        counters.and_then(|all| all.split_whitespace().nth(11)?.parse().ok()).unwrap_or(0)
    }

    /// How many queues it has, as the kernel's ethtool interface says.
    pub(crate) fn queues(&self) -> Queues {
        /// `struct ethtool_channels` of `linux/ethtool.h`.
        #[repr(C)]
        #[derive(Default)]
        struct Channels {
            command: u32,
            most: [u32; 4],
            rx: u32,
            tx: u32,
            other: u32,
            combined: u32,
        }
        const GET_CHANNELS: u32 = 0x3c;
        const SIOCETHTOOL: libc::c_ulong = 0x8946;
        let mut channels = Channels { command: GET_CHANNELS, ..Channels::default() };
        // SAFETY: all zero is an ifreq.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        self.write_name(&mut request);
        request.ifr_ifru.ifru_data = (&raw mut channels).cast();
        // SAFETY: request and channels live through the call, which fills the latter in.
        let code = unsafe { libc::ioctl(self.socket.as_raw_fd(), SIOCETHTOOL as _, &mut request) };
        let count = |count: u32| if code == 0 { count.clamp(1, 1024) as u16 } else { 1 };
        Queues { receive: count(channels.rx.max(channels.combined)), pairs: count(channels.combined) }
    }

    fn write_name(&self, request: &mut libc::ifreq) {
        for (to, from) in request.ifr_name.iter_mut().zip(self.name.bytes().take(15)) {
            *to = from as libc::c_char;
        }
    }

    /// Link rate in bits a second of interfaces with a device under them; what virtual ones say is made up.
    pub(crate) fn link_bits_per_second(&self) -> Option<f64> {
        let folder = Path::new("/sys/class/net").join(&self.name);
        if !folder.join("device").exists() {
            return None;
        }
        let megabits: f64 = std::fs::read_to_string(folder.join("speed")).ok()?.trim().parse().ok()?;
        (megabits > 0.0).then_some(megabits * 1e6)
    }
}

/// The interface that a descriptor of `/dev/net/tun` is attached to, if it still is.
fn tap_name(descriptor: RawFd) -> Option<String> {
    const TUNGETIFF: libc::c_ulong = 0x8004_54d2;
    // SAFETY: all zero is an ifreq, and ends its name.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // SAFETY: the request lives through the call, which fills in a name; other descriptors refuse it.
    if unsafe { libc::ioctl(descriptor, TUNGETIFF as _, &mut request) } != 0 {
        return None;
    }
    let name: Vec<u8> = request.ifr_name.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
    String::from_utf8(name).ok()
}

/// True when an interface of this name exists in this thread's namespace.
pub(crate) fn exists(name: &str) -> bool {
    // SAFETY: a terminated string.
    CString::new(name).is_ok_and(|name| unsafe { libc::if_nametoindex(name.as_ptr()) } != 0)
}

/// A capability by its bit in the kernel's sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Capability {
    NetAdmin = 12,
    NetRaw = 13,
    SysAdmin = 21,
    Bpf = 39,
}

impl Capability {
    /// This thread has it in effect.
    pub(crate) fn is_held(self) -> bool {
        effective_capabilities() & (1 << self as u32) != 0
    }
}

/// The effective set of the calling thread.
pub(crate) fn effective_capabilities() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    set.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0)
}

/// A PCI device of the network controllers' class.
pub(crate) fn is_network_card(address: &str) -> bool {
    let class = Path::new("/sys/bus/pci/devices").join(address).join("class");
    std::fs::read_to_string(class).is_ok_and(|class| class.starts_with("0x02"))
}

/// The kernel driver that a PCI device is bound to; `None` when the device is not there, empty when it has no driver.
pub(crate) fn pci_driver(address: &str) -> Option<String> {
    let device = Path::new("/sys/bus/pci/devices").join(address);
    if !device.exists() {
        return None;
    }
    let driver = std::fs::read_link(device.join("driver")).ok();
    Some(driver.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned())).unwrap_or_default())
}
