//! What a machine without a usable GPU is told. The driver is a stub that says what each case needs.

use std::path::PathBuf;
use std::process::Command;

/// A folder with a `libcuda.so.1` from `programs/driver.c`, or none without a C compiler.
fn stub() -> Option<(tempfile::TempDir, PathBuf)> {
    let folder = tempfile::tempdir().unwrap();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/driver.c");
    let library = folder.path().join("libcuda.so.1");
    let made = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).status();
    if !made.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED what_a_driver_lacks_is_said: no C compiler makes a stub of the driver");
        return None;
    }
    std::os::unix::fs::symlink(&library, folder.path().join("libcuda.so")).unwrap();
    let path = folder.path().to_path_buf();
    Some((folder, path))
}

#[test]
fn what_a_driver_lacks_is_said() {
    let Some((_folder, path)) = stub() else { return };
    let told = |environment: &[(&str, &str)]| {
        let output = Command::new(env!("CARGO_BIN_EXE_inlane"))
            .args(["forward", "--rx", "null", "--tx", "null", "--on", "gpu:0", "--method", "persistent"])
            .env("LD_LIBRARY_PATH", &path)
            .envs(environment.iter().copied())
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    // What is told it, the exit status, what it says: what was found, and what to do.
    type Case = (&'static [(&'static str, &'static str)], [&'static str; 2]);
    let cases: [Case; 4] = [
        (&[("STUB_VERSION", "12040")], ["it supports CUDA 12.4", "install a newer NVIDIA driver"]),
        (&[("STUB_INIT", "100")], ["CUDA_ERROR_NO_DEVICE", "nvidia-smi -L"]),
        (&[("STUB_INIT", "803")], ["CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "reload the module"]),
        (&[("STUB_DEVICES", "0")], ["the driver sees no GPU", "inlane topo"]),
    ];
    for (environment, wanted) in cases {
        let (status, said) = told(environment);
        assert_eq!(status, Some(3), "{environment:?}: {said}");
        for text in wanted {
            assert!(said.contains(text), "{environment:?}: {said}");
        }
    }
}

#[test]
fn a_matrix_is_of_models_only_where_there_is_no_gpu() {
    let Some((_folder, path)) = stub() else { return };
    let told = |name: &str, value: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_inlane"))
            .args(["copy", "--matrix", "--sizes", "4K", "--path", "dma,staged", "--no-ceiling"])
            .args(["--repeats", "1", "--duration", "1ms", "--warm-up", "1ms"])
            .env("LD_LIBRARY_PATH", &path)
            .env(name, value)
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (name, value) in [("STUB_DEVICES", "0"), ("STUB_INIT", "100")] {
        let (status, said) = told(name, value);
        assert_eq!(status, Some(0), "{said}");
        assert!(said.contains("there is no GPU: the matrix is of the host and two models"), "{said}");
    }
    for (name, value, wanted) in [
        ("STUB_VERSION", "12040", "install a newer NVIDIA driver"),
        ("STUB_INIT", "803", "reload the module"),
    ] {
        let (status, said) = told(name, value);
        assert_eq!(status, Some(3), "{said}");
        assert!(said.contains(wanted), "{said}");
    }
}

/// What runs on GPUs is checked by a script, so that it runs where there is one and no Rust.
#[test]
fn all_that_a_gpu_runs_is_right() {
    if let Err(why) = inlane_cuda::driver_version() {
        eprintln!("SKIPPED all_that_a_gpu_runs_is_right: {why}");
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/gpu/check.py");
    let sections = ["functions", "own", "oran", "ports", "overload"];
    match Command::new("python3").arg(script).arg(env!("CARGO_BIN_EXE_inlane")).args(sections).output() {
        Err(why) => eprintln!("SKIPPED all_that_a_gpu_runs_is_right: no python3: {why}"),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stdout);
            said.lines().filter(|line| line.starts_with("SKIPPED")).for_each(|line| eprintln!("{line}"));
            assert!(output.status.success(), "{said}");
        }
    }
}

#[test]
fn a_machine_without_a_driver_is_told_what_to_install() {
    if inlane_cuda::driver_version().is_ok() {
        eprintln!("SKIPPED a_machine_without_a_driver_is_told_what_to_install: there is a driver");
        return;
    }
    let output = Command::new(env!("CARGO_BIN_EXE_inlane"))
        .args(["forward", "--rx", "null", "--tx", "null", "--on", "gpu:0", "--method", "graph"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("libcuda.so.1") && said.contains("--on cpu"), "{said}");
}
