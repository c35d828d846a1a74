//! Tests that need root for their setup: they reserve hugepages, or give capabilities to a copy of the
//! command. Without root, each test prints why it is skipped.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const INLANE: &str = env!("CARGO_BIN_EXE_inlane");

fn is_root(test: &str) -> bool {
    // SAFETY: geteuid has no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        eprintln!("SKIPPED {test}: run as root");
    }
    root
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A reservation of hugepages of 2 MiB each. Dropping this value restores the earlier number of reserved
/// pages.
struct Hugepages {
    before: String,
}

impl Hugepages {
    const FILE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

    /// Reserves at least `count` pages. If the machine cannot, prints why and returns `None`.
    fn reserve(test: &str, count: u64) -> Option<Self> {
        let reserved = || std::fs::read_to_string(Self::FILE).ok()?.trim().parse::<u64>().ok();
        let Some(before) = reserved() else {
            eprintln!("SKIPPED {test}: the kernel has no hugepages of 2 MiB");
            return None;
        };
        let pages = Self { before: before.to_string() };
        if before < count
            && (std::fs::write(Self::FILE, count.to_string()).is_err() || reserved() < Some(count))
        {
            eprintln!("SKIPPED {test}: the kernel does not reserve {count} hugepages");
            return None;
        }
        Some(pages)
    }
}

impl Drop for Hugepages {
    fn drop(&mut self) {
        let _ = std::fs::write(Self::FILE, &self.before);
    }
}

/// Checks that DPDK's ports and its DMA device work with reserved hugepages. DPDK allocates these in another
/// way than ordinary memory.
#[test]
fn dpdk_works_with_reserved_hugepages() {
    let test = "dpdk_works_with_reserved_hugepages";
    if !is_root(test) {
        return;
    }
    let Some(_pages) = Hugepages::reserve(test, 256) else { return };
    for line in [
        "copy --from host --to host --require dma --sizes 64K --repeats 1 --duration 1ms --no-ceiling",
        "forward --rx net_null:64 --tx net_null --packets 10000 --no-baseline",
        "forward --rx gen:64 --tx ring:hugepages --packets 100 --overload drop --no-baseline",
    ] {
        let output = Command::new(INLANE).args(line.split(' ')).env("INLANE_CACHE", "").output().unwrap();
        assert!(output.status.success(), "{line}: {}", stderr(&output));
    }
}

/// Runs a copy of the command as an ordinary user. The copy's file has the capabilities that `inlane doctor`
/// advises. Checks that no code of the user's choice runs with these capabilities.
#[test]
fn a_file_with_capabilities_gives_none_to_user_code() {
    let test = "a_file_with_capabilities_gives_none_to_user_code";
    if !is_root(test) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mode = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    mode(folder.path(), 0o777);
    std::fs::copy(INLANE, at("inlane")).unwrap();
    mode(&at("inlane"), 0o755);
    let set = Command::new("setcap")
        .arg("cap_net_admin,cap_net_raw,cap_bpf,cap_ipc_lock+ep")
        .arg(at("inlane"))
        .stderr(Stdio::null())
        .status();
    if !set.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED {test}: setcap does not work here; install libcap2-bin");
        return;
    }
    let script =
        format!("#!/bin/sh\ngrep CapEff /proc/self/status >> {}\nexec c++ \"$@\"\n", at("rights").display());
    std::fs::write(at("compiler"), script).unwrap();
    mode(&at("compiler"), 0o755);
    let function = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/functions/truncate.cu");
    std::fs::write(at("mine.cu"), std::fs::read_to_string(function).unwrap()).unwrap();
    mode(&at("mine.cu"), 0o644);
    let as_user = |line: &str| {
        Command::new(at("inlane"))
            .args(line.split(' '))
            .current_dir(folder.path())
            .env("CXX", at("compiler"))
            .env("INLANE_CACHE", at("cache"))
            .env("INLANE_NVRTC", at("libnvrtc.so"))
            .uid(65534)
            .gid(65534)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };
    // CXX names a compiler that the user chooses. Check that this compiler runs without capabilities, even if
    // the run uses DPDK's ports.
    for ports in ["--rx null --tx null", "--rx net_null --tx net_null"] {
        let _ = std::fs::remove_dir_all(at("cache"));
        let output = as_user(&format!("forward {ports} --packets 100 --function mine.cu --no-baseline"));
        assert!(output.status.success(), "{ports}: {}", stderr(&output));
    }
    let rights = std::fs::read_to_string(at("rights")).unwrap();
    assert!(rights.lines().count() >= 2, "{rights}");
    assert!(rights.lines().all(|line| line.ends_with("0000000000000000")), "{rights}");
    // The run-time compiler is a library that the environment names. A process with capabilities must not
    // load it.
    let output = as_user("doctor nvrtc");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("this process holds capabilities"), "{said}{}", stderr(&output));
    for line in ["copy --from gpu:0 --to host --sizes 4K", "ntb bench --mover gpu:0 --only mover --sizes 64K"]
    {
        let output = as_user(line);
        assert_eq!(output.status.code(), Some(3), "{line}: {}", stderr(&output));
    }
}
