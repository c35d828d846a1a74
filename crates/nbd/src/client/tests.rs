use super::Reading;
use super::*;
use crate::tests::{options, target};
use inlane_nvme::target::Target;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

fn session(target: &Target) -> Session {
    Session::open(&options(target.subsystem().listeners[0])).unwrap()
}

fn socket(stream: UnixStream) -> File {
    OwnedFd::from(stream).into()
}

/// Returns a request of `length` bytes at offset 0.
fn request(kind: u16, cookie: u64, length: u32) -> Vec<u8> {
    request_at(kind, cookie, 0, length)
}

fn request_at(kind: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
    bytes.extend([0, 0]);
    bytes.extend(kind.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
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
    let (counters, gate) = (Counters::default(), Gate::default());
    let mut client = Client::new(socket(stream), session(&target), &counters, &gate);
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
    let (counters, gate) = (Counters::default(), Gate::default());
    let mut client = Client::new(socket(stream), session(&target), &counters, &gate);
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
    let (counters, gate) = (Counters::default(), Gate::default());
    let client = Client::new(socket(stream), session(&target), &counters, &gate);
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

/// A program that has one request in flight.
struct Program(UnixStream);

impl Program {
    /// Sends a request and `data`. Returns the error number, and the data of a read.
    fn call(&mut self, kind: u16, offset: u64, length: u32, data: &[u8]) -> (u32, Vec<u8>) {
        self.0.write_all(&request_at(kind, 0, offset, length)).unwrap();
        self.0.write_all(data).unwrap();
        let mut header = [0; 16];
        self.0.read_exact(&mut header).unwrap();
        let error = u32::from_be_bytes(header[4..8].try_into().unwrap());
        let mut read = vec![0; if kind == 0 && error == 0 { length as usize } else { 0 }];
        self.0.read_exact(&mut read).unwrap();
        (error, read)
    }
}

/// Runs each of `programs` with a client of its own. Returns when all have ended.
fn run(target: &Target, programs: &[&(dyn Fn(Program) + Sync)]) {
    let (counters, gate) = (Counters::default(), Gate::default());
    std::thread::scope(|scope| {
        for run in programs {
            let (program, stream) = UnixStream::pair().unwrap();
            program.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            stream.set_nonblocking(true).unwrap();
            let client = Client::new(socket(stream), session(target), &counters, &gate);
            scope.spawn(move || client.serve(&AtomicBool::new(false)).unwrap());
            scope.spawn(move || run(Program(program)));
        }
    });
}

const READ: u16 = 0;
const WRITE: u16 = 1;
const TRIM: u16 = 4;
const WRITE_ZEROES: u16 = 6;

#[test]
fn requests_of_any_alignment_have_the_effect_that_they_describe() {
    let target = target("127.0.0.1:0", "memory:1M,lba=4096");
    run(
        &target,
        &[&|mut program| {
            let mut expected = vec![0; 1 << 20];
            // The offset and length of each write. Some begin and end within a block, and some are longer than a command.
            let cases = [
                (1, 3),
                (0, 4096),
                (4095, 2),
                (4000, 5000),
                (8192, 1),
                (511, 200_000),
                (4096, 4097),
                (1048575, 1),
            ];
            for (number, (offset, length)) in cases.into_iter().enumerate() {
                let data: Vec<u8> = (0..length).map(|at| (at % 251 + number + 1) as u8).collect();
                let range = offset..offset + length;
                assert_eq!(program.call(WRITE, offset as u64, length as u32, &data).0, 0);
                expected[range.clone()].copy_from_slice(&data);
                assert_eq!(program.call(READ, offset as u64, length as u32, &[]), (0, data));
                assert!(program.call(READ, 0, 1 << 20, &[]).1 == expected, "{offset}, {length}");
            }
            for (offset, length) in [(3000, 100), (5, 4096), (9000, 60_000)] {
                assert_eq!(program.call(WRITE_ZEROES, offset as u64, length as u32, &[]).0, 0);
                expected[offset..offset + length].fill(0);
                assert!(program.call(READ, 0, 1 << 20, &[]).1 == expected, "{offset}, {length}");
            }
            // A trim keeps the parts of blocks at its ends. The blocks between them read as zeros.
            assert_eq!(program.call(TRIM, 100_000, 100, &[]).0, 0);
            assert_eq!(program.call(TRIM, 100_000, 10_000, &[]).0, 0);
            expected[102_400..106_496].fill(0);
            assert!(program.call(READ, 0, 1 << 20, &[]).1 == expected);
            let (einval, enospc) = (22, 28);
            assert_eq!(program.call(READ, (1 << 20) - 1, 2, &[]).0, einval);
            assert_eq!(program.call(WRITE, (1 << 20) - 1, 2, &[0; 2]).0, enospc);
            assert_eq!(program.call(READ, 5, 0, &[]).0, einval);
        }],
    );
    target.stop().unwrap();
}

/// A write of a part of a block must neither lose the other parts, which others write meanwhile, nor restore old ones.
#[test]
fn writes_of_parts_of_a_block_do_not_disturb_each_other() {
    const ROUNDS: u8 = 200;
    let target = target("127.0.0.1:0", "memory:64K,lba=4096");
    // Each program writes bytes of its own, which share a block with those of the others, and reads them back.
    let parts = |first: u64| {
        move |mut program: Program| {
            for round in 1..=ROUNDS {
                let length = if first == 0 { 4096 } else { 5 };
                let data = vec![round; length as usize];
                // The first program writes whole blocks: one that the second program shares only at its end.
                let offset = if first == 0 { 4096 } else { 4096 * 2 - 5 + 5 * (first - 1) };
                let kind = if first == 3 { WRITE_ZEROES } else { WRITE };
                let data = if first == 3 { vec![0; 5] } else { data };
                assert_eq!(program.call(kind, offset, length, if first == 3 { &[] } else { &data }).0, 0);
                if first > 1 {
                    assert_eq!(program.call(READ, offset, length, &[]), (0, data), "{first}");
                }
            }
        }
    };
    run(&target, &[&parts(0), &parts(1), &parts(2), &parts(3), &parts(4)]);
    run(
        &target,
        &[&|mut program| {
            let read = program.call(READ, 4096, 4096 * 2, &[]).1;
            assert!(read[..4091].iter().all(|byte| *byte == ROUNDS), "an old block has come back");
            assert_eq!(read[4096..][..15], [[ROUNDS; 5], [0; 5], [ROUNDS; 5]].concat());
        }],
    );
    target.stop().unwrap();
}

/// Other clients may write as soon as a client has ended. So none of its writes may be in flight then.
#[test]
fn the_requests_of_a_client_that_violates_the_protocol_are_completed() {
    let target = target("127.0.0.1:0", "memory:64K,lba=4096");
    let (mut program, stream) = UnixStream::pair().unwrap();
    stream.set_nonblocking(true).unwrap();
    let (counters, gate) = (Counters::default(), Gate::default());
    let client = Client::new(socket(stream), session(&target), &counters, &gate);
    let writes = [request_at(WRITE, 1, 7, 3), vec![1, 2, 3], request_at(WRITE, 2, 10, 2), vec![4, 5]];
    program.write_all(&[writes.concat(), vec![0xEE; 28]].concat()).unwrap();
    let error = client.serve(&AtomicBool::new(false)).unwrap_err().to_string();
    assert!(error.contains("the client's connection failed"), "{error}");
    run(&target, &[&|mut program| assert_eq!(program.call(READ, 6, 6, &[]), (0, vec![0, 1, 2, 3, 4, 5]))]);
    target.stop().unwrap();
}

/// Requests of one client that overlap within a block, and are in flight together.
#[test]
fn writes_in_flight_that_share_blocks_all_have_their_effect() {
    const BYTES: usize = 16 << 10;
    let target = target("127.0.0.1:0", "memory:16K,lba=4096");
    run(
        &target,
        &[&|Program(mut stream)| {
            let (mut expected, mut random) = (vec![0; BYTES], 7_u64);
            let mut next = |end: usize| {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (random >> 33) as usize % end
            };
            for _ in 0..20 {
                // NBD lets a server execute requests in any order, so those in flight together write different bytes.
                let (mut at, mut requests, mut count) = (0, Vec::new(), 0);
                while at < BYTES {
                    let most = if next(4) == 0 { 9000 } else { 300 };
                    let length = (1 + next(most)).min(BYTES - at);
                    match next(3) {
                        0 => {
                            requests.extend(request_at(WRITE_ZEROES, 0, at as u64, length as u32));
                            expected[at..at + length].fill(0);
                        }
                        _ => {
                            let data = vec![1 + next(255) as u8; length];
                            requests.extend(request_at(WRITE, 0, at as u64, length as u32));
                            requests.extend(&data);
                            expected[at..at + length].copy_from_slice(&data);
                        }
                    }
                    (at, count) = (at + length, count + 1);
                }
                let mut replies = vec![0; 16 * count];
                std::thread::scope(|scope| {
                    scope.spawn(|| (&stream).write_all(&requests).unwrap());
                    (&stream).read_exact(&mut replies).unwrap();
                });
                assert!(replies.chunks(16).all(|reply| reply[4..8] == [0; 4]));
                let mut program = Program(stream);
                assert!(program.call(READ, 0, BYTES as u32, &[]).1 == expected);
                stream = program.0;
            }
        }],
    );
    target.stop().unwrap();
}
