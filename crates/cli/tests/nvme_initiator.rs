//! Tests `inlane nvme` as a process: discover, read, write, bench and export, against inlane's target. fio
//! and qemu-img use the NBD export. Without one of these programs, its test prints why and is skipped.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const INLANE: &str = env!("CARGO_BIN_EXE_inlane");
/// The time limit of a command. No command of these tests takes this long, even on a loaded machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A process that is killed at the end of the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a program that prints a line with `marker` to standard error when it is ready. Returns that line.
fn start(arguments: &[&str], marker: &str) -> (Running, String) {
    start_command(Command::new(INLANE).args(arguments), marker)
}

fn start_command(command: &mut Command, marker: &str) -> (Running, String) {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("inlane starts");
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let running = Running(child);
    let line = loop {
        let line = lines.next().expect("the program ended early").expect("text");
        if line.contains(marker) {
            break line;
        }
    };
    // Reads the rest of the output. The program would block if it filled the pipe.
    std::thread::spawn(move || lines.for_each(drop));
    (running, line)
}

/// Starts a target with a namespace in memory. Returns its address.
fn target(namespace: &str) -> (Running, String) {
    let arguments = ["nvme", "target", "--listen", "127.0.0.1:0", "--threads", "1", "--namespace", namespace];
    let (running, line) = start(&arguments, "listens on");
    (running, address_in(&line))
}

/// Returns the address in the target's first message.
fn address_in(line: &str) -> String {
    let address = line.split("listens on ").nth(1).and_then(|rest| rest.split([' ', ',']).next());
    address.expect("an address").to_string()
}

fn inlane(arguments: &[&str]) -> Output {
    inlane_with_input(arguments, &[])
}

fn inlane_with_input(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(INLANE)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("inlane starts");
    // Ignores an error of the write, because a program that fails early does not read its input.
    let _ = child.stdin.take().expect("a pipe").write_all(input);
    child.wait_with_output().expect("inlane ends")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn succeeds(arguments: &[&str]) -> String {
    let output = inlane(arguments);
    assert!(output.status.success(), "{arguments:?}: {}{}", text(&output.stderr), text(&output.stdout));
    text(&output.stdout)
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|n| (n % 251) as u8 ^ (n >> 12) as u8).collect()
}

#[test]
fn a_drive_is_discovered_written_and_read() {
    let (_target, address) = target("memory:16M");
    let found = succeeds(&["nvme", "discover", &address, "--json", "-"]);
    let found: serde_json::Value = serde_json::from_str(&found).expect("JSON");
    let kinds: Vec<_> = found["results"].as_array().unwrap().iter().map(|row| &row["kind"]).collect();
    assert!(kinds.iter().any(|kind| *kind == "nvm"), "{found}");
    let port = address.rsplit(':').next().unwrap();
    assert!(found["results"].as_array().unwrap().iter().any(|row| row["port"] == port), "{found}");

    let data = pattern(3 << 20);
    for digests in ["none", "header", "data", "both"] {
        let write = ["nvme", "write", &address, "--digests", digests, "--offset", "1M", "-"];
        let output = inlane_with_input(&write, &data);
        assert!(output.status.success(), "{}", text(&output.stderr));
        // The range of a read need not be aligned to blocks.
        let read = [
            "nvme",
            "read",
            &address,
            "--digests",
            digests,
            "--offset",
            "1048577",
            "--length",
            "3000000",
            "-",
        ];
        let output = inlane(&read);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(output.stdout == data[1..3_000_001], "{digests}: the bytes differ");
    }
}

