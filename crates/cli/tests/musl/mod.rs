//! Tests of programs that use the C library musl. `peer.c` is compiled with musl and with glibc. Each build
//! checks sockets with the other build as its peer.

use super::{ENGINE, KERNEL, LIMIT, Lab, Running, must};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

const PEER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/musl/peer.c");
const CANCEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/direct/cancel.c");

fn start(test: &str) -> Option<Lab> {
    let mut lab = Lab::new(test, &[("cc", "gcc"), ("musl-gcc", "musl-tools")])?;
    lab.serve(&["--loopback", "--spin", "300us"]);
    Some(lab)
}

fn compile(lab: &Lab, compiler: &str, flags: &[&str], source: &str, name: &str) -> PathBuf {
    let program = lab.folder.path().join(name);
    must(
        Command::new(compiler)
            .args(["-O1", "-w", "-pthread"])
            .args(flags)
            .arg("-o")
            .arg(&program)
            .arg(source),
    );
    program
}

/// Starts a server, and waits until it listens. `command` runs the program `peer`.
fn serve(mut command: Command, address: &str, port: &str) -> Running {
    let mut server = command.args(["serve", address, port]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    Running(server)
}

#[test]
fn programs_of_musl_and_of_glibc_use_the_engine_alike() {
    let Some(lab) = start("musl-peers") else { return };
    let glibc = compile(&lab, "cc", &[], PEER, "glibc");
    let musl = compile(&lab, "musl-gcc", &[], PEER, "musl");
    let (glibc, musl) = (glibc.to_str().unwrap(), musl.to_str().unwrap());
    // Each row has the server's program, the client's program, the server's address, and whether the engine
    // serves the server's sockets. It always serves the client's sockets.
    let pairs = [(glibc, musl, "127.0.0.1", true), (musl, glibc, ENGINE, true), (musl, musl, KERNEL, false)];
    for (index, (server, client, address, both)) in pairs.into_iter().enumerate() {
        let port = (5000 + index).to_string();
        let server_command = if both { lab.offloaded(server) } else { lab.on_kernel(server) };
        let _server = serve(server_command, address, &port);
        let before = lab.status()["connections"].clone();
        let other = if client == musl { glibc } else { musl };
        let said = must(lab.offloaded(client).args(["check", address, &port, other]));
        assert_eq!(String::from_utf8_lossy(&said), "all right\n", "{client} with {server} at {address}");
        let grown = |name: &str| lab.count(name) - before[name].as_u64().unwrap();
        // The program opens one connection. Programs that it starts open five more.
        assert_eq!(grown("connected"), 6, "{}", lab.status());
        assert!(grown("received_bytes") > 1_000_000 && grown("sent_bytes") > 1_000_000, "{}", lab.status());
    }
    assert!(lab.status()["kernel"].as_array().unwrap().is_empty(), "{}", lab.status());
}

#[test]
fn cancelled_threads_of_musl_end_in_every_wait() {
    let Some(lab) = start("musl-cancel") else { return };
    let server = compile(&lab, "cc", &[], PEER, "peer");
    let cancel = compile(&lab, "musl-gcc", &[], CANCEL, "cancel");
    let _server = serve(lab.offloaded(server.to_str().unwrap()), "127.0.0.1", "5000");
    let said = must(lab.offloaded(cancel.to_str().unwrap()).args(["127.0.0.1", "5000"]));
    assert_eq!(String::from_utf8_lossy(&said), "all right\n");
}

#[test]
fn static_programs_of_musl_are_reported() {
    let Some(lab) = start("musl-static") else { return };
    let program = compile(&lab, "musl-gcc", &["-static"], PEER, "peer");
    let run = |flags: &[&str]| {
        let mut command = Command::new("timeout");
        command.args([LIMIT, env!("CARGO_BIN_EXE_inlane"), "offload", "run", "--socket"]);
        command.arg(lab.socket()).args(flags).arg("--").arg(&program).args(["short", KERNEL, "x"]);
        command.output().unwrap()
    };
    let said = |output: &std::process::Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let warned = run(&[]);
    assert!(said(&warned).contains("statically linked"), "{}", said(&warned));
    let refused = run(&["--require"]);
    assert_eq!(refused.status.code(), Some(3), "{}", said(&refused));
    assert!(said(&refused).contains("statically linked"), "{}", said(&refused));
}
