//! Linux's software RoCEv2 (rxe) exchanges data with inlane's RDMA in a virtual machine. Skipped with a message if QEMU, a kernel or
//! a part of rdma-core is missing.

mod rdma;

use std::path::Path;
use std::process::{Command, Stdio};

const TEST: &str = "linux_and_inlane_exchange_data_by_rdma";

#[test]
fn linux_and_inlane_exchange_data_by_rdma() {
    let skip = |why: String| eprintln!("SKIPPED {TEST}: {why}");
    let rdma = match rdma::arguments(&[]) {
        Ok(arguments) => arguments,
        Err(why) => return skip(why),
    };
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        return skip("no infiniband/verbs.h; install the package libibverbs-dev".into());
    }
    let lab = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    let peer = folder.path().join("rxe-peer");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&peer);
    let Ok(output) = compiler.arg(lab.join("guest/rxe-peer.c")).arg("-libverbs").output() else {
        return skip("no compiler cc".into());
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = Command::new(lab.join("vm/run.py"))
        .args(["--timeout", "240", "--module", "veth"])
        .args(rdma)
        .arg("--file")
        .arg(&peer)
        .args(["--file", env!("CARGO_BIN_EXE_rdma-check"), "--file"])
        .arg(lab.join("guest/rxe.sh"))
        .arg("--file")
        .arg(lab.join("guest/rdma-check.sh"))
        .args(["--", "sh", "/bin/rdma-check.sh"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // run.py exits with status 3 if it cannot start the machine.
    if output.status.code() == Some(3) && errors.contains("virtual machines need") {
        return skip(errors.trim().replace('\n', "; "));
    }
    assert!(output.status.success(), "{}\n{text}\n{errors}", output.status);
    let passed = text.lines().filter(|line| line.ends_with(": ok")).count();
    assert_eq!(passed, 6, "{text}\n{errors}");
    println!("{text}");
}
