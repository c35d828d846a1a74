//! OpenSHMEM programs over UCX by RDMA, between two virtual machines with Linux's software RoCEv2. Skipped with
//! a message if QEMU, a kernel, UCX or a part of rdma-core is missing.

mod rdma;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

const TEST: &str = "openshmem_runs_by_rdma_between_two_machines";

/// Files of UCX that the machines need, each with its package.
const LOADED: [(&str, &str); 2] =
    [("/usr/lib/*/libucp.so.0", "libucx0"), ("/usr/lib/*/ucx/libuct_ib.so.0", "libucx0")];

/// Compiles an OpenSHMEM program of the crate `shmem`. Returns `None` if there is no compiler.
fn compile(folder: &Path, name: &str, library: &Path) -> Option<PathBuf> {
    let shmem = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/shmem");
    let program = folder.join(name);
    let output = Command::new("cc")
        .args(["-std=gnu99", "-O2", "-o"])
        .arg(&program)
        .arg(shmem.join(format!("tests/programs/{name}.c")))
        .arg("-I")
        .arg(shmem.join("include"))
        .arg(library)
        .arg("-pthread")
        // Give the loader the folder of inlane's library, because run.py asks this machine's loader for the
        // libraries of each program.
        .arg(format!("-Wl,-rpath,{}", folder.display()))
        .output()
        .ok()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(program)
}

/// Starts a thread that reads a pipe to its end and returns the bytes.
fn drain(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).unwrap();
        bytes
    })
}

#[test]
fn openshmem_runs_by_rdma_between_two_machines() {
    let skip = |why: String| eprintln!("SKIPPED {TEST}: {why}");
    let built = Path::new(env!("CARGO_BIN_EXE_pci-check"));
    let (inlane, library) =
        (built.with_file_name("inlane"), built.with_file_name("deps").join("libinlane_shmem.so"));
    for (path, package) in [(&inlane, "inlane"), (&library, "inlane-shmem")] {
        if !path.exists() {
            return skip(format!("no {}; build it with: cargo build -p {package}", path.display()));
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let soname = folder.path().join("libinlane_shmem.so.0");
    std::os::unix::fs::symlink(&library, &soname).unwrap();
    let rdma = match rdma::arguments(&LOADED) {
        Ok(arguments) => arguments,
        Err(why) => return skip(why),
    };
    let mut files = vec![format!("{}:/lib/libinlane_shmem.so.0", library.display())];
    let lab = Path::new(env!("CARGO_MANIFEST_DIR"));
    files.push(inlane.display().to_string());
    files.extend(["rxe.sh", "openshmem.sh"].map(|name| lab.join("guest").join(name).display().to_string()));
    for name in ["basics", "forked"] {
        let Some(program) = compile(folder.path(), name, &soname) else {
            return skip("no compiler cc".into());
        };
        files.push(program.display().to_string());
    }
    let cable = folder.path().join("cable");
    let start = |name: &str, command: &[&str]| -> Child {
        let mut machine = Command::new(lab.join("vm/run.py"));
        machine.args(["--name", name, "--memory", "1G", "--timeout", "600", "--link"]).arg(&cable);
        machine.args(&rdma);
        for file in &files {
            machine.args(["--file", file]);
        }
        machine.args(["--", "sh", "/bin/rxe.sh"]).args(command);
        machine.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut first = start("first", &["10.0.0.1/24", "sh", "/bin/openshmem.sh", "run"]);
    // The first machine's QEMU creates the socket of the cable. The second machine connects to it.
    while !cable.exists() && first.try_wait().unwrap().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    // Start the second machine only if the first machine still runs. Otherwise the second would wait for the
    // first forever.
    let second = first.try_wait().unwrap().is_none().then(|| {
        let mut second = start("second", &["10.0.0.2/24", "sh", "/bin/openshmem.sh", "serve"]);
        // Read the output at once, because a full pipe would stop the machine.
        let pipes =
            [drain(second.stdout.take().expect("a pipe")), drain(second.stderr.take().expect("a pipe"))];
        (second, pipes)
    });
    let first = first.wait_with_output().unwrap();
    let (text, errors) = (String::from_utf8_lossy(&first.stdout), String::from_utf8_lossy(&first.stderr));
    let second = second.map(|(mut second, [_, errors])| {
        // If the first machine failed, stop the second one, because it may still wait for the first.
        if !first.status.success() {
            let id = second.id().to_string();
            Command::new("kill").args(["-TERM", &id]).status().unwrap();
        }
        (second.wait().unwrap(), errors.join().unwrap())
    });
    // run.py exits with status 3 if it cannot start the machine. Skip the test if a prerequisite is missing.
    if first.status.code() == Some(3) && errors.contains("virtual machines need") {
        return skip(errors.trim().replace('\n', "; "));
    }
    let Some((status, others)) = second else {
        panic!("the first machine ended before its cable existed: {}\n{text}\n{errors}", first.status);
    };
    let others = String::from_utf8_lossy(&others);
    assert!(first.status.success(), "{}\n{text}\n{errors}\n{others}", first.status);
    for step in ["basics over rc: ok", "forked over rc: ok", "basics over ud: ok"] {
        assert!(text.contains(step), "{step} is missing\n{text}\n{errors}\n{others}");
    }
    assert!(status.success(), "{status}\n{others}");
}
