//! Tests several pipelines, each with its own receive queue. A generator in one process sends to a checker in
//! another process. The ports spread flows over queues. Every packet must be verified or counted as missed,
//! and the packets of a flow must arrive in order.
//!
//! ```text
//! namespace A  gen -> af_packet:v0 ===veth=== v1 (two queues) -> inlane, two pipelines -> check  namespace B
//! ```

mod support;

use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use support::{until, until_thread_runs, with_hang_ups};

const TRAFFIC: &str = "200,flows=64";
const PACKETS: u64 = 40_000;

/// A network namespace, deleted when the value is dropped.
struct Namespace(String);

impl Namespace {
    fn new(test: &str, name: &str) -> Option<Self> {
        // SAFETY: geteuid has no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            eprintln!("SKIPPED {test}: network namespaces need root");
            return None;
        }
        let name = format!("inlane-{test}-{}-{name}", std::process::id());
        if !ip(&format!("netns add {name}")) {
            eprintln!("SKIPPED {test}: no network namespace (ip netns add; apt-get install iproute2)");
            return None;
        }
        // Disable IPv6. Otherwise the kernel sends packets of its own on a new link, and these would disturb
        // the counts.
        let quiet = ["sysctl", "-q", "-w", "net.ipv6.conf.default.disable_ipv6=1"];
        let status = Command::new("ip").args(["netns", "exec", &name]).args(quiet).status();
        assert!(status.is_ok_and(|status| status.success()), "sysctl");
        Some(Self(name))
    }

    fn must(&self, line: &str) {
        assert!(ip(&format!("-n {} {line}", self.0)), "ip {line}");
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        ip(&format!("netns delete {}", self.0));
    }
}

fn ip(line: &str) -> bool {
    let status = Command::new("ip").args(line.split_whitespace()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

fn inlane(namespace: Option<&Namespace>, arguments: &[&str]) -> Child {
    let program = env!("CARGO_BIN_EXE_inlane");
    let mut command = match namespace {
        Some(Namespace(name)) => {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", name, program]);
            command
        }
        None => Command::new(program),
    };
    command.args(["forward", "--no-baseline", "--json", "-"]).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn document(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)))
}

fn by_pipeline(document: &serde_json::Value) -> Vec<u64> {
    let notes = document["notes"].as_array().unwrap().iter().filter_map(|note| note.as_str());
    let list = notes.filter_map(|note| note.strip_prefix("packets received by each pipeline: ")).next();
    list.unwrap_or_default().split(", ").filter_map(|count| count.parse().ok()).collect()
}

/// Sends packets through the port `sender` to a checker. The checker receives them on the port `receiver`
/// with two pipelines. `ready` waits until the receiver is up.
///
/// Pauses the receiving process for half a second, which makes the kernel drop packets. The checker must
/// count each packet as either verified or missed.
fn accounted(sides: [Option<&Namespace>; 2], sender: &[&str], receiver: &str, ready: impl FnOnce(&Child)) {
    let check = format!("check:{TRAFFIC}");
    let mut to =
        inlane(sides[1], &["--rx", receiver, "--tx", &check, "--pipelines", "2", "--duration", "60s"]);
    ready(&to);
    let source = format!("gen:{TRAFFIC}");
    let from = inlane(sides[0], &[&["--rx", source.as_str(), "--rate", "20kpps"], sender].concat());
    until_thread_runs(&from, "inlane-0", Duration::from_millis(5));
    for signal in [libc::SIGSTOP, libc::SIGCONT] {
        // SAFETY: the child was not yet waited for. `ip netns exec` has replaced itself by inlane.
        unsafe { libc::kill(to.id() as i32, signal) };
        std::thread::sleep(Duration::from_millis(500));
    }
    let sent = from.wait_with_output().unwrap();
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    assert_eq!(document(&sent)["results"][0]["tx"]["packets"], PACKETS);
    // Wait before the interrupt, because a busy receiver needs time for the packets that the kernel still
    // holds.
    std::thread::sleep(Duration::from_secs(4));
    // SAFETY: the process ID is still the child's, because nobody has waited for the child yet.
    unsafe { libc::kill(to.id() as i32, libc::SIGINT) };
    let begun = Instant::now();
    while to.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < Duration::from_secs(60), "inlane did not end on SIGINT");
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = to.wait_with_output().unwrap();
    let came = document(&output);
    let (result, verification) = (&came["results"][0], &came["results"][0]["verification"]);
    let said = format!("{receiver}: {result} {verification} {}", String::from_utf8_lossy(&output.stderr));
    for wrong in ["duplicated_packets", "reordered_packets", "altered_packets"] {
        assert_eq!(verification[wrong], 0, "{wrong}, {said}");
    }
    let missed = result["rx"]["missed"].as_u64().unwrap();
    // The sender must be so fast that the kernel drops packets. Otherwise the test would not check that
    // `missed` counts them. An AF_XDP sender is exempt, because it waits for free buffers.
    assert!(missed > 0 || sender.contains(&"af_xdp:v0"), "{said}");
    assert_eq!(verification["verified_packets"].as_u64().unwrap() + missed, PACKETS, "{said}");
    assert_eq!(result["leaked_buffers"], 0, "{said}");
    let each = by_pipeline(&came);
    assert!(each.len() == 2 && each.iter().all(|&count| count > PACKETS / 10), "{each:?}, {said}");
}

