//! Checks whether inlane can use the machine's devices: GPUs with their driver and libraries, the IOMMU and
//! VFIO for other PCI devices, and PCIe links that are slower than they could be.

use super::Machine;
use super::check::{Check, Name};
use inlane_core::units;
use inlane_pci::{Sysfs, Topology};

/// True if this program was built with support for GPUs.
const CUDA: bool = cfg!(feature = "cuda");
const BUILD_WITH_CUDA: &str = "cargo build --release -p inlane --features cuda";
const PCI: &str = "/sys/bus/pci/devices";
/// NVIDIA's PCI vendor number.
const NVIDIA: &str = "0x10de";
/// PCI base class of display controllers.
const DISPLAY: u32 = 0x03;
/// PCI base class of bridges.
const BRIDGE: u32 = 0x06;

/// Returns the PCI addresses of NVIDIA's display and 3D controllers.
fn nvidia_gpus(machine: &Machine) -> Vec<String> {
    let of = |device: &String, name: &str| {
        machine.files.text(&format!("{PCI}/{device}/{name}")).unwrap_or_default()
    };
    let mut devices = machine.files.list(PCI);
    devices.retain(|device| of(device, "vendor") == NVIDIA && of(device, "class").starts_with("0x03"));
    devices
}

/// Returns the release of NVIDIA's kernel driver, such as `580.95.05`. Returns `None` if the driver is not
/// loaded.
fn nvidia_driver(machine: &Machine) -> Option<String> {
    let text = machine.files.text("/proc/driver/nvidia/version")?;
    // The driver's version file has a line such as "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05
    // Release Build ...". The release is the first word of this line that has only digits and dots.
    let is_release =
        |word: &&str| word.contains('.') && word.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    text.split_whitespace().find(is_release).map(String::from)
}

pub fn gpu(machine: &Machine) -> Check {
    let purpose =
        "packet functions run on it (--on gpu:N), and inlane copy moves data from and to its memory";
    let check = |evidence: String| Check::ok(Name::Gpu, purpose, evidence);
    let driver = nvidia_driver(machine);
    let on_bus = nvidia_gpus(machine);
    let why = match (machine.trials.gpus)() {
        Ok(gpus) if !gpus.is_empty() => {
            let driver = driver.unwrap_or_else(|| "of an unknown release".into());
            return check(format!("{}; driver {driver}", gpus.join(", ")));
        }
        Ok(_) => "the CUDA driver reports no GPU".to_string(),
        Err(why) => why,
    };
    match driver {
        _ if !CUDA => check(why).missing(BUILD_WITH_CUDA),
        Some(driver) if machine.files.list("/dev").iter().any(|name| is_gpu_node(name)) => {
            check(format!("kernel driver {driver} is loaded, but: {why}"))
                .missing("install libcuda1 of the same release: sudo apt-get install libcuda1; then look at dmesg | grep NVRM")
        }
        Some(driver) => check(format!("kernel driver {driver} is loaded, but /dev/nvidia0 does not exist"))
            .missing("sudo nvidia-modprobe -u -c 0; start a container with --gpus all"),
        None if !on_bus.is_empty() => check(format!("{} has no driver", on_bus.join(", "))).missing(
            "sudo apt-get install nvidia-driver (Debian, section non-free) or nvidia-driver-580-server (Ubuntu); then reboot",
        ),
        None => check("no NVIDIA GPU on the PCI bus".into())
            .missing("no fix without a GPU; --on cpu and the twins run without one"),
    }
}

fn is_gpu_node(name: &str) -> bool {
    let number = name.strip_prefix("nvidia").unwrap_or_default();
    !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
}

pub fn nvrtc(machine: &Machine) -> Check {
    let purpose = "compiles packet functions for the GPU of this machine";
    match (machine.trials.nvrtc)() {
        Ok((version, path)) => Check::ok(Name::Nvrtc, purpose, format!("{version}, {}", path.display())),
        Err(why) if !CUDA => Check::ok(Name::Nvrtc, purpose, why).missing(BUILD_WITH_CUDA),
        Err(why) => Check::ok(Name::Nvrtc, purpose, why).missing(install_nvrtc(machine)),
    }
}

/// Returns the command that installs the NVRTC for this machine's driver: drivers before 580 run no code of
/// CUDA 13.
fn install_nvrtc(machine: &Machine) -> String {
    let major = nvidia_driver(machine).and_then(|release| release.split('.').next()?.parse::<u32>().ok());
    let (wheel, library) = match major {
        Some(..580) => ("nvidia-cuda-nvrtc-cu12==12.8.*", "libnvrtc.so.12"),
        _ => ("nvidia-cuda-nvrtc==13.0.*", "libnvrtc.so.13"),
    };
    format!(
        "python3 -m pip install --target ~/.local/lib/nvrtc --no-deps '{wheel}' && \
         export INLANE_NVRTC=$(find ~/.local/lib/nvrtc -name {library})"
    )
}

