//! Tests of two engines that carry the data of connections by RDMA, and of one whose peer is the kernel.

use super::datagrams::Capture;
use super::threads::{PYTHON, check, serve};
use super::{ENGINE, KERNEL, Lab, Running, must};
use std::io::BufRead;
use std::process::{Command, Stdio};

/// The address of the second engine, at the kernel's end of the link.
const PEER: &str = "10.79.0.3";

/// An engine in the namespace of the kernel's stack.
struct Second {
    socket: std::path::PathBuf,
    _engine: Running,
}

impl Second {
    fn start(lab: &Lab) -> Self {
        let socket = lab.folder.path().join("second");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &lab.name("k"), env!("CARGO_BIN_EXE_inlane"), "offload", "serve"]);
        command.args(["--transport", "rdma", "--port", "af_packet:k0", "--spin", "300us"]);
        command
            .args(["--address", &format!("{PEER}/24"), "--address", "fd79::3/64", "--socket"])
            .arg(&socket);
        let mut engine = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = std::io::BufReader::new(engine.stderr.take().unwrap()).lines();
        let engine = Running(engine);
        let line = lines.next().unwrap().unwrap();
        assert!(line.contains("engine ready"), "{line}");
        // Keep the pipe open, because the engine fails to write further lines to a closed pipe.
        std::thread::spawn(move || lines.count());
        Self { socket, _engine: engine }
    }

    fn inlane(&self, command: &str) -> Command {
        let mut inlane = Command::new("timeout");
        inlane.args(["--kill-after", "5", "60", env!("CARGO_BIN_EXE_inlane"), "offload", command]);
        inlane.arg("--socket").arg(&self.socket);
        inlane
    }

    fn status(&self) -> serde_json::Value {
        let said = must(self.inlane("status").args(["--json", "-"]));
        serde_json::from_slice::<serde_json::Value>(&said).unwrap()["results"][0].clone()
    }
}

#[test]
fn two_engines_carry_streams_by_rdma_that_tshark_dissects() {
    let test = "two_engines_carry_streams_by_rdma_that_tshark_dissects";
    let Some(mut lab) = Lab::new("rdma", &[("python3", "python3")]) else { return };
    lab.serve(&["--transport", "rdma"]);
    let second = Second::start(&lab);
    let capture = Capture::start(&lab, test);
    for address in [PEER, "fd79::3"] {
        let mut server = second.inlane("run");
        server.args(["--require", "--", PYTHON]);
        let _server = serve(server, address);
        check(lab.offloaded(PYTHON), "streams", address);
    }
    for status in [lab.status(), second.status()] {
        let (rdma, connections) = (&status["rdma"], &status["connections"]);
        assert_eq!(rdma["placed_bytes"], connections["received_bytes"], "{status}");
        assert!(rdma["connections"].as_u64().unwrap() > 400, "{status}");
        let refused =
            ["returned", "refused_icrc", "refused_psn", "refused_key", "refused_range", "malformed"];
        assert!(refused.iter().all(|name| rdma[name] == 0), "{status}");
    }
    let Some(mut capture) = capture else { return };
    capture.end();
    let count = |filter: &str| capture.frames(filter).lines().count();
    assert!(
        count("infiniband.bth.opcode in {10, 11} && infiniband.reth.dmalen > 0") > 400,
        "RDMA WRITE ONLY"
    );
    assert_eq!(count("infiniband && (ip.checksum.status == \"Bad\" || udp.length.bad)"), 0);
    assert_eq!(count("tcp.len > 0"), 0, "TCP carries no data");
    assert_eq!(count("_ws.malformed"), 0, "{}", capture.frames("_ws.malformed"));
}

#[test]
fn programs_with_shared_memory_use_rdma_as_they_use_tcp() {
    let Some(mut lab) = Lab::new("rdma-direct", &[("python3", "python3")]) else { return };
    lab.serve(&["--transport", "rdma", "--spin", "300us"]);
    let second = Second::start(&lab);
    for (index, client) in super::stores::CLIENTS.iter().enumerate() {
        let port = (5000 + index).to_string();
        let with_address = |command: &mut Command| {
            command.args(["-c", super::direct::PEER]).env("INLANE_TEST_ADDRESS", PEER);
        };
        let mut server = second.inlane("run");
        with_address(server.args(["--require", "--", PYTHON]));
        let mut server = server.args(["serve", &port]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        std::io::BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let _server = Running(server);
        let mut command = lab.offloaded(PYTHON);
        with_address(&mut command);
        assert_eq!(String::from_utf8_lossy(&must(command.args([*client, &port]))), "all right\n", "{client}");
    }
    for status in [lab.status(), second.status()] {
        assert_eq!(status["rdma"]["placed_bytes"], status["connections"]["received_bytes"], "{status}");
        assert_eq!(status["rdma"]["returned"], 0, "{status}");
    }
    assert!(lab.status()["connections"]["direct_bytes"].as_u64().unwrap() > 10_000, "{}", lab.status());
}

#[test]
fn connections_to_the_kernel_stay_with_tcp() {
    let Some(mut lab) = Lab::new("rdma-kernel", &[("python3", "python3")]) else { return };
    lab.serve(&["--transport", "rdma"]);
    {
        let _server = serve(lab.on_kernel(PYTHON), KERNEL);
        check(lab.offloaded(PYTHON), "check", KERNEL);
    }
    let _server = serve(lab.offloaded(PYTHON), ENGINE);
    check(lab.on_kernel(PYTHON), "check", ENGINE);
    let mut held = Running::start(lab.on_kernel(PYTHON).args([
        "-c",
        "import socket, time; s = socket.create_connection(('10.79.0.1', 5000)); time.sleep(50)",
    ]));
    lab.wait("no connection gives the reason", || {
        let status = lab.status();
        let sockets = status["sockets"].as_array().unwrap();
        sockets.iter().any(|socket| {
            socket["transport"] == "tcp" && socket["transport_reason"] == "the peer does not offer RDMA"
        })
    });
    let _ = held.0.kill();
    assert_eq!(lab.status()["rdma"]["connections"], 0);
}