fn joined(test: &str) -> Option<[Namespace; 2]> {
    let (a, b) = (Namespace::new(test, "a")?, Namespace::new(test, "b")?);
    let two = "numrxqueues 2 numtxqueues 2";
    assert!(ip(&format!("link add v0 netns {} {two} type veth peer name v1 netns {} {two}", a.0, b.0)));
    for (side, name) in [(&a, "v0"), (&b, "v1")] {
        side.must(&format!("link set {name} up"));
    }
    Some([a, b])
}

/// Waits until the first pipeline of `receiver` runs, and then for 2.5 s. A new veth link needs this time
/// before it carries frames.
fn wait_until_up(receiver: &Child) {
    until_thread_runs(receiver, "inlane-0", Duration::from_millis(1));
    std::thread::sleep(Duration::from_millis(2500));
}

fn over_veth(test: &str, receiver: &str) {
    let Some([a, b]) = joined(test) else { return };
    // Packet sockets spread flows over the receiver's queues themselves (PACKET_FANOUT), so one transmit
    // queue is enough.
    let sender = ["--tx", "af_packet:v0", "--packets", "40000"];
    if receiver.starts_with("af_packet") {
        return accounted([Some(&a), Some(&b)], &sender, receiver, wait_until_up);
    }
    // A veth delivers the packets of transmit queue n to receive queue n of the other end. To reach both
    // receive queues, send on two transmit queues, one for each pipeline.
    let sender = ["--tx", "af_xdp:v0", "--pipelines", "2", "--packets", "20000"];
    accounted([Some(&a), Some(&b)], &sender, receiver, wait_until_up);
}

#[test]
fn packet_sockets_spread_flows() {
    over_veth("packet-queues", "af_packet:v1");
}

#[test]
fn af_xdp_reads_every_queue() {
    over_veth("xdp-queues", "af_xdp:v1");
}

