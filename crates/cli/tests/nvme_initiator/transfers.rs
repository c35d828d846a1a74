//! Tests of `inlane nvme read` and `write`. They copy ranges of a namespace to or from files and the memory
//! of devices.

use super::proxy::Proxy;
use super::*;
use std::io::Read as _;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

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
    // The length of standard input is unknown in advance. So `nvme write` detects a wrong length only after
    // it has written a part of the data. The message must say how many bytes were written.
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

/// Runs a command that stores the measured costs of paths in the cache directory `cache`. Returns the
/// command's JSON document.
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
        let hops = row["path"]["hops"][0].as_array().unwrap();
        assert!(hops.iter().any(|hop| *hop == address), "{row}");
        // The load of the machine decides which path costs least. So accept both `dma` and `cpu`.
        let name = row["path"]["name"].as_str().unwrap();
        assert!(hops.len() == 3 && ["dma", "cpu"].contains(&name), "{row}");
    }
    assert!(std::fs::read(back).unwrap() == data[1..9_437_184], "the bytes differ");
    // `nvme write --from` copies the whole input to the device before it writes to the namespace. So if the
    // input is shorter than --length, nothing is written.
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
    let second =
        inlane(&["nvme", "target", "--listen", "127.0.0.1:0", "--namespace", &format!("block:{}", device.0)]);
    assert_eq!(second.status.code(), Some(3), "{}", text(&second.stderr));
    // `nvme write` has flushed the namespace, so the data is in the file although the target is killed.
    drop(target);
    // The kernel keeps the claim of a killed target for a moment. The next target waits for its end.
    let claim = || loop {
        match std::fs::File::options().read(true).custom_flags(libc::O_EXCL).open(&device.0) {
            Ok(claim) => return claim,
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EBUSY), "{error}"),
        }
    };
    let killed = claim();
    let release = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        drop(killed);
    });
    drop(self::target(&format!("block:{}", device.0)));
    release.join().unwrap();
    drop(self::target(&format!("block:{},direct=off", device.0)));
    // A claimed device, such as a mounted one, can be served read-only, with a warning.
    let _claim = claim();
    let namespace = format!("block:{},ro", device.0);
    let arguments = ["nvme", "target", "--listen", "127.0.0.1:0", "--namespace", &namespace];
    let (_reader, warning) = start(&arguments, "mounted or in use");
    assert!(warning.contains(&device.0), "{warning}");
    assert!(std::fs::read(&file).unwrap()[4 << 20..5 << 20] == data, "the file lacks the data");
}

