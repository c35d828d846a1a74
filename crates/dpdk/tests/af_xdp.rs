//! AF_XDP ports on an interface that a second port, a second process or another XDP program uses too.

mod network;

use inlane_core::packet::{Packet, Pool};
use inlane_core::port::{Port, Rx};
use inlane_dpdk::{MbufPool, open};
use network::{RawSocket, eventually, frame, ip, output_of_ip, private_network, xdp};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The environment variable that names the second process's port. If set, this program is that process.
const SECOND_PROCESS: &str = "INLANE_TEST_SECOND_PROCESS";

fn open_port(spec: &str, pool: &Arc<MbufPool>) -> inlane_core::Result<(Box<dyn Port>, Box<dyn Rx>)> {
    let mut port = open(spec)?;
    let pool: Arc<dyn Pool> = pool.clone();
    port.configure(std::slice::from_ref(&pool), 1)?;
    let rx = port.take_rx(0)?;
    port.start()?;
    Ok((port, rx))
}

/// Creates the interfaces v0 and v1 with `queues` queues in each direction, and brings v0 up.
fn veth(queues: u16) {
    // A veth runs XDP programs only if it has at least as many receive queues as its other end has transmit
    // queues. v1 has one transmit queue, so that all its frames arrive at queue 0 of v0. With several, the kernel
    // would choose by a hash with a key that differs after each boot.
    ip(&format!(
        "link add v0 numrxqueues {queues} numtxqueues {queues} type veth peer name v1 numrxqueues {queues} numtxqueues 1"
    ));
    ip("link set v0 up");
}

/// Brings v1 up, waits until the link carries frames, and returns a socket on v1.
fn other_end() -> RawSocket {
    ip("link set v1 up");
    let socket = RawSocket::open("v1");
    std::thread::sleep(Duration::from_millis(300));
    socket
}

/// Sends `frame` repeatedly until `rx` receives it. Returns false if that takes longer than 20 seconds.
fn arrives(socket: &RawSocket, rx: &mut dyn Rx, pool: &MbufPool, frame: &[u8]) -> bool {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(20) {
        socket.send(frame);
        std::thread::sleep(Duration::from_millis(5));
        let mut packets = [Packet::EMPTY; 32];
        let count = rx.receive(&mut packets).unwrap();
        // SAFETY: the packets were received, in host memory, and not yet freed.
        let found = packets[..count].iter().any(|packet| unsafe { packet.bytes() } == frame);
        // SAFETY: the packets are of this pool, and are not used afterwards.
        unsafe { pool.free(&packets[..count]) };
        if found {
            return true;
        }
    }
    false
}

struct SecondProcess(Child);