#[test]
fn a_file_that_does_not_fit_is_refused_before_the_first_write() {
    let (_target, address) = target("memory:8M");
    let folder = tempfile::tempdir().unwrap();
    let (big, small) = (folder.path().join("big"), folder.path().join("small"));
    std::fs::write(&big, pattern(16 << 20)).unwrap();
    std::fs::write(&small, pattern(4096)).unwrap();
    let [big, small] = [&big, &small].map(|path| path.to_str().unwrap());
    for arguments in [&[big][..], &[small, "--length", "1M"], &[small, "--offset", "16M"]] {
        let output = inlane(&[&["nvme", "write", &address], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", text(&output.stderr));
        let read = inlane(&["nvme", "read", &address, "-"]);
        assert!(read.stdout.iter().all(|byte| *byte == 0), "{arguments:?} wrote something");
    }
    // The length of standard input is unknown in advance, so `nvme write` finds a wrong length only after it
    // has written a part. The message must say how many bytes were written.
    for (input, arguments, written) in [
        (pattern(9 << 20), &[][..], "8 MiB were written"),
        (pattern(4096), &["--length", "1M"], "4 KiB were written"),
    ] {
        let output = inlane_with_input(&[&["nvme", "write", &address, "-"], arguments].concat(), &input);
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains(written), "{}", text(&output.stderr));
    }
}

#[test]
fn workloads_are_verified() {
    let (_target, address) = target("memory:16M");
    for (rw, bs, digests) in [
        ("write", "64K", "none"),
        ("read", "64K", "both"),
        ("randrw", "4K", "data"),
        ("rw", "512", "header"),
        ("randwrite", "128K", "both"),
    ] {
        let size = if bs == "512" { "256K" } else { "8M" };
        let bench = ["nvme", "bench", &address, "--rw", rw, "--bs", bs, "--iodepth", "16", "--numjobs", "2"];
        let rest = ["--size", size, "--verify", "crc32c", "--digests", digests, "--json", "-"];
        let document = succeeds(&[&bench[..], &rest].concat());
        let document: serde_json::Value = serde_json::from_str(&document).expect("JSON");
        let rows = document["results"].as_array().unwrap();
        assert_eq!(rows.len(), if rw.ends_with("rw") { 2 } else { 1 }, "{rw}");
        for row in rows {
            assert_eq!(row["verification"]["altered_bytes"], 0, "{rw}: {row}");
            assert!(row["operations"].as_u64().unwrap() > 0, "{rw}: {row}");
            assert_eq!(row["latency_percentiles"].as_array().unwrap().len(), 17, "{rw}");
        }
        let verified: u64 =
            rows.iter().map(|row| row["verification"]["verified_bytes"].as_u64().unwrap()).sum();
        assert!(verified > 0, "{rw}");
    }
    // Overwrites part of a block with contents that --verify does not expect. The bench must report that
    // block.
    assert!(
        inlane_with_input(&["nvme", "write", &address, "--offset", "64K", "-"], &[7; 4096]).status.success()
    );
    let output = inlane(&[
        "nvme", "bench", &address, "--rw", "read", "--bs", "128K", "--size", "4M", "--verify", "crc32c",
    ]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    assert!(
        text(&output.stderr).contains("verification failed: the block at offset 0"),
        "{}",
        text(&output.stderr)
    );
}

/// Forwards connections to a target until [`Proxy::cut`] is called.
struct Proxy {
    address: String,
    cut: Arc<AtomicBool>,
    bytes: Arc<AtomicUsize>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    fn start(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Self {
            address: listener.local_addr().unwrap().to_string(),
            cut: Arc::default(),
            bytes: Arc::default(),
            streams: Arc::default(),
        };
        let (target, cut) = (target.to_string(), proxy.cut.clone());
        let (bytes, streams) = (proxy.bytes.clone(), proxy.streams.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                if cut.load(Ordering::SeqCst) {
                    return;
                }
                let other = TcpStream::connect(&target).unwrap();
                streams.lock().unwrap().extend([stream.try_clone().unwrap(), other.try_clone().unwrap()]);
                for (mut from, mut to) in
                    [(stream.try_clone().unwrap(), other.try_clone().unwrap()), (other, stream)]
                {
                    let bytes = bytes.clone();
                    std::thread::spawn(move || {
                        let mut buffer = [0; 16384];
                        while let Ok(count @ 1..) = from.read(&mut buffer) {
                            bytes.fetch_add(count, Ordering::SeqCst);
                            if to.write_all(&buffer[..count]).is_err() {
                                break;
                            }
                        }
                        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                    });
                }
            }
        });
        proxy
    }

    /// Closes all connections, and refuses new ones.
    fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
        for stream in self.streams.lock().unwrap().iter() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        // Wakes the listening thread with one more connection, so that the thread sees the flag and ends.
        let _ = TcpStream::connect(&self.address);
    }
}

