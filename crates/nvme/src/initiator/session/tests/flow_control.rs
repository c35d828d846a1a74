//! Tests of queues without flow control.

use super::*;
use crate::initiator::Buffer;
use crate::wire::command::{Command, Completion, FABRICS, Sgl, Status, connect, fabrics, io};
use crate::wire::pdu::{Digests, Kind, MAX_HEADER, Pdu, encode};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

/// The bytes of an ICReq or ICResp.
const INITIALIZE: usize = 128;
/// The bytes of a Connect: its capsule and data.
const CONNECT: usize = 72 + 1024;

fn copy(mut from: TcpStream, mut to: TcpStream) {
    // Ignore errors, because either side may close the connection at any time.
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}

/// Relays a connection to the target. Refuses a Connect that disables flow control. Returns true if it refused
/// one.
fn relay(mut host: TcpStream, target: SocketAddr) -> bool {
    let mut upstream = TcpStream::connect(target).unwrap();
    let (mut initialize, mut capsule) = ([0; INITIALIZE], [0; CONNECT]);
    host.read_exact(&mut initialize).unwrap();
    upstream.write_all(&initialize).unwrap();
    upstream.read_exact(&mut initialize).unwrap();
    host.write_all(&initialize).unwrap();
    host.read_exact(&mut capsule).unwrap();
    let command = &capsule[8..72];
    assert_eq!((command[0], command[4]), (FABRICS, fabrics::CONNECT));
    // Byte 46 of Connect is CATTR.
    if command[46] & connect::DISABLE_FLOW_CONTROL != 0 {
        let cid = u16::from_le_bytes([command[2], command[3]]);
        let status = Status::CONNECT_INVALID_PARAMETERS.dnr();
        let mut response = [0; MAX_HEADER];
        let refusal = Pdu::new(Kind::CapsuleResp, 0, Completion::new(cid, status, 0, 46, 0));
        let length = encode(&refusal, 0, Digests::default(), 4, &mut response);
        host.write_all(&response[..length]).unwrap();
        return true;
    }
    upstream.write_all(&capsule).unwrap();
    let back = (upstream.try_clone().unwrap(), host.try_clone().unwrap());
    let answers = std::thread::spawn(move || copy(back.0, back.1));
    copy(host, upstream);
    answers.join().unwrap();
    false
}

/// Reads the first block and returns its status.
fn read_block(session: &mut Session) -> Status {
    let command = Command::blocks(io::READ, session.namespace().nsid, 0, 1, Sgl::NONE);
    let buffer = Buffer::new(session.namespace().block_bytes as usize).unwrap();
    session.submit(Submission { token: 1, command, buffer: Some(buffer) }).unwrap();
    let start = Instant::now();
    loop {
        session.progress(true).unwrap();
        if let Some(done) = session.next_done() {
            return done.status();
        }
        assert!(start.elapsed() < PATIENCE, "the read was not answered");
    }
}

/// A controller need not support queues without flow control.
#[test]
fn a_queue_uses_flow_control_if_the_target_insists() {
    let target = target("127.0.77.7:0", "memory:1M");
    let address = target.subsystem().listeners[0];
    let proxy = TcpListener::bind("127.0.77.7:0").unwrap();
    let path = proxy.local_addr().unwrap();
    // Relay three connections of the host, in this order: the admin queue, the I/O queue without flow
    // control, and the I/O queue with flow control. The relay refuses the second one.
    let relays = std::thread::spawn(move || {
        let hosts = [(); 3].map(|()| {
            let host = proxy.accept().unwrap().0;
            std::thread::spawn(move || relay(host, address))
        });
        hosts.map(|host| host.join().unwrap())
    });
    let mut session = Session::open(&options(path)).unwrap();
    assert_eq!(read_block(&mut session), Status::SUCCESS);
    session.close();
    assert_eq!(relays.join().unwrap(), [false, true, false]);
    target.stop().unwrap();
}
