//! Compiles C programs with the header and the library, and runs them, also under valgrind.

use inlane_forward::batch::{BatchReceiver, ReceiveSettings};
use inlane_forward::config::{Config, Route};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

const HERE: &str = env!("CARGO_MANIFEST_DIR");
/// What a static library of Rust needs from the system: `rustc --print native-static-libs`.
const SYSTEM: [&str; 5] = ["-lgcc_s", "-lrt", "-lpthread", "-lm", "-ldl"];

#[derive(Clone, Copy)]
enum Link {
    Shared,
    Static,
}

/// Returns the path of the library.
fn library(suffix: &str) -> PathBuf {
    std::env::current_exe().unwrap().with_file_name(format!("libinlane_batch.{suffix}"))
}

/// Compiles a program of C or C++. Returns `None` if there is no compiler.
fn compile(folder: &Path, source: &str, link: Link) -> Option<PathBuf> {
    let source = Path::new(HERE).join(source);
    let cpp = source.extension().is_some_and(|extension| extension == "cpp");
    let (variable, usual, standard) =
        if cpp { ("CXX", "c++", "-std=c++11") } else { ("CC", "cc", "-std=c99") };
    let program = folder.join("program");
    let mut command = Command::new(std::env::var(variable).unwrap_or_else(|_| usual.into()));
    command.args([standard, "-g", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"]);
    command.arg(Path::new(HERE).join("include")).arg(&source).arg("-o").arg(&program);
    match link {
        Link::Shared => {
            // The linker looks for the first name, and the loader for the second, which is the soname.
            for name in ["libinlane_batch.so", "libinlane_batch.so.0"] {
                std::os::unix::fs::symlink(library("so"), folder.join(name)).unwrap();
            }
            let folder = folder.display();
            command.args([format!("-L{folder}"), format!("-Wl,-rpath,{folder}"), "-linlane_batch".into()]);
            command.arg("-pthread")
        }
        Link::Static => command.arg(library("a")).args(SYSTEM),
    };
    match command.output() {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            Some(program)
        }
        Err(error) => {
            eprintln!("SKIPPED {}: no compiler: {error}", source.display());
            None
        }
    }
}

fn capture() -> PathBuf {
    Path::new(HERE).join("../../examples/capture/mixed.pcap")
}

/// Runs a program, under valgrind if that is asked for. Returns `None` if there is no valgrind.
fn run(program: &Path, arguments: &[&str], valgrind: bool) -> Option<Output> {
    let mut command = Command::new("timeout");
    command.arg("300");
    if valgrind {
        command.args(["valgrind", "--quiet", "--error-exitcode=99", "--leak-check=full"]);
        command.arg("--errors-for-leak-kinds=definite,indirect,possible");
    }
    let output = command.arg(program).args(arguments).output().unwrap();
    // The status of `timeout` for a program that it does not find.
    if valgrind && output.status.code() == Some(127) {
        eprintln!("SKIPPED programs under valgrind: valgrind is missing");
        return None;
    }
    assert!(output.status.success(), "{}: {output:?}", program.display());
    Some(output)
}

/// Returns the frames of a capture.
fn frames(file: &Path) -> Vec<Vec<u8>> {
    let rx = format!("pcap:{}", file.display());
    let config = Config::new(Route::one_way(&rx, []).unwrap());
    let mut receiver = BatchReceiver::start(config, ReceiveSettings::default()).unwrap();
    let mut frames = Vec::new();
    while let Some(batch) = receiver.next_within(Duration::from_secs(20)).unwrap() {
        frames.extend(batch.iter().map(<[u8]>::to_vec));
    }
    frames
}

#[test]
fn the_example_sends_the_frames_that_it_selects() {
    let expected: Vec<Vec<u8>> = frames(&capture())
        .into_iter()
        .filter(|frame| frame[12..14] == [0x08, 0x00])
        .map(|frame| [&frame[6..12], &frame[..6], &frame[12..]].concat())
        .collect();
    assert!(expected.len() > 100);
    for (link, valgrind) in [(Link::Shared, false), (Link::Static, false), (Link::Shared, true)] {
        let folder = tempfile::tempdir().unwrap();
        let Some(program) = compile(folder.path(), "../../examples/c/replay.c", link) else { return };
        let sent = folder.path().join("sent.pcap");
        let arguments = [format!("pcap:{}", capture().display()), format!("pcap:{}", sent.display())];
        let Some(output) = run(&program, &arguments.each_ref().map(String::as_str), valgrind) else { return };
        let said = format!("851 frames received, {} with IPv4 sent\n", expected.len());
        assert_eq!(String::from_utf8_lossy(&output.stdout), said);
        assert!(frames(&sent) == expected, "the capture has the selected frames in order");
    }
}

#[test]
fn every_function_and_every_wrong_call() {
    for valgrind in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let Some(program) = compile(folder.path(), "tests/c_programs/calls.c", Link::Shared) else { return };
        run(&program, &[&capture().display().to_string(), &folder.path().display().to_string()], valgrind);
    }
}

#[test]
fn the_header_is_one_of_cpp() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile(folder.path(), "tests/c_programs/header.cpp", Link::Shared) else { return };
    run(&program, &[], false);
}

#[test]
fn no_other_header_is_installed_under_the_name() {
    let crates = Path::new(HERE).join("..");
    assert!(
        crates.join("function/include/inlane.h").exists() && crates.join("shmem/include/shmem.h").exists()
    );
    for other in ["function", "shmem"] {
        assert!(!crates.join(other).join("include/inlane_batch.h").exists(), "{other} has that header, too");
    }
}

#[test]
fn the_header_declares_what_the_library_exports() {
    let header = std::fs::read_to_string(Path::new(HERE).join("include/inlane_batch.h")).unwrap();
    let declared: BTreeSet<&str> = header
        .lines()
        .filter(|line| !line.starts_with([' ', '/', '*', '#']) && line.ends_with(';'))
        .filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next())
        .collect();
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(library("so")).output().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let exported: BTreeSet<&str> = output.lines().filter_map(|line| line.split(' ').next_back()).collect();
    assert_eq!(declared, exported);
}
