//! Builds the built-in functions with AddressSanitizer and UndefinedBehaviorSanitizer, and runs them on
//! hostile frames.

#[path = "harness/dissect.rs"]
mod dissect;
#[path = "../examples/fronthaul/mod.rs"]
#[allow(dead_code, reason = "the example uses the rest")]
mod fronthaul;

use fronthaul::{Carrier, whole};
use inlane_function::{PacketFunction, builtins};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

const CARRIER: Carrier =
    Carrier { eaxc: &[0, 1], prbs: 106, slots_per_subframe: 2, prb_bytes: 28, header: None };

/// Generates U-plane packets: valid, truncated, and with changed bytes.
fn uplane() -> impl Strategy<Value = Vec<u8>> {
    let packets = whole(&CARRIER, 3, 20);
    let change = (0..40usize, any::<u8>());
    (
        prop::sample::select(packets),
        prop::collection::vec(change, 0..3),
        any::<prop::sample::Index>(),
        any::<bool>(),
    )
        .prop_map(|(packet, changes, cut, whole)| {
            let mut frame = packet.frame(&CARRIER);
            changes.into_iter().for_each(|(at, byte)| frame[at] = byte);
            let length = if whole { frame.len() } else { cut.index(frame.len()) };
            frame.truncate(length);
            frame
        })
}

#[test]
fn functions_access_only_their_packets() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().expect("a temporary directory");
    let mut unit = String::new();
    let mut table = String::from(
        "static const struct { const char *name; const inlane_entry *entry; } known_functions[] = {\n",
    );
    for builtin in builtins() {
        let function = PacketFunction::parse(builtin.example).expect(builtin.example);
        let source = function.source().expect("C++");
        let (path, symbol) = (here.join("functions").join(source.file), source.symbol);
        writeln!(unit, "#include \"{}\"", path.display()).expect("writing to a string cannot fail");
        writeln!(table, "    {{\"{symbol}\", &inlane_function_{symbol}}},")
            .expect("writing to a string cannot fail");
    }
    write!(unit, "{table}}};\n#include \"{}\"\n", here.join("tests/sanitized/main.cpp").display())
        .expect("writing to a string cannot fail");
    let (source, program) = (folder.path().join("all.cpp"), folder.path().join("all"));
    std::fs::write(&source, unit).expect("written");
    // Reports of the sanitizers need lines. The places of variables, which -g adds, take a third of the time to compile.
    let compiled = Command::new("c++")
        .args(["-std=c++17", "-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-I"])
        .arg(here.join("include"))
        .arg("-o")
        .args([&program, &source])
        .output()
        .expect("the compiler that built this crate");
    if !compiled.status.success() {
        let why = String::from_utf8_lossy(&compiled.stderr);
        assert!(why.contains("asan") || why.contains("ubsan"), "{why}");
        eprintln!(
            "SKIPPED functions_access_only_their_packets: the compiler's sanitizer libraries are missing"
        );
        return;
    }

    let mut runner = TestRunner::deterministic();
    let frame = prop_oneof![dissect::hostile(), uplane()];
    let mut frames = Vec::new();
    for _ in 0..3000 {
        let frame = frame.new_tree(&mut runner).expect("nothing is rejected").current();
        frames.extend((frame.len() as u32).to_le_bytes());
        frames.extend(frame);
    }
    let (state, input) = (folder.path().join("state"), folder.path().join("frames"));
    std::fs::write(&input, frames).expect("written");
    for builtin in builtins() {
        let function = PacketFunction::parse(builtin.example).expect(builtin.example);
        let info = function.info().expect("built in");
        std::fs::write(&state, function.initial_state(&info).expect("the example's settings are valid"))
            .expect("written");
        let run = Command::new(&program)
            .arg(function.source().expect("C++").symbol)
            .args([&state, &input])
            .output()
            .expect("the program runs");
        let said = String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success(), "{}: {}\n{said}", builtin.name, run.status);
    }
}
