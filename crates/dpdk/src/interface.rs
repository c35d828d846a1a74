//! Network interfaces of the kernel: existence, MTU, queues and link rate. Also the kernel driver of a PCI
//! device.

use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

/// The numbers of queues of an interface; 1 if the driver does not report them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueCounts {
    /// The number of receive queues. The driver reports two numbers: receive-only queues, and pairs of
    /// queues. Most drivers report 0 for one of them. This is the larger number.
    pub(crate) receive: u16,
    /// The number of pairs of a receive and a transmit queue. DPDK's AF_XDP driver counts only pairs.
    pub(crate) pairs: u16,
}

/// A kernel interface that a port uses. It lies in the network namespace in which the port was opened.
#[derive(Debug)]
pub(crate) struct Interface {
    name: String,
    index: u32,
    /// The socket for ioctl(2) calls. The calls refer to the network namespace in which this socket was
    /// opened.
    socket: OwnedFd,
    /// DPDK's descriptor of a tap interface, or `None` for other interfaces. It is used to find an interface
    /// that was moved to another namespace.
    tap: Option<RawFd>,
}

impl Interface {
    /// Finds an interface by name in the calling thread's namespace.
    pub(crate) fn find(name: &str) -> std::io::Result<Self> {
        let c_name = CString::new(name)?;
        // SAFETY: the string is terminated.
        let index = unsafe { libc::if_nametoindex(c_name.as_ptr()) };
        if index == 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: the call gets no pointer.
        let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just opened, and no other code owns it.
        Ok(Self { name: name.to_owned(), index, socket: unsafe { OwnedFd::from_raw_fd(fd) }, tap: None })
    }

