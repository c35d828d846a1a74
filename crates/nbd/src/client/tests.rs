use super::receive::Reading;
use super::*;
use crate::tests::{options, target};
use inlane_nvme::target::Target;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

fn session(target: &Target) -> Session {
    Session::open(&options(target.subsystem().listeners()[0])).unwrap()
}

fn socket(stream: UnixStream) -> File {
    OwnedFd::from(stream).into()
}

/// Returns a request of `length` bytes at offset 0.
fn request(kind: u16, cookie: u64, length: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
    bytes.extend([0, 0]);
    bytes.extend(kind.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(0_u64.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes
}

/// One read of 64 KiB can bring 2,340 requests. The server processes fewer requests of one client at once.
/// The other requests must wait, and must then be answered.
#[test]
fn requests_beyond_the_limits_wait_and_are_then_answered() {
    const REQUESTS: u64 = 2000;
    const READ: u16 = 0;
    // No request has this type, so the server replies with an error.
    const UNKNOWN: u16 = 77;
    let target = target("127.0.0.1:0", "memory:1M");
    let (mut program, stream) = UnixStream::pair().unwrap();
    stream.set_nonblocking(true).unwrap();
    let counters = Counters::default();
    let mut client = Client::new(socket(stream), session(&target), Features::default(), &counters, &|_| {});
    let kind = |cookie| if cookie % 3 == 0 { UNKNOWN } else { READ };
    let requests: Vec<u8> = (0..REQUESTS).flat_map(|cookie| request(kind(cookie), cookie, 4096)).collect();
    let mut rest = &requests[..];
    // Fill the socket first. One read of the server then receives as many requests as possible: up to 64 KiB.
    program.set_nonblocking(true).unwrap();
    while let Ok(bytes) = program.write(rest) {
        rest = &rest[bytes..];
        if rest.is_empty() {
            break;
        }
    }
    while client.active.len() < MAX_REQUESTS {
        assert!(client.receive().unwrap(), "only {} requests have begun", client.active.len());
        assert!(client.active.len() <= MAX_REQUESTS, "{} requests have begun", client.active.len());
    }
    assert!(matches!(client.reading, Reading::Request) && !client.input.bytes().is_empty());
    assert!(!client.parse_rest().unwrap() || client.active.len() <= MAX_REQUESTS);

    program.set_nonblocking(false).unwrap();
    program.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut writer = program.try_clone().unwrap();
    let rest = rest.to_vec();
    let written = std::thread::spawn(move || {
        writer.write_all(&rest).unwrap();
        // A disconnect ends the service after all replies were sent.
        writer.write_all(&request(2, 0, 0)).unwrap();
    });
    let replies = std::thread::spawn(move || {
        let mut cookies = Vec::new();
        let mut header = [0; 16];
        while program.read_exact(&mut header).is_ok() {
            let cookie = u64::from_be_bytes(header[8..].try_into().unwrap());
            assert_eq!(header[4..8] == [0; 4], kind(cookie) == READ, "request {cookie}");
            if kind(cookie) == READ {
                program.read_exact(&mut [0; 4096]).unwrap();
            }
            cookies.push(cookie);
        }
        cookies.sort_unstable();
        cookies
    });
    client.serve(&AtomicBool::new(false)).unwrap();
    written.join().unwrap();
    assert_eq!(replies.join().unwrap(), (0..REQUESTS).collect::<Vec<_>>());
    target.stop().unwrap();
}

/// After a client has disconnected, its socket is always ready. The server must not wait for this socket,
/// because every wait would return at once.
#[test]
fn the_server_does_not_wait_for_a_client_that_has_ended() {
    let target = target("127.0.0.1:0", "memory:1M");
    let (program, stream) = UnixStream::pair().unwrap();
    stream.set_nonblocking(true).unwrap();
    let counters = Counters::default();
    let mut client = Client::new(socket(stream), session(&target), Features::default(), &counters, &|_| {});
    assert_eq!(client.client_events(), PollFlags::IN);
    drop(program);
    assert!(client.receive().unwrap());
    assert!(client.gone && client.client_events().is_empty());
    client.serve(&AtomicBool::new(false)).unwrap();
    target.stop().unwrap();
}

/// Dataset Management has no FUA, so the server flushes after a trim that must be durable.
#[test]
fn a_trim_with_fua_is_flushed() {
    let folder = tempfile::tempdir().unwrap();
    let target = target("127.0.0.1:0", &format!("file:{},size=1M", folder.path().join("disk").display()));
    let (mut program, stream) = UnixStream::pair().unwrap();
    stream.set_nonblocking(true).unwrap();
    let counters = Counters::default();
    let client = Client::new(socket(stream), session(&target), Features::default(), &counters, &|_| {});
    let mut trim = request(4, 1, 4096);
    trim[5] = 1;
    program.write_all(&trim).unwrap();
    program.write_all(&request(4, 2, 4096)).unwrap();
    program.write_all(&request(2, 0, 0)).unwrap();
    let replies = std::thread::spawn(move || {
        let mut replies = [0; 32];
        program.read_exact(&mut replies).unwrap();
        replies
    });
    client.serve(&AtomicBool::new(false)).unwrap();
    let replies = replies.join().unwrap();
    assert_eq!((&replies[4..8], &replies[20..24]), (&[0; 4][..], &[0; 4][..]));
    assert_eq!(target.stop().unwrap().namespaces[0].flushes, 1);
}

#[test]
fn unaligned_requests_are_refused_and_the_user_is_told_once() {
    let target = target("127.0.0.1:0", "memory:1M,lba=4096");
    let (mut program, stream) = UnixStream::pair().unwrap();
    stream.set_nonblocking(true).unwrap();
    let (counters, told) = (Counters::default(), std::sync::Mutex::new(Vec::new()));
    let log = |text: &str| told.lock().unwrap().push(text.to_string());
    let client = Client::new(socket(stream), session(&target), Features::default(), &counters, &log);
    for request in [request(0, 1, 512), request(0, 2, 6), request(0, 3, 4096), request(2, 0, 0)] {
        program.write_all(&request).unwrap();
    }
    client.serve(&AtomicBool::new(false)).unwrap();
    let mut replies = Vec::new();
    program.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    replies.resize(3 * 16 + 4096, 0);
    program.read_exact(&mut replies).unwrap();
    let errors: Vec<u8> = (0..3).map(|index| replies[index * 16 + 7]).collect();
    assert_eq!(errors, [22, 22, 0]);
    let told = told.into_inner().unwrap();
    assert!(told.len() == 1 && told[0].contains("aligned to 4096 bytes"), "{told:?}");
    target.stop().unwrap();
}
