//! Tests of memif ports without a peer, with clients that leave, and with dpdk-testpmd as the peer.

use inlane_core::packet::{Packet, Pool};
use inlane_core::port::Port;
use inlane_dpdk::{MbufPool, open};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A running testpmd with one memif port. Dropping it kills the process.
struct Testpmd(Child);

impl Testpmd {
    fn start(test: &str, device: &str, mode: &str) -> Option<Self> {
        let output = tempfile::NamedTempFile::new().unwrap();
        // Let each thread of testpmd run on all cores that the test may use. If a thread were bound to a
        // single core and that core were busy, the thread would not answer in time.
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
        let child = Command::new("dpdk-testpmd")
            .args([
                "--lcores",
                &format!("0@({cpus}),1@({cpus})"),
                "--no-huge",
                "-m",
                "128",
                "--no-pci",
                "--no-telemetry",
            ])
            .args(["--no-shconf", "--vdev", device, "--", "-i", "--total-num-mbufs=4096"])
            .arg(format!("--forward-mode={mode}"))
            .stdin(Stdio::piped())
            .stdout(output.reopen().unwrap())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut child) = child else {
            eprintln!("SKIPPED {test}: the program dpdk-testpmd is missing; install dpdk-dev");
            return None;
        };
        // As a server, testpmd disconnects every client until its own device is started. In DPDK 22.11,
        // disconnecting may use freed memory. So wait until testpmd accepts commands.
        let start = Instant::now();
        while device.contains("role=server")
            && !std::fs::read_to_string(output.path()).is_ok_and(|text| text.contains("testpmd>"))
        {
            assert!(start.elapsed() < Duration::from_secs(60), "testpmd does not start");
            assert!(child.try_wait().unwrap().is_none(), "testpmd ended");
            std::thread::sleep(Duration::from_millis(20));
        }
        writeln!(child.stdin.as_mut().unwrap(), "start").unwrap();
        Some(Self(child))
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        // Kill the process, because its polling threads would take long to end.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn configured(spec: &str, pool: &Arc<MbufPool>) -> Box<dyn Port> {
    let mut port = open(spec).unwrap();
    let pool: Arc<dyn Pool> = pool.clone();
    port.configure(std::slice::from_ref(&pool), 1).unwrap();
    port
}

/// Checks that testpmd returns packets with swapped MAC addresses. Then ends testpmd and checks that the
/// receiver gets an error.
fn exchanges(spec: &str, peer: Option<Testpmd>) {
    let Some(peer) = peer else { return };
    let pool = MbufPool::new(4096, 2048).unwrap();
    let mut port = configured(spec, &pool);
    let mut rx = port.take_rx(0).unwrap();
    let mut tx = port.take_tx(0, pool.clone()).unwrap();
    port.start().unwrap();
    let mut back = 0u64;
    let start = Instant::now();
    while back < 10_000 {
        assert!(start.elapsed() < Duration::from_secs(60), "{spec}: only {back} packets came back");
        let mut packets = [Packet::EMPTY; 16];
        let allocated = pool.allocate(&mut packets);
        for (i, packet) in packets[..allocated].iter_mut().enumerate() {
            packet.length = 60 + 90 * i as u32;
            // SAFETY: the packet was just allocated, and lies in host memory.
            let bytes = unsafe { packet.bytes_mut() };
            bytes.fill(i as u8);
            bytes[..12].copy_from_slice(&[2, 0, 0, 0, 0, 0xaa, 2, 0, 0, 0, 0, 0xbb]);
        }
        // SAFETY: the packets were just allocated from this queue's pool. Unsent ones are freed, sent ones
        // not used again.
        unsafe {
            let sent = tx.send(&packets[..allocated]).unwrap();
            pool.free(&packets[sent..allocated]);
        }
        let count = rx.receive(&mut packets).unwrap();
        for packet in &packets[..count] {
            // SAFETY: the packet was just received, and lies in host memory.
            let bytes = unsafe { packet.bytes() };
            assert_eq!(bytes[..12], [2, 0, 0, 0, 0, 0xbb, 2, 0, 0, 0, 0, 0xaa]);
            assert_eq!(packet.length, 60 + 90 * bytes[12] as u32);
            assert!(bytes[12..].iter().all(|&byte| byte == bytes[12]));
        }
        // SAFETY: the packets are of this pool, and are not used again.
        unsafe { pool.free(&packets[..count]) };
        back += count as u64;
        if count == 0 {
            // Yield the core, because testpmd may need it.
            std::thread::yield_now();
        }
    }
    drop(peer);
    let start = Instant::now();
    let error = loop {
        let mut packets = [Packet::EMPTY; 16];
        match rx.receive(&mut packets) {
            // SAFETY: the packets are of this pool, and are not used again.
            Ok(count) => unsafe { pool.free(&packets[..count]) },
            Err(error) => break error.to_string(),
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{spec}: no error after the peer ended");
    };
    assert!(error.contains("peer"), "{error}");
    port.stop();
    assert_eq!(pool.outstanding(), 0, "{spec}: leaked buffers");
}

#[test]
fn as_client_of_testpmd() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("a.sock").display().to_string();
    let device = format!("net_memif0,role=server,id=3,socket={socket},socket-abstract=no");
    let peer = Testpmd::start("as_client_of_testpmd", &device, "macswap");
    exchanges(&format!("memif:{socket},id=3,wait=40s"), peer);
}