    /// Finds a tap interface that a driver in this process has created.
    pub(crate) fn find_own_tap(name: &str) -> std::io::Result<Self> {
        let descriptors = std::fs::read_dir("/proc/self/fd")?
            .flatten()
            .filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|path| path.ends_with("net/tun")))
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let tap = descriptors.into_iter().find(|&descriptor| tap_name(descriptor).as_deref() == Some(name));
        Ok(Self { tap, ..Self::find(name)? })
    }

    /// Returns true if the interface still exists, even if it was renamed. A tap interface is found even
    /// after a move to another network namespace, because this process holds the tap's descriptor.
    pub(crate) fn exists(&self) -> bool {
        // SAFETY: an all-zero ifreq is valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        request.ifr_ifru.ifru_ifindex = self.index as i32;
        // SAFETY: `request` outlives the call, which writes a name into it.
        let here = unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCGIFNAME as _, &mut request) == 0 };
        here || self.tap.is_some_and(|descriptor| tap_name(descriptor).is_some())
    }

    /// Returns true unless the interface is set down, for example by `ip link set NAME down`.
    pub(crate) fn is_up(&self) -> bool {
        // SAFETY: an all-zero ifreq is valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        self.write_name(&mut request);
        // SAFETY: the request outlives the call, which reads the name and writes the flags.
        unsafe {
            let code = libc::ioctl(self.socket.as_raw_fd(), libc::SIOCGIFFLAGS as _, &mut request);
            code != 0 || i32::from(request.ifr_ifru.ifru_flags) & libc::IFF_UP != 0
        }
    }

    /// Returns the MTU in bytes, 1500 if the kernel does not report it.
    pub(crate) fn mtu(&self) -> u32 {
        // SAFETY: an all-zero ifreq is valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        self.write_name(&mut request);
        // SAFETY: the request outlives the call, which fills in the MTU.
        let code = unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCGIFMTU as _, &mut request) };
        // SAFETY: the call filled this member in.
        if code == 0 { unsafe { request.ifr_ifru.ifru_mtu as u32 } } else { 1500 }
    }

    /// Makes the interface receive frames for every MAC address until the returned socket is closed. Leaves
    /// the administrator's flag (`ip link set promisc on`) unchanged.
    ///
    /// # Errors
    /// The system's error, for example without CAP_NET_RAW.
    pub(crate) fn make_promiscuous(&self) -> std::io::Result<OwnedFd> {
        // SAFETY: the call gets no pointer. Without a protocol the socket receives nothing.
        let descriptor = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if descriptor < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just opened, and no other code owns it.
        let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
        // SAFETY: an all-zero packet_mreq is valid.
        let mut request: libc::packet_mreq = unsafe { std::mem::zeroed() };
        request.mr_ifindex = self.index as i32;
        request.mr_type = libc::PACKET_MR_PROMISC as u16;
        let (level, option) = (libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP);
        let length = size_of_val(&request) as libc::socklen_t;
        // SAFETY: the request is read during the call.
        match unsafe { libc::setsockopt(descriptor, level, option, (&raw const request).cast(), length) } {
            0 => Ok(socket),
            _ => Err(std::io::Error::last_os_error()),
        }
    }

    /// Returns the name that the interface had when the port was opened.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the interface's index, by which the kernel identifies it.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// Returns how many packets the kernel dropped while it sent to the interface. On a tap, the port did not
    /// read them in time. Returns 0 if the interface was renamed or moved to another namespace.
    pub(crate) fn dropped_on_sending(&self) -> u64 {
        let table = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
        let counters = table.lines().find_map(|line| {
            line.split_once(':').filter(|(name, _)| name.trim() == self.name).map(|(_, counters)| counters)
        });
        // Take number 11 of the line: the packets dropped on sending. Numbers 0 to 7 are for receiving. Those
        // for sending follow: bytes (8), packets (9), errors (10), dropped (11).
        counters.and_then(|all| all.split_whitespace().nth(11)?.parse().ok()).unwrap_or(0)
    }

    /// Returns how many receive and transmit queues the interface has, as the kernel's ethtool interface
    /// reports them.
    pub(crate) fn queues(&self) -> QueueCounts {
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
        // SAFETY: an all-zero ifreq is valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        self.write_name(&mut request);
        request.ifr_ifru.ifru_data = (&raw mut channels).cast();
        // SAFETY: request and channels outlive the call, which fills in the channels.
        let code = unsafe { libc::ioctl(self.socket.as_raw_fd(), SIOCETHTOOL as _, &mut request) };
        let count = |count: u32| if code == 0 { count.clamp(1, 1024) as u16 } else { 1 };
        QueueCounts { receive: count(channels.rx.max(channels.combined)), pairs: count(channels.combined) }
    }

    fn write_name(&self, request: &mut libc::ifreq) {
        for (to, from) in request.ifr_name.iter_mut().zip(self.name.bytes().take(15)) {
            *to = from as libc::c_char;
        }
    }

    /// Returns the link rate in bits per second. `None` for virtual interfaces, which report invented rates.
    pub(crate) fn link_bits_per_second(&self) -> Option<f64> {
        let folder = Path::new("/sys/class/net").join(&self.name);
        if !folder.join("device").exists() {
            return None;
        }
        let megabits: f64 = std::fs::read_to_string(folder.join("speed")).ok()?.trim().parse().ok()?;
        (megabits > 0.0).then_some(megabits * 1e6)
    }
}

/// Returns the name of the tap interface of a descriptor of `/dev/net/tun`. `None` if the interface was
/// deleted.
fn tap_name(descriptor: RawFd) -> Option<String> {
    const TUNGETIFF: libc::c_ulong = 0x8004_54d2;
    // SAFETY: an all-zero ifreq is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // SAFETY: `request` outlives the call. The call writes a name into it, or fails if the descriptor has
    // another type.
    if unsafe { libc::ioctl(descriptor, TUNGETIFF as _, &mut request) } != 0 {
        return None;
    }
    let name: Vec<u8> = request.ifr_name.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
    String::from_utf8(name).ok()
}

/// Returns true if an interface of this name exists in the calling thread's namespace.
pub(crate) fn exists(name: &str) -> bool {
    // SAFETY: the string is terminated.
    CString::new(name).is_ok_and(|name| unsafe { libc::if_nametoindex(name.as_ptr()) } != 0)
}

/// Returns true if the PCI device is of the class of network controllers.
pub(crate) fn is_network_card(address: &str) -> bool {
    let class = Path::new("/sys/bus/pci/devices").join(address).join("class");
    std::fs::read_to_string(class).is_ok_and(|class| class.starts_with("0x02"))
}

/// Returns the kernel driver that a PCI device is bound to; empty if none. `None` if the device does not
/// exist.
pub(crate) fn pci_driver(address: &str) -> Option<String> {
    let device = Path::new("/sys/bus/pci/devices").join(address);
    if !device.exists() {
        return None;
    }
    let driver = std::fs::read_link(device.join("driver")).ok();
    Some(driver.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned())).unwrap_or_default())
}
