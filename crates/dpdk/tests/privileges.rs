//! Checks that open ports still work after the process has dropped its privileges, and that they close
//! without a leak. A process cannot regain privileges, so each case runs in its own process.

mod network;

use inlane_core::packet::{Packet, Pool};
use inlane_core::port::{Port, Rx, Tx};
use inlane_dpdk::{Error, MbufPool, open};
use inlane_process::privileges;
use network::{RawSocket, eventually, frame, ip, output_of_ip, private_network};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The environment variable that names the port of a case. If set, the process runs that case.
const CASE: &str = "INLANE_TEST_PORT";

#[test]
fn ports_work_after_root_has_become_a_user() {
    if let Ok(spec) = std::env::var(CASE) {
        return as_root(&spec);
    }
    // SAFETY: reads a number.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("SKIPPED ports_work_after_root_has_become_a_user: run as root");
        return;
    }
    for spec in ["net_null", "af_packet:v0", "af_xdp:v0", "tap:v1"] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["ports_work_after_root_has_become_a_user", "--nocapture"])
            .env(CASE, spec)
            .env("SUDO_UID", "1000")
            .env("SUDO_GID", "1000")
            .output()
            .unwrap();
        succeeded(spec, &output);
    }
}

fn succeeded(spec: &str, output: &Output) {
    let (errors, text) = (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{spec}: {errors}{text}");
}

struct Opened {
    pool: Arc<MbufPool>,
    port: Box<dyn Port>,
    rx: Box<dyn Rx>,
    tx: Box<dyn Tx>,
}

impl Opened {
    fn new(spec: &str) -> Self {
        let pool = MbufPool::new(8192, 2048).unwrap();
        let as_pool: Arc<dyn Pool> = pool.clone();
        let mut port = open(spec).unwrap();
        port.configure(std::slice::from_ref(&as_pool), 1).unwrap();
        let (rx, tx) = (port.take_rx(0).unwrap(), port.take_tx(0, as_pool).unwrap());
        port.start().unwrap();
        Self { pool, port, rx, tx }
    }

    /// Sends frames through `raw`, the other end of the link. Receives them from the port and sends them
    /// back.
    fn exchange(&mut self, raw: &RawSocket) {
        for round in 0..10 {
            let sent = frame(200, round);
            raw.send(&sent);
            let start = Instant::now();
            let mut packets = [Packet::EMPTY; 32];
            loop {
                let count = self.rx.receive(&mut packets).unwrap();
                // SAFETY: the packet was just received, in host memory.
                if count == 1 && unsafe { packets[0].bytes() } == sent {
                    break;
                }
                // SAFETY: the packet is of this pool, and is not used again.
                unsafe { self.pool.free(&packets[..count]) };
                assert!(start.elapsed() < Duration::from_secs(20), "no frame is received");
            }
            // SAFETY: the packet is of this queue's pool, and is not used again.
            assert_eq!(unsafe { self.tx.send(&packets[..1]) }.unwrap(), 1);
            assert_eq!(raw.receive(Duration::from_secs(20)).as_deref(), Some(&sent[..]));
        }
    }

    fn stop(mut self) {
        self.port.stop();
        assert_eq!(self.pool.outstanding(), 0, "leaked buffers");
    }
}

fn as_root(spec: &str) {
    if !private_network("ports_work_after_root_has_become_a_user") {
        return;
    }
    if !spec.starts_with("tap") {
        ip("link add v0 type veth peer name v1");
        ip("link set v0 up");
    }
    let mut opened = Opened::new(spec);
    let mut raw = None;
    if spec != "net_null" {
        ip("link set v1 up");
        raw = Some(RawSocket::open("v1"));
        std::thread::sleep(Duration::from_millis(300));
    }
    let dropped = privileges::drop_privileges().unwrap().expect("root has privileges");
    assert_eq!((dropped.user, dropped.group), (1000, 1000));
    assert_eq!(threads_with_capabilities(), 0);
    assert!(std::fs::read("/etc/shadow").is_err(), "root's files are readable");
    // SAFETY: only a number is passed.
    assert_eq!(unsafe { libc::setuid(0) }, -1, "the process became root again");
    assert!(privileges::drop_privileges().unwrap().is_none());

    if let Some(raw) = raw {
        opened.exchange(&raw);
        let denied = open("af_packet:v1").err().unwrap();
        assert!(matches!(denied, Error::Permission { .. }), "{denied}");
        assert!(denied.to_string().contains("setcap cap_net_admin,cap_net_raw"), "{denied}");
    }
    assert!(open("net_null").is_ok(), "software ports need no privilege");
    opened.stop();
    if spec.starts_with("af_xdp") {
        assert!(
            eventually(|| !output_of_ip("link show v0").contains("xdp")),
            "the program is still on the interface"
        );
    }
}

/// An ordinary user runs a copy of this program with file capabilities. After the copy has dropped the
/// capabilities, none of its threads may hold one.
#[test]
fn capabilities_of_the_programs_file_are_dropped_in_every_thread() {
    const TEST: &str = "capabilities_of_the_programs_file_are_dropped_in_every_thread";
    if let Ok(spec) = std::env::var(CASE) {
        return with_capabilities(&spec);
    }
    if !private_network(TEST) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let setcap = Command::new("setcap")
        .arg("cap_net_admin,cap_net_raw,cap_bpf,cap_ipc_lock+ep")
        .arg(&program)
        .status();
    if !setcap.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED {TEST}: setcap does not work here; install libcap2-bin");
        return;
    }
    ip("link add v0 type veth peer name v1");
    ip("link set v0 up");
    for spec in ["net_null", "af_packet:v0", "af_xdp:v0"] {
        let output = Command::new(&program)
            .args([TEST, "--nocapture"])
            .env(CASE, spec)
            .current_dir("/")
            .uid(1000)
            .gid(1000)
            .output()
            .unwrap();
        succeeded(spec, &output);
        assert!(
            eventually(|| !output_of_ip("link show v0").contains("xdp")),
            "{spec}: the program is still on the interface"
        );
    }
}

fn with_capabilities(spec: &str) {
    let opened = Opened::new(spec);
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || stopped.recv().is_err());
    assert!(threads_with_capabilities() >= 2);
    let dropped = privileges::drop_privileges().unwrap().expect("the file has capabilities");
    assert_eq!((dropped.user, dropped.group), (1000, 1000));
    assert_eq!(threads_with_capabilities(), 0);
    assert!(privileges::drop_privileges().unwrap().is_none());
    drop(stop);
    assert!(thread.join().unwrap(), "the other thread goes on");
    opened.stop();
}

fn threads_with_capabilities() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let statuses = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).ok());
    let holds = |status: &String| {
        let mut sets = status
            .lines()
            .filter(|line| ["CapPrm", "CapEff", "CapInh"].iter().any(|set| line.starts_with(set)));
        sets.any(|line| line.split_once(':').unwrap().1.trim().chars().any(|digit| digit != '0'))
    };
    statuses.filter(holds).count()
}
