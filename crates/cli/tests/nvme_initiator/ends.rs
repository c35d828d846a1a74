//! Tests of how `inlane nvme target` and `inlane nvme export` run as processes and end.

use super::proxy::Proxy;
use super::*;
use std::io::Read;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Checks that a target completes its commands in progress after the first SIGTERM, and ends at once after
/// the second.
#[test]
fn a_second_signal_ends_the_target_at_once() {
    use std::os::unix::process::ExitStatusExt;
    // After the first SIGTERM, the target drains for at most 5 s and then ends with status 0. The second
    // signal must arrive before that. If this test sent it too late, try again.
    for _ in 0..5 {
        let (mut target, address) = target("memory:64M");
        let proxy = Proxy::start(&address);
        let arguments = [
            "nvme",
            "bench",
            &proxy.address,
            "--rw",
            "read",
            "--bs",
            "1M",
            "--iodepth",
            "64",
            "--duration",
            "60s",
        ];
        let mut bench = Command::new(INLANE);
        bench.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let bench = Running(bench.spawn().unwrap());
        let started = Instant::now();
        while proxy.bytes.load(Ordering::SeqCst) < 64 << 20 {
            assert!(started.elapsed() < TIMEOUT, "the bench does not run");
            std::thread::sleep(Duration::from_millis(5));
        }
        // Stop the bench while it has 64 MiB of reads in flight. Then wait until the proxy forwards no more
        // bytes. The sockets' buffers are then full, so the target still has data to send.
        signal(&bench.0, libc::SIGSTOP);
        let mut passed = usize::MAX;
        while passed != proxy.bytes.load(Ordering::SeqCst) {
            passed = proxy.bytes.load(Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(300));
        }
        signal(&target.0, libc::SIGTERM);
        while TcpStream::connect(&address).is_ok() {
            assert!(started.elapsed() < TIMEOUT, "the target still accepts connections");
            std::thread::sleep(Duration::from_millis(5));
        }
        signal(&target.0, libc::SIGTERM);
        let status = target.0.wait().unwrap();
        if status.signal() == Some(libc::SIGTERM) {
            return;
        }
        assert_eq!(status.code(), Some(0), "{status}");
    }
    panic!("no second signal ended the target");
}

#[test]
fn an_export_that_ends_reports_what_it_served() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, report) = (folder.path().join("nbd"), folder.path().join("report"));
    let (_target, address) = target("memory:1M");
    let listen = format!("unix:{}", socket.display());
    let arguments =
        ["nvme", "export", "nbd", &address, "--listen", &listen, "--json", report.to_str().unwrap()];
    let (mut export, _) = start(&arguments, "is exported");
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    // Choose the export. Then read the first 512 bytes of the namespace, and 512 bytes past its end.
    stream.write_all(&[&3_u32.to_be_bytes()[..], b"IHAVEOPT", &[0, 0, 0, 1, 0, 0, 0, 0]].concat()).unwrap();
    let request = |offset: u64| {
        let words = [&0x2560_9513_u32.to_be_bytes()[..], &[0, 0, 0, 0], &7_u64.to_be_bytes()];
        [words.concat(), offset.to_be_bytes().to_vec(), 512_u32.to_be_bytes().to_vec()].concat()
    };
    stream.write_all(&[request(0), request(1 << 20)].concat()).unwrap();
    let mut received = vec![0; 18 + 10 + 16 + 512 + 16];
    stream.read_exact(&mut received).unwrap();
    // The two replies may come in any order. Bytes 4 to 7 are a reply's error number: 22 is EINVAL.
    let replies = &received[28..];
    let first_is_error = replies[7] == 22;
    let error = if first_is_error { &replies[..16] } else { &replies[528..] };
    assert_eq!(error, [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 22, 0, 0, 0, 0, 0, 0, 0, 7]);
    let data = if first_is_error { &replies[16..] } else { &replies[..528] };
    assert_eq!(data[4..8], [0; 4]);
    assert!(data[16..].iter().all(|byte| *byte == 0));
    drop(stream);
    signal(&export.0, libc::SIGTERM);
    assert_eq!(export.0.wait().unwrap().code(), Some(0));
    let document: serde_json::Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    let row = &document["results"][0];
    for (key, value) in [("clients", 1), ("reads", 1), ("read_bytes", 512), ("errors", 1), ("writes", 0)] {
        assert_eq!(row[key], value, "{row}");
    }
}

/// A target that root starts needs no privileges once its namespaces are open. It must still be able to read its file of
/// hosts, and to sync its namespaces.
#[test]
fn a_target_gives_up_its_privileges() {
    let folder = tempfile::tempdir().unwrap();
    let hosts = folder.path().join("hosts");
    std::fs::write(&hosts, "nqn.2026-11.inlane:a\n").unwrap();
    let disk = format!("file:{},size=1M", folder.path().join("disk").display());
    let start_target = |flags: &[&str]| {
        let arguments = ["nvme", "target", "--listen", "127.0.0.1:0", "--namespace", &disk];
        let (target, line) = start(&[&arguments[..], flags].concat(), "listens on");
        let status = std::fs::read_to_string(format!("/proc/{}/status", target.0.id())).unwrap();
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().to_string()
        };
        let rights = (field("Uid:"), field("CapEff:"));
        (target, address_in(&line), rights)
    };
    let ends = |mut target: Running| {
        signal(&target.0, libc::SIGTERM);
        assert_eq!(target.0.wait().unwrap().code(), Some(0));
    };
    let (target, address, (user, capabilities)) = start_target(&[]);
    assert!(user != "0" && u64::from_str_radix(&capabilities, 16) == Ok(0), "{user} {capabilities}");
    assert!(inlane_with_input(&["nvme", "write", &address, "-"], &pattern(4096)).status.success());
    ends(target);

    let (target, address, (_, capabilities)) = start_target(&["--hosts-file", hosts.to_str().unwrap()]);
    assert_eq!(u64::from_str_radix(&capabilities, 16), Ok(0));
    std::fs::write(&hosts, "nqn.2026-11.inlane:b\n").unwrap();
    let started = Instant::now();
    let flags = ["--host-nqn", "nqn.2026-11.inlane:b", "--length", "4K", "-"];
    while !inlane(&[&["nvme", "read", &address], &flags[..]].concat()).status.success() {
        assert!(started.elapsed() < TIMEOUT, "the changed file has no effect");
        std::thread::sleep(Duration::from_millis(100));
    }
    ends(target);
}

/// A directory without /proc, as some sandboxes have it.
#[test]
fn a_target_serves_files_without_proc() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "mount -t tmpfs none /proc && exec {INLANE} nvme target --listen 127.0.0.1:0 --namespace \
         file:{},size=1M",
        folder.path().join("disk").display()
    );
    let mut inside = Command::new("unshare");
    inside.args(["--map-root-user", "--mount", "sh", "-c"]);
    let possible = inside.arg("mount -t tmpfs none /proc").output();
    if !possible.is_ok_and(|output| output.status.success()) {
        return eprintln!("SKIPPED a_target_serves_files_without_proc: no mount namespace can be made here");
    }
    let mut command = Command::new("unshare");
    let command = command.args(["--map-root-user", "--mount", "sh", "-c", &script]);
    let (_target, line) = start_command(command, "listens on");
    let write = ["nvme", "write", &address_in(&line), "-"];
    assert!(inlane_with_input(&write, &pattern(4096)).status.success());
}
