//! Runs the command line as users see it. Each file in `cmd/` is a session with its output and exit statuses.
//! To accept an intended change: `TRYCMD=overwrite cargo test -p inlane --test command_line`.

use std::process::{Command, Stdio};

#[test]
fn sessions() {
    trycmd::TestCases::new().case("tests/cmd/*.trycmd");
}

/// A closed pipe ends a command with status 0. A full disk ends it with an error. Neither causes a panic.
#[test]
fn a_closed_pipe_is_no_error_and_a_full_disk_is_one() {
    let run = |arguments: &str, stdout: Stdio, stderr: Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_inlane"));
        command.args(arguments.split(' ')).stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        command.status().unwrap().code()
    };
    let closed = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        Stdio::from(writer)
    };
    let full = || Stdio::from(std::fs::File::options().write(true).open("/dev/full").unwrap());
    let forward = "forward --rx gen:64 --tx null --packets 100 --no-baseline";
    for arguments in [
        forward,
        &format!("{forward} --repeats 2"),
        &format!("{forward} --json -"),
        "forward --list-functions",
        "doctor --json -",
        "topo --json -",
        "report --schema packets",
        "man forward",
    ] {
        assert_eq!(run(arguments, closed(), closed()), Some(0), "{arguments}");
        assert_eq!(run(arguments, full(), full()), Some(1), "{arguments}");
    }
}

/// An output file that cannot be opened ends the command before the first measurement.
#[test]
fn outputs_are_opened_before_the_run() {
    for arguments in ["topo --json", "doctor --json", "ntb bench --json", "ntb bench --svg"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_inlane"));
        let output = command.args(arguments.split(' ')).arg("/no/such/folder/x").output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{arguments}");
        assert!(output.stdout.is_empty(), "{arguments}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("name a file in a directory that you may write"), "{said}");
    }
}
