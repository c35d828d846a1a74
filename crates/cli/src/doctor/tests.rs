//! Tests the checks of `inlane doctor` on fake machines. The checks read a test's files instead of the
//! system's /proc and /sys. The test also chooses the outcomes of system calls.

use super::*;
use inlane_process::cgroup::CpuQuota;
use rustix::io::Errno;

/// A fake machine: a directory of files, and chosen outcomes of system calls. A test adds the files and the
/// outcomes for its check. Everything else is missing.
struct Fake {
    root: tempfile::TempDir,
    trials: Trials,
}

impl Fake {
    fn new(files: &[(&str, &str)]) -> Self {
        let fake = Self {
            root: tempfile::tempdir().unwrap(),
            trials: Trials {
                af_xdp: Err(Errno::AFNOSUPPORT),
                af_packet: Err(Errno::PERM),
                tun: Err(Errno::NOENT),
                memfd: Ok(()),
                kvm: Err(Errno::NOENT),
                quota: None,
                dpdk: Some("DPDK 22.11".into()),
                program: "/opt/inlane".into(),
                programs: vec!["/usr/bin".into()],
                gpus: || Err("no CUDA driver".into()),
                nvrtc: || Err("no NVRTC".into()),
            },
        };
        for (path, content) in files {
            fake.write(path, content.as_bytes());
        }
        fake
    }

