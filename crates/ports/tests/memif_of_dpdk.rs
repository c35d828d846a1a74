//! Connects inlane's memif port, which writes and reads frames in place, with DPDK's.

#![cfg(feature = "dpdk")]

use inlane_core::clock::Clock;
use inlane_core::port::Reservation;
use inlane_core::{Packet, Pool, Port, Rx, Tx};
use inlane_ports::open::{OpenRequest, memif_in_place, pool, ports};
use inlane_ports::pcap::Playback;
use inlane_ports::spec::PortSpec;
use std::sync::Arc;
use std::time::{Duration, Instant};

const FRAMES: usize = 5000;

struct End {
    pool: Arc<dyn Pool>,
    rx: Box<dyn Rx>,
    tx: Box<dyn Tx>,
    /// Keeps the device of DPDK open.
    port: Box<dyn Port>,
}

fn open(text: &str, in_place: bool) -> End {
    let spec = PortSpec::parse(text).unwrap().with_buffers(4096);
    let (mut port, pool): (Box<dyn Port>, _) = match in_place {
        true => {
            (Box::new(memif_in_place(&spec, 4096, true).unwrap().unwrap()), pool(&[], 2048, 4096).unwrap())
        }
        false => {
            let request = OpenRequest {
                ports: std::slice::from_ref(&spec),
                rx: None,
                tx: &[],
                reference: None,
                rate: None,
                playback: Playback::default(),
                queues: 1,
                room: 4096,
            };
            let port = ports(&request, &Clock::new()).unwrap().ports.remove(0);
            (port, pool(request.ports, 4096, 4096).unwrap())
        }
    };
    port.configure(std::slice::from_ref(&pool), 1).unwrap();
    let (rx, tx) = (port.take_rx(0).unwrap(), port.take_tx(0, pool.clone()).unwrap());
    port.start().unwrap();
    End { pool, rx, tx, port }
}

fn content(index: usize) -> Vec<u8> {
    let len = 60 + index * 37 % 4000;
    (0..len).map(|n| (index * 31 + n * 7 + n / 256) as u8).collect()
}

impl End {
    fn send(&mut self, frame: &[u8]) -> bool {
        if let Reservation::Memory(memory) = self.tx.reserve(frame.len()) {
            // SAFETY: the memory was reserved for this frame.
            unsafe { memory.as_ptr().copy_from_nonoverlapping(frame.as_ptr(), frame.len()) };
            self.tx.commit();
            self.tx.flush().unwrap();
            return true;
        }
        let mut packet = [Packet::EMPTY];
        if self.pool.allocate(&mut packet) == 0 {
            return false;
        }
        packet[0].length = frame.len() as u32;
        // SAFETY: the packet was just allocated, and is sent or freed once.
        unsafe {
            packet[0].bytes_mut().copy_from_slice(frame);
            let sent = self.tx.send(&packet).unwrap();
            self.pool.free(&packet[sent..]);
            sent == 1
        }
    }

    fn receive(&mut self, visit: &mut dyn FnMut(&[u8])) {
        // SAFETY: the frame is valid during the call, and the other end of this test does not change it.
        let mut see = |address, len| visit(unsafe { std::slice::from_raw_parts(address, len) });
        let in_place = self.rx.receive_in_place(16, &mut |address, len| {
            see(address, len);
            true
        });
        if in_place.unwrap().is_some() {
            return;
        }
        let mut packets = [Packet::EMPTY; 16];
        let count = self.rx.receive(&mut packets).unwrap();
        packets[..count].iter().for_each(|packet| see(packet.address as *const u8, packet.length as usize));
        // SAFETY: the packets were just received, and are freed once.
        unsafe { self.pool.free(&packets[..count]) };
    }
}

#[test]
fn frames_go_both_ways_whichever_end_is_dpdks() {
    for dpdk_serves in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let spec = |server: bool| {
            let role = if server { "server" } else { "client" };
            format!("memif:{},role={role},id=3,secret=word,wait=60", folder.path().join("m.sock").display())
        };
        let dpdk = spec(dpdk_serves);
        let dpdk = std::thread::spawn(move || open(&dpdk, false));
        let mut ends = [open(&spec(!dpdk_serves), true), dpdk.join().unwrap()];
        for from in [0, 1] {
            let (mut sent, mut received) = (0, 0);
            let start = Instant::now();
            while received < FRAMES {
                assert!(start.elapsed() < Duration::from_secs(60), "{received} frames of {sent} arrived");
                while sent < FRAMES.min(received + 200) && ends[from].send(&content(sent)) {
                    sent += 1;
                }
                ends[1 - from].receive(&mut |frame| {
                    assert!(frame == content(received), "frame {received} from end {from}");
                    received += 1;
                });
            }
        }
        let [own, dpdk] = ends;
        drop(own);
        let End { pool, rx, tx, mut port } = dpdk;
        drop((rx, tx));
        port.stop();
        assert_eq!(pool.outstanding(), 0);
    }
}
