//! Starts DPDK's environment (EAL) once per process, when the first port or pool needs it.
//!
//! The environment creates no files and shares nothing with other DPDK processes. It probes no PCI device by
//! itself, opens no telemetry socket, and leaves the affinity of threads alone. It uses hugepages if enough
//! are free. Devices get virtual addresses, unless a card's kernel driver cannot translate them.

use crate::error::{Error, Result};
use crate::{log, sys};
use std::ffi::{CString, c_char};
use std::sync::OnceLock;

static STARTED: OnceLock<Result<Environment, String>> = OnceLock::new();

/// The number of bytes of hugepages that must be free for DPDK to use hugepages. Some pools would not fit
/// into less.
const LEAST_HUGEPAGE_BYTES: u64 = 64 << 20;

/// The memory that DPDK's environment abstraction layer (EAL) uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Environment {
    /// True if DPDK's memory lies in hugepages.
    pub hugepages: bool,
    /// True if devices get virtual addresses, false for physical ones. Software ports and cards behind an
    /// IOMMU take virtual addresses.
    pub virtual_addresses: bool,
}

/// Starts DPDK's environment, unless it has started already.
///
/// # Errors
/// [`Error::Environment`] with DPDK's messages. Later calls return the same error, because DPDK starts at
/// most once in a process.
pub fn start() -> Result<Environment> {
    STARTED.get_or_init(start_once).clone().map_err(|why| Error::Environment { why })
}

/// Returns true once [`start`] succeeded.
pub fn is_started() -> bool {
    matches!(STARTED.get(), Some(Ok(_)))
}

/// Returns DPDK's name and version, as in `DPDK 22.11.11`.
pub fn version() -> String {
    // SAFETY: returns a constant string.
    let text = unsafe { std::ffi::CStr::from_ptr(sys::rte_version()) };
    text.to_string_lossy().into_owned()
}

fn start_once() -> Result<Environment, String> {
    // Call `rte_eal_init` on a new thread, because it binds the calling thread to a core.
    std::thread::Builder::new()
        .name("dpdk-start".into())
        .spawn(initialise)
        .and_then(|thread| thread.join().map_err(|_| std::io::Error::other("the starting thread panicked")))
        .unwrap_or_else(|error| Err(format!("no thread to start it: {error}")))
}

fn initialise() -> Result<Environment, String> {
    let hugepages = free_hugepage_bytes() >= LEAST_HUGEPAGE_BYTES;
    let arguments = arguments(hugepages);
    tracing::debug!(?arguments, "starting DPDK");
    let arguments: Vec<CString> = arguments
        .into_iter()
        .map(|argument| CString::new(argument).map_err(|_| "an argument holds a zero byte".to_owned()))
        .collect::<Result<_, _>>()?;
    let mark = log::LogPosition::new();
    // The list is leaked, because DPDK keeps pointers to its arguments. DPDK's parser (getopt) also reorders
    // the pointers.
    let arguments: &'static [CString] = arguments.leak();
    let mut pointers: Vec<*mut c_char> = arguments.iter().map(|a| a.as_ptr().cast_mut()).collect();
    pointers.push(std::ptr::null_mut());
    let pointers: &'static mut [*mut c_char] = pointers.leak();
    // SAFETY: the call creates a log stream that exists until the process ends. The stream calls
    // `inlane_dpdk_log`.
    if unsafe { sys::inlane_log_route() } != 0 {
        tracing::warn!("DPDK's messages go to stderr, because no stream could be made for them");
    }
    // SAFETY: the list of strings is null-terminated and lives for the process. The function is called once.
    let outcome = unsafe { sys::rte_eal_init(arguments.len() as i32, pointers.as_mut_ptr()) };
    // `rte_eal_init` has replaced inlane's log stream by its own. So set inlane's stream again.
    // SAFETY: the stream lives as long as the process and calls `inlane_dpdk_log`.
    unsafe { sys::inlane_log_route() };
    if outcome < 0 {
        let text = sys::error_text(sys::last_error());
        return Err(mark.explain(format!("{text}; check the extra arguments and the memory left")));
    }
    if !hugepages {
        tracing::info!(
            "no free hugepages: DPDK uses ordinary memory, which is enough for software ports; for network cards run: \
             dpdk-hugepages.py --setup 1G"
        );
    }
    // SAFETY: the environment is up.
    let mode = unsafe { sys::rte_eal_iova_mode() };
    Ok(Environment { hugepages, virtual_addresses: mode == sys::RTE_IOVA_VA })
}