/// The data of the commands in flight takes three times as long as the timeout.
#[test]
fn a_slow_link_does_not_time_out_while_data_moves() {
    let (_target, address) = target("memory:8M");
    let proxy = Proxy::slow(&address, 1 << 20);
    let data = pattern(6 << 20);
    let flags = ["--timeout", "2s", "--reconnect", "0", "-"];
    let output = inlane_with_input(&[&["nvme", "write", &proxy.address], &flags[..]].concat(), &data);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let output = inlane(&[&["nvme", "read", &proxy.address, "--length", "6M"], &flags[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(output.stdout == data, "the data differs");
}

/// While standard input has no data, the command must send keep-alives and react to a signal.
#[test]
fn a_write_that_waits_for_its_input_stays_connected() {
    let (_target, address) = target("memory:1M");
    let write = |arguments: &[&str]| {
        let all = [&["nvme", "write", &address, "--keep-alive", "2s", "--reconnect", "0"], arguments, &["-"]]
            .concat();
        Command::new(INLANE)
            .args(all)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("inlane starts")
    };
    let mut child = write(&[]);
    let mut input = child.stdin.take().unwrap();
    std::thread::sleep(Duration::from_secs(5));
    input.write_all(&pattern(4096)).unwrap();
    std::thread::sleep(Duration::from_secs(5));
    input.write_all(&pattern(4096)).unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));

    let mut child = write(&[]);
    let input = child.stdin.take();
    std::thread::sleep(Duration::from_secs(1));
    signal(&child, libc::SIGINT);
    ends_soon(&mut child);
    drop(input);
}

/// A reader that pauses must not make the target end the connection, and gets all bytes.
#[test]
fn a_read_that_waits_for_its_reader_stays_connected() {
    let (_target, address) = target("memory:8M");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("data");
    std::fs::write(&file, pattern(8 << 20)).unwrap();
    succeeds(&["nvme", "write", &address, file.to_str().unwrap()]);
    let mut child = Command::new(INLANE)
        .args(["nvme", "read", &address, "--keep-alive", "2s", "--reconnect", "0", "-"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("inlane starts");
    let mut output = child.stdout.take().unwrap();
    let mut found = vec![0; 1000];
    output.read_exact(&mut found).unwrap();
    std::thread::sleep(Duration::from_secs(5));
    output.read_to_end(&mut found).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(found == pattern(8 << 20), "the data differs");
}

/// Starts `nvme read` of 8 MiB with standard output in a pipe of 4 KiB. Returns the process and the pipe.
fn read_into_a_small_pipe(address: &str, flags: &[&str]) -> (Child, std::io::PipeReader) {
    let (reader, writer) = std::io::pipe().unwrap();
    // SAFETY: the descriptor is open.
    assert_eq!(unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETPIPE_SZ, 4096) }, 4096);
    let arguments = [&["nvme", "read", address, "--length", "8M"], flags, &["-"]].concat();
    let mut command = Command::new(INLANE);
    command.args(arguments).stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped());
    (command.spawn().expect("inlane starts"), reader)
}

/// While a small pipe is full or is read slowly, the command must send keep-alives, and end at the first signal.
#[test]
fn a_read_into_a_full_small_pipe_stays_connected_and_can_be_stopped() {
    let (_target, address) = target("memory:8M");
    let (child, mut output) = read_into_a_small_pipe(&address, &["--keep-alive", "2s", "--reconnect", "0"]);
    let mut found = vec![0; 1000];
    output.read_exact(&mut found).unwrap();
    std::thread::sleep(Duration::from_secs(5));
    // A slow reader: the pipe is never full for long.
    let mut page = [0; 4096];
    for _ in 0..1000 {
        output.read_exact(&mut page).unwrap();
        found.extend(page);
        std::thread::sleep(Duration::from_millis(5));
    }
    output.read_to_end(&mut found).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    assert_eq!(found.len(), 8 << 20);
    for flags in [&[][..], &["--to", "twin:0"]] {
        let (mut child, mut output) = read_into_a_small_pipe(&address, flags);
        output.read_exact(&mut [0; 1000]).unwrap();
        signal(&child, libc::SIGINT);
        ends_soon(&mut child);
        let error = child.wait_with_output().unwrap();
        assert!(text(&error.stderr).contains("it was interrupted"), "{flags:?}: {}", text(&error.stderr));
    }
}

fn ends_soon(child: &mut Child) {
    let start = std::time::Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < TIMEOUT, "the signal has no effect");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Nothing has to be ended in order while a command waits for a target, a reader of a pipe, or its input.
#[test]
fn a_signal_ends_a_command_that_waits() {
    let (_target, address) = target("memory:1M");
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let pipe = pipe.to_str().unwrap();
    for arguments in [
        &["read", &silent, "-"][..],
        &["bench", &silent],
        &["export", "nbd", &silent],
        &["read", &address, pipe],
        &["write", &address, pipe],
        &["write", &address, "--length", "4K", "--from", "twin:0", "-"],
    ] {
        let mut command = Command::new(INLANE);
        command.arg("nvme").args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        std::thread::sleep(Duration::from_secs(1));
        assert!(child.try_wait().unwrap().is_none(), "{arguments:?} did not wait");
        let start = std::time::Instant::now();
        signal(&child, libc::SIGINT);
        ends_soon(&mut child);
        assert!(start.elapsed() < Duration::from_secs(20), "{arguments:?}: {:?}", start.elapsed());
    }
}