#[test]
fn an_interface_with_an_unread_queue_is_refused() {
    let Some([_a, b]) = joined("unread-queues") else { return };
    for (port, remedy) in [("af_xdp:v1", "ethtool -L v1 rx 1"), ("af_packet:v1,queues=2", "queues=1")] {
        let output = inlane(Some(&b), &["--rx", port, "--tx", "null"]).wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{port}: {said}");
        assert!(said.contains("--pipelines 2") && said.contains(remedy), "{said}");
    }
    let output = inlane(Some(&b), &["--rx", "af_xdp:v1,queue=1", "--tx", "null", "--duration", "200ms"]);
    let output = output.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_tap_interface_with_two_queues() {
    let Some(a) = Namespace::new("tap-queues", "a") else { return };
    let sender = ["--tx", "af_packet:t0", "--packets", "40000"];
    accounted([Some(&a), Some(&a)], &sender, "tap:t0", |receiver| {
        let begun = Instant::now();
        while !ip(&format!("-n {} link set t0 up", a.0)) {
            assert!(begun.elapsed() < Duration::from_secs(60), "inlane made no t0");
            std::thread::sleep(Duration::from_millis(20));
        }
        wait_until_up(receiver);
        a.must("link set t0 up");
    });
}

#[test]
fn memif_with_two_queues() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("memif.sock");
    let (server, client) =
        (format!("memif:{},role=server", socket.display()), format!("memif:{}", socket.display()));
    // If its peer closes the port, DPDK's receiver drops the packets in the rings. So the sender runs until the receiver has ended.
    let sender = ["--tx", server.as_str(), "--pipelines", "2", "--duration", "5m"];
    let source = format!("gen:{TRAFFIC}");
    let mut from = inlane(None, &[&["--rx", source.as_str(), "--rate", "20kpps"], &sender[..]].concat());
    let check = format!("check:{TRAFFIC}");
    let to = ["--rx", &client, "--tx", &check, "--pipelines", "2", "--packets", "20000"];
    let output = inlane(None, &to).wait_with_output();
    from.kill().unwrap();
    from.wait().unwrap();
    let came = document(&output.unwrap());
    let verification = &came["results"][0]["verification"];
    assert_eq!(by_pipeline(&came), [PACKETS / 2, PACKETS / 2], "{verification}");
    for (what, count) in
        [("verified", PACKETS), ("lost", 0), ("duplicated", 0), ("reordered", 0), ("altered", 0)]
    {
        assert_eq!(verification[format!("{what}_packets")], count, "{what}: {verification}");
    }
}

#[test]
fn memif_carries_large_frames_or_refuses_them() {
    let folder = tempfile::tempdir().unwrap();
    let port = format!("memif:{}", folder.path().join("memif.sock").display());
    let output = inlane(None, &["--rx", "gen:9000", "--tx", &port]).wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("give mtu=8982 at both ends"), "{output:?}");

    let (server, client) = (format!("{port},role=server,mtu=9000"), format!("{port},mtu=9000"));
    let from =
        inlane(None, &["--rx", "gen:9000,flows=4", "--tx", &server, "--rate", "5kpps", "--packets", "5000"]);
    let to = ["--rx", &client, "--tx", "check:9000,flows=4", "--room", "16K", "--packets", "5000"];
    let came = document(&inlane(None, &to).wait_with_output().unwrap());
    let sent = document(&from.wait_with_output().unwrap());
    assert_eq!(sent["results"][0]["tx"]["packets"], 5000);
    for (what, count) in [("verified", 5000), ("lost", 0), ("reordered", 0), ("altered", 0)] {
        let verification = &came["results"][0]["verification"];
        assert_eq!(verification[format!("{what}_packets")], count, "{what}: {verification}");
    }
}

#[test]
fn an_ntb_carries_packets_until_the_last_one() {
    let folder = tempfile::tempdir().unwrap();
    let (port, wait) = (format!("ntb:{}", folder.path().join("bridge").display()), "wait=60");
    for (server_sends, size) in [(true, "64"), (false, "9000"), (true, "65000")] {
        let (server, client) = (format!("{port},role=server,{wait}"), format!("{port},{wait}"));
        let (from, to) = if server_sends { (server, client) } else { (client, server) };
        let (source, check) = (format!("gen:{size},flows=4"), format!("check:{size},flows=4"));
        let sender = ["--rx", &source, "--tx", &from, "--rate", "5kpps", "--packets", "5000"];
        let from = inlane(None, &sender);
        let to = ["--rx", &to, "--tx", &check, "--room", "65600", "--packets", "5000"];
        let came = document(&inlane(None, &to).wait_with_output().unwrap());
        let sent = document(&from.wait_with_output().unwrap());
        assert_eq!(sent["results"][0]["tx"]["packets"], 5000);
        let verification = &came["results"][0]["verification"];
        for (what, count) in [("verified", 5000), ("lost", 0), ("reordered", 0), ("altered", 0)] {
            assert_eq!(verification[format!("{what}_packets")], count, "{size}: {verification}");
        }
    }
}

