//! What runs without a GPU: errors, the cache, and the compiler where its wheel is installed.

use super::*;
use inlane_core::error::Class;
use std::os::unix::fs::PermissionsExt;

#[test]
fn a_machine_without_a_gpu_is_told_so() {
    match devices() {
        Ok(devices) => assert_eq!(devices.len() as u32, device_count().unwrap()),
        Err(error) => {
            assert_eq!(error.class(), Class::Environment, "{error}");
            assert!(matches!(Gpu::open(0), Err(error) if error.class() == Class::Environment));
        }
    }
}

#[test]
fn fatal_errors_are_known() {
    let error = |code| Error::Call {
        call: "cuStreamQuery",
        device: "gpu:0".into(),
        name: String::new(),
        meaning: String::new(),
        remedy: "",
        code,
    };
    assert_eq!(error(2).class(), Class::Environment);
}

#[test]
fn the_cache_gives_back_only_what_is_whole_and_ours() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("kernels");
    assert_eq!(cache::find(&directory, b"key"), None);
    cache::store(&directory, b"key", b"code");
    assert_eq!(cache::find(&directory, b"key").as_deref(), Some(&b"code"[..]));
    assert_eq!(cache::find(&directory, b"another"), None);

    let file = std::fs::read_dir(&directory).unwrap().next().unwrap().unwrap().path();
    let whole = std::fs::read(&file).unwrap();
    for cut in 0..whole.len() {
        std::fs::write(&file, &whole[..cut]).unwrap();
        assert_eq!(cache::find(&directory, b"key"), None, "cut at {cut}");
    }
    std::fs::write(&file, &whole).unwrap();
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(cache::find(&directory, b"key"), None, "others can write the directory");
}

/// True when the compiler is there; else says so.
fn compiler_is_there(test: &str) -> bool {
    match compiler_version() {
        Ok(_) => true,
        Err(error) => {
            eprintln!("SKIPPED {test}: {error}");
            false
        }
    }
}

#[test]
fn messages_name_the_users_lines() {
    if !compiler_is_there("messages_name_the_users_lines") {
        return;
    }
    let program = Source {
        name: "mine.cu",
        source: "#include \"part.h\"\nextern \"C\" __global__ void f(int* p) { *p = absent; }\n",
        headers: &[("part.h", "#pragma once\n")],
        options: &[],
    };
    match compile(&program, "sm_90") {
        Err(Error::DoesNotCompile { log, .. }) => {
            assert!(log.contains("mine.cu(2)") && log.contains("absent"), "{log}")
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(compile(&program, "sm_1").unwrap_err().class(), Class::Environment);
}

#[test]
fn compiles_to_machine_code() {
    if !compiler_is_there("compiles_to_machine_code") {
        return;
    }
    let source = format!(
        "// {}\nextern \"C\" __global__ void f(int* p) {{ *p = N; }}\n",
        std::process::id() // so that it is in no cache
    );
    let program = Source { name: "f.cu", source: &source, headers: &[], options: &["-DN=3"] };
    for arch in ["sm_80", "sm_90", "sm_100"] {
        let compiled = compile(&program, arch).unwrap();
        assert!(compiled.machine_code().starts_with(b"\x7fELF"));
        assert_eq!(compiled.arch(), arch);
    }
}