#[test]
fn commands_in_flight_are_sent_again_on_the_other_path() {
    let (_target, address) = target("memory:16M");
    let proxy = Proxy::start(&address);
    let paths = format!("{},{address}", proxy.address);
    let bench = std::thread::spawn(move || {
        succeeds(&[
            "nvme",
            "bench",
            &paths,
            "--rw",
            "randrw",
            "--bs",
            "4K",
            "--iodepth",
            "16",
            "--size",
            "2M",
            "--duration",
            "3s",
            "--verify",
            "crc32c",
            "--json",
            "-",
        ])
    });
    let started = Instant::now();
    while proxy.bytes.load(Ordering::SeqCst) < 1 << 20 {
        assert!(started.elapsed() < TIMEOUT, "no commands pass the first path");
        std::thread::sleep(Duration::from_millis(5));
    }
    proxy.cut();
    let document: serde_json::Value = serde_json::from_str(&bench.join().unwrap()).expect("JSON");
    for row in document["results"].as_array().unwrap() {
        assert_eq!(row["failovers"], 1, "{row}");
        assert_eq!(row["verification"]["altered_bytes"], 0, "{row}");
        assert!(row["path"]["hops"].as_array().unwrap().iter().any(|hop| *hop == address), "{row}");
    }
}

#[test]
fn a_target_that_disappears_ends_the_run_with_the_reason() {
    let (target, address) = target("memory:16M");
    let bench = std::thread::spawn({
        let address = address.clone();
        move || inlane(&["nvme", "bench", &address, "--duration", "60s", "--reconnect", "500ms"])
    });
    std::thread::sleep(Duration::from_secs(1));
    drop(target);
    let started = Instant::now();
    let output = bench.join().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let message = text(&output.stderr);
    assert!(message.contains("not restored within 0.5 s") || message.contains("cannot connect"), "{message}");
    assert!(started.elapsed() < Duration::from_secs(40), "the run went on without a target");
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

    // A listener that never answers, so the command must give up after its --timeout.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let output = inlane(&["nvme", "discover", &address, "--timeout", "300ms"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("no answer to the connection request for 0.3 s"),
        "{}",
        text(&output.stderr)
    );
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

/// Starts a target and its NBD export at a Unix socket.
fn export(namespace: &str, socket: &Path) -> (Running, Running) {
    let (target, address) = target(namespace);
    let listen = format!("unix:{}", socket.display());
    let (export, _) = start(&["nvme", "export", "nbd", &address, "--listen", &listen], "is exported");
    (target, export)
}

/// Returns true if a program can be run. Prints that the test is skipped otherwise.
fn has(test: &str, program: &str) -> bool {
    let found =
        Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !found {
        eprintln!("SKIPPED {test}: {program} is missing; run packaging/setup test");
    }
    found
}

#[test]
fn nbd_requests_are_answered_and_bad_ones_refused() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("nbd");
    let _export = export("memory:1M", &socket);
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let take = |stream: &mut UnixStream, bytes: usize| {
        let mut buffer = vec![0; bytes];
        stream.read_exact(&mut buffer).unwrap();
        buffer
    };
    // NBD's newstyle handshake: reads the greeting, then chooses the export with the empty name.
    let greeting = take(&mut stream, 18);
    assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
    stream.write_all(&3_u32.to_be_bytes()).unwrap();
    stream.write_all(b"IHAVEOPT").unwrap();
    stream.write_all(&[0, 0, 0, 1, 0, 0, 0, 0]).unwrap();
    let export = take(&mut stream, 10);
    assert_eq!(u64::from_be_bytes(export[..8].try_into().unwrap()), 1 << 20);

    let mut request = |kind: u16, offset: u64, length: u32, data: &[u8], answer: usize| {
        let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
        bytes.extend([0, 0]);
        bytes.extend(kind.to_be_bytes());
        bytes.extend(77_u64.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend(length.to_be_bytes());
        bytes.extend(data);
        stream.write_all(&bytes).unwrap();
        let reply = take(&mut stream, 16);
        assert_eq!(reply[..4], 0x6744_6698_u32.to_be_bytes());
        assert_eq!(reply[8..], 77_u64.to_be_bytes());
        let error = u32::from_be_bytes(reply[4..8].try_into().unwrap());
        let data = if error == 0 { take(&mut stream, answer) } else { Vec::new() };
        (error, data)
    };
    const EINVAL: u32 = 22;
    const ENOSPC: u32 = 28;
    let block = pattern(1024);
    assert_eq!(request(1, 512, 1024, &block, 0).0, 0);
    assert_eq!(request(3, 0, 0, &[], 0).0, 0);
    assert_eq!(request(0, 512, 1024, &[], 1024), (0, block.clone()));
    assert_eq!(request(0, 1, 512, &[], 512).0, EINVAL);
    assert_eq!(request(0, 0, 0, &[], 0).0, EINVAL);
    assert_eq!(request(0, 1 << 20, 512, &[], 512).0, EINVAL);
    assert_eq!(request(0, u64::MAX - 511, 512, &[], 512).0, EINVAL);
    assert_eq!(request(0, 0, u32::MAX, &[], 0).0, EINVAL);
    assert_eq!(request(1, 1 << 20, 512, &block[..512], 0).0, ENOSPC);
    assert_eq!(request(1, 7, 3, &[1, 2, 3], 0).0, EINVAL);
    assert_eq!(request(99, 0, 512, &[], 0).0, EINVAL);
    // The connection is usable after each error, and the block is unchanged.
    assert_eq!(request(0, 512, 1024, &[], 1024), (0, block));
}

