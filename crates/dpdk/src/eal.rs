//! DPDK's environment: started once, at the first port or pool, without arguments from the user.
//!
//! It runs in memory only (no files, nothing shared with other DPDK processes), probes no PCI device by itself, opens no
//! telemetry socket, and leaves the affinity of the program's threads alone. With free hugepages it uses them; without,
//! it warns once and uses ordinary memory. [`set_extra_arguments`] is the one escape.

use crate::error::{Error, Result};
use crate::{log, sys};
use std::ffi::{CString, c_char};
use std::sync::{Mutex, OnceLock};

static STARTED: OnceLock<Result<Environment, String>> = OnceLock::new();
static EXTRA: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Free hugepages below this are not worth having: pools would land half here, half there.
const HUGEPAGES_WORTH_BYTES: u64 = 64 << 20;

/// What the environment runs with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Environment {
    /// DPDK's own memory lies in hugepages.
    pub hugepages: bool,
    /// Devices are given virtual addresses (through an IOMMU, or software ports); otherwise physical ones.
    pub virtual_addresses: bool,
}

/// Adds arguments to DPDK's own, as `dpdk-testpmd` would take them before its `--`. For what inlane has no word for.
///
/// # Errors
/// When DPDK runs already.
pub fn set_extra_arguments(arguments: impl IntoIterator<Item = String>) -> Result<()> {
    if STARTED.get().is_some() {
        return Err(Error::Environment {
            why: "extra arguments came after the first port was opened; give them before".into(),
        });
    }
    *lock(&EXTRA) = arguments.into_iter().collect();
    Ok(())
}

/// Starts the environment if it is not yet.
///
/// # Errors
/// [`Error::Environment`] with DPDK's own words; the same again at each later call, since DPDK starts once a process.
pub fn start() -> Result<Environment> {
    STARTED.get_or_init(start_once).clone().map_err(|why| Error::Environment { why })
}

/// True once [`start`] succeeded.
pub fn is_started() -> bool {
    matches!(STARTED.get(), Some(Ok(_)))
}

/// DPDK's version, as it names itself (`DPDK 22.11.11`).
pub fn version() -> String {
    // SAFETY: returns a constant string.
    let text = unsafe { std::ffi::CStr::from_ptr(sys::rte_version()) };
    text.to_string_lossy().into_owned()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn start_once() -> Result<Environment, String> {
    // rte_eal_init pins its thread to a core and makes it lcore 0: not ours to lose, so a thread of its own does it.
    std::thread::Builder::new()
        .name("dpdk-start".into())
        .spawn(initialise)
        .and_then(|thread| thread.join().map_err(|_| std::io::Error::other("the starting thread panicked")))
        .unwrap_or_else(|error| Err(format!("no thread to start it: {error}")))
}

fn initialise() -> Result<Environment, String> {
    let hugepages = free_hugepage_bytes() >= HUGEPAGES_WORTH_BYTES;
    let arguments = arguments(hugepages);
    tracing::debug!(?arguments, "starting DPDK");
    let arguments: Vec<CString> = arguments
        .into_iter()
        .map(|argument| CString::new(argument).map_err(|_| "an argument holds a zero byte".to_owned()))
        .collect::<Result<_, _>>()?;
    let mark = log::Mark::new();
    // DPDK keeps pointers into its arguments, and getopt permutes the list: both live on.
    let arguments: &'static [CString] = arguments.leak();
    let mut pointers: Vec<*mut c_char> = arguments.iter().map(|a| a.as_ptr().cast_mut()).collect();
    pointers.push(std::ptr::null_mut());
    let pointers: &'static mut [*mut c_char] = pointers.leak();
    // SAFETY: the stream it makes lives for the process; it calls back into `log`.
    if unsafe { sys::inlane_log_route() } != 0 {
        tracing::warn!("DPDK's messages go to stderr: no stream could be made for them");
    }
    // SAFETY: a null-terminated list of strings that live on, called once in the process.
    let outcome = unsafe { sys::rte_eal_init(arguments.len() as i32, pointers.as_mut_ptr()) };
    // The environment replaced the stream while it started.
    // SAFETY: as above.
    unsafe { sys::inlane_log_route() };
    if outcome < 0 {
        let text = sys::error_text(sys::last_error());
        return Err(mark.explain(format!("{text}; check the extra arguments and the memory left")));
    }
    if !hugepages {
        tracing::info!(
            "no free hugepages: DPDK uses ordinary memory (--no-huge), which software ports do well with; for network \
             cards run: dpdk-hugepages.py --setup 1G"
        );
    }
    // SAFETY: the environment is up.
    let mode = unsafe { sys::rte_eal_iova_mode() };
    Ok(Environment { hugepages, virtual_addresses: mode == sys::RTE_IOVA_VA })
}

fn arguments(hugepages: bool) -> Vec<String> {
    let mut arguments: Vec<String> = ["inlane", "--no-telemetry"].map(str::to_owned).into();
    // One lcore that floats over every CPU this process may use; threads that drive queues register as they come.
    arguments.push(format!("--lcores=0@({})", allowed_cpus()));
    // An allow list that names no device: nothing is probed until a port asks for it.
    arguments.push("--allow=0000:00:00.0".into());
    // Nothing in files, nothing shared with other processes. The two exclude each other.
    if hugepages {
        arguments.push("--in-memory".into());
    } else {
        arguments.push("--no-shconf".into());
        arguments.push("--no-huge".into());
        arguments.push(format!("-m{}", ordinary_memory_mib()));
    }
    arguments.extend(lock(&EXTRA).iter().cloned());
    arguments
}

/// The list of CPUs of this process as DPDK writes it.
fn allowed_cpus() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.map(str::trim).filter(|list| !list.is_empty()).unwrap_or("0").to_owned()
}

/// What DPDK's heap may grow to without hugepages; pools bring memory of their own. It is reserved and not touched, until a
/// card under vfio-pci is opened: then all of it is mapped for the card, and so locked.
fn ordinary_memory_mib() -> u64 {
    let information = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total_kib = information
        .lines()
        .find_map(|line| {
            line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
        })
        .unwrap_or(1 << 20);
    (total_kib / 1024 / 4).clamp(64, 512)
}

/// Bytes in free hugepages of every size.
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
