//! Drives a whole offload engine from both sides. Sends hostile frames of every kind to its port, and acts as
//! a hostile program on its control socket and its socket pairs.
//!
//! The engine must not panic or loop. A connection that was opened before the attack must still carry data,
//! and an honest program must still be served afterwards. The engine must hold no state once every program
//! has closed its sockets.
//!
//! The input is a list of operations. Frames go to existing flows of the engine. They have valid checksums,
//! and numbers near those of the engine's last segments, because the engine drops other frames early.

mod input;
mod packets;
mod programs;
mod world;

use inlane_offload::stepped::HeldResources;
use inlane_offload_protocol::message::{Message, Operation};
use inlane_wire::ethernet::Mac;
use input::Input;
use programs::{Program, path, send};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use world::World;

pub(crate) const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
pub(crate) const PEER_MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);
pub(crate) const OURS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1))];
pub(crate) const PEER: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2))];
/// The most sockets that the engine allows a process. The fuzzer opens the control connections of both the
/// hostile and the honest program, so the engine counts both programs as one process.
pub(crate) const SOCKETS: usize = 256;
/// The most sockets that the hostile program keeps open.
pub(crate) const MOST_ENDS: usize = 24;
/// The most operations that are carried out for one input. More would take too long on a loaded machine.
pub(crate) const MOST_OPERATIONS: usize = 200;
/// While one step advances the simulated clock, the engine runs at each timer deadline. This is the most
/// deadlines of one step. After that many, the clock jumps to the end of the step.
pub(crate) const MOST_DEADLINES: usize = 200;
pub(crate) const MILLISECOND: u64 = 1_000_000;
pub(crate) const HONEST: &[u8] = b"data of an honest program";

pub fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let choices = input.byte();
    let mut world = World::new(choices);
    let connection = world.connect_honest();
    world.exchange(connection);
    for (text, datagrams) in
        [("0.0.0.0:8080", false), ("[fd00::1]:8080", false), ("0.0.0.0:9000", true), ("[fd00::1]:9000", true)]
    {
        let mut message = Message::new(Operation::Bind);
        message.local = Some(text.parse().unwrap());
        message.v6 = text.starts_with('[');
        message.datagrams = datagrams;
        let bound = world.ask(false, &message, None).expect("a reply to a bind");
        assert_eq!(bound.status, 0);
        if !datagrams {
            let mut message = Message::new(Operation::Listen);
            message.number = 4;
            let last = world.hostile.ends.len() - 1;
            world.ask(false, &message, Some(last));
        }
    }
    for _ in 0..MOST_OPERATIONS {
        if input.0.is_empty() {
            break;
        }
        match input.byte() % 16 {
            0..=4 => world.segment(&mut input),
            5 => world.datagram(&mut input),
            6 => world.control_message(&mut input),
            7 => world.address_resolution(&mut input),
            8..=9 => world.request(&mut input),
            10..=12 => world.use_end(&mut input),
            13 => world.advance(u64::from(input.short()) * MILLISECOND),
            14 => world.receive(input.bytes()),
            _ => {
                send(world.hostile.control.as_fd(), input.bytes(), None);
                world.settle();
                world.hostile =
                    Program { ends: std::mem::take(&mut world.hostile.ends), ..Program::new(&path()) };
            }
        }
        if input.0.len() % 4 == 0 {
            world.settle();
        }
        assert!(world.engine.held().sockets <= SOCKETS);
    }
    world.settle();
    world.exchange(connection);
    world.hostile.ends.clear();
    world.settle();
    let other = world.connect_honest();
    world.exchange(other);
    world.honest.ends.clear();
    // Move the clock forward by 40 minutes. Every connection must end within this time, because
    // retransmissions are given up and TIME-WAIT lasts one minute.
    for _ in 0..40 {
        world.advance(60_000 * MILLISECOND);
    }
    // The engine closes descriptors that programs have sent on another thread. A socket ends only when the last
    // descriptor of its program's end is closed.
    let start = std::time::Instant::now();
    while world.engine.held() != HeldResources::default() && start.elapsed().as_secs() < 5 {
        std::thread::sleep(std::time::Duration::from_millis(1));
        world.advance(60_000 * MILLISECOND);
    }
    assert_eq!(world.engine.held(), HeldResources::default(), "something is left");
}