#[test]
fn qemu_copies_a_file_system_through_nbd() {
    const TEST: &str = "qemu_copies_a_file_system_through_nbd";
    if !has(TEST, "qemu-img") || !has(TEST, "mkfs.ext4") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (socket, image) = (folder.path().join("nbd"), folder.path().join("image"));
    let back = folder.path().join("back");
    let _export = export("memory:16M", &socket);
    std::fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    let run = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output().unwrap();
        assert!(output.status.success(), "{program}: {}", text(&output.stderr));
    };
    let (image, uri) = (image.to_str().unwrap(), format!("nbd:unix:{}", socket.display()));
    run("mkfs.ext4", &["-q", "-F", image]);
    run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", image, &uri]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", image, &uri]);
    // Expect a map in which all blocks are data, because the namespace does not report which blocks are
    // allocated.
    let map = Command::new("qemu-img").args(["map", "-f", "raw", "--output=json", &uri]).output().unwrap();
    assert!(text(&map.stdout).contains("\"data\": true"), "{}{}", text(&map.stdout), text(&map.stderr));
    run("qemu-img", &["convert", "-f", "raw", "-O", "raw", &uri, back.to_str().unwrap()]);
    assert!(std::fs::read(image).unwrap() == std::fs::read(back).unwrap(), "the file systems differ");
}

