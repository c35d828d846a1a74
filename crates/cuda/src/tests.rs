//! Tests that need no GPU: errors, and the compiler if it is installed.

mod fake_libraries;

use super::*;
use inlane_core::error::Class;
use std::process::Command;

/// Runs one of the ignored tests below in a child process with the given environment. Asserts that the test
/// passes.
fn passes_in_a_child(test: &str, environment: &[(&str, &str)]) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("tests::{test}"), "--ignored", "--nocapture"])
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{test}: {text}");
}

/// An empty CUDA_VISIBLE_DEVICES hides all GPUs from the driver. So this test finds no GPU on any machine.
#[test]
fn a_machine_without_a_gpu_gets_an_environment_error() {
    passes_in_a_child("no_gpu_is_an_environment_error", &[("CUDA_VISIBLE_DEVICES", "")]);
}

#[test]
#[ignore = "run by the test above in a process that sees no GPU"]
fn no_gpu_is_an_environment_error() {
    let found = devices().map(|devices| devices.len());
    assert!(
        matches!(&found, Err(error) if error.class() == Class::Environment) || matches!(found, Ok(0)),
        "{found:?}"
    );
    let opened = Gpu::open(0).map(|gpu| gpu.to_string()).unwrap_err();
    assert_eq!(opened.class(), Class::Environment, "{opened}");
    assert!(opened.to_string().contains(';'), "the message says what to do: {opened}");
}

#[test]
fn the_error_of_a_mover_is_the_cuda_error_unchanged() {
    let name = "drop.cu".to_string();
    let log = "drop.cu(3): error: expected a \";\"".to_string();
    for error in [
        Error::NoDriver,
        Error::NoDevice { index: 3, count: 1 },
        Error::DoesNotCompile { name, arch: "sm_90".into(), log },
        Error::invalid("file a: b", "it is empty"),
    ] {
        let (text, class) = (error.to_string(), error.class());
        let converted = inlane_core::Error::from(error);
        assert_eq!((converted.to_string(), converted.class()), (text.clone(), class));
        let inlane_core::Error::Other { error, .. } = converted else { panic!("{converted:?}") };
        assert_eq!(error.downcast::<Error>().unwrap().to_string(), text);
    }
}

#[test]
fn driver_errors_have_the_class_of_their_cause() {
    let error = |code| Error::Call {
        call: "cuStreamQuery",
        device: "gpu:0".into(),
        name: String::new(),
        meaning: String::new(),
        remedy: "",
        code,
    };
    // These codes mean that the machine is not ready: CUDA_ERROR_OUT_OF_MEMORY, _STUB_LIBRARY, _NO_DEVICE,
    // _NOT_PERMITTED, _SYSTEM_DRIVER_MISMATCH.
    for code in [2, 34, 100, 800, 803] {
        assert_eq!(error(code).class(), Class::Environment, "{code}");
    }
    // These codes mean that the call or a kernel failed: CUDA_ERROR_INVALID_VALUE, _ILLEGAL_ADDRESS,
    // _LAUNCH_FAILED.
    for code in [1, 700, 719] {
        assert_eq!(error(code).class(), Class::Failed, "{code}");
    }
}

/// The C source of a library that exports NVRTC's symbols. Its initializer creates the file that the variable
/// `LOADED_MARKER` names. The file tells a test whether the library was loaded.
const FAKE_COMPILER: &str = r#"
#include <stdio.h>
#include <stdlib.h>
__attribute__((constructor)) static void loaded(void) { fclose(fopen(getenv("LOADED_MARKER"), "w")); }
int nvrtcVersion(int *major, int *minor) { return *major = 13, *minor = 0; }
#define SYMBOL(name) int name(void) { return 1; }
SYMBOL(nvrtcCreateProgram) SYMBOL(nvrtcDestroyProgram) SYMBOL(nvrtcCompileProgram) SYMBOL(nvrtcGetProgramLogSize)
SYMBOL(nvrtcGetProgramLog) SYMBOL(nvrtcGetCUBINSize) SYMBOL(nvrtcGetCUBIN) SYMBOL(nvrtcGetErrorString)
"#;

/// The library in the variable INLANE_NVRTC must be loaded only when it is needed. Callers can then drop
/// privileges first.
#[test]
fn the_compiler_is_not_loaded_before_it_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let (source, library) = (folder.path().join("nvrtc.c"), folder.path().join("private/libnvrtc.so"));
    std::fs::create_dir(folder.path().join("private")).unwrap();
    std::fs::write(&source, FAKE_COMPILER).unwrap();
    let made = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    assert!(made.expect("a C compiler, which builds this workspace too").success());
    let marker = folder.path().join("loaded");
    passes_in_a_child(
        "locating_the_compiler_runs_none_of_its_code",
        &[("INLANE_NVRTC", library.to_str().unwrap()), ("LOADED_MARKER", marker.to_str().unwrap())],
    );
}

#[test]
#[ignore = "run by the test above with a compiler that shows when it is loaded"]
fn locating_the_compiler_runs_none_of_its_code() {
    let path = |name| std::path::PathBuf::from(std::env::var_os(name).unwrap());
    let (library, marker) = (path("INLANE_NVRTC"), path("LOADED_MARKER"));
    let _ = (devices(), Gpu::open(0).map(drop));
    locate_compiler();
    assert!(!marker.exists(), "nothing of the library has run");
    // Move the library's directory away. This simulates a directory that became unreadable when privileges
    // were dropped.
    std::fs::rename(library.parent().unwrap(), library.parent().unwrap().with_extension("hidden")).unwrap();
    let (version, found) = compiler_version().unwrap();
    assert!(marker.exists() && version == "13.0" && found == library, "{version} {found:?}");
}

/// Returns true if the run-time compiler is installed. Otherwise prints that the test is skipped.
fn compiler_is_installed(test: &str) -> bool {
    match compiler_version() {
        Ok(_) => true,
        Err(error) => {
            eprintln!("SKIPPED {test}: {error}");
            false
        }
    }
}

#[test]
fn compiler_messages_name_the_users_lines() {
    if !compiler_is_installed("compiler_messages_name_the_users_lines") {
        return;
    }
    let source = Source {
        name: "mine.cu",
        source: "#include \"part.h\"\nextern \"C\" __global__ void f(int* p) { *p = absent; }\n",
        headers: &[("part.h", "#pragma once\n")],
        options: &[],
    };
    match compile(&source, "sm_90") {
        Err(Error::DoesNotCompile { log, .. }) => {
            assert!(log.contains("mine.cu(2)") && log.contains("absent"), "{log}")
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(compile(&source, "sm_1").unwrap_err().class(), Class::Environment, "an unknown architecture");
}

#[test]
fn source_compiles_to_machine_code_which_is_cached() {
    if !compiler_is_installed("source_compiles_to_machine_code_which_is_cached") {
        return;
    }
    // The process id makes the text new, so no earlier run has cached it.
    let text = format!("// {}\nextern \"C\" __global__ void f(int* p) {{ *p = N; }}\n", std::process::id());
    let source = Source { name: "f.cu", source: &text, headers: &[], options: &["-DN=3"] };
    for arch in ["sm_80", "sm_90", "sm_100"] {
        let compiled = compile(&source, arch).unwrap();
        assert!(compiled.machine_code().starts_with(b"\x7fELF"));
        assert_eq!((compiled.arch(), compiled.is_cached()), (arch, false));
    }
}