#[test]
fn software_ports_have_several_queues() {
    for arguments in [
        ["--rx", "net_null:64", "--tx", "net_null:64"],
        ["--rx", "ring:a,prime=32", "--tx", "ring:a"],
        ["--rx", "gen:200,flows=64", "--tx", "check"],
    ] {
        for method in ["single", "split"] {
            let more = ["--pipelines", "2", "--method", method, "--packets", "600", "--function", "macswap"];
            let output = inlane(None, &[&arguments[..], &more[..]].concat()).wait_with_output().unwrap();
            let document = document(&output);
            let result = &document["results"][0];
            assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
            assert_eq!(result["rx"]["packets"], result["tx"]["packets"], "{arguments:?}: {result}");
            assert!(result["rx"]["packets"].as_u64().unwrap() >= 1200, "{arguments:?}: {result}");
            assert_eq!(result["leaked_buffers"], 0, "{arguments:?}: {result}");
        }
    }
}

/// Kernel interfaces refuse frames shorter than an Ethernet header. Such frames are dropped and counted, and
/// the frames behind them are sent.
#[test]
fn frames_without_an_ethernet_header_hold_up_no_port() {
    let Some([a, _b]) = joined("short-frames") else { return };
    let folder = tempfile::tempdir().unwrap();
    let capture = folder.path().join("short.pcap");
    let mut bytes: Vec<u8> =
        [0xa1b2_c3d4u32, 4 << 16 | 2, 0, 0, 65535, 1].into_iter().flat_map(u32::to_le_bytes).collect();
    let lengths = [60u32, 0, 60, 13, 60];
    for length in lengths {
        bytes.extend([1, 0, length, length].into_iter().flat_map(u32::to_le_bytes));
        bytes.extend((0..length).map(|_| 2u8));
    }
    std::fs::write(&capture, bytes).unwrap();
    let source = format!("pcap:{}", capture.display());
    for port in ["tap:t0", "af_packet:v0", "af_xdp:v0,queue=0"] {
        let output = inlane(Some(&a), &["--rx", &source, "--tx", port]).wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{port}: {said}");
        let result = &document(&output)["results"][0];
        let (sent, errors) =
            (result["tx"]["packets"].as_u64().unwrap(), result["tx"]["errors"].as_u64().unwrap());
        assert_eq!(sent + errors, lengths.len() as u64, "{port}: {result}");
        assert!(sent >= 3, "{port}: {result}");
    }
}

/// SIGHUP ends a run on AF_XDP cleanly: the XDP program is removed from the interface, and the result is
/// complete.
#[test]
fn a_hang_up_removes_the_xdp_program() {
    let Some([a, _b]) = joined("hang-up") else { return };
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("result.json");
    let program = || {
        let shown = Command::new("ip").args(["-n", &a.0, "link", "show", "v0"]).output().unwrap();
        String::from_utf8_lossy(&shown.stdout).contains("xdp")
    };
    let mut command = Command::new("ip");
    command.args([
        "netns",
        "exec",
        &a.0,
        env!("CARGO_BIN_EXE_inlane"),
        "forward",
        "--rx",
        "af_xdp:v0,queue=0",
        "--tx",
    ]);
    command.args(["null", "--no-baseline", "--duration", "10m", "--json"]).arg(&json).stdin(Stdio::null());
    with_hang_ups(&mut command).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    until_thread_runs(&child, "inlane-0", Duration::from_millis(1));
    assert!(program());
    // SAFETY: the child was not yet waited for. `ip netns exec` has replaced itself by inlane.
    unsafe { libc::kill(child.id() as i32, libc::SIGHUP) };
    until("the run ends", || child.try_wait().unwrap().is_some());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    until("the program leaves", || !program());
    let document: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!(document["results"][0]["rx"]["packets"], 0);
}