#[test]
fn fio_verifies_through_nbd() {
    const TEST: &str = "fio_verifies_through_nbd";
    if !has(TEST, "fio") {
        return;
    }
    let engines = Command::new("fio").arg("--enghelp").output().unwrap();
    if !text(&engines.stdout).contains("nbd") {
        eprintln!("SKIPPED {TEST}: this fio has no nbd engine");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("nbd");
    let _export = export("memory:16M", &socket);
    let uri = format!("--uri=nbd+unix:///?socket={}", socket.display());
    let output = Command::new("fio")
        .current_dir(folder.path())
        .args(["--name=verify", "--ioengine=nbd", &uri, "--rw=randrw", "--bsrange=512-64k", "--size=8M"])
        .args(["--iodepth=16", "--verify=crc32c", "--do_verify=1", "--fsync=32"])
        .output()
        .unwrap();
    let out = text(&output.stdout);
    assert!(output.status.success() && out.contains("err= 0"), "{out}{}", text(&output.stderr));
}

/// Runs a command whose measured costs of paths are kept in `cache`, and returns its JSON document.
fn with_cache(cache: &Path, arguments: &[&str]) -> serde_json::Value {
    let output = Command::new(INLANE).args(arguments).env("XDG_CACHE_HOME", cache).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn a_range_is_read_into_a_device_and_written_from_it() {
    let (_target, address) = target("memory:16M");
    let folder = tempfile::tempdir().unwrap();
    let (file, back) = (folder.path().join("file"), folder.path().join("back"));
    // Transfer more bytes than all buffers hold together, because the test must reuse buffers. The size is no
    // multiple of 1 MiB, because the last digest must cover less than 1 MiB.
    let data = pattern((9 << 20) + 512);
    std::fs::write(&file, &data).unwrap();
    let [file, back] = [&file, &back].map(|path| path.to_str().unwrap());
    let write = [
        "nvme",
        "write",
        &address,
        file,
        "--offset",
        "512",
        "--from",
        "twin:0",
        "--json",
        "-",
        "--digests",
        "both",
    ];
    let read = [
        "nvme", "read", &address, back, "--offset", "513", "--length", "9437183", "--to", "twin:1", "--json",
        "-",
    ];
    for (arguments, bytes, device) in [(&write[..], data.len(), "twin:0"), (&read, 9_437_183, "twin:1")] {
        let document = with_cache(folder.path(), arguments);
        let row = &document["results"][0];
        assert_eq!((&row["device"], &row["twin"]), (&device.into(), &true.into()), "{row}");
        assert_eq!(row["bytes"], bytes, "{row}");
        assert_eq!(row["verification"]["verified_bytes"], bytes, "{row}");
        assert_eq!(row["verification"]["altered_bytes"], 0, "{row}");
        let hops = row["path"]["hops"].as_array().unwrap();
        assert!(hops.iter().any(|hop| *hop == address), "{row}");
        // Which path costs least depends on the load of this machine, so both are accepted.
        let name = row["path"]["name"].as_str().unwrap();
        assert!(hops.len() == 3 && ["dma", "bar"].contains(&name), "{row}");
    }
    assert!(std::fs::read(back).unwrap() == data[1..9_437_184], "the bytes differ");
    // An input shorter than --length is an error before the first write, because all of it is first copied to
    // the device.
    let arguments = ["nvme", "write", &address, "-", "--offset", "12M", "--length", "1M", "--from", "twin:0"];
    let mut child = Command::new(INLANE)
        .args(arguments)
        .env("XDG_CACHE_HOME", folder.path())
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&[1; 4096]).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("nothing was written"), "{}", text(&output.stderr));
    let read = inlane(&["nvme", "read", &address, "--offset", "12M", "--length", "4K", "-"]);
    assert!(read.status.success() && read.stdout.iter().all(|byte| *byte == 0));
}

#[test]
fn a_file_that_does_not_end_at_a_block_is_refused_with_the_remedies() {
    let (_target, address) = target("memory:1M,lba=4096");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("odd");
    std::fs::write(&file, pattern(10_000)).unwrap();
    let file = file.to_str().unwrap();
    let output = inlane(&["nvme", "write", &address, file]);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("odd") && message.contains("--length 8192"), "{message}");
    let document = inlane(&["nvme", "write", &address, file, "--length", "8192", "--json", "-"]);
    let document: serde_json::Value = serde_json::from_slice(&document.stdout).expect("JSON");
    assert_eq!(document["results"][0]["bytes"], 8192);
    let output = inlane(&["nvme", "read", &address, "--length", "2M", "-"]);
    assert!(
        text(&output.stderr).contains("--length 2 MiB: the namespace has 1 MiB"),
        "{}",
        text(&output.stderr)
    );
}

/// A namespace whose file system is full refuses writes with the NVMe status Capacity Exceeded. It can still
/// be read, and other namespaces can still be written.
#[test]
fn a_full_disk_is_reported_and_other_namespaces_still_work() {
    const TEST: &str = "a_full_disk_is_reported_and_other_namespaces_still_work";
    let folder = tempfile::tempdir().unwrap();
    let mount = format!("mount -t tmpfs -o size=1M none {}", folder.path().display());
    // The file system is visible to the target only, and disappears with it.
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
    // Blocks that have space are still written and read.
    assert!(write("1", "0", &small).status.success());
    for namespace in ["1", "2"] {
        let output = inlane(&["nvme", "read", &address, "--nsid", namespace, "--length", "64K", "-"]);
        assert!(output.stdout == small, "namespace {namespace}: {}", text(&output.stderr));
    }
}

