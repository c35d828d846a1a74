//! Tests of failures: wrong usage, peers that are not NVMe targets, targets that disappear, and full disks.

use super::proxy::Proxy;
use super::*;
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::Ordering;
use std::time::Instant;

#[test]
fn a_target_that_disappears_ends_the_run_with_the_reason() {
    let (target, address) = target("memory:16M");
    let mut bench = Command::new(INLANE);
    bench.args(["nvme", "bench", &address, "--duration", "10m", "--reconnect", "500ms"]);
    bench.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let bench = bench.spawn().unwrap();
    support::until_threads_used(&bench, "nvme-0", Duration::from_millis(50));
    drop(target);
    let started = Instant::now();
    let output = bench.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let message = text(&output.stderr);
    assert!(message.contains("not restored within 0.5 s") || message.contains("cannot connect"), "{message}");
    assert!(started.elapsed() < TIMEOUT, "the run went on without a target");
}

#[test]
fn a_peer_that_is_no_target_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"SSH-2.0-OpenSSH_9.2p1\r\n").unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let output = inlane(&["nvme", "discover", &address]);
    assert_eq!(output.status.code(), Some(1));
    let message = text(&output.stderr);
    assert!(message.contains("violates the NVMe/TCP protocol") && message.contains("PDU-Type"), "{message}");
    server.join().unwrap();

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let output = inlane(&["nvme", "discover", &address, "--timeout", "300ms"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(
        text(&output.stderr).contains("no answer to the connection request for 0.3 s"),
        "{}",
        text(&output.stderr)
    );
}

/// The read succeeds, because the session reconnects. The user must still learn of the violation.
#[test]
fn a_violation_of_the_protocol_during_a_read_is_reported() {
    let (_target, address) = target("memory:16M");
    let proxy = Proxy::slow(&address, 16 << 20);
    let arguments = ["nvme", "read", &proxy.address, "--digests", "both", "-"];
    let mut read = Command::new(INLANE);
    read.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = read.spawn().unwrap();
    let started = Instant::now();
    while proxy.bytes.load(Ordering::SeqCst) < 1 << 20 {
        assert!(started.elapsed() < TIMEOUT, "nothing is read");
        std::thread::sleep(Duration::from_millis(5));
    }
    proxy.inject.store(true, Ordering::SeqCst);
    let output = child.wait_with_output().unwrap();
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{message}");
    assert!(
        message.contains("violates the NVMe/TCP protocol") && message.contains("reconnecting"),
        "{message}"
    );
}

#[test]
fn every_path_that_fails_is_reported() {
    let (_target, address) = target("memory:1M,ro");
    // No process listens on port 1, so the first path fails. The read must succeed over the second path and
    // report the first.
    let paths = format!("127.0.0.1:1,{address}");
    let output = inlane(&["nvme", "read", &paths, "--length", "4K", "-"]);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{message}");
    assert!(message.contains("warning: 127.0.0.1:1: cannot connect"), "{message}");

    // Nothing listens on port 1 of either address.
    let output = inlane(&["nvme", "read", "127.0.0.1:1,127.0.0.2:1", "--length", "4K", "-"]);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{message}");
    for path in ["warning: 127.0.0.1:1: cannot connect", "inlane: 127.0.0.2:1: cannot connect"] {
        assert!(message.contains(path), "{message}");
    }
}

/// Starts a target that hosts must be allowed to use, by a flag and its value.
fn guarded_target(flag: &str, value: &str) -> (Running, String) {
    let arguments =
        ["nvme", "target", "--listen", "127.0.0.1:0", "--threads", "1", "--namespace", "memory:1M"];
    let arguments = [&arguments[..], &["--nqn", SUBSYSTEM, flag, value]].concat();
    let (running, line) = start(&arguments, "listens on");
    (running, address_in(&line))
}

const SUBSYSTEM: &str = "nqn.2026-11.inlane:guarded";
const HOST: &str = "nqn.2026-11.inlane:host";

#[test]
fn hosts_that_a_target_refuses_get_status_3() {
    let folder = tempfile::tempdir().unwrap();
    let secrets = |name: &str| {
        let path = folder.path().join(name).display().to_string();
        let line = succeeds(&["nvme", "gen-dhchap-key", "--host-nqn", HOST]);
        let mut options = std::fs::OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(&path);
        file.unwrap().write_all(line.as_bytes()).unwrap();
        path
    };
    let (right, wrong) = (secrets("right"), secrets("wrong"));
    let (_protected, protected) = guarded_target("--secrets-file", &right);
    let (_listed, listed) = guarded_target("--host", "nqn.2026-11.inlane:other");
    let named = ["--subsystem", SUBSYSTEM];
    for (address, flags, said) in [
        (&protected, &["--secrets-file", &wrong][..], "refused this host's secret"),
        (&protected, &["--host-nqn", HOST], "give the secrets with --secrets-file"),
        (&protected, &["--host-nqn", "nqn.2026-11.inlane:q"], "it offers this host no subsystem"),
        (&listed, &named, "the target does not allow this host"),
    ] {
        let host = if flags.contains(&"--host-nqn") { &[][..] } else { &["--host-nqn", HOST] };
        let output = inlane(&[&["nvme", "read", address, "--length", "4K", "-"], flags, host].concat());
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{flags:?}: {message}");
        assert!(message.contains(said), "{flags:?}: {message}");
    }
    let right = ["--host-nqn", HOST, "--secrets-file", &right];
    succeeds(&[&["nvme", "read", &protected, "--length", "4K", "-"], &right[..]].concat());
}

/// It is wrong usage (status 2) if the command line names a subsystem or a namespace that the target does not have.
#[test]
fn a_subsystem_or_namespace_that_does_not_exist_has_status_2() {
    let (_target, address) = target("memory:1M");
    for flags in [["--subsystem", "nqn.2026-11.inlane:none"], ["--namespace", "7"]] {
        let output = inlane(&[&["nvme", "read", &address, "--length", "4K", "-"], &flags[..]].concat());
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains("does not have it"), "{}", text(&output.stderr));
    }
}