fn arguments(hugepages: bool) -> Vec<String> {
    let mut arguments: Vec<String> = ["inlane", "--no-telemetry"].map(str::to_owned).into();
    // Define one lcore for all CPUs of this process. Other threads get an lcore id at their first use of a
    // queue or a pool.
    arguments.push(format!("--lcores=0@({})", allowed_cpus()));
    // Allow only an address that no network card has. With such an allow list, DPDK probes only devices that
    // a port asks for.
    arguments.push("--allow=0000:00:00.0".into());
    // Request virtual addresses, because software DMA devices refuse physical addresses. By default DPDK
    // chooses physical addresses if hugepages are reserved and root runs it.
    if !some_card_needs_physical_addresses() {
        arguments.push("--iova-mode=va".into());
    }
    // `--in-memory` and `--no-shconf` each keep DPDK from sharing files with other processes. DPDK refuses
    // `--in-memory` together with `--no-huge`, so without hugepages `--no-shconf` is passed.
    if hugepages {
        arguments.push("--in-memory".into());
    } else {
        arguments.push("--no-shconf".into());
        arguments.push("--no-huge".into());
        arguments.push(format!("-m{}", ordinary_memory_mib()));
    }
    arguments
}

/// Returns the CPUs that this process may use, in the list format of the kernel and DPDK.
fn allowed_cpus() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.map(str::trim).filter(|list| !list.is_empty()).unwrap_or("0").to_owned()
}

/// Returns the size limit in MiB of DPDK's heap without hugepages. The heap only reserves address space. But
/// if a card is bound to vfio-pci, all of the heap is locked in memory.
fn ordinary_memory_mib() -> u64 {
    let total = inlane_process::limits::memory("MemTotal").unwrap_or(1 << 30);
    ((total >> 20) / 4).clamp(64, 512)
}

/// Returns true if a PCI device needs physical addresses: it is bound to a uio driver, or to vfio-pci without
/// an IOMMU.
fn some_card_needs_physical_addresses() -> bool {
    let bound = |driver: &str| {
        let folder = std::path::Path::new("/sys/bus/pci/drivers").join(driver);
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        // The folder contains a link for each bound device, and files such as `bind`. A link's name is the
        // device's PCI address (0000:01:00.0). Only these names have two colons.
        entries.filter(|entry| entry.file_name().to_string_lossy().matches(':').count() == 2).count() > 0
    };
    let no_iommu = || {
        std::fs::read_to_string("/sys/module/vfio/parameters/enable_unsafe_noiommu_mode")
            .is_ok_and(|mode| mode.starts_with('Y'))
    };
    bound("uio_pci_generic") || bound("igb_uio") || (no_iommu() && bound("vfio-pci"))
}

/// Returns the total bytes of free hugepages of every size.
pub fn free_hugepage_bytes() -> u64 {
    let Ok(sizes) = std::fs::read_dir("/sys/kernel/mm/hugepages") else { return 0 };
    let bytes_of = |entry: std::fs::DirEntry| -> Option<u64> {
        let name = entry.file_name().into_string().ok()?;
        let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let free: u64 =
            std::fs::read_to_string(entry.path().join("free_hugepages")).ok()?.trim().parse().ok()?;
        Some(kib * 1024 * free)
    };
    sizes.flatten().filter_map(bytes_of).sum()
}