/// A loop device, detached when the value is dropped.
struct LoopDevice(String);

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
fn a_block_device_is_served() {
    const TEST: &str = "a_block_device_is_served";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("disk");
    std::fs::File::create(&file).unwrap().set_len(8 << 20).unwrap();
    let made = Command::new("losetup").args(["--find", "--show"]).arg(&file).output();
    let device = match made {
        Ok(output) if output.status.success() => LoopDevice(text(&output.stdout).trim().to_string()),
        Ok(output) => return eprintln!("SKIPPED {TEST}: no loop device: {}", text(&output.stderr).trim()),
        Err(error) => return eprintln!("SKIPPED {TEST}: losetup cannot run: {error}"),
    };
    let (target, address) = target(&format!("block:{}", device.0));
    let bench = ["nvme", "bench", &address, "--rw", "randrw", "--bs", "4K", "--size", "4M"];
    let document = succeeds(&[&bench[..], &["--verify", "crc32c", "--json", "-"]].concat());
    let document: serde_json::Value = serde_json::from_str(&document).expect("JSON");
    for row in document["results"].as_array().unwrap() {
        assert_eq!(row["verification"]["altered_bytes"], 0, "{row}");
    }
    let data = pattern(1 << 20);
    assert!(inlane_with_input(&["nvme", "write", &address, "--offset", "4M", "-"], &data).status.success());
    // The device is in use by the target, so no second target may open it.
    let second =
        inlane(&["nvme", "target", "--listen", "127.0.0.1:0", "--namespace", &format!("block:{}", device.0)]);
    assert_eq!(second.status.code(), Some(3), "{}", text(&second.stderr));
    // `write` has flushed the namespace, so the data is in the file although the target is killed.
    drop(target);
    assert!(std::fs::read(&file).unwrap()[4 << 20..5 << 20] == data, "the file lacks the data");
}

/// Sends a signal to a child that has not been waited for.
fn signal(child: &Child, signal: i32) {
    // SAFETY: the id is still the child's own, because nobody has waited for it.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
}

/// The first SIGTERM lets the target complete the commands in progress. The second ends it at once.
#[test]
fn a_second_signal_ends_the_target_at_once() {
    use std::os::unix::process::ExitStatusExt;
    // After the first SIGTERM, the target drains for 5 s at most, then ends with status 0. If this test is
    // too slow to send the second signal before that, it tries again.
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
        // Stop the host while it has 64 MiB of reads in flight. Then wait until no more bytes pass the proxy,
        // because the sockets' buffers are full then and the target still has data to send.
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
    // Negotiates structured replies and chooses the export. Then reads 512 bytes at the start, and 512 bytes
    // beyond the end.
    stream.write_all(&[&3_u32.to_be_bytes()[..], b"IHAVEOPT", &[0, 0, 0, 8, 0, 0, 0, 0]].concat()).unwrap();
    stream.write_all(&[&b"IHAVEOPT"[..], &[0, 0, 0, 1, 0, 0, 0, 0]].concat()).unwrap();
    let request = |offset: u64| {
        let words = [&0x2560_9513_u32.to_be_bytes()[..], &[0, 0, 0, 0], &7_u64.to_be_bytes()];
        [words.concat(), offset.to_be_bytes().to_vec(), 512_u32.to_be_bytes().to_vec()].concat()
    };
    stream.write_all(&[request(0), request(1 << 20)].concat()).unwrap();
    let mut received = vec![0; 18 + 20 + 10 + 28 + 512 + 26];
    stream.read_exact(&mut received).unwrap();
    // The two replies may come in any order. Bytes 6 and 7 are a reply's type: 1 is OFFSET_DATA, 8001h ERROR.
    let replies = &received[48..];
    let first_is_error = replies[6] == 0x80;
    let error = if first_is_error { &replies[..26] } else { &replies[540..] };
    assert_eq!(error[..8], [0x66, 0x8e, 0x33, 0xef, 0, 1, 0x80, 1]);
    assert_eq!(error[16..], [0, 0, 0, 6, 0, 0, 0, 22, 0, 0]);
    let data = if first_is_error { &replies[26..] } else { &replies[..540] };
    assert_eq!(data[4..8], [0, 1, 0, 1]);
    assert!(data[28..].iter().all(|byte| *byte == 0));
    drop(stream);
    signal(&export.0, libc::SIGTERM);
    assert_eq!(export.0.wait().unwrap().code(), Some(0));
    let document: serde_json::Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    let row = &document["results"][0];
    for (key, value) in [("clients", 1), ("reads", 1), ("read_bytes", 512), ("errors", 1), ("writes", 0)] {
        assert_eq!(row[key], value, "{row}");
    }
}

#[test]
fn all_paths_that_cannot_be_reached_are_named() {
    // Port 1 belongs to a service that no machine runs, so nothing listens there.
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