#[test]
fn as_server_of_testpmd() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("b.sock").display().to_string();
    // Create a socket file without a listener, as a dead server leaves it. The port must replace the file.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let device = format!("net_memif0,role=client,id=0,socket={socket},socket-abstract=no");
    let peer = Testpmd::start("as_server_of_testpmd", &device, "macswap");
    exchanges(&format!("memif:{socket},role=server,wait=40s"), peer);
}

#[test]
fn without_a_peer() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("c.sock").display().to_string();
    let pool = MbufPool::new(4096, 2048).unwrap();
    for role in ["server", "client"] {
        let mut port = configured(&format!("memif:{socket},role={role},wait=0.2s"), &pool);
        let start = Instant::now();
        let error = port.start().unwrap_err().to_string();
        assert!(start.elapsed() < Duration::from_secs(20));
        assert!(error.contains("no peer connected") && error.contains("wait=SECONDS"), "{error}");
        port.stop();
    }
    assert_eq!(pool.outstanding(), 0);
    std::fs::remove_file(&socket).ok();
    std::fs::write(&socket, "a file").unwrap();
    let error = open(&format!("memif:{socket},role=server,wait=40s")).err().unwrap().to_string();
    assert!(error.contains("is no socket"), "{error}");
}

/// Runs in its own process, because it changes the current directory, which all threads of a process share.
#[test]
fn a_relative_path_names_a_socket_in_the_current_folder() {
    const CASE: &str = "INLANE_TEST_RELATIVE_PATH";
    if std::env::var_os(CASE).is_none() {
        let folder = tempfile::tempdir().unwrap();
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["a_relative_path_names_a_socket_in_the_current_folder", "--exact", "--nocapture"])
            .env(CASE, "1")
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    let pool = MbufPool::new(4096, 2048).unwrap();
    let mut port = configured("memif:relative.sock,role=server,wait=0.2s", &pool);
    let error = port.start().unwrap_err().to_string();
    assert!(error.contains("no peer connected"), "{error}");
    let error = open("memif:no/such/folder.sock").err().unwrap().to_string();
    assert!(error.contains("no/such does not exist"), "{error}");
}

#[test]
fn a_socket_in_use_is_not_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("d.sock");
    let _other = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let _ = open(&format!("memif:{},role=server", path.display()));
    assert!(path.exists());
    std::os::unix::net::UnixStream::connect(&path).expect("the other server still listens");
}

