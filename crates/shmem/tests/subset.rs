//! Compiles C programs against the header and the library, and runs them as jobs of several sizes.

use inlane_pgas::launch::Job;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles a program and links it to the library beside this test. Returns `None` if there is no C compiler.
fn compile(directory: &Path, name: &str) -> Option<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let libraries = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
    let program = directory.join(name);
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let output = Command::new(&compiler)
        .args(["-std=gnu99", "-Wall", "-Wextra", "-Werror", "-O2", "-o"])
        .arg(&program)
        .arg(here.join("tests/programs").join(format!("{name}.c")))
        .arg("-I")
        .arg(here.join("include"))
        .arg("-L")
        .arg(&libraries)
        .args(["-linlane_shmem", "-pthread"])
        .arg(format!("-Wl,-rpath,{}", libraries.display()))
        .output();
    match output {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            Some(program)
        }
        Err(error) => {
            eprintln!("SKIPPED {name}: no C compiler '{compiler}': {error}");
            None
        }
    }
}

#[test]
fn the_subset_works_from_c() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile(directory.path(), "subset") else { return };
    let program: OsString = program.into();
    for pes in [1, 2, 4] {
        let job = Job { pes, heap_bytes: 64 << 20, ..Job::default() };
        assert_eq!(job.run(&program, &[]).unwrap(), (0, None), "{pes} PEs");
    }
    let faulty = Job {
        pes: 3,
        heap_bytes: 64 << 20,
        faults: "delay=10us,reorder,torn,lose=0.2,duplicate=0.2,early=0.2".into(),
        ..Job::default()
    };
    assert_eq!(faulty.run(&program, &[]).unwrap(), (0, None), "with faults");
}

#[test]
fn locks_are_granted_in_the_order_of_the_calls() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile(directory.path(), "locks") else { return };
    for pes in [1, 4] {
        let job = Job { pes, heap_bytes: 4 << 20, ..Job::default() };
        assert_eq!(job.run(&program.clone().into(), &[]).unwrap(), (0, None), "{pes} PEs");
    }
}

#[test]
fn signals_names_and_forked_children() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile(directory.path(), "signals") else { return };
    let job = Job { pes: 2, heap_bytes: 4 << 20, ..Job::default() };
    assert_eq!(job.run(&program.into(), &[]).unwrap(), (0, None));
}

#[test]
fn an_early_end_ends_the_job() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile(directory.path(), "endings") else { return };
    let program: OsString = program.into();
    let job = Job { pes: 3, heap_bytes: 4 << 20, ..Job::default() };
    for (how, status) in [
        ("global", 9),
        ("status", 5),
        ("abort", 128 + 6),
        ("return", 6),
        ("quick", 1),
        ("late", 0),
        ("twice", 0),
    ] {
        let (seen, why) = job.run(&program, &[how.into()]).unwrap();
        assert_eq!(seen, status, "{how}: {why:?}");
        assert_eq!(why.is_some(), status != 0, "{how}: {why:?}");
    }
}
