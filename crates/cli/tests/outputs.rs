//! Tests the outputs of `inlane forward`. An input must never be overwritten. A refused run must leave files
//! unchanged. A run that a signal ends must leave no empty file.

mod support;

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use support::{until, until_thread_runs, with_hang_ups};

fn inlane(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_inlane"));
    command.arg("forward").args(arguments).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    inlane(arguments).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn capture(path: &Path) -> Vec<u8> {
    let port = format!("pcap:{}", path.display());
    let output = run(&["--rx", "gen:64", "--tx", &port, "--packets", "20", "--no-baseline"]);
    assert!(output.status.success(), "{}", stderr(&output));
    std::fs::read(path).unwrap()
}

#[test]
fn no_output_overwrites_an_input() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let input = at("in.pcap");
    let content = capture(input.as_ref());
    std::os::unix::fs::symlink(&input, at("soft")).unwrap();
    std::fs::hard_link(&input, at("hard")).unwrap();
    let rx = format!("pcap:{input}");
    for file in [&input, &at("soft"), &at("hard")] {
        for flag in ["--json", "--csv", "--svg", "--capture"] {
            let more: &[&str] = if flag == "--svg" { &["--sweep", "burst=16,32"] } else { &[] };
            let output = run(&[&["--rx", &rx, "--tx", "null", flag, file], more].concat());
            assert_eq!(output.status.code(), Some(2), "{flag} {file}: {}", stderr(&output));
            assert_eq!(std::fs::read(&input).unwrap(), content, "{flag} {file}");
        }
    }
    for (source, flag, name) in [
        ("one.cu", "--function", ""),
        ("two.cu", "--function", ":mine"),
        ("three.cc", "--function", ":mine:1"),
        ("four.cpp", "--reference", ":mine"),
    ] {
        std::fs::write(at(source), "// a packet function").unwrap();
        let function = at(source) + name;
        let output = run(&["--rx", "gen:64", "--tx", "check", flag, &function, "--json", &at(source)]);
        let expected = format!("it is the input of {flag}, which --json would overwrite");
        assert!(stderr(&output).contains(&expected), "{source}: {}", stderr(&output));
    }
    let settings = at("settings.toml");
    std::fs::write(&settings, "[forward]\nburst = 16\n").unwrap();
    let output = run(&["--rx", "gen:64", "--tx", "null", "--config", &settings, "--json", &settings]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("is the input of --config"), "{}", stderr(&output));
}

#[test]
fn a_refused_run_leaves_its_outputs_as_they_were() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let refused: [&[&str]; 4] = [
        &["--rx", "pcap:/no/such.pcap", "--tx", "null"],
        &["--rx", "gen:64", "--tx", "null", "--function", "nothing"],
        &["--rx", "gen:64", "--tx", "null", "--load=101"],
        &["--rx", "gen:64", "--tx", "null", "--slots", "3", "--method", "split"],
    ];
    for (name, flag) in [("result.json", "--json"), ("result.csv", "--csv"), ("out.pcap", "--capture")] {
        for arguments in refused {
            std::fs::write(at(name), "earlier").unwrap();
            let output = run(&[arguments, &[flag, &at(name)]].concat());
            assert!(matches!(output.status.code(), Some(2 | 3)), "{arguments:?}: {}", stderr(&output));
            assert_eq!(std::fs::read_to_string(at(name)).unwrap(), "earlier", "{flag}, {arguments:?}");
        }
    }
}

#[test]
fn two_outputs_do_not_share_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("result").to_str().unwrap().to_string();
    for command in ["copy --from twin:0 --to twin:1", "ntb bench", "forward --rx gen:64 --tx null"] {
        let mut inlane = Command::new(env!("CARGO_BIN_EXE_inlane"));
        inlane.args(command.split(' ')).args(["--json", &file, "--csv", &file]);
        let output = inlane.stdin(Stdio::null()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{command}: {}", stderr(&output));
        assert!(!Path::new(&file).exists(), "{command}");
    }
}

#[test]
fn csv_has_a_line_per_run_with_units_in_its_names() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("result.csv");
    let arguments = ["--rx", "null:64", "--tx", "null", "--duration", "100ms", "--sweep", "burst=16,32"];
    let output = run(&[&arguments[..], &["--csv", file.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let text = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    let column = |name: &str| lines[0].split(',').position(|column| column == name).expect(name);
    let burst: Vec<&str> =
        lines[1..].iter().map(|line| line.split(',').nth(column("parameters.burst")).unwrap()).collect();
    assert_eq!(burst, ["16", "32"]);
    column("tx.packets_per_second");
}

#[test]
fn csv_goes_to_standard_output_for_a_dash() {
    let arguments = ["--rx", "null:64", "--tx", "null", "--packets", "100", "--no-baseline", "--csv", "-"];
    let folder = tempfile::tempdir().unwrap();
    let output = inlane(&arguments).current_dir(&folder).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.starts_with("parameters.burst,") && text.lines().count() == 2, "{text}");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    let output = run(&[&arguments[..], &["--json", "-"]].concat());
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}

#[test]
fn a_setting_that_is_out_of_range_is_traced_to_its_variable() {
    for (variable, value) in [("BURST", "99999"), ("RX", "")] {
        let variable = format!("INLANE_FORWARD_{variable}");
        let rx: &[&str] = if variable.ends_with("RX") { &[] } else { &["--rx", "null"] };
        let output = inlane(&[rx, &["--tx", "null"]].concat()).env(&variable, value).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(
            stderr(&output).contains(&format!("was set by the environment variable {variable}")),
            "{variable}"
        );
    }
}

/// Reads three progress lines of a long run. The display rounds times to seconds and may be up to 100 ms
/// early. With an interval of 2 s, lines must therefore be at least one second apart, even on a busy machine.
#[test]
fn progress_lines_come_at_the_interval() {
    let mut child = inlane(&[
        "--rx",
        "null:64",
        "--tx",
        "null",
        "--duration",
        "60s",
        "--interval",
        "2s",
        "--no-baseline",
    ])
    .stderr(Stdio::piped())
    .stdout(Stdio::piped())
    .spawn()
    .unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().unwrap()));
    let seconds = lines
        .map_while(Result::ok)
        .filter_map(|line| line.split_once(" s  rx ")?.0.trim().parse::<u64>().ok());
    let seconds: Vec<u64> = seconds.take(3).collect();
    // SAFETY: the test has not waited for the child yet, so no other process can have its ID.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(seconds.len(), 3);
    assert!(seconds[0] >= 2 && seconds.windows(2).all(|pair| pair[1] > pair[0]), "{seconds:?}");
}

#[test]
fn a_hang_up_ends_a_run_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("result.json");
    let mut command =
        inlane(&["--rx", "null:64", "--tx", "null", "--duration", "10m", "--no-baseline", "--json"]);
    with_hang_ups(&mut command).arg(&json).stderr(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    until_thread_runs(&child, "inlane-0", Duration::from_millis(5));
    assert!(json.exists());
    // SAFETY: the test has not waited for the child yet, so no other process can have its ID.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGHUP) }, 0);
    until("the run ends", || child.try_wait().unwrap().is_some());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let document: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert!(document["results"][0]["tx"]["packets"].as_u64().unwrap() > 0);
}

#[test]
fn an_unknown_variable_is_a_warning() {
    let output = inlane(&["--rx", "null:64", "--tx", "null", "--packets", "100", "--no-baseline"])
        .env("INLANE_FORWARD_BURTS", "7")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let said = stderr(&output);
    assert!(said.contains("the environment variable INLANE_FORWARD_BURTS is ignored"), "{said}");
}
