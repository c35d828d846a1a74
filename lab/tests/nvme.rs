//! Linux's NVMe/TCP host in a virtual machine against `inlane nvme target`. Skipped with a message if QEMU, a
//! kernel or a program is missing.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Returns the path of a program on this machine. Returns `None` if the program is not installed.
fn program(name: &str) -> Option<PathBuf> {
    let folders = ["/usr/bin", "/usr/sbin", "/sbin", "/bin"];
    folders.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.exists())
}

/// Runs a script of `guest` in a virtual machine with inlane, these programs (name and package) and these modules. Each
/// step must be reported as successful.
fn run(test: &str, script: &str, programs: &[(&str, &str)], modules: &[&str], steps: &[&str]) {
    let mut files = vec![Path::new(env!("CARGO_BIN_EXE_pci-check")).with_file_name("inlane")];
    if !files[0].exists() {
        eprintln!("SKIPPED {test}: no {}; build it with: cargo build -p inlane", files[0].display());
        return;
    }
    for (name, package) in programs {
        let Some(path) = program(name) else {
            eprintln!("SKIPPED {test}: no {name}; install the package {package}");
            return;
        };
        files.push(path);
    }
    let lab = Path::new(env!("CARGO_MANIFEST_DIR"));
    files.extend(["steps.sh", script].map(|name| lab.join("guest").join(name)));
    let mut command = Command::new(lab.join("vm/run.py"));
    command.args(["--memory", "1G", "--timeout", "240"]);
    for module in modules {
        command.args(["--module", module]);
    }
    for file in &files {
        command.arg("--file").arg(file);
    }
    let command = command.args(["--", "sh", &format!("/bin/{script}")]).stdin(Stdio::null());
    let output = command.output().expect("run.py starts");
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // run.py exits with status 3 if it cannot start the virtual machine. The guest's script may also exit
    // with status 3, so check the message as well.
    if output.status.code() == Some(3) && errors.contains("virtual machines need") {
        eprintln!("SKIPPED {test}: {}", errors.trim().replace('\n', "; "));
        return;
    }
    assert!(output.status.success(), "{}\n{text}\n{errors}", output.status);
    for step in steps {
        assert!(text.contains(&format!("{step}: ok")), "{step} is missing\n{text}\n{errors}");
    }
}

#[test]
fn linux_uses_the_target() {
    run(
        "linux_uses_the_target",
        "nvme-host.sh",
        &[("nvme", "nvme-cli"), ("mkfs.ext4", "e2fsprogs"), ("fio", "fio")],
        &["nvme_tcp", "ext4", "crc32c_generic"],
        &[
            "discovery",
            "refusals",
            "connect-all",
            "file systems without digests",
            "file systems --hdr-digest --data-digest",
            "read-only",
            "commands",
            "resizing",
            "restart",
            "end",
        ],
    );
}

/// No flush succeeds whose data is lost, and no write lands after a reset.
#[test]
fn faults_of_disks_reach_the_host() {
    run(
        "faults_of_disks_reach_the_host",
        "nvme-faults.sh",
        &[("nvme", "nvme-cli"), ("mkfs.ext4", "e2fsprogs"), ("dmsetup", "dmsetup")],
        &["nvme_tcp", "loop", "dm_flakey", "ext4", "crc32c_generic"],
        &[
            "read and write errors",
            "concurrent flushes",
            "flushes after a failure with direct=on",
            "flushes after a failure with direct=off",
            "a failed flush at the end",
            "full disk with direct=on",
            "full disk with direct=off",
            "reset with a write in flight",
        ],
    );
}
