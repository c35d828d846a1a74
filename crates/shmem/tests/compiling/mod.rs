//! Compiles the C programs of the tests against the library.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles a program and links it to the library. Returns `None` if there is no compiler.
pub fn compile(directory: &Path, source: &str) -> Option<PathBuf> {
    compile_with(directory, source, &[], &["-linlane_shmem"])
        .map(|compiled| compiled.unwrap_or_else(|error| panic!("{error}")))
}

/// Compiles a program with `flags` and links it to `libraries`. The error is the compiler's messages.
/// Returns `None` if there is no compiler.
#[allow(dead_code)] // Not all tests need flags.
pub fn compile_with(
    directory: &Path,
    source: &str,
    flags: &[&str],
    libraries: &[&str],
) -> Option<Result<PathBuf, String>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let library = std::env::current_exe().unwrap().with_file_name("libinlane_shmem.so");
    // Link under both names: the linker looks for the first, the loader for the second (the soname).
    for name in ["libinlane_shmem.so", "libinlane_shmem.so.0"] {
        let link = directory.join(name);
        if !link.exists() {
            std::os::unix::fs::symlink(&library, link).unwrap();
        }
    }
    let (variable, usual, standard) = match source.ends_with(".cpp") {
        true => ("CXX", "c++", "-std=c++11"),
        false if source == "types.c" => ("CC", "cc", "-std=c11"),
        false => ("CC", "cc", "-std=gnu99"),
    };
    let program = directory.join(source).with_extension("program");
    let compiler = std::env::var(variable).unwrap_or_else(|_| usual.into());
    let output = Command::new(&compiler)
        .args([standard, "-Wall", "-Wextra", "-Werror", "-O2"])
        .args(flags)
        .arg("-o")
        .arg(&program)
        .arg(here.join("tests/programs").join(source))
        .arg("-I")
        .arg(here.join("include"))
        .arg("-L")
        .arg(directory)
        .args(libraries)
        .arg("-pthread")
        .arg(format!("-Wl,-rpath,{}", directory.display()))
        .output();
    match output {
        Ok(output) if output.status.success() => Some(Ok(program)),
        Ok(output) => Some(Err(String::from_utf8_lossy(&output.stderr).into())),
        Err(error) => {
            eprintln!("SKIPPED {source}: no compiler '{compiler}': {error}");
            None
        }
    }
}