    fn write(&self, path: &str, content: &[u8]) {
        let path = self.root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    fn machine(self) -> (Machine, tempfile::TempDir) {
        (Machine { files: Files::under(self.root.path()), trials: self.trials }, self.root)
    }

    fn check(self, check: fn(&Machine) -> Check) -> Check {
        let (machine, _root) = self.machine();
        check(&machine)
    }
}

fn status(capabilities: &str) -> String {
    format!("Name:\tx\nUid:\t1000\t1000\t1000\t1000\nCapEff:\t{capabilities}\n")
}

fn all(machine: &Machine) -> Vec<Check> {
    CHECKS
        .iter()
        .map(|(name, check)| (name, check(machine)))
        .inspect(|(name, check)| assert_eq!(**name, check.name))
        .map(|(_, check)| check)
        .collect()
}

#[test]
fn every_check_works_on_a_machine_without_anything() {
    let (machine, _root) = Fake::new(&[]).machine();
    let checks = all(&machine);
    assert_eq!(checks.len(), <Name as clap::ValueEnum>::value_variants().len(), "every name has a check");
    assert!(checks.is_sorted_by_key(|check| check.name));
    for check in &checks {
        assert!(!check.evidence.is_empty() && !check.purpose.is_empty(), "{:?}", check.name);
        assert_eq!(check.fixes.is_empty(), check.state == State::Ok, "{:?} has a fix", check.name);
    }
}

#[test]
fn malformed_files_do_not_break_a_check() {
    let strange: [&[u8]; 6] = [
        b"",
        b"\xff\xfe\0\x1b[2J",
        b"-1",
        b"99999999999999999999999999",
        b"0-4294967295,5-1,x-y,-",
        &[b'9'; 400_000],
    ];
    for content in strange {
        let fake = Fake::new(&[]);
        for path in [
            "proc/self/status",
            "proc/self/limits",
            "proc/mounts",
            "proc/cpuinfo",
            "proc/driver/nvidia/version",
            "dev/nvidia0",
            "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
            "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages",
            "sys/kernel/mm/hugepages/hugepages-99999999999999999999kB/nr_hugepages",
            "sys/kernel/mm/hugepages/hugepages-18446744073709551615kB/nr_hugepages",
            "sys/devices/system/node/node0/cpulist",
            "sys/devices/system/node/node1/cpulist",
            "sys/devices/system/cpu/isolated",
            "sys/devices/system/cpu/online",
            "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
            "sys/devices/system/clocksource/clocksource0/current_clocksource",
            "sys/bus/pci/devices/0000:01:00.0/vendor",
            "sys/bus/pci/devices/0000:01:00.0/class",
            "sys/bus/pci/devices/0000:01:00.0/current_link_width",
            "sys/bus/pci/devices/0000:01:00.0/max_link_width",
            "sys/bus/pci/devices/0000:01:00.0/current_link_speed",
            "sys/bus/pci/devices/0000:01:00.0/max_link_speed",
        ] {
            fake.write(path, content);
        }
        let (machine, _root) = fake.machine();
        for check in all(&machine) {
            assert!(!check.evidence.chars().any(|c| c == '\x1b' || c == '\0'), "{check:?}");
        }
    }
}

#[test]
fn directories_and_pipes_count_as_absent_files() {
    let fake = Fake::new(&[("proc/mounts/x", "")]);
    let (machine, root) = fake.machine();
    rustix::fs::mkfifoat(rustix::fs::CWD, root.path().join("pipe"), rustix::fs::Mode::RWXU).unwrap();
    assert_eq!(machine.files.text("/proc/mounts"), None);
    assert_eq!(machine.files.text("/pipe"), None, "opening a pipe would block");
}

#[test]
fn hugepages_reserved_mounted_used_up() {
    let base = "sys/kernel/mm/hugepages/hugepages-2048kB";
    let with = |all: &str, free: &str, mounts: &str| {
        let (nr, left) = (format!("{base}/nr_hugepages"), format!("{base}/free_hugepages"));
        Fake::new(&[(&nr, all), (&left, free), ("proc/mounts", mounts)]).check(memory::hugepages)
    };
    let none = with("0", "0", "");
    assert_eq!(none.state, State::Degraded);
    assert!(none.fixes[0].contains("hugepages-2048kB/nr_hugepages"), "{none:?}");
    assert_eq!(with("512", "0", "hugetlbfs /dev/hugepages hugetlbfs rw 0 0").state, State::Degraded);
    assert_eq!(with("512", "512", "proc /proc proc rw 0 0").state, State::Degraded, "not mounted");
    let good = with("512", "500", "hugetlbfs /mnt/huge hugetlbfs rw 0 0");
    assert_eq!(good.state, State::Ok);
    assert!(
        good.evidence.contains("512 of 2 MiB reserved, 500 of them free; mounted at /mnt/huge"),
        "{good:?}"
    );
}

#[test]
fn privileges_are_those_of_the_process() {
    let with = |set: &str| Fake::new(&[("proc/self/status", &status(set))]).check(rights::privileges);
    assert_eq!(with("000001ffffffffff").state, State::Ok);
    assert_eq!(with("0000000000000000").state, State::Missing);
    let some = with("0000000000003000");
    assert_eq!(some.state, State::Degraded, "NET_ADMIN and NET_RAW");
    assert!(some.evidence.contains("CAP_BPF") && !some.evidence.contains("CAP_NET_RAW"), "{some:?}");
    assert!(some.fixes[0].ends_with("/opt/inlane"));
    assert_eq!(with("0000000000207000").state, State::Ok, "CAP_SYS_ADMIN stands for CAP_BPF");
}

#[test]
fn af_packet_needs_the_socket_and_the_right_to_change_interfaces() {
    let with = |set: &str| {
        let mut fake = Fake::new(&[("proc/self/status", &status(set))]);
        fake.trials.af_packet = Ok(());
        fake.check(ports::af_packet)
    };
    assert_eq!(with("0000000000003000").state, State::Ok, "NET_ADMIN and NET_RAW");
    let raw = with("0000000000002000");
    assert_eq!(raw.state, State::Degraded, "NET_RAW alone");
    assert!(raw.fixes[0].contains("cap_net_admin,cap_net_raw"), "{raw:?}");
}

#[test]
fn af_xdp_needs_the_socket_and_the_program() {
    let with = |set: &str, socket| {
        let mut fake = Fake::new(&[("proc/self/status", &status(set))]);
        fake.trials.af_xdp = socket;
        fake.check(ports::af_xdp).state
    };
    assert_eq!(with("000001ffffffffff", Ok(())), State::Ok);
    assert_eq!(with("0000000000002000", Ok(())), State::Degraded);
    assert_eq!(with("0000000000000000", Err(Errno::PERM)), State::Missing);
    assert_eq!(with("000001ffffffffff", Err(Errno::AFNOSUPPORT)), State::Missing);
}

#[test]
fn af_xdp_needs_a_kernel_with_links() {
    let with = |release: &str| {
        let files =
            [("proc/self/status", status("000001ffffffffff")), ("proc/sys/kernel/osrelease", release.into())];
        let mut fake =
            Fake::new(&files.each_ref().map(|(path, text): &(&str, String)| (*path, text.as_str())));
        fake.trials.af_xdp = Ok(());
        fake.check(ports::af_xdp).state
    };
    assert_eq!(with("5.4.0-200-generic"), State::Missing);
    assert_eq!(with("5.9.0"), State::Ok);
    assert_eq!(with("6.18-rc1"), State::Ok);
    assert_eq!(with("unknown"), State::Ok);
}

#[test]
fn memory_lock_reads_the_soft_limit() {
    let with = |soft: &str| {
        let limits =
            format!("Limit  Soft Limit  Hard Limit  Units\nMax locked memory  {soft}  8388608  bytes\n");
        Fake::new(&[("proc/self/limits", &limits)]).check(rights::memory_lock)
    };
    assert_eq!(with("unlimited").state, State::Ok);
    assert_eq!(with("8388608").state, State::Degraded);
    assert!(with("8388608").evidence.contains("8 MiB"));
    assert_eq!(with("1073741824").state, State::Ok);
    assert_eq!(with("much").state, State::Degraded);
}

/// Checks the PCIe link of a device. `now` is the link's current width and speed. `best` is the link's
/// highest width and speed.
fn link(class: &str, now: (&str, &str), best: (&str, &str)) -> Check {
    let base = "sys/bus/pci/devices/0000:b5:00.0";
    let fake = Fake::new(&[]);
    for (name, value) in [
        ("vendor", "0x15b3"),
        ("class", class),
        ("current_link_width", now.0),
        ("current_link_speed", now.1),
        ("max_link_width", best.0),
        ("max_link_speed", best.1),
    ] {
        fake.write(&format!("{base}/{name}"), value.as_bytes());
    }
    fake.check(devices::pcie_links)
}

#[test]
fn a_link_is_compared_with_what_its_device_supports() {
    let (network, display, bridge) = ("0x020000", "0x030200", "0x060400");
    let best = ("16", "32.0 GT/s PCIe");
    assert_eq!(link(network, best, best).evidence, "1 link, at its device's full speed and width");
    let narrow = link(network, ("8", "32.0 GT/s PCIe"), best);
    assert_eq!(narrow.state, State::Degraded);
    assert!(narrow.evidence.contains("0000:b5:00.0: x8 of x16"), "{narrow:?}");
    assert_eq!(link(network, ("16", "16.0 GT/s PCIe"), best).state, State::Degraded);
    assert_eq!(
        link(display, ("16", "2.5 GT/s PCIe"), best).state,
        State::Ok,
        "an idle GPU lowers its link's speed"
    );
    assert_eq!(
        link(display, ("8", "2.5 GT/s PCIe"), best).state,
        State::Degraded,
        "an idle GPU keeps its link's width"
    );
    assert_eq!(link(bridge, ("4", "8.0 GT/s PCIe"), best).state, State::Ok, "bridges are skipped");
    for senseless in [("0", "Unknown"), ("63", "32.0 GT/s"), ("16", "NaN GT/s"), ("16", "")] {
        assert_eq!(link(network, senseless, best).state, State::Ok, "{senseless:?} is no link");
    }
}

#[test]
fn a_gpu_needs_card_kernel_driver_device_node_and_library() {
    let card = [
        ("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de"),
        ("sys/bus/pci/devices/0000:01:00.0/class", "0x030200"),
    ];
    let text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue\nGCC version: gcc 12.2.0";
    let driver = ("proc/driver/nvidia/version", text);
    let evidence = |files: &[(&str, &str)]| Fake::new(files).check(devices::gpu).evidence;
    assert_eq!(evidence(&[]), "no NVIDIA GPU on the PCI bus");
    assert_eq!(evidence(&card), "0000:01:00.0 has no driver");
    assert!(evidence(&[card[0], card[1], driver]).ends_with("/dev/nvidia0 does not exist"));
    assert!(evidence(&[card[0], card[1], driver, ("dev/nvidia0", "")]).ends_with("but: no CUDA driver"));
    let mut fake = Fake::new(&[driver]);
    fake.trials.gpus = || Ok(vec!["gpu:0 NVIDIA H100 (0000:01:00.0)".into()]);
    let check = fake.check(devices::gpu);
    assert_eq!(check.state, State::Ok);
    assert_eq!(check.evidence, "gpu:0 NVIDIA H100 (0000:01:00.0); driver 580.95.05");
}

#[test]
fn nvrtc_is_ok_if_it_loads() {
    let mut fake = Fake::new(&[]);
    fake.trials.nvrtc = || Ok(("13.0".into(), "/opt/libnvrtc.so.13".into()));
    assert_eq!(fake.check(devices::nvrtc).evidence, "13.0, /opt/libnvrtc.so.13");
    assert_eq!(Fake::new(&[]).check(devices::nvrtc).state, State::Missing);
}

#[test]
fn the_recommended_nvrtc_suits_the_driver() {
    for (release, wheel) in [("570.86.15", "cu12==12.8.*"), ("580.95.05", "nvrtc==13.0.*")] {
        let version = format!("NVRM version: NVIDIA UNIX x86_64 Kernel Module  {release}  Release Build");
        let check = Fake::new(&[("proc/driver/nvidia/version", &version)]).check(devices::nvrtc);
        assert!(check.fixes[0].contains(wheel), "{release}: {:?}", check.fixes);
    }
}

#[test]
fn cores_clocks_and_nodes() {
    let governor = |name| {
        Fake::new(&[("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", name)])
            .check(processor::cpu_governor)
    };
    assert_eq!(governor("performance").state, State::Ok);
    assert_eq!(governor("powersave").state, State::Degraded);

    let quota = |cores: Option<f64>| {
        let mut fake = Fake::new(&[("sys/devices/system/cpu/online", "0-1")]);
        fake.trials.quota = cores.map(|cores| CpuQuota { cores, periods: 0, throttled_periods: 0 });
        fake.check(processor::cpu_quota)
    };
    assert_eq!(quota(None).state, State::Ok);
    assert_eq!(quota(Some(2.0)).state, State::Ok, "as much as the machine has");
    let small = quota(Some(0.2));
    assert_eq!(small.state, State::Degraded);
    assert!(small.evidence.contains("0.20 cores"), "{small:?}");

    let isolated = |list, online| {
        Fake::new(&[("sys/devices/system/cpu/isolated", list), ("sys/devices/system/cpu/online", online)])
            .check(processor::isolated_cores)
    };
    assert_eq!(isolated("8-15", "0-15").evidence, "8 of 16 cores are isolated");
    assert!(isolated("", "0-15").fixes[0].contains("isolcpus=8-15"));
    assert!(isolated("", "0-1").fixes[0].contains("no core to spare"));

    let clock = |now, available| {
        let base = "sys/devices/system/clocksource/clocksource0";
        let (current, list) =
            (format!("{base}/current_clocksource"), format!("{base}/available_clocksource"));
        Fake::new(&[(&current, now), (&list, available)]).check(processor::clock_source)
    };
    assert_eq!(clock("tsc", "tsc hpet").state, State::Ok);
    assert!(clock("hpet", "tsc hpet").fixes[0].starts_with("echo tsc"));
    assert_eq!(clock("hpet", "hpet acpi_pm").state, State::Degraded);

    let nodes = |balancing| {
        let node = |n: u8| format!("sys/devices/system/node/node{n}/cpulist");
        Fake::new(&[(&node(0), "0-7"), (&node(1), ""), ("proc/sys/kernel/numa_balancing", balancing)])
            .check(memory::numa)
    };
    assert_eq!(nodes("0").evidence, "node0: cores 0-7; node1: cores none");
    assert_eq!(nodes("1").state, State::Degraded);
}

#[test]
fn the_lab_names_the_missing_packages() {
    let files = [
        ("usr/bin/qemu-system-x86_64", ""),
        ("usr/bin/busybox", ""),
        ("boot/vmlinuz-6.1.0-1-amd64", ""),
        ("lib/modules/6.1.0-1-amd64/modules.dep", ""),
    ];
    let check = Fake::new(&files).check(lab::lab);
    assert_eq!((check.state, check.fixes[0].as_str()), (State::Missing, "sudo apt-get install cpio"));
    let check = Fake::new(&[files[0], files[1], files[2], files[3], ("usr/bin/cpio", "")]).check(lab::lab);
    assert_eq!(check.state, State::Ok, "{check:?}");
}

#[test]
fn the_report_is_shown_as_text_and_as_json() {
    let (machine, _root) = Fake::new(&[]).machine();
    let mut report = DoctorReport::new("doctor");
    report.results = all(&machine);
    let mut text = Vec::new();
    show(&mut text, &report, false).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("fix:  sudo modprobe vfio-pci") && text.ends_with(" missing\n"), "{text}");
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["results"][0]["name"], "dpdk");
    assert_eq!(json["results"][0]["state"], "ok");
    assert!(json["host"]["kernel"].is_string());
}

#[test]
fn only_what_is_required_and_missing_is_an_error() {
    let (machine, _root) = Fake::new(&[]).machine();
    let checks = all(&machine);
    assert!(fail_if_missing(&checks, &[]).is_ok());
    assert!(
        fail_if_missing(&checks, &[Name::Memif, Name::IsolatedCores]).is_ok(),
        "these are ok or degraded"
    );
    let error = fail_if_missing(&checks, &[Name::Gpu, Name::Memif, Name::Vfio]).unwrap_err();
    assert_eq!(error.to_string(), "missing: gpu, vfio; run 'inlane doctor gpu vfio' to see how to fix it");
}