pub fn gdrcopy(machine: &Machine) -> Check {
    let purpose = "would let the CPU write the ring's words in GPU memory; inlane does not use it yet";
    if machine.files.exists("/dev/gdrdrv") {
        return Check::ok(Name::Gdrcopy, purpose, "/dev/gdrdrv exists; inlane does not use it yet");
    }
    Check::ok(Name::Gdrcopy, purpose, "not installed, and not needed: inlane does not use it yet")
}

pub fn iommu(machine: &Machine) -> Check {
    let purpose = "vfio gives a device to a program only behind an IOMMU, which limits the memory that the device can access";
    let groups = machine.files.list("/sys/kernel/iommu_groups").len();
    let units = machine.files.list("/sys/class/iommu");
    if groups > 0 {
        return Check::ok(
            Name::Iommu,
            purpose,
            format!("{} with {groups} groups of devices", units.join(", ")),
        );
    }
    let information = machine.files.text("/proc/cpuinfo").unwrap_or_default();
    let flags = information.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let evidence = if units.is_empty() {
        "no IOMMU is active"
    } else {
        "an IOMMU is active, but no device is behind it"
    };
    let check = Check::ok(Name::Iommu, purpose, evidence);
    if flags.split_whitespace().any(|flag| flag == "hypervisor") {
        return check
            .missing("add an IOMMU to this virtual machine from outside (QEMU: -device intel-iommu)");
    }
    let switch = if information.contains("AuthenticAMD") { "amd_iommu=on" } else { "intel_iommu=on" };
    check.missing(format!(
        "enable it in the firmware (VT-d or AMD-Vi), add '{switch} iommu=pt' to GRUB_CMDLINE_LINUX in /etc/default/grub, then: \
         sudo update-grub && sudo reboot"
    ))
}

pub fn vfio(machine: &Machine) -> Check {
    let purpose = "pci: ports need devices bound to vfio-pci, and so do BARs that inlane copy writes";
    let check = |evidence: String| Check::ok(Name::Vfio, purpose, evidence);
    if !machine.files.exists("/dev/vfio/vfio") {
        return check("/dev/vfio/vfio does not exist".into()).missing("sudo modprobe vfio-pci");
    }
    if !machine.files.exists("/sys/bus/pci/drivers/vfio-pci") {
        return check("/dev/vfio/vfio exists, but the driver vfio-pci is not loaded".into())
            .missing("sudo modprobe vfio-pci");
    }
    let mut bound = machine.files.list("/sys/bus/pci/drivers/vfio-pci");
    bound.retain(|entry| entry.contains(':'));
    if bound.is_empty() {
        return check("ready; no device is bound to vfio-pci".into());
    }
    check(format!("bound to vfio-pci: {}", bound.join(", ")))
}

pub fn pcie_links(machine: &Machine) -> Check {
    let purpose = "a link with half the lanes or half the speed has half the bandwidth";
    let check = |evidence: String| Check::ok(Name::PcieLinks, purpose, evidence);
    let topology = Topology::read(&Sysfs::at(machine.files.root().join("sys")));
    // Leave out bridges. A bridge shares a link with the device below it, so the link would be counted twice.
    let ends = topology.devices().filter(|device| device.class >> 16 != BRIDGE);
    let (mut whole, mut short, mut idle) = (0, Vec::new(), Vec::new());
    for device in ends {
        let Some(link) = device.link else { continue };
        let name = device.names.first().map(|name| format!(" ({name})")).unwrap_or_default();
        let narrowest = topology.narrowest(device.address);
        let (payload, best) = (256, link.max.bits_per_second());
        if let Some(shortfall) = topology.shortfall(device) {
            let line = format!("{}{name}: {shortfall}", device.address);
            // If the link of a GPU is slow but has all its lanes, list it separately. An idle GPU makes its
            // link slower to save power.
            let idles = device.class >> 16 == DISPLAY && !shortfall.narrow();
            if idles { idle.push(line) } else { short.push(line) }
        } else if let Some((above, rate)) = narrowest.filter(|(_, rate)| rate.bits_per_second() < best) {
            let ceiling = units::bytes_per_second(rate.payload_bytes_per_second(payload));
            short.push(format!(
                "{}{name}: {} behind {rate} of {} ({ceiling})",
                device.address, link.current, above.address
            ));
        } else {
            whole += 1;
        }
    }
    if !short.is_empty() {
        return check(format!("slower than the device supports: {}", short.join("; "))).degraded(
            "move the card to a slot with enough lanes and speed; look for bifurcation or a speed limit in the firmware",
        );
    }
    match (whole, idle.is_empty()) {
        (0, true) => check("no device reports a link, which is usual in a virtual machine".into()),
        (1, true) => check("1 link, at its device's full speed and width".into()),
        (_, true) => check(format!("{whole} links, each at its device's full speed and width")),
        (_, false) => {
            check(format!("{whole} links at their device's full speed and width; idle: {}", idle.join("; ")))
        }
    }
}
