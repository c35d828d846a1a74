//! Ports that are open work on, and close without a leak, after privileges are given up. One test, since the process keeps
//! none: each case runs in a process of its own, this program started again.

mod network;

use inlane_core::packet::{Packet, Pool};
use inlane_dpdk::{Error, MbufPool, open, privileges};
use network::{RawSocket, frame, ip, private_network};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

const CASE: &str = "INLANE_TEST_PORT";

#[test]
fn ports_work_without_privileges() {
    if let Ok(spec) = std::env::var(CASE) {
        return case(&spec);
    }
    // SAFETY: reads a number.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("SKIPPED ports_work_without_privileges: there are none to give up; run as root");
        return;
    }
    for spec in ["af_packet:v0", "af_xdp:v0", "tap:v1"] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["ports_work_without_privileges", "--nocapture"])
            .env(CASE, spec)
            .env("SUDO_UID", "1000")
            .env("SUDO_GID", "1000")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{spec}: {said}{}", String::from_utf8_lossy(&output.stdout));
    }
}

fn case(spec: &str) {
    if !private_network("ports_work_without_privileges") {
        return;
    }
    if !spec.starts_with("tap") {
        ip("link add v0 type veth peer name v1");
        ip("link set v0 up");
    }
    let pool = MbufPool::new(8192, 2048).unwrap();
    let as_pool: Arc<dyn Pool> = pool.clone();
    let mut port = open(spec).unwrap();
    port.configure(std::slice::from_ref(&as_pool), 1).unwrap();
    let mut rx = port.take_rx(0).unwrap();
    let mut tx = port.take_tx(0, as_pool).unwrap();
    port.start().unwrap();
    ip("link set v1 up");
    let raw = RawSocket::open("v1");
    std::thread::sleep(Duration::from_millis(300));

    let dropped = privileges::drop_privileges().unwrap().expect("root had some");
    assert_eq!((dropped.user, dropped.group), (1000, 1000));
    assert!(std::fs::read("/etc/shadow").is_err(), "root's files are closed");
    // SAFETY: numbers.
    assert_eq!(unsafe { libc::setuid(0) }, -1, "there is no way back");
    assert!(privileges::drop_privileges().unwrap().is_none());

    for round in 0..10 {
        let sent = frame(200, round);
        raw.send(&sent);
        let start = Instant::now();
        let mut packets = [Packet::EMPTY; 32];
        loop {
            let count = rx.receive(&mut packets).unwrap();
            // SAFETY: held; host memory.
            if count == 1 && unsafe { packets[0].bytes() } == sent {
                break;
            }
            // SAFETY: these packets are held here, are of this pool, and are not used again.
            unsafe { pool.free(&packets[..count]) };
            assert!(start.elapsed() < Duration::from_secs(2), "{spec}: nothing comes in");
        }
        // SAFETY: these packets are held here and of this queue's pool; those sent are not used again.
        assert_eq!(unsafe { tx.send(&packets[..1]) }.unwrap(), 1);
        assert_eq!(raw.receive(Duration::from_secs(1)).as_deref(), Some(&sent[..]));
    }
    let denied = open("af_packet:v1").err().unwrap();
    assert!(matches!(denied, Error::Permission { .. }), "{denied}");
    assert!(denied.to_string().contains("setcap cap_net_raw"), "{denied}");
    assert!(open("net_null").is_ok(), "software ports need nothing");

    port.stop();
    assert_eq!(pool.outstanding(), 0, "{spec}: buffers leaked");
    if spec.starts_with("af_xdp") {
        let output = Command::new("ip").args(["link", "show", "v0"]).output().unwrap();
        let shown = String::from_utf8_lossy(&output.stdout);
        assert!(!shown.contains("xdp"), "the program is still on the interface: {shown}");
    }
}
