//! Finds properties of the machine that only a system call reveals. Tries each call once. Closes all files
//! and sockets that a call opened.

use crate::devices;
use inlane_process::cgroup::CpuQuota;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::path::PathBuf;

/// The outcomes of the system calls that `inlane doctor` tries. Also facts about this program and its
/// libraries.
pub struct Trials {
    /// The outcome of opening a socket of the family AF_XDP.
    pub af_xdp: Result<(), Errno>,
    /// The outcome of opening a socket of the family AF_PACKET.
    pub af_packet: Result<(), Errno>,
    /// The outcome of opening `/dev/net/tun`.
    pub tun: Result<(), Errno>,
    /// The outcome of creating a memory file (memfd). memif shares packet buffers by such files.
    pub memfd: Result<(), Errno>,
    /// The outcome of opening `/dev/kvm`.
    pub kvm: Result<(), Errno>,
    /// The quota of processor time of this process. `None` if there is none.
    pub quota: Option<CpuQuota>,
    /// The release of the DPDK library in this program. `None` if the program is built without DPDK.
    pub dpdk: Option<String>,
    /// The path of this program's executable file.
    pub program: PathBuf,
    /// The directories in `PATH`.
    pub programs: Vec<PathBuf>,
    /// Returns the GPUs that the CUDA driver reports. This is a function pointer, because starting the driver
    /// takes long and only one check needs it.
    pub gpus: fn() -> Result<Vec<String>, String>,
    /// Returns the version and the file of NVRTC. A run that compiles packet functions finds the same file.
    pub nvrtc: fn() -> Result<(String, PathBuf), String>,
}

impl Trials {
    /// Tries each system call once on this machine and returns the outcomes.
    pub fn run() -> Self {
        Self {
            af_xdp: socket(AddressFamily::XDP),
            af_packet: socket(AddressFamily::PACKET),
            tun: open("/dev/net/tun"),
            memfd: rustix::fs::memfd_create("inlane-doctor", rustix::fs::MemfdFlags::CLOEXEC).map(drop),
            kvm: open("/dev/kvm"),
            quota: CpuQuota::of_this_process(),
            dpdk: devices::dpdk_version(),
            program: std::env::current_exe().unwrap_or_else(|_| "inlane".into()),
            programs: std::env::var_os("PATH")
                .map(|paths| std::env::split_paths(&paths).collect())
                .unwrap_or_default(),
            gpus: devices::describe_gpus,
            nvrtc: devices::nvrtc,
        }
    }
}

fn socket(family: AddressFamily) -> Result<(), Errno> {
    socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, None).map(drop)
}

fn open(path: &str) -> Result<(), Errno> {
    use rustix::fs::{Mode, OFlags};
    rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty()).map(drop)
}
