//! Tests the messages on machines without a usable GPU. A stub of the CUDA driver simulates each case.

use std::path::PathBuf;
use std::process::Command;

/// Compiles the stub of the CUDA driver, `programs/driver.c`, to `libcuda.so.1` in a temporary directory.
/// Returns `None` if there is no C compiler.
fn stub() -> Option<(tempfile::TempDir, PathBuf)> {
    let folder = tempfile::tempdir().unwrap();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/driver.c");
    let library = folder.path().join("libcuda.so.1");
    let made = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).status();
    if !made.is_ok_and(|status| status.success()) {
        eprintln!(
            "SKIPPED an_unusable_driver_is_explained: no C compiler is available to build the stub of the driver"
        );
        return None;
    }
    std::os::unix::fs::symlink(&library, folder.path().join("libcuda.so")).unwrap();
    let path = folder.path().to_path_buf();
    Some((folder, path))
}

#[test]
fn an_unusable_driver_is_explained() {
    let Some((_folder, path)) = stub() else { return };
    let run = |environment: &[(&str, &str)]| {
        let output = Command::new(env!("CARGO_BIN_EXE_inlane"))
            .args(["forward", "--rx", "null", "--tx", "null", "--on", "gpu:0", "--method", "persistent"])
            .env("LD_LIBRARY_PATH", &path)
            .envs(environment.iter().copied())
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    // A case: the stub's settings, and two parts of the expected message (what was found, and what to do).
    type Case = (&'static [(&'static str, &'static str)], [&'static str; 2]);
    let cases: [Case; 4] = [
        (&[("STUB_VERSION", "12040")], ["it supports CUDA 12.4", "install a newer NVIDIA driver"]),
        (&[("STUB_INIT", "100")], ["CUDA_ERROR_NO_DEVICE", "nvidia-smi -L"]),
        (&[("STUB_INIT", "803")], ["CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "reload the module"]),
        (&[("STUB_DEVICES", "0")], ["the driver sees no GPU", "inlane topo"]),
    ];
    for (environment, wanted) in cases {
        let (status, said) = run(environment);
        assert_eq!(status, Some(3), "{environment:?}: {said}");
        for text in wanted {
            assert!(said.contains(text), "{environment:?}: {said}");
        }
    }
}

#[test]
fn a_matrix_uses_models_only_without_a_gpu() {
    let Some((_folder, path)) = stub() else { return };
    let run = |name: &str, value: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_inlane"))
            .args(["copy", "--matrix", "--sizes", "4K", "--path", "dma,staged", "--no-ceiling"])
            .args(["--repeats", "1", "--duration", "1ms", "--warm-up", "1ms"])
            // To zero the usual 256 MiB at each end takes longer than to measure.
            .env("INLANE_COPY_ROTATE", "1M")
            .env("LD_LIBRARY_PATH", &path)
            .env(name, value)
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (name, value) in [("STUB_DEVICES", "0"), ("STUB_INIT", "100")] {
        let (status, said) = run(name, value);
        assert_eq!(status, Some(0), "{said}");
        assert!(said.contains("there is no GPU; the matrix is of the host and two models"), "{said}");
    }
    for (name, value, wanted) in [
        ("STUB_VERSION", "12040", "install a newer NVIDIA driver"),
        ("STUB_INIT", "803", "reload the module"),
    ] {
        let (status, said) = run(name, value);
        assert_eq!(status, Some(3), "{said}");
        assert!(said.contains(wanted), "{said}");
    }
}

#[test]
fn packet_functions_on_a_gpu_are_verified() {
    if let Err(why) = inlane_cuda::driver_version() {
        eprintln!("SKIPPED packet_functions_on_a_gpu_are_verified: {why}");
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/gpu/check.py");
    let sections = ["functions", "own", "oran", "ports", "overload"];
    match Command::new("python3").arg(script).arg(env!("CARGO_BIN_EXE_inlane")).args(sections).output() {
        Err(why) => eprintln!("SKIPPED packet_functions_on_a_gpu_are_verified: no python3: {why}"),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stdout);
            said.lines().filter(|line| line.starts_with("SKIPPED")).for_each(|line| eprintln!("{line}"));
            assert!(output.status.success(), "{said}");
        }
    }
}

#[test]
fn without_a_driver_the_error_names_the_library_to_install() {
    if inlane_cuda::driver_version().is_ok() {
        eprintln!("SKIPPED without_a_driver_the_error_names_the_library_to_install: a driver is installed");
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