#[test]
fn a_target_warns_if_its_file_names_no_host() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hosts");
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(&path).unwrap();
    file.write_all(b"# no host yet\n").unwrap();
    for flag in ["--hosts-file", "--secrets-file"] {
        let arguments = ["nvme", "target", "--listen", "127.0.0.1:0", "--namespace", "memory:1M", flag];
        let arguments = [&arguments[..], &[path.to_str().unwrap()]].concat();
        let (_target, line) = start(&arguments, "warning");
        assert!(line.contains("no host may connect, because the file names none"), "{line}");
    }
}

#[test]
fn a_target_warns_of_bytes_that_it_does_not_serve() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    std::fs::write(&path, vec![0; 10_000]).unwrap();
    let namespace = format!("file:{},lba=4096", path.display());
    let (_target, line) =
        start(&["nvme", "target", "--listen", "127.0.0.1:0", "--namespace", &namespace], "warning");
    assert!(line.contains("the last 1808 bytes"), "{line}");
}

#[test]
fn discovery_names_the_other_port_if_its_own_refuses() {
    let output = inlane(&["nvme", "discover", "127.0.78.3"]);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{message}");
    assert!(message.contains("127.0.78.3:8009") && message.contains("give 127.0.78.3:4420"), "{message}");
}

#[test]
fn wrong_usage_has_status_2() {
    let (_target, address) = target("memory:1M,ro");
    for arguments in [
        &["read", "::1", "-"][..],
        &["read", &address, "--offset", "1M", "--length", "1", "-"],
        &["bench", &address, "--bs", "1000"],
        &["bench", &address, "--size", "2M"],
        &["bench", &address, "--rw", "write"],
        &["bench", &address, "--rw", "sideways"],
        &["bench", &address, "--bs", "0"],
        &["bench", &address, "--duration", "0s"],
        &["bench", &address, "--offset", "1M"],
        &["bench", &address, "--rwmixread", "20"],
        &["discover", &address, "--timeout", "0s"],
        &["read", &address, "--nsid", "7", "-"],
        &["read", &address, "--subsystem", "nqn.2020-01.x:y", "-"],
        &["read", &address],
        &["read", &address, "--to", "host"],
        &["read", &address, "--length", "0", "--to", "twin:0"],
        &["read", &address, "-", "--json", "-"],
        &["write", &address, "-", "--from", "twin:0"],
        &["write", &address, "/tmp"],
        &["bench", &address, "--host-nqn", "x"],
        &["write", &address, "/dev/null"],
        &["export", "nbd", &address, "--listen", "nowhere"],
    ] {
        let output = inlane(&[&["nvme"], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", text(&output.stderr));
    }
}

/// Checks that writes fail with the NVMe status Capacity Exceeded if the namespace's file system is full. The
/// namespace can still be read, and other namespaces can still be written.
#[test]
fn a_full_disk_is_reported_and_other_namespaces_still_work() {
    const TEST: &str = "a_full_disk_is_reported_and_other_namespaces_still_work";
    let folder = tempfile::tempdir().unwrap();
    let mount = format!("mount -t tmpfs -o size=1M none {}", folder.path().display());
    // Runs a script in its own mount namespace. No other process sees the file systems that the script
    // mounts. They are unmounted when the script ends.
    let inside = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-c", script]);
        command
    };
    if !inside(&mount).output().is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED {TEST}: no mount namespace with a tmpfs can be made here");
        return;
    }
    let disk = folder.path().join("disk");
    let (_target, line) = start_command(
        &mut inside(&format!(
            "{mount} && exec {INLANE} nvme target --listen 127.0.0.1:0 --threads 1 \
             --namespace file:{},size=8M --namespace memory:1M",
            disk.display()
        )),
        "listens on",
    );
    let address = address_in(&line);
    let small = pattern(64 << 10);
    let write = |namespace, offset, data: &[u8]| {
        inlane_with_input(&["nvme", "write", &address, "--nsid", namespace, "--offset", offset, "-"], data)
    };
    assert!(write("1", "0", &small).status.success());
    let output = write("1", "1M", &pattern(4 << 20));
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("Capacity Exceeded"), "{}", text(&output.stderr));
    assert!(write("2", "0", &small).status.success());
    assert!(write("1", "0", &small).status.success());
    for namespace in ["1", "2"] {
        let output = inlane(&["nvme", "read", &address, "--nsid", namespace, "--length", "64K", "-"]);
        assert!(output.stdout == small, "namespace {namespace}: {}", text(&output.stderr));
    }
}

#[test]
fn all_paths_that_cannot_be_reached_are_named() {
    // Read over two paths to port 1, on which no process listens. The message must name both paths. This must
    // hold with and without a given subsystem.
    for subsystem in [&[][..], &["--subsystem", "nqn.2026-11.inlane:x"]] {
        let output = inlane(&[&["nvme", "read", "127.0.78.1:1,127.0.78.2:1", "-"], subsystem].concat());
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{message}");
        assert!(message.contains("127.0.78.1:1") && message.contains("127.0.78.2:1"), "{message}");
    }
    let output = inlane(&["nvme", "target", "--namespace", "memory:1M", "--nqn", "x"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--nqn x: an NQN starts with"), "{}", text(&output.stderr));
}
