//! Boots virtual machines and runs `pci-check`, `ntb-check` and `inlane` in them. Each test takes about ten
//! seconds and is skipped with a message if QEMU or a kernel is missing.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Returns the command `lab/vm/run.py` with options and the program `pci-check`. The caller adds the
/// arguments of `pci-check`.
fn machine(options: &[&str]) -> Command {
    let mut command = run_py();
    command.args(options).args(["--timeout", "150", "--", env!("CARGO_BIN_EXE_pci-check")]);
    command
}

/// Returns the output of the guest's command. If this machine cannot run virtual machines, prints why and
/// returns `None`.
fn outcome(test: &str, output: Output) -> Option<String> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    // run.py exits with status 3 if it cannot start the virtual machine. The guest's command may also exit
    // with status 3, so check the message as well.
    if output.status.code() == Some(3) && errors.contains("virtual machines need") {
        eprintln!("SKIPPED {test}: {}", errors.trim().replace('\n', "; "));
        return None;
    }
    assert!(output.status.success(), "{}\n{text}\n{errors}", output.status);
    Some(text)
}

fn run_py() -> Command {
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("vm/run.py"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn the_exit_status_and_output_are_those_of_the_guests_command() {
    // A directory for the script's temporary files. The test checks that the script removes all of them.
    let temporary = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| run_py().env("TMPDIR", temporary.path()).args(arguments).output().unwrap();
    let output = run(&["--", "sh", "-c", "echo out 'of it'; echo err >&2; exit 7"]);
    if output.status.code() == Some(3) {
        outcome("the_exit_status_and_output_are_those_of_the_guests_command", output);
        return;
    }
    assert_eq!(output.status.code(), Some(7));
    assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"out of it\n"[..], &b"err\n"[..]));
    let limited = run(&["--timeout", "3", "--", "sleep", "100"]);
    assert_eq!(limited.status.code(), Some(124));
    assert!(String::from_utf8_lossy(&limited.stderr).contains("stopped after the limit of 3 seconds"));
    assert_eq!(run(&["--file", "/nonexistent", "--", "true"]).status.code(), Some(2));
    assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0, "temporary files were left behind");
}

#[test]
fn bars_are_accessed_only_as_the_rule_permits() {
    let directory = tempfile::tempdir().unwrap();
    let memory = directory.path().join("memory");
    let shared = format!("1M:{}", memory.display());
    let options = [
        "--iommu",
        "--ivshmem",
        &shared,
        "--ivshmem",
        "1M",
        "--ivshmem",
        "1M",
        "--vfio",
        "0000:00:01.0",
        "--bind",
        "pci-stub=0000:00:02.0",
    ];
    let devices = ["memory", "0000:00:01.0", "0000:00:02.0", "0000:00:03.0"];
    let output = machine(&options).args(devices).output().unwrap();
    let Some(text) = outcome("bars_are_accessed_only_as_the_rule_permits", output) else { return };
    assert!(text.contains("memory: ok"), "{text}");
    assert!(text.contains("in use by the kernel driver pci-stub"), "{text}");
    // The guest may write only to 0x4000..0xc000, and its pattern has no zero bytes. So exactly the bytes in
    // this range must be non-zero.
    let bytes = fs::read(memory).unwrap();
    assert_eq!(bytes.len(), 1 << 20);
    let written: Vec<usize> = (0..bytes.len()).filter(|&n| bytes[n] != 0).collect();
    assert_eq!((written.first(), written.last(), written.len()), (Some(&0x4000), Some(&0xbfff), 0x8000));
}

#[test]
fn a_drive_in_use_is_not_accessed() {
    let options = ["--nvme", "16M", "--module", "nvme"];
    let output = machine(&options).args(["held", "0000:00:01.0"]).output().unwrap();
    let Some(text) = outcome("a_drive_in_use_is_not_accessed", output) else { return };
    assert!(text.contains("in use by the kernel driver nvme"), "{text}");
}

#[test]
fn errors_name_what_prevents_vfio() {
    // Bind the chipset's AHCI controller to VFIO, but leave the SMBus to the kernel driver. Both are in one
    // IOMMU group. A group cannot be used if one of its devices has another driver.
    let options = [
        "--iommu",
        "--device",
        "edu,addr=05.0",
        "--vfio",
        "0000:00:05.0",
        "--vfio",
        "0000:00:1f.2",
        "--module",
        "i2c_i801",
    ];
    let output = machine(&options).args(["vfio", "0000:00:05.0", "0000:00:1f.2"]).output().unwrap();
    let Some(text) = outcome("errors_name_what_prevents_vfio", output) else { return };
    assert!(text.contains("vfio: ok"), "{text}");
}

#[test]
fn dma_and_interrupts_go_through_the_iommu() {
    let output = machine(&["--iommu", "--device", "edu,addr=05.0", "--vfio", "0000:00:05.0"])
        .args(["dma", "0000:00:05.0"])
        .output()
        .unwrap();
    let Some(text) = outcome("dma_and_interrupts_go_through_the_iommu", output) else { return };
    assert!(text.contains("dma: ok"), "{text}");
}

