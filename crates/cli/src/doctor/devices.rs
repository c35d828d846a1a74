//! Devices: GPU and its software, IOMMU, VFIO, PCIe links.

use super::Machine;
use super::check::{Check, Name};
use inlane_core::units;
use inlane_pci::{Sysfs, Topology};

const PCI: &str = "/sys/bus/pci/devices";
/// PCI's number for NVIDIA.
const NVIDIA: &str = "0x10de";
/// PCI's base classes.
const DISPLAY: u32 = 0x03;
const BRIDGE: u32 = 0x06;

/// The functions on the PCI bus that are a display or 3D controller of NVIDIA's.
fn nvidia_gpus(machine: &Machine) -> Vec<String> {
    let of = |device: &String, name: &str| {
        machine.files.text(&format!("{PCI}/{device}/{name}")).unwrap_or_default()
    };
    let mut devices = machine.files.list(PCI);
    devices.retain(|device| of(device, "vendor") == NVIDIA && of(device, "class").starts_with("0x03"));
    devices
}

pub fn gpu(machine: &Machine) -> Check {
    let matters = "packet functions run on it (--on gpu:N), and copies start and end in its memory";
    let check = |evidence: String| Check::ok(Name::Gpu, matters, evidence);
    let driver = machine.files.text("/proc/driver/nvidia/version").and_then(|text| {
        // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Release Build ..."
        let is_release =
            |word: &&str| word.contains('.') && word.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        text.split_whitespace().find(is_release).map(String::from)
    });
    let on_bus = nvidia_gpus(machine);
    let why = match (machine.trials.gpus)() {
        Ok(gpus) if !gpus.is_empty() => {
            let driver = driver.unwrap_or_else(|| "of unknown release".into());
            return check(format!("{}; driver {driver}", gpus.join(", ")));
        }
        Ok(_) => "the CUDA driver shows no GPU".to_string(),
        Err(why) => why,
    };
    match driver {
        Some(driver) if machine.files.list("/dev").iter().any(|name| is_gpu_node(name)) => {
            check(format!("kernel driver {driver} runs, but: {why}"))
                .missing("install the libcuda1 of that release: sudo apt-get install libcuda1; then look at dmesg | grep NVRM")
        }
        Some(driver) => check(format!("kernel driver {driver} runs, but there is no /dev/nvidia0"))
            .missing("sudo nvidia-modprobe -u -c 0; in a container: start it with --gpus all"),
        None if !on_bus.is_empty() => check(format!("{} without a driver", on_bus.join(", "))).missing(
            "sudo apt-get install nvidia-driver (Debian, section non-free) or nvidia-driver-580-server (Ubuntu); then reboot",
        ),
        None => check("no NVIDIA GPU on the PCI bus".into())
            .missing("none without one; --on cpu and the twins run everything but what only a GPU can show"),
    }
}

fn is_gpu_node(name: &str) -> bool {
    let number = name.strip_prefix("nvidia").unwrap_or_default();
    !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
}

pub fn nvrtc(machine: &Machine) -> Check {
    let matters = "compiles packet functions for the GPU that is there";
    match (machine.trials.nvrtc)() {
        Ok((version, path)) => Check::ok(Name::Nvrtc, matters, format!("{version}, {}", path.display())),
        Err(why) => Check::ok(Name::Nvrtc, matters, why).missing(
            "python3 -m pip install --target ~/.local/lib/nvrtc --no-deps 'nvidia-cuda-nvrtc==13.0.*' && \
             export INLANE_NVRTC=$(find ~/.local/lib/nvrtc -name libnvrtc.so.13)",
        ),
    }
}

pub fn gdrcopy(machine: &Machine) -> Check {
    let matters = "would put the flags that the CPU writes into GPU memory; inlane does not use it yet, so nothing is lost";
    if machine.files.exists("/dev/gdrdrv") {
        return Check::ok(Name::Gdrcopy, matters, "/dev/gdrdrv is there; not used yet");
    }
    Check::ok(Name::Gdrcopy, matters, "no /dev/gdrdrv").missing("nothing to do: not supported yet")
}

