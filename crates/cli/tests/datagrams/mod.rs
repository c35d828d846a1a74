//! Tests of UDP sockets on the engine. Two processes run the unmodified program `peer.py`: one on the engine
//! and one on the kernel's stack, or both on the engine. They exchange datagrams of every size and check what
//! each function, flag and option of a socket does.

use super::{ENGINE, KERNEL, Lab, Running, must};
use std::io::BufRead;
use std::process::{Command, Stdio};

const PEER: &str = include_str!("peer.py");

/// A tshark filter that finds faults in the frames of the engine. It ignores the checksum of a UDP datagram
/// that an ICMP error quotes. Such a datagram comes from the kernel, which does not compute checksums on a
/// veth.
const FAULTS: &str = "(ip.src==10.79.0.1 || ipv6.src==fd79::1) && (ip.checksum.status == \"Bad\" \
    || (udp.checksum.status == \"Bad\" && !icmp && !icmpv6) || icmp.checksum.status == \"Bad\" || icmpv6.checksum.status == \"Bad\" \
    || udp.length.bad || ip.fragment.overlap || ip.fragment.error || ipv6.fragment.overlap || ipv6.fragment.error)";

/// A tcpdump capture of the packets between the kernel and the engine. It captures at the kernel's end of
/// their veth pair.
pub struct Capture {
    tcpdump: Option<Running>,
    file: std::path::PathBuf,
}

impl Capture {
    /// Starts tcpdump and waits until it captures. If tcpdump or tshark is missing, prints a message and
    /// returns `None`.
    pub fn start(lab: &Lab, test: &str) -> Option<Self> {
        for program in ["tcpdump", "tshark"] {
            if Command::new(program).arg("--version").output().is_err() {
                eprintln!(
                    "SKIPPED the captured frames of {test}: {program} is missing; apt-get install {program}"
                );
                return None;
            }
        }
        let file = lab.folder.path().join("frames");
        let mut command = lab.on_kernel("tcpdump");
        command.args(["-Z", "root", "-i", "k0", "-U", "-w"]).arg(&file).stderr(Stdio::piped());
        let mut tcpdump = Running::start(&mut command);
        let mut lines = std::io::BufReader::new(tcpdump.0.stderr.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("listening on")), "tcpdump does not start");
        // Read the output until tcpdump ends. If the pipe were closed, tcpdump's last messages would fail.
        std::thread::spawn(move || lines.count());
        Some(Self { tcpdump: Some(tcpdump), file })
    }

    /// Ends the capture.
    pub fn end(&mut self) {
        self.tcpdump = None;
    }

    /// Returns tshark's lines about the captured frames that match `filter`.
    pub fn frames(&self, filter: &str) -> String {
        let mut command = Command::new("tshark");
        command.args(["-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE", "-Y", filter, "-r"]);
        String::from_utf8(must(command.arg(&self.file))).unwrap()
    }

    fn check(mut self) {
        self.end();
        let sound =
            self.frames("udp.checksum.status == \"Good\" && (ip.src==10.79.0.1 || ipv6.src==fd79::1)");
        assert!(sound.lines().count() > 50, "tshark sees few datagrams of the engine: {sound}");
        assert_eq!(self.frames(FAULTS), "");
    }
}

fn serve(mut command: Command, address: &str) -> Running {
    command.args(["-c", PEER, "serve", address, "5000"]).stdout(Stdio::piped());
    let mut server = command.spawn().unwrap();
    let mut line = String::new();
    std::io::BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    Running(server)
}

fn check(mut command: Command, address: &str) {
    let said = must(command.args(["-c", PEER, "check", address, "5000"]));
    assert_eq!(String::from_utf8_lossy(&said), "all right\n");
}

#[test]
fn datagrams_cross_in_both_directions_with_every_flag() {
    let test = "datagrams_cross_in_both_directions_with_every_flag";
    let Some(mut lab) = Lab::new("udp", &[("python3", "python3")]) else { return };
    lab.serve(&["--loopback"]);
    let capture = Capture::start(&lab, test);
    let python = "/usr/bin/python3";
    for (engine, kernel) in [(ENGINE, KERNEL), ("fd79::1", "fd79::2")] {
        let _server = serve(lab.offloaded(python), engine);
        check(lab.on_kernel(python), engine);
        let _server = serve(lab.on_kernel(python), kernel);
        check(lab.offloaded(python), kernel);
    }
    if let Some(capture) = capture {
        capture.check();
    }
    for address in ["127.0.0.1", "::1"] {
        let _server = serve(lab.offloaded(python), address);
        check(lab.offloaded(python), address);
    }
    let status = lab.status();
    let count = |name: &str| status["datagrams"][name].as_u64().unwrap();
    assert!(count("received_bytes") > 500_000 && count("sent_bytes") > 500_000, "{status}");
    assert!(count("no_port") > 0 && status["link"]["reassembled"].as_u64().unwrap() > 10, "{status}");
    lab.wait("a socket is left", || lab.status()["sockets"].as_array().unwrap().is_empty());
}

