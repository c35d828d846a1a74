//! The interface of the engine's port goes down and is removed.

use super::*;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/interface/peer.py");

fn check(test: &str, port: &str, queues: u32) {
    let Some(mut lab) = Lab::with_queues(test, &[("python3", "python3")], queues) else { return };
    let more = ["--spin", "0s", "--threads", &queues.to_string()];
    let errors = lab.serve_on(port, &more);
    let _echo = Running::start(lab.on_kernel("python3").args([SCRIPT, "echo", KERNEL]));
    let mut program = lab.offloaded("python3");
    let program = program.args([SCRIPT, "exchange", KERNEL]).stdout(Stdio::piped()).stdin(Stdio::piped());
    let mut program = program.spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(program.stdout.take().unwrap()));
    let mut next = || lines.next().unwrap().unwrap();
    let mut exchange = || program.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    let link = |change: &str| shell(&format!("ip -n {} link set e0 {change}", lab.name("e"))).unwrap();
    let is_down = |down: bool| lab.status()["down_interface"].is_string() == down;
    assert_eq!(next(), "connected");
    assert!(is_down(false));
    link("down");
    lab.wait("the interface is not reported as down", || is_down(true));
    let text = Command::new(env!("CARGO_BIN_EXE_inlane"))
        .args(["offload", "status", "--socket"])
        .arg(lab.socket())
        .output()
        .unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("the interface e0 of the port is down; set it up: ip link set e0 up"), "{text}");
    // The engine must not use the processor because of the interface.
    let cpu = || lab.status()["cpu_ns"].as_u64().unwrap();
    let before = cpu();
    exchange();
    std::thread::sleep(Duration::from_secs(2));
    let used = cpu() - before;
    assert!(used < 1_000_000_000, "{used} ns of processor time in 2 s");
    link("up");
    assert_eq!(next(), "message");
    lab.wait("the interface is not reported as up", || is_down(false));
    shell(&format!("ip -n {} link del e0", lab.name("e"))).unwrap();
    exchange();
    assert_eq!(next(), "ConnectionResetError");
    let status = lab.engine.take().unwrap().wait().unwrap();
    let errors = errors.join().unwrap();
    assert_eq!(status.code(), Some(3), "{errors}");
    assert!(errors.contains("interface e0: it was removed"), "{errors}");
    assert!(errors.contains("start this command again"), "{errors}");
    assert!(program.wait().unwrap().success());
}

#[test]
fn an_address_that_the_kernel_has_too_is_warned_of() {
    let Some(lab) = Lab::new("if-address", &[]) else { return };
    for address in ["10.79.0.1/24", "fd79::1/64 nodad"] {
        shell(&format!("ip -n {} address add {address} dev e0", lab.name("e"))).unwrap();
    }
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &lab.name("e"), env!("CARGO_BIN_EXE_inlane"), "offload", "serve"]);
    command.args(["--port", "af_packet:e0", "--address", "10.79.0.1/24", "--address", "10.79.0.9/24"]);
    command.args(["--address", "fd79::1/64", "--socket"]).arg(lab.socket());
    let mut engine = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(engine.stderr.take().unwrap()));
    let said: Vec<String> = (0..3).map(|_| lines.next().unwrap().unwrap()).collect();
    engine.kill().unwrap();
    engine.wait().unwrap();
    for (line, address) in said.iter().zip(["10.79.0.1/24", "fd79::1/64"]) {
        assert!(
            line.starts_with(&format!(
                "inlane: warning: --address {address}: the kernel has this address on e0"
            )),
            "{line}"
        );
    }
    assert!(said[2].contains("engine ready"), "{said:?}");
}

#[test]
fn an_engine_on_af_xdp_notices_its_interface() {
    check("if-xdp", "af_xdp:e0", 1);
}

#[test]
fn an_engine_on_af_packet_notices_its_interface() {
    check("if-packet", "af_packet:e0", 1);
}

#[test]
fn an_engine_with_two_threads_notices_its_interface() {
    check("if-threads", "af_xdp:e0", 2);
}

#[test]
fn pings_are_answered_and_closed_udp_ports_refuse() {
    let Some(mut lab) = Lab::new("if-ping", &[("ping", "iputils-ping"), ("python3", "python3")]) else {
        return;
    };
    lab.serve(&["--spin", "0s"]);
    for address in [ENGINE, "fd79::1"] {
        for size in ["0", "56", "1400"] {
            let said =
                must(lab.on_kernel("ping").args(["-c", "3", "-i", "0.05", "-W", "30", "-s", size, address]));
            let said = String::from_utf8(said).unwrap();
            assert!(said.contains("3 received"), "{said}");
        }
        let said = must(lab.on_kernel("python3").args(["-c", REFUSED, address]));
        assert_eq!(String::from_utf8(said).unwrap(), "refused\n".repeat(2), "{address}");
    }
}

/// Sends datagrams to a port that no socket has. ICMP errors quote the smaller one whole.
const REFUSED: &str = "
import socket, sys
for size in 1, 1400:
    sock = socket.socket(socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM)
    sock.settimeout(30)
    sock.connect((sys.argv[1], 9))
    sock.send(bytes(size))
    try:
        sock.recv(1)
    except ConnectionRefusedError:
        print('refused')
";
