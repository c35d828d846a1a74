//! DH-HMAC-CHAP between inlane and Linux's NVMe/TCP host and target, in a virtual machine. Skipped with a
//! message if QEMU, a program, or a kernel that supports authentication is missing. The variable
//! INLANE_LAB_KERNEL can name a directory with such a kernel.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const TEST: &str = "linux_and_inlane_authenticate_each_other";

#[test]
fn linux_and_inlane_authenticate_each_other() {
    let inlane = Path::new(env!("CARGO_BIN_EXE_pci-check")).with_file_name("inlane");
    if !inlane.exists() {
        eprintln!("SKIPPED {TEST}: no {}; build it with: cargo build -p inlane", inlane.display());
        return;
    }
    let nvme = ["/usr/sbin/nvme", "/usr/bin/nvme", "/sbin/nvme"].map(PathBuf::from);
    let Some(nvme) = nvme.into_iter().find(|path| path.exists()) else {
        eprintln!("SKIPPED {TEST}: no nvme; install the package nvme-cli");
        return;
    };
    let lab = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(lab.join("vm/run.py"));
    command.args(["--memory", "1G", "--timeout", "580"]);
    for module in ["nvme_tcp", "nvmet_tcp", "nvme_auth", "loop", "sha512_generic", "crc32c_generic"] {
        command.args(["--module", module]);
    }
    let scripts = ["nvmet.sh", "steps.sh", "nvme-auth.sh"].map(|name| lab.join("guest").join(name));
    for file in [inlane, nvme].iter().chain(&scripts) {
        command.arg("--file").arg(file);
    }
    command.args(["--", "sh", "/bin/nvmet.sh", "sh", "/bin/nvme-auth.sh"]).stdin(Stdio::null());
    let output = command.output().expect("run.py starts");
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // run.py exits with status 3 if it cannot start the machine, and if the kernel lacks the module nvme_auth.
    if output.status.code() == Some(3) && errors.contains("virtual machines need") {
        eprintln!("SKIPPED {TEST}: {}", errors.trim().replace('\n', "; "));
        return;
    }
    assert!(output.status.success(), "{}\n{text}\n{errors}", output.status);
    for choice in ["sha256 null", "sha384 null", "sha512 null", "sha256 ffdhe2048", "sha512 ffdhe3072"] {
        for peer in ["host", "target"] {
            let step = format!("{peer} of Linux, {choice}: ok");
            assert!(text.contains(&step), "{step} is missing\n{text}\n{errors}");
        }
    }
    assert!(text.contains("reauthentication: ok") && text.contains("end: ok"), "{text}\n{errors}");
}
