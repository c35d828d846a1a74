//! Tests of timeouts against targets that send one byte at a time.

use super::*;
use crate::initiator::{Buffer, Submission};
use crate::wire::command::{Command, Sgl, io};
use crate::wire::pdu::{Kind, MAX_HEADER, Pdu, encode};
use std::io::{Read, Write};
use std::net::TcpListener;

const TIMEOUT: Duration = Duration::from_millis(800);
/// A limit on tests that would otherwise never end. A busy machine may need much longer than `TIMEOUT`.
const PATIENCE: Duration = Duration::from_secs(60);

/// Starts a target that reads and sends as `script` says, and then sends a zero every 20 ms.
fn dripping(script: impl FnOnce(&mut TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        stream.read_exact(&mut [0; 128]).unwrap();
        script(&mut stream);
        while stream.write_all(&[0]).is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    address
}

fn icresp() -> Vec<u8> {
    let mut bytes = vec![0; MAX_HEADER];
    let length = encode(
        &Pdu::initialization(Kind::IcResp, Digests::default(), 1 << 20),
        0,
        Digests::default(),
        4,
        &mut bytes,
    );
    bytes.truncate(length);
    bytes
}

fn options() -> QueueOptions {
    QueueOptions { timeout: TIMEOUT, ..QueueOptions::default() }
}

#[test]
fn errors_keep_the_error_of_the_system() {
    use std::error::Error as _;
    let kind = |error: crate::Error| {
        error.source().and_then(|source| source.downcast_ref::<std::io::Error>()).map(std::io::Error::kind)
    };
    // Nothing listens there any more.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = Queue::connect(closed, &options(), 0).unwrap_err();
    assert!(error.to_string().contains("check that the target listens there"), "{error}");
    assert_eq!(kind(error), Some(std::io::ErrorKind::ConnectionRefused));
    // A target that closes a socket with unread data resets the connection.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || drop(listener.accept().unwrap().0.peek(&mut [0])));
    let error = Queue::connect(address, &options(), 0).unwrap_err();
    assert_eq!(kind(error), Some(std::io::ErrorKind::ConnectionReset));
}

#[test]
fn bytes_of_a_response_do_not_extend_the_time_of_the_negotiation() {
    let address = dripping(|stream| stream.write_all(&[Kind::IcResp as u8, 0, 128, 0, 128]).unwrap());
    let start = Instant::now();
    let error = Queue::connect(address, &options(), 0).unwrap_err().to_string();
    assert!(error.contains("no answer to the connection request"), "{error}");
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
}

#[test]
fn bytes_of_data_do_not_extend_the_time_of_a_command() {
    const BYTES: u32 = 64 << 10;
    // The first command has identifier 4096: slot 0, used for the first time.
    let mut header = vec![0; MAX_HEADER];
    let length = encode(
        &Pdu::transfer(Kind::C2hData, 0, 4096, 0, 0, BYTES),
        BYTES,
        Digests::default(),
        4,
        &mut header,
    );
    let address = dripping(move |stream| {
        stream.write_all(&icresp()).unwrap();
        stream.read_exact(&mut [0; 72]).unwrap();
        stream.write_all(&header[..length]).unwrap();
    });
    let mut queue = Queue::connect(address, &options(), 0).unwrap();
    let command = Command::blocks(io::READ, 1, 0, BYTES / 512, Sgl::NONE);
    let buffer = Buffer::new(BYTES as usize).unwrap();
    queue.connection.submit(Submission { token: 1, command, buffer: Some(buffer) }).unwrap();
    let start = Instant::now();
    let error = loop {
        if let Err(error) = queue.progress(true) {
            break error.to_string();
        }
        assert!(start.elapsed() < PATIENCE, "the command is still in flight");
    };
    assert!(error.contains("no answer to a command"), "{error}");
    assert!(start.elapsed() >= TIMEOUT, "{:?}", start.elapsed());
}

/// A write that was sent again over another path must not arrive over the failed one later.
#[test]
fn unsent_writes_of_a_failed_queue_are_discarded() {
    const BYTES: u32 = 8192;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let target = std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        stream.read_exact(&mut [0; 128]).unwrap();
        stream.write_all(&icresp()).unwrap();
        stream
    });
    let entries = 4096;
    let mut queue = Queue::connect(address, &QueueOptions { entries, ..options() }, BYTES).unwrap();
    let mut stream = target.join().unwrap();
    for token in 0..u64::from(entries) - 1 {
        let command = Command::blocks(io::WRITE, 1, 0, BYTES / 512, Sgl::NONE);
        let buffer = Some(Buffer::new(BYTES as usize).unwrap());
        queue.connection.submit(Submission { token, command, buffer }).unwrap();
    }
    queue.send().unwrap();
    assert!(queue.connection.has_output(), "the kernel took all writes");
    queue.fail();
    drop(queue);
    let error = std::io::copy(&mut stream, &mut std::io::sink()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}
