//! inlane's initiator against the NVMe/TCP target of Linux, in a virtual machine. Skipped with a message if
//! QEMU or a kernel is missing.

use std::path::Path;
use std::process::{Command, Stdio};

/// What the guest runs after `guest/nvmet.sh`. The drive is the guest's file /tmp/drive.
const SCRIPT: &str = "
inlane nvme discover 127.0.0.1:4420 || exit 1
head -c 1048576 /dev/urandom >/tmp/in
for digests in none header data both; do
    inlane nvme write 127.0.0.1:4420 --digests $digests --offset 1M /tmp/in || exit 1
    dd if=/tmp/drive of=/tmp/drive-part bs=1M skip=1 count=1 2>/dev/null
    cmp /tmp/in /tmp/drive-part && echo \"$digests: the target has the bytes\"
    inlane nvme read 127.0.0.1:4420 --digests $digests --offset 1M --length 1M /tmp/out || exit 1
    cmp /tmp/in /tmp/out && echo \"$digests: read back\"
    inlane nvme bench 127.0.0.1:4420 --digests $digests --rw randrw --bs 16K --iodepth 8 --size 1M --verify crc32c || exit 1
done
inlane nvme bench 127.0.0.1:4420 --queues 2 --rw randrw --bs 4K --iodepth 16 --size 1M --verify crc32c --json /tmp/two || exit 1
grep io_queues /tmp/two
inlane nvme bench 127.0.0.1:4420 --queues 128 --rw randread --bs 4K --size 256K --json /tmp/many || exit 1
grep -o 'the target granted [0-9]* of 128 I/O queues' /tmp/many
inlane nvme bench 127.0.0.1:4421,127.0.0.1:4420 --queues 2 --rw randrw --bs 4K --size 256K --verify crc32c --json /tmp/paths || exit 1
grep -m 1 failovers /tmp/paths
inlane nvme read 127.0.0.1:4421 --reconnect 1s --length 4K /tmp/out && exit 1
inlane nvme read 127.0.0.1:4420 --subsystem nqn.2024-01.wrong:x --length 4K /tmp/out
echo status $?
";

#[test]
fn the_initiator_uses_the_target_of_linux() {
    const TEST: &str = "the_initiator_uses_the_target_of_linux";
    let inlane = Path::new(env!("CARGO_BIN_EXE_pci-check")).with_file_name("inlane");
    if !inlane.exists() {
        eprintln!("SKIPPED {TEST}: no {}; build it with: cargo build -p inlane", inlane.display());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("session.sh");
    std::fs::write(&script, SCRIPT).unwrap();
    let lab = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(lab.join("vm/run.py"))
        .args(["--memory", "1G", "--timeout", "240"])
        // Load crc32c_generic too, because Linux's NVMe/TCP target computes digests with it.
        .args(["--module", "crc32c_generic", "--module", "nvmet_tcp", "--module", "loop"])
        .args(["--file", lab.join("guest/nvmet.sh").to_str().unwrap()])
        .args(["--file", &format!("{}:/bin/session.sh", script.display())])
        .args(["--file", inlane.to_str().unwrap(), "--", "sh", "/bin/nvmet.sh", "sh", "/bin/session.sh"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (out, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.code() == Some(3) && errors.contains("virtual machines need") {
        eprintln!("SKIPPED {TEST}: {}", errors.trim().replace('\n', "; "));
        return;
    }
    assert!(output.status.success(), "{out}\n{errors}");
    assert!(out.contains("nqn.2024-01.inlane:lab"), "{out}");
    for digests in ["none", "header", "data", "both"] {
        assert!(out.contains(&format!("{digests}: the target has the bytes")), "{out}\n{errors}");
        assert!(out.contains(&format!("{digests}: read back")), "{out}\n{errors}");
    }
    assert!(out.contains("\"io_queues\": 2"), "{out}\n{errors}");
    assert!(out.contains("the target granted 4 of 128 I/O queues"), "{out}\n{errors}");
    assert!(out.contains("\"failovers\": ") && !out.contains("\"failovers\": 0"), "{out}\n{errors}");
    assert!(format!("{out}{errors}").contains("Asymmetric Access Inaccessible"), "{out}\n{errors}");
    assert!(
        out.contains("status 2") && format!("{out}{errors}").contains("does not have it"),
        "{out}\n{errors}"
    );
}
