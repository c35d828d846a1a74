//! What only a system call tells: each thing is tried once, harmlessly, and closed again.

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::path::PathBuf;

/// What was tried, and how it ended.
pub struct Trials {
    /// A socket of the family AF_XDP.
    pub af_xdp: Result<(), Errno>,
    /// A socket of the family AF_PACKET.
    pub af_packet: Result<(), Errno>,
    /// `/dev/net/tun`, opened.
    pub tun: Result<(), Errno>,
    /// A memory file, as memif shares.
    pub memfd: Result<(), Errno>,
    /// `/dev/kvm`, opened.
    pub kvm: Result<(), Errno>,
    /// DPDK's release: its drivers are part of this program.
    pub dpdk: String,
    /// This program's own file.
    pub program: PathBuf,
    /// Where programs lie (`PATH`).
    pub programs: Vec<PathBuf>,
    /// The GPUs that the CUDA driver shows. Asked only for the check that needs it: starting the driver takes a while.
    pub gpus: fn() -> Result<Vec<String>, String>,
    /// NVRTC's version and file, found and loaded as packet functions' compilation will.
    pub nvrtc: fn() -> Result<(String, PathBuf), String>,
}

impl Trials {
    /// Tries everything on this machine.
    pub fn run() -> Self {
        Self {
            af_xdp: socket(AddressFamily::XDP),
            af_packet: socket(AddressFamily::PACKET),
            tun: open("/dev/net/tun"),
            memfd: rustix::fs::memfd_create("inlane-doctor", rustix::fs::MemfdFlags::CLOEXEC).map(drop),
            kvm: open("/dev/kvm"),
            dpdk: inlane_dpdk::eal::version(),
            program: std::env::current_exe().unwrap_or_else(|_| "inlane".into()),
            programs: std::env::var_os("PATH")
                .map(|paths| std::env::split_paths(&paths).collect())
                .unwrap_or_default(),
            gpus,
            nvrtc: || inlane_cuda::compiler_version().map_err(cause),
        }
    }
}

/// What failed, without the advice behind it: the check gives its own.
fn cause(error: inlane_cuda::Error) -> String {
    error.to_string().split(';').next().unwrap_or_default().to_string()
}

fn gpus() -> Result<Vec<String>, String> {
    let devices = inlane_cuda::devices().map_err(cause)?;
    Ok(devices.iter().map(|gpu| format!("gpu:{} {} ({})", gpu.index, gpu.name, gpu.pci_address)).collect())
}

fn socket(family: AddressFamily) -> Result<(), Errno> {
    socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, None).map(drop)
}

fn open(path: &str) -> Result<(), Errno> {
    use rustix::fs::{Mode, OFlags};
    rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty()).map(drop)
}