#[test]
fn two_machines_interrupt_each_other() {
    let output = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("ntb-two-vms.sh"))
        .env("IVSHMEM_SERVER", env!("CARGO_BIN_EXE_ivshmem-server"))
        .args([
            "--memory",
            "1M",
            "--vectors",
            "2",
            "--timeout",
            "200",
            env!("CARGO_BIN_EXE_pci-check"),
            "doorbell",
            "0000:00:01.0",
            "200",
        ])
        .output()
        .unwrap();
    let second = String::from_utf8_lossy(&output.stderr).into_owned();
    let Some(first) = outcome("two_machines_interrupt_each_other", output) else { return };
    assert!(first.contains("machine 0, 200 rounds"), "{first}");
    assert!(second.contains("machine 1, 200 rounds"), "{second}");
}

#[test]
fn the_ntb_library_between_two_machines() {
    let output = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("ntb-two-vms.sh"))
        .env("IVSHMEM_SERVER", env!("CARGO_BIN_EXE_ivshmem-server"))
        .args(["--memory", "8M", "--timeout", "150", "--file", env!("CARGO_BIN_EXE_ntb-check")])
        .args([env!("CARGO_BIN_EXE_ntb-check"), "stay", "0000:00:01.0", ":::", "sh", "-c"])
        .arg("ntb-check die 0000:00:01.0; sleep 5; ntb-check return 0000:00:01.0")
        .output()
        .unwrap();
    let second = String::from_utf8_lossy(&output.stderr).into_owned();
    let Some(first) = outcome("the_ntb_library_between_two_machines", output) else { return };
    assert!(first.contains("library: ok") && first.contains("outlived: ok"), "{first}");
    assert!(second.contains("library: ok") && second.contains("returned: ok"), "{second}");
}

#[test]
fn ntb_check_between_two_machines() {
    const TEST: &str = "ntb_check_between_two_machines";
    let Some(inlane) = inlane(TEST) else { return };
    let output = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("ntb-two-vms.sh"))
        .env("IVSHMEM_SERVER", env!("CARGO_BIN_EXE_ivshmem-server"))
        .args(["--timeout", "150", &inlane, "ntb", "check", "--ivshmem", "0000:00:01.0", "--rounds", "3"])
        .output()
        .unwrap();
    let second = String::from_utf8_lossy(&output.stderr).into_owned();
    let Some(first) = outcome(TEST, output) else { return };
    assert!(first.contains("ivshmem, PE 0 of 2, 3 rounds"), "{first}");
    assert!(second.contains("ivshmem, PE 1 of 2, 3 rounds"), "{second}");
}

#[test]
fn an_ntb_carries_packets_between_two_machines() {
    const TEST: &str = "an_ntb_carries_packets_between_two_machines";
    let Some(inlane) = inlane(TEST) else { return };
    let port = "ntb:0000:00:01.0,wait=120";
    let receive = ["forward", "--rx", port, "--tx", "check:1000,flows=4", "--packets", "2000"];
    let send = ["forward", "--rx", "gen:1000,flows=4", "--tx", port, "--rate", "2kpps", "--packets", "2000"];
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("ntb-two-vms.sh"));
    command.env("IVSHMEM_SERVER", env!("CARGO_BIN_EXE_ivshmem-server")).args(["--timeout", "240", &inlane]);
    let output = command.args(receive).args([":::", &inlane]).args(send).output().unwrap();
    let Some(first) = outcome(TEST, output) else { return };
    let verified = "verified  ok: 2000 packets, 0 lost, 0 duplicated, 0 reordered, 0 altered";
    assert!(first.contains(verified) && first.contains("NTB by ivshmem 0000:00:01.0 -> "), "{first}");
}

#[test]
fn engines_of_two_machines_are_joined_by_an_ntb() {
    const TEST: &str = "engines_of_two_machines_are_joined_by_an_ntb";
    let Some((first, second)) = engines(TEST, "engines.sh", &[], ["target", "bench"]) else { return };
    assert!(first.contains("engine 1: ok") && first.contains("0 data digest errors"), "{first}\n{second}");
    assert!(second.contains("engine 2: ok"), "{second}");
}

#[test]
fn an_engine_uses_the_card_of_another_machine() {
    const TEST: &str = "an_engine_uses_the_card_of_another_machine";
    let more = ["--module", "veth", "--file", env!("CARGO_BIN_EXE_tcp-check")];
    let Some((first, second)) = engines(TEST, "card.sh", &more, ["engine", "card"]) else { return };
    assert!(first.contains("engine: ok") && second.contains("card: ok"), "{first}\n{second}");
}