impl SecondProcess {
    /// Starts the process with the port `spec`. Returns the port's error if it does not open.
    fn start(spec: &str) -> Result<Self, String> {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["second_process", "--exact", "--nocapture"])
            .env(SECOND_PROCESS, spec)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.find_map(|line| line.ok().filter(|line| line.contains("port: "))).unwrap();
        // Keep reading, so that the process never writes to a closed pipe.
        std::thread::spawn(move || lines.for_each(drop));
        let outcome = line.split_once("port: ").unwrap().1.to_owned();
        if outcome == "open" {
            return Ok(Self(child));
        }
        child.wait().unwrap();
        Err(outcome)
    }

    fn end(mut self) {
        self.0.stdin.take().unwrap().write_all(b"end\n").unwrap();
        assert!(self.0.wait().unwrap().success());
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// The main function of the second process. Does nothing if [`SECOND_PROCESS`] is not set.
#[test]
fn second_process() {
    let Ok(spec) = std::env::var(SECOND_PROCESS) else { return };
    let pool = MbufPool::new(8192, 2048).unwrap();
    match open_port(&spec, &pool) {
        Ok((mut port, _rx)) => {
            println!("\nport: open");
            std::io::stdin().read_exact(&mut [0]).unwrap();
            port.stop();
        }
        Err(error) => println!("\nport: {error}"),
    }
}

fn has_xdp_program(interface: &str) -> bool {
    output_of_ip(&format!("link show {interface}")).contains("xdp")
}

#[test]
fn a_port_on_a_queue_in_use_is_refused_and_leaves_the_first_working() {
    if !private_network("a_port_on_a_queue_in_use_is_refused_and_leaves_the_first_working") {
        return;
    }
    veth(1);
    let pool = MbufPool::new(8192, 2048).unwrap();
    let (mut port, mut rx) = open_port("af_xdp:v0", &pool).unwrap();
    let socket = other_end();
    assert!(arrives(&socket, &mut *rx, &pool, &frame(100, 1)));

    let error = SecondProcess::start("af_xdp:v0").err().expect("the queue is in use");
    assert!(error.contains("queue 0 of v0") && error.contains("in use"), "{error}");
    assert!(arrives(&socket, &mut *rx, &pool, &frame(100, 2)), "after another process was refused");

    let second = MbufPool::new(8192, 2048).unwrap();
    let error = open_port("af_xdp:v0", &second).err().expect("the queue is in use").to_string();
    assert!(error.contains("queue 0 of v0") && error.contains("in use"), "{error}");
    assert_eq!(second.outstanding(), 0);
    assert!(arrives(&socket, &mut *rx, &pool, &frame(100, 3)), "after another port was refused");

    port.stop();
    assert!(eventually(|| !has_xdp_program("v0")));
}

#[test]
fn two_processes_share_an_interface_and_each_may_end_first() {
    if !private_network("two_processes_share_an_interface_and_each_may_end_first") {
        return;
    }
    veth(2);
    let pool = MbufPool::new(8192, 2048).unwrap();
    let (mut port, mut rx) = open_port("af_xdp:v0,queue=0", &pool).unwrap();
    let socket = other_end();
    assert!(arrives(&socket, &mut *rx, &pool, &frame(100, 1)));

    SecondProcess::start("af_xdp:v0,queue=1").unwrap().end();
    assert!(arrives(&socket, &mut *rx, &pool, &frame(100, 2)), "after the second process ended");
    SecondProcess::start("af_xdp:v0,queue=1").unwrap().kill();
    assert!(arrives(&socket, &mut *rx, &pool, &frame(100, 3)), "after the second process was killed");

    let second = SecondProcess::start("af_xdp:v0,queue=1").unwrap();
    port.stop();
    assert!(has_xdp_program("v0"), "the second process still uses the program");
    let (mut port, mut rx) = open_port("af_xdp:v0,queue=0", &pool).unwrap();
    second.end();
    assert!(arrives(&socket, &mut *rx, &pool, &frame(100, 4)), "after the first owner left and came back");
    port.stop();
    assert!(eventually(|| !has_xdp_program("v0")));
}

#[test]
fn a_killed_process_leaves_no_program() {
    if !private_network("a_killed_process_leaves_no_program") {
        return;
    }
    veth(1);
    SecondProcess::start("af_xdp:v0").unwrap().kill();
    assert!(eventually(|| !has_xdp_program("v0")), "the program is still on the interface");
    let pool = MbufPool::new(8192, 2048).unwrap();
    let (mut port, mut rx) = open_port("af_xdp:v0", &pool).unwrap();
    assert!(arrives(&other_end(), &mut *rx, &pool, &frame(100, 1)));
    port.stop();
}

#[test]
fn somebody_elses_program_is_never_replaced_or_removed() {
    if !private_network("somebody_elses_program_is_never_replaced_or_removed") {
        return;
    }
    for mode in [xdp::DRIVER_MODE, xdp::GENERIC_MODE] {
        veth(1);
        let program = xdp::load_passing_program();
        xdp::attach("v0", &program, mode);
        let before = xdp::program_id("v0");
        let pool = MbufPool::new(8192, 2048).unwrap();
        let error = open_port("af_xdp:v0", &pool).err().expect("the program is not ours").to_string();
        assert!(error.contains("v0 has an XDP program") && error.contains("ip link set"), "{error}");
        assert_eq!(xdp::program_id("v0"), before);
        assert!(before.is_some());
        ip("link delete v0");
    }
}

#[test]
fn a_program_attached_after_ours_is_not_removed() {
    if !private_network("a_program_attached_after_ours_is_not_removed") {
        return;
    }
    // Replace the interface while the port is open. Closing the port must not remove the program on the new
    // interface, although that interface has the same name and number.
    ip("link add v0 index 77 type veth peer name v1");
    ip("link set v0 up");
    let pool = MbufPool::new(8192, 2048).unwrap();
    let (mut port, _rx) = open_port("af_xdp:v0", &pool).unwrap();
    ip("link delete v0");
    ip("link add v0 index 77 type veth peer name v1");
    xdp::attach("v0", &xdp::load_passing_program(), xdp::DRIVER_MODE);
    let before = xdp::program_id("v0");
    port.stop();
    assert_eq!(xdp::program_id("v0"), before);
    assert!(before.is_some());
}

/// For several sizes of buffers, finds the largest MTU that a port accepts. The longest frames of each
/// accepted MTU must arrive. The largest accepted MTU must use almost the whole buffer.
#[test]
fn every_frame_of_an_accepted_mtu_arrives() {
    if !private_network("every_frame_of_an_accepted_mtu_arrives") {
        return;
    }
    for room in [1664, 2048, 3000, 3584] {
        let (mut accepted, mut refused) = (68, 3600);
        while refused - accepted > 1 {
            let mtu = (accepted + refused) / 2;
            if frames_of_mtu_arrive(room, mtu) { accepted = mtu } else { refused = mtu }
        }
        // Allow 256 bytes for XDP's headroom, and 18 for an Ethernet header with a VLAN tag.
        assert!(accepted + 256 + 18 >= room, "room {room}: only {accepted} bytes of payload are accepted");
    }
}

/// Opens a port with buffers of `room` bytes on an interface with this MTU. Returns false if the port does
/// not open. Otherwise, checks that the largest frame arrives and returns true.
fn frames_of_mtu_arrive(room: usize, mtu: usize) -> bool {
    veth(1);
    for end in ["v0", "v1"] {
        ip(&format!("link set {end} mtu {mtu}"));
    }
    let pool = MbufPool::new(8192, room).unwrap();
    let accepted = match open_port("af_xdp:v0", &pool) {
        Ok((mut port, mut rx)) => {
            let socket = other_end();
            // The MTU excludes the Ethernet header and a VLAN tag, together 18 bytes.
            let largest = frame(mtu + 18, 3);
            let mut tagged = largest.clone();
            tagged[12..14].copy_from_slice(&[0x81, 0x00]);
            let arrived = arrives(&socket, &mut *rx, &pool, &largest[..mtu + 14])
                && arrives(&socket, &mut *rx, &pool, &tagged);
            assert!(arrived, "room {room}, MTU {mtu}: the largest frame is lost");
            port.stop();
            true
        }
        Err(error) => {
            let text = error.to_string();
            // The error message advises data rooms and MTUs. A port with each of them must open.
            let number = |text: &str| -> usize {
                let digits = text.split(|character: char| !character.is_ascii_digit()).next();
                digits.unwrap().parse().unwrap()
            };
            let open_with = |room: &str| {
                let pool = MbufPool::new(8192, number(room)).unwrap();
                open_port("af_xdp:v0", &pool).unwrap().0.stop();
            };
            if let Some((_, room)) = text.split_once("give room=") {
                open_with(room);
            }
            if let Some((_, advised)) = text.split_once(", or mtu ") {
                ip(&format!("link set v0 mtu {}", number(advised)));
                open_with(advised.split_once(" with room=").unwrap().1);
            }
            let (_, advised) = text.split_once("ip link set v0 mtu ").unwrap();
            ip(&format!("link set v0 mtu {}", number(advised)));
            open_port("af_xdp:v0", &pool).unwrap().0.stop();
            false
        }
    };
    ip("link delete v0");
    assert_eq!(pool.outstanding(), 0);
    accepted
}

#[test]
fn a_port_that_only_sends_counts_nothing_as_missed() {
    if !private_network("a_port_that_only_sends_counts_nothing_as_missed") {
        return;
    }
    veth(1);
    for end in ["v0", "v1"] {
        ip(&format!("link set {end} mtu 1900"));
    }
    let pool: Arc<dyn Pool> = MbufPool::new(8192, 2048).unwrap();
    let mut port = open("af_xdp:v0").unwrap();
    port.configure(&[], 1).unwrap();
    let _tx = port.take_tx(0, pool).unwrap();
    port.start().unwrap();
    let socket = other_end();
    // From the other end of the link, send the port 100 frames that do not fit into its receive buffers. Then
    // send more frames than its receive ring can hold. The kernel drops the 100 frames and the excess. The
    // port must not count them as missed, because it only sends.
    for size in [1914; 100].into_iter().chain([60; 6000]) {
        socket.send(&frame(size, 1));
    }
    assert_eq!(port.device_counters(), Default::default());
    port.stop();
    assert_eq!(port.device_counters(), Default::default());
}

/// Threads write their number into their packets. Meanwhile, ports over the same pool are opened and closed.
/// No packet may be allocated twice or lost.
#[test]
fn ports_close_while_other_threads_use_their_pool() {
    if !private_network("ports_close_while_other_threads_use_their_pool") {
        return;
    }
    veth(1);
    let socket = other_end();
    let pool = MbufPool::new(16_384, 2048).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (1..=3u8)
        .map(|number| {
            let (pool, stop) = (pool.clone(), stop.clone());
            std::thread::spawn(move || {
                let mut packets = [Packet::EMPTY; 64];
                while !stop.load(Ordering::Relaxed) {
                    let count = pool.allocate(&mut packets);
                    for packet in &packets[..count] {
                        // SAFETY: this thread allocated the packet, in host memory.
                        unsafe { (packet.address as *mut u8).write_volatile(number) };
                    }
                    for packet in &packets[..count] {
                        // SAFETY: as above.
                        let found = unsafe { (packet.address as *const u8).read_volatile() };
                        assert_eq!(found, number, "a packet was allocated twice");
                    }
                    // SAFETY: this thread allocated the packets, and does not use them again.
                    unsafe { pool.free(&packets[..count]) };
                }
            })
        })
        .collect();
    for round in 0..20 {
        let (mut port, mut rx) = open_port("af_xdp:v0", &pool).unwrap();
        assert!(arrives(&socket, &mut *rx, &pool, &frame(100, round)));
        port.stop();
    }
    stop.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(pool.outstanding(), 0, "leaked buffers");
    let mut packets = vec![Packet::EMPTY; pool.capacity()];
    assert_eq!(pool.allocate(&mut packets), pool.capacity());
    let mut cookies: Vec<u64> = packets.iter().map(|packet| packet.cookie).collect();
    cookies.sort_unstable();
    cookies.dedup();
    assert_eq!(cookies.len(), packets.len(), "a buffer is in the pool twice");
    // SAFETY: the packets were allocated above, and are not used again.
    unsafe { pool.free(&packets) };
}
