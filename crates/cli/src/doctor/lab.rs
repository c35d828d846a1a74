//! Checks whether this machine has what the lab needs: QEMU, a kernel, and tools. The lab runs tests with PCI
//! devices in virtual machines.

use super::Machine;
use super::check::{Check, Name};
use std::path::Path;

pub fn lab(machine: &Machine) -> Check {
    let purpose = "tests with PCI devices run in virtual machines, with or without KVM";
    let in_path = |program: &str| {
        let name = |directory: &Path| directory.join(program).to_string_lossy().into_owned();
        machine.trials.programs.iter().any(|directory| machine.files.exists(&name(directory)))
    };
    let modules = |release: &str| machine.files.exists(&format!("/lib/modules/{release}/modules.dep"));
    let kernels = machine.files.list("/boot");
    let kernel =
        kernels.iter().filter_map(|name| name.strip_prefix("vmlinuz-")).rfind(|release| modules(release));
    let release = machine.files.text("/etc/os-release").unwrap_or_default();
    let ubuntu = release.lines().any(|line| line == "ID=ubuntu");
    let image = if ubuntu { "linux-image-virtual" } else { "linux-image-amd64" };
    let wanted = [
        ("qemu-system-x86", in_path("qemu-system-x86_64")),
        (image, kernel.is_some()),
        ("busybox-static", in_path("busybox")),
        ("cpio", in_path("cpio")),
    ];
    let absent: Vec<&str> = wanted.iter().filter(|(_, found)| !found).map(|(name, _)| *name).collect();
    let kvm = if machine.trials.kvm.is_ok() {
        "KVM is available"
    } else {
        "without KVM, QEMU emulates the processor"
    };
    match (absent.as_slice(), kernel) {
        ([], Some(release)) => Check::ok(Name::Lab, purpose, format!("QEMU, kernel {release}; {kvm}")),
        _ => Check::ok(Name::Lab, purpose, format!("not installed: {}", absent.join(", ")))
            .missing(format!("sudo apt-get install {}", absent.join(" "))),
    }
}