/// Runs a script of `guest` in two machines that share an ivshmem device, with one argument in each. Both have
/// `inlane` and its preloaded library. Returns the output of the first machine, and that of the second one with the errors of both.
fn engines(test: &str, script: &str, more: &[&str], roles: [&str; 2]) -> Option<(String, String)> {
    let inlane = inlane(test)?;
    let library = Path::new(&inlane).with_file_name("libinlane_preload.so");
    if !library.exists() {
        eprintln!("SKIPPED {test}: no {}; build it with: cargo build -p inlane-preload", library.display());
        return None;
    }
    let lab = Path::new(env!("CARGO_MANIFEST_DIR"));
    let guest = format!("/bin/{script}");
    let output = Command::new(lab.join("ntb-two-vms.sh"))
        .env("IVSHMEM_SERVER", env!("CARGO_BIN_EXE_ivshmem-server"))
        .args(["--timeout", "300", "--file", &inlane, "--file"])
        .arg(library)
        .arg("--file")
        .arg(lab.join("guest").join(script))
        .args(more)
        .args(["sh", &guest, roles[0], ":::", "sh", &guest, roles[1]])
        .output()
        .unwrap();
    let second = String::from_utf8_lossy(&output.stderr).into_owned();
    Some((outcome(test, output)?, second))
}

/// Returns the path of the `inlane` program. Cargo builds it into the same folder as this package's programs.
fn inlane(test: &str) -> Option<String> {
    let program = Path::new(env!("CARGO_BIN_EXE_pci-check")).with_file_name("inlane");
    if !program.exists() {
        eprintln!("SKIPPED {test}: no {}; build it with: cargo build -p inlane", program.display());
        return None;
    }
    Some(program.to_str().unwrap().into())
}

#[test]
fn copies_to_and_from_bars() {
    const TEST: &str = "copies_to_and_from_bars";
    let Some(inlane) = inlane(TEST) else { return };
    let directory = tempfile::tempdir().unwrap();
    let memory = directory.path().join("memory");
    let (mine, held) = ("pci:0000:00:01.0/bar2", "pci:0000:00:02.0/bar2@0+1M");
    let flags = "--repeats 2 --duration 5ms --allow-bar-write --allow-bar-read";
    let quick = format!("--sizes 4K,64K {flags}");
    let script = format!(
        "inlane copy --from host --to {mine}@1M+1M {quick} --json /tmp/to && \
         inlane copy --from {mine}@1M+1M --to host {quick} --json /tmp/from && \
         inlane copy --from {mine}@1M+1M --to {mine}@3M+1M {quick} --json /tmp/within && \
         inlane copy --from host --to {mine}@1M+1M --direction both {quick} --json /tmp/both && \
         inlane copy --from {mine}@1M+8K --to {mine}@3M+8K --direction both --require cpu --sizes 4K {flags} \
         --json /tmp/tight || exit 9; \
         inlane copy --from host --to {mine}@0+4K --sizes 4K 2>&1; echo status $?; \
         inlane copy --from host --to {mine} --sizes 4K --allow-bar-write 2>&1; echo status $?; \
         inlane copy --from host --to {held} {quick} 2>&1; echo status $?; \
         inlane copy --from host --to {mine}@4M+4K {quick} 2>&1; echo status $?; \
         inlane copy --from {mine}@1M+1M --to {mine}@1536K+1M {quick} 2>&1; echo status $?; \
         inlane copy --from host --to {mine}@1M+4K --direction both --require cpu --sizes 4K {flags} 2>&1; echo status $?; \
         cat /tmp/to /tmp/from /tmp/within /tmp/both /tmp/tight"
    );
    let shared = format!("4M:{}", memory.display());
    let output = run_py()
        .args(["--memory", "1G", "--timeout", "150", "--iommu", "--ivshmem", &shared, "--ivshmem", "4M"])
        .args(["--vfio", "0000:00:01.0", "--bind", "pci-stub=0000:00:02.0", "--file", &inlane])
        .args(["--", "sh", "-c", &script])
        .output()
        .unwrap();
    let Some(text) = outcome(TEST, output) else { return };
    // Collect the exit statuses of the six runs that must fail. Their faults, in order: no permission to
    // write, no range, a device bound to a kernel driver, a range beyond the BAR, overlapping ranges, and a
    // range too small for both directions.
    let statuses: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("status ")).collect();
    assert_eq!(statuses, ["2", "2", "3", "2", "2", "3"], "{text}");
    assert!(text.contains("in use by the kernel driver pci-stub"), "{text}");
    for wanted in [
        "\"delivered\"",
        "\"issued\"",
        "\"altered_bytes\": 0",
        "\"both_directions\": true",
        "the ranges of the BAR overlap",
        "endpoints in one BAR, need separate memory",
    ] {
        assert!(text.contains(wanted), "{wanted} is missing in {text}");
    }
    // `memory` is the file behind the BAR. The guest wrote only to the second and the fourth MiB of the BAR,
    // so only these two may contain non-zero bytes.
    let bytes = fs::read(memory).unwrap();
    let written = |range: std::ops::Range<usize>| bytes[range].iter().any(|&byte| byte != 0);
    let found = [0..1 << 20, 1 << 20..2 << 20, 2 << 20..3 << 20, 3 << 20..4 << 20].map(written);
    assert_eq!(found, [false, true, false, true]);
}