pub fn iommu(machine: &Machine) -> Check {
    let matters =
        "vfio hands a device to a program only behind one; without it a device could write anywhere";
    let groups = machine.files.list("/sys/kernel/iommu_groups").len();
    let units = machine.files.list("/sys/class/iommu");
    if groups > 0 {
        return Check::ok(
            Name::Iommu,
            matters,
            format!("{} with {groups} groups of devices", units.join(", ")),
        );
    }
    let information = machine.files.text("/proc/cpuinfo").unwrap_or_default();
    let flags = information.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let evidence = if units.is_empty() { "none" } else { "there is one, but no device is behind it" };
    let check = Check::ok(Name::Iommu, matters, evidence);
    if flags.split_whitespace().any(|flag| flag == "hypervisor") {
        return check
            .missing("this is a virtual machine: give it one from outside (QEMU: -device intel-iommu)");
    }
    let switch = if information.contains("AuthenticAMD") { "amd_iommu=on" } else { "intel_iommu=on" };
    check.missing(format!(
        "switch it on in the firmware (VT-d, AMD-Vi), add '{switch} iommu=pt' to GRUB_CMDLINE_LINUX in /etc/default/grub, then: \
         sudo update-grub && sudo reboot"
    ))
}

pub fn vfio(machine: &Machine) -> Check {
    let matters = "pci ports, and BARs that inlane may write, are devices bound to vfio-pci";
    let check = |evidence: String| Check::ok(Name::Vfio, matters, evidence);
    if !machine.files.exists("/dev/vfio/vfio") {
        return check("no /dev/vfio/vfio".into()).missing("sudo modprobe vfio-pci");
    }
    if !machine.files.exists("/sys/bus/pci/drivers/vfio-pci") {
        return check("/dev/vfio/vfio is there, the driver vfio-pci is not".into())
            .missing("sudo modprobe vfio-pci");
    }
    let mut bound = machine.files.list("/sys/bus/pci/drivers/vfio-pci");
    bound.retain(|entry| entry.contains(':'));
    if bound.is_empty() {
        return check("ready; no device is bound to it".into());
    }
    check(format!("bound: {}", bound.join(", ")))
}

pub fn pcie_links(machine: &Machine) -> Check {
    let matters = "half the lanes or an older speed is half the bandwidth, whatever else is tuned";
    let check = |evidence: String| Check::ok(Name::PcieLinks, matters, evidence);
    let topology = Topology::read(&Sysfs::at(machine.files.root().join("sys")));
    // A bridge's link says what its slot holds, which the device there says itself.
    let ends = topology.devices().filter(|device| device.class >> 16 != BRIDGE);
    let (mut whole, mut short, mut idle) = (0, Vec::new(), Vec::new());
    for device in ends {
        let Some(link) = device.link else { continue };
        let name = device.names.first().map(|name| format!(" ({name})")).unwrap_or_default();
        let narrowest = topology.narrowest(device.address);
        let (payload, best) = (256, link.max.bits_per_second());
        if let Some(shortfall) = topology.shortfall(device) {
            let line = format!("{}{name}: {shortfall}", device.address);
            // GPUs lower their speed, never their width, while they are idle.
            let sleeps = device.class >> 16 == DISPLAY && !shortfall.narrow();
            if sleeps { idle.push(line) } else { short.push(line) }
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
        return check(format!("below the device's best: {}", short.join("; "))).degraded(
            "move the card to a slot with those lanes and that speed; look for bifurcation or a speed limit in the firmware",
        );
    }
    match (whole, idle.is_empty()) {
        (0, true) => check("no device shows a link (usual in a virtual machine)".into()),
        (_, true) => check(format!("{whole} links, each at its device's best")),
        (_, false) => check(format!("{whole} links at their device's best; idle: {}", idle.join("; "))),
    }
}