/// Listens on a socket of the driver's type. A client that connects to it would be found in its queue.
#[test]
fn opening_a_port_does_not_connect_to_a_server_of_the_same_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("e.sock");
    let kind = (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::NONBLOCK);
    let listener = rustix::net::socket_with(kind.0, kind.1, kind.2, None).unwrap();
    rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&listener, 4).unwrap();
    let _ = open(&format!("memif:{},role=server", path.display()));
    assert!(path.exists(), "the socket of another server was removed");
    assert_eq!(rustix::net::accept(&listener).err(), Some(Errno::WOULDBLOCK), "a client connected");
}

/// A process that opens one end of a memif connection. Dropping it kills the process.
struct End {
    process: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl End {
    /// Runs the test `name` of this program again, with `spec` in the environment variable `variable`.
    fn start(name: &str, variable: &str, spec: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture"])
            .env(variable, spec)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        End { process, output }
    }

    /// Opens and starts a port, writes a line, and waits until standard input is closed. A client then checks
    /// that it is still connected.
    fn run(spec: &str) {
        let pool = MbufPool::new(4096, 2048).unwrap();
        let mut port = configured(spec, &pool);
        let mut rx = port.take_rx(0).unwrap();
        let _tx = port.take_tx(0, pool.clone()).unwrap();
        port.start().unwrap();
        println!("connected");
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        let start = Instant::now();
        while !spec.contains("role=server") && start.elapsed() < Duration::from_millis(300) {
            assert_eq!(rx.receive(&mut [Packet::EMPTY; 16]).unwrap(), 0);
        }
        port.stop();
    }

    fn wait_until_connected(&mut self) {
        let mut line = String::new();
        while !line.contains("connected") {
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the process ended: {line}");
        }
    }

    /// Closes the process's standard input and checks that it ends without an error.
    fn finish(mut self) {
        drop(self.process.stdin.take());
        let status = self.process.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Connects to a memif server and leaves. With `refuses_data`, the client closes its receiving direction first:
/// each attempt of the server to send fails with EPIPE, although the client is still connected.
fn connect_and_leave(path: &Path, kind: SocketType, refuses_data: bool) -> Result<(), Errno> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    if refuses_data {
        rustix::net::shutdown(&socket, Shutdown::Read).unwrap();
    }
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap())?;
    if refuses_data {
        // Wait until the server has closed the connection.
        let mut end = rustix::event::PollFd::new(&socket, rustix::event::PollFlags::empty());
        let limit = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
        let closed = rustix::event::poll(std::slice::from_mut(&mut end), Some(&limit)).unwrap();
        assert_eq!(closed, 1, "the server keeps the connection of a client that cannot receive");
    }
    Ok(())
}

/// Lets 100 clients of each kind connect to the server at `path` and leave.
fn clients_leave(path: &Path) {
    for round in 0..100 {
        for refuses_data in [false, true] {
            assert_eq!(connect_and_leave(path, SocketType::SEQPACKET, refuses_data), Ok(()), "round {round}");
        }
        let refused = connect_and_leave(path, SocketType::STREAM, false);
        assert_eq!(refused, Err(Errno::PROTOTYPE), "round {round}");
    }
}

/// The two ends run in processes of their own, because DPDK may end a process.
#[test]
fn a_server_survives_clients_that_leave_at_once() {
    const NAME: &str = "a_server_survives_clients_that_leave_at_once";
    const CASE: &str = "INLANE_TEST_MEMIF_END";
    if let Ok(spec) = std::env::var(CASE) {
        return End::run(&spec);
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f.sock");
    let mut server = End::start(NAME, CASE, &format!("memif:{},role=server,wait=60s", path.display()));
    let start = Instant::now();
    while let Err(error) = connect_and_leave(&path, SocketType::SEQPACKET, false) {
        assert!(start.elapsed() < Duration::from_secs(60), "the server does not listen: {error}");
        std::thread::sleep(Duration::from_millis(5));
    }
    clients_leave(&path);
    let mut client = End::start(NAME, CASE, &format!("memif:{},wait=60s", path.display()));
    client.wait_until_connected();
    server.wait_until_connected();
    // Clients that leave must not end the existing connection either.
    clients_leave(&path);
    client.finish();
    server.finish();
}
