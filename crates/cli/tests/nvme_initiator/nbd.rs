//! Tests of the NBD export. Some send requests themselves, others run other programs.

use super::*;
use std::io::Read;
use std::os::unix::net::UnixStream;

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
    // NBD's newstyle handshake: read the greeting, then choose the export with the empty name.
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
    assert_eq!(request(0, 513, 512, &[], 512), (0, block[1..513].to_vec()));
    assert_eq!(request(0, 0, 0, &[], 0).0, EINVAL);
    assert_eq!(request(0, 1 << 20, 512, &[], 512).0, EINVAL);
    assert_eq!(request(0, u64::MAX - 511, 512, &[], 512).0, EINVAL);
    assert_eq!(request(0, 0, u32::MAX, &[], 0).0, EINVAL);
    assert_eq!(request(1, 1 << 20, 512, &block[..512], 0).0, ENOSPC);
    assert_eq!(request(1, 7, 3, &[1, 2, 3], 0).0, 0);
    assert_eq!(request(0, 6, 5, &[], 5), (0, vec![0, 1, 2, 3, 0]));
    assert_eq!(request(99, 0, 512, &[], 0).0, EINVAL);
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
    // Expect a map that marks all blocks as data. The namespace does not report which blocks are allocated.
    let map = Command::new("qemu-img").args(["map", "-f", "raw", "--output=json", &uri]).output().unwrap();
    assert!(text(&map.stdout).contains("\"data\": true"), "{}{}", text(&map.stdout), text(&map.stderr));
    let parts = [
        "-c",
        "write -P 7 1000 37",
        "-c",
        "read -P 7 1000 37",
        "-c",
        "write -z 1010 5",
        "-c",
        "read -P 0 1010 5",
    ];
    run("qemu-io", &[&["-f", "raw"], &parts[..], &[&uri]].concat());
    run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", image, &uri]);
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

#[test]
fn libnbd_describes_and_copies_the_export() {
    const TEST: &str = "libnbd_describes_and_copies_the_export";
    if !has(TEST, "nbdinfo") || !has(TEST, "nbdcopy") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (socket, image) = (folder.path().join("nbd"), folder.path().join("image"));
    let back = folder.path().join("back");
    let _export = export("memory:8M", &socket);
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    let run = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output().unwrap();
        assert!(output.status.success(), "{program}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    let found: serde_json::Value = serde_json::from_str(&run("nbdinfo", &["--json", &uri])).unwrap();
    let export = &found["exports"][0];
    assert_eq!(export["export-size"], 8 << 20, "{found}");
    assert_eq!((&export["is_read_only"], &export["can_flush"]), (&false.into(), &true.into()), "{found}");
    std::fs::write(&image, pattern(8 << 20)).unwrap();
    run("nbdcopy", &["--flush", image.to_str().unwrap(), &uri]);
    run("nbdcopy", &[&uri, back.to_str().unwrap()]);
    assert!(std::fs::read(image).unwrap() == std::fs::read(back).unwrap(), "the copies differ");
}
