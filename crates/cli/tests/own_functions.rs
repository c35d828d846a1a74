//! `inlane forward` with packet functions of the user: counters, checks, and functions that never end.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use support::until_thread_runs;

fn inlane(cache: &std::path::Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_inlane"));
    command.arg("forward").args(arguments).env("INLANE_CACHE", cache).stdin(Stdio::null());
    command.args(["--cores", "none", "--no-baseline"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(cache: &std::path::Path, arguments: &[&str]) -> (Option<i32>, String) {
    let output = inlane(cache, arguments).output().unwrap();
    (output.status.code(), text(&output))
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

const VLAN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/functions/vlan.cu");

#[test]
fn counters_and_checks_need_no_reference_in_the_project() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path();
    let push = format!("{VLAN}:push_vlan:42");
    let (status, text) = run(cache, &["--rx", "gen:64,packets=500", "--tx", "check", "--function", &push]);
    assert_eq!(status, Some(0), "{text}");
    assert!(
        text.contains(
            "ok: 500 packets, 0 lost, 0 duplicated, 0 reordered, 0 altered (the stamp of every packet"
        ),
        "{text}"
    );
    assert!(text.lines().any(|line| line.starts_with("refused_packets") && line.ends_with(" 0")), "{text}");
    let reference = cache.join("reference.cu");
    let right = "#include <inlane.h>\nstruct plain { INLANE inlane::verdict packet(inlane::packet &p) {\n\
                 uint32_t n = p.length(); p.resize(n + 4); for (uint32_t i = n; i > 12; i--) p.set_u8(i + 3, p.u8(i - 1));\n\
                 p.set_be32(12, 0x8100002a); return inlane::forward; } };\nINLANE_FUNCTION(plain)\n";
    for (source, status, verdict) in [
        (right.to_string(), 0, "ok: 500 packets"),
        (right.replace("2a)", "2b)"), 1, "500 altered"),
        (right.replace("return inlane::forward", "return inlane::drop"), 1, "500 altered"),
    ] {
        std::fs::write(&reference, source).unwrap();
        let arguments = ["--rx", "gen:64,packets=500", "--tx", "check", "--function", &push, "--reference"];
        let (found, text) = run(cache, &[&arguments[..], &[reference.to_str().unwrap()]].concat());
        assert_eq!(found, Some(status), "{text}");
        assert!(text.contains(verdict), "{text}");
    }
    let arguments = ["--rx", "gen:64", "--tx", "null", "--packets", "9", "--reference", "io"];
    let (status, text) = run(cache, &arguments);
    assert!(status == Some(2) && text.contains("--reference io: nothing compares packets"), "{text}");
}

#[test]
fn a_function_that_never_ends_is_ended_by_the_watchdog_and_by_ctrl_c() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path();
    // Root's run gives up its privileges before it loads the function, and removes its empty result afterwards.
    std::fs::set_permissions(cache, PermissionsExt::from_mode(0o777)).unwrap();
    let source = cache.join("endless.cu");
    let endless = "#include <inlane.h>\nstruct endless { uint64_t seen; INLANE inlane::verdict packet(inlane::packet &) {\n\
                   if (++seen == 1000) for (volatile int i = 0;; i = i + 1) {} return inlane::forward; } };\n\
                   INLANE_FUNCTION(endless)\n";
    std::fs::write(&source, endless).unwrap();
    let function = source.to_str().unwrap();
    let json = cache.join("result.json");
    for method in ["single", "split"] {
        let arguments = ["--rx", "gen:64", "--tx", "null", "--function", function, "--method", method];
        let more = ["--watchdog", "300ms", "--json", json.to_str().unwrap()];
        let (status, text) = run(cache, &[&arguments[..], &more[..]].concat());
        assert_eq!(status, Some(1), "{method}: {text}");
        assert!(text.contains("endless.cu is stuck on the CPU: it has not returned for"), "{text}");
        assert!(text.contains("or raise --watchdog"), "{text}");
        assert!(!json.exists(), "an empty result was left");
    }
    let arguments = [
        "--rx",
        "gen:64",
        "--tx",
        "null",
        "--function",
        function,
        "--watchdog",
        "600s",
        "--duration",
        "600s",
    ];
    let child = inlane(cache, &arguments).spawn().unwrap();
    // Once its thread has run for so long, the function is stuck.
    until_thread_runs(&child, "inlane-0", Duration::from_millis(300));
    // SAFETY: the process ID is still the child's, because nobody has waited for the child yet.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("is stuck on the CPU"), "{}", text(&output));
}
