//! Linux's NVMe/TCP host in a virtual machine against `inlane nvme target`. Skipped with a message if QEMU, a
//! kernel or a program is missing.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const TEST: &str = "linux_uses_the_target";

/// Returns the path of a program on this machine. Returns `None` if the program is not installed.
fn program(name: &str) -> Option<PathBuf> {
    let folders = ["/usr/bin", "/usr/sbin", "/sbin", "/bin"];
    folders.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.exists())
}

#[test]
fn linux_uses_the_target() {
    let mut files = vec![Path::new(env!("CARGO_BIN_EXE_pci-check")).with_file_name("inlane")];
    if !files[0].exists() {
        eprintln!("SKIPPED {TEST}: no {}; build it with: cargo build -p inlane", files[0].display());
        return;
    }
    for (name, package) in [("nvme", "nvme-cli"), ("mkfs.ext4", "e2fsprogs"), ("fio", "fio")] {
        let Some(path) = program(name) else {
            eprintln!("SKIPPED {TEST}: no {name}; install the package {package}");
            return;
        };
        files.push(path);
    }
    let lab = Path::new(env!("CARGO_MANIFEST_DIR"));
    files.extend(["guest/steps.sh", "guest/nvme-host.sh"].map(|name| lab.join(name)));
    let mut command = Command::new(lab.join("vm/run.py"));
    command.args(["--memory", "1G", "--timeout", "240", "--module", "nvme_tcp", "--module", "ext4"]);
    command.args(["--module", "crc32c_generic"]);
    for file in &files {
        command.arg("--file").arg(file);
    }
    let command = command.args(["--", "sh", "/bin/nvme-host.sh"]).stdin(Stdio::null());
    let output = command.output().expect("run.py starts");
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // run.py exits with status 3 if it cannot start the virtual machine. The guest's script may also exit
    // with status 3, so check the message as well.
    if output.status.code() == Some(3) && errors.contains("virtual machines need") {
        eprintln!("SKIPPED {TEST}: {}", errors.trim().replace('\n', "; "));
        return;
    }
    assert!(output.status.success(), "{}\n{text}\n{errors}", output.status);
    let steps = [
        "discovery",
        "refusals",
        "file systems without digests",
        "file systems --hdr-digest --data-digest",
        "read-only",
        "commands",
        "resizing",
        "restart",
        "end",
    ];
    for step in steps {
        assert!(text.contains(&format!("{step}: ok")), "{step} is missing\n{text}\n{errors}");
    }
}