#[test]
fn pythons_own_datagram_tests_pass() {
    let test = "pythons_own_datagram_tests_pass";
    let python = "/usr/bin/python3";
    let quiet = |command: &mut Command| command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    let found = quiet(Command::new(python).args(["-c", "import test.test_socket"]));
    if !found.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED {test}: Python's tests are missing; apt-get install libpython3.11-testsuite");
        return;
    }
    let Some(mut lab) = Lab::new("udp-python", &[]) else { return };
    lab.serve(&["--loopback"]);
    let mut suite = lab.offloaded(python);
    suite.args(["-m", "test", "-u", "network", "--timeout", "50", "-i", "*VSOCK*", "-i", "*UDPLITE*"]);
    must(suite.args(["-m", "*UDP*", "-m", "*RFC3542*", "test_socket"]));
    let received = lab.status()["datagrams"]["received"].as_u64().unwrap();
    assert!(received > 50, "{}", lab.status());
}

#[test]
fn iperf_sends_datagrams_in_both_directions_and_rules_count() {
    let programs = [("iperf3", "iperf3"), ("python3", "python3")];
    let Some(mut lab) = Lab::new("udp-iperf", &programs) else { return };
    lab.serve(&[]);
    for (port, more) in [("5201", ["-4", "-n"]), ("5202", ["-R", "-n"])] {
        let _server = Running::start(lab.offloaded("iperf3").args(["-s", "-B", ENGINE, "-p", port, "-1"]));
        lab.wait_for_listener(port.parse().unwrap());
        let mut client = lab.on_kernel("iperf3");
        must(client.args(["-u", "-b", "50M", "-c", ENGINE, "-p", port]).args(more).arg("1M"));
    }
    let status = lab.status();
    let count = |name: &str| status["datagrams"][name].as_u64().unwrap();
    // Require only one received datagram. If the server is slow, its receive buffer fills up and the others
    // are dropped.
    assert!(count("received") > 0 && count("sent_bytes") > 500_000, "{status}");

    // Test two refusals and two sockets that stay with the kernel. The engine must refuse a destination
    // without a route, and a broadcast. A socket stays with the kernel if a rule leaves its UDP port 53 to
    // the kernel, or if it may send broadcasts.
    let rules = lab.folder.path().join("rules.toml");
    std::fs::write(&rules, "[[rule]]\nrun_by = \"kernel\"\nprotocol = \"udp\"\nport = 53\n").unwrap();
    let script = "\
import errno, socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('10.79.0.1', 0))
for address in [('192.0.2.1', 9), ('10.79.0.255', 9)]:
    try:
        s.sendto(b'x', address)
    except OSError as error:
        print(errno.errorcode[error.errno])
for port in [53, 54]:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        s.sendto(b'x', ('10.79.0.2', port))
    except OSError:
        pass
b = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
b.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
try:
    b.bind(('', 0))
except OSError as error:
    print(errno.errorcode[error.errno])
";
    let run = |flags: &[&std::ffi::OsStr]| {
        let mut command = Command::new("timeout");
        command.args([super::LIMIT, env!("CARGO_BIN_EXE_inlane"), "offload", "run", "--socket"]);
        String::from_utf8(must(command.arg(lab.socket()).args(flags).args([
            "--",
            "/usr/bin/python3",
            "-c",
            script,
        ])))
        .unwrap()
    };
    assert_eq!(run(&["--rules".as_ref(), rules.as_os_str()]), "ENETUNREACH\nEACCES\n");
    let status = lab.status();
    let kernel: Vec<_> =
        status["kernel"].as_array().unwrap().iter().filter(|entry| entry["protocol"] == "udp").collect();
    let reasons: Vec<_> = kernel.iter().map(|entry| entry["reason"].as_str().unwrap()).collect();
    assert_eq!(reasons, ["the engine sends no broadcasts", "a rule keeps it there"], "{status}");
    // With --require, no socket may stay in the kernel. So the bind of the socket for broadcasts fails.
    assert_eq!(run(&["--require".as_ref()]), "ENETUNREACH\nEACCES\nENETDOWN\n");
}
