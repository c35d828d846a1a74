use super::queues::number;
use super::*;
use inlane_core::packet::Packet;
use inlane_core::port::{Counters, Reservation, Rx, Tx};
use inlane_wire::{ethernet, ipv4, roce, tcp, udp};
use std::ptr::NonNull;

/// Returns a frame with an IPv4 packet of a protocol.
fn frame(protocol: u8, upper: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; ethernet::HEADER + ipv4::HEADER + upper.len()];
    let mut packet = ipv4::Packet::init(&mut bytes[ethernet::HEADER..]).unwrap();
    packet.set_protocol(protocol);
    packet.payload_mut().copy_from_slice(upper);
    bytes
}

fn segment(payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; tcp::HEADER + payload.len()];
    tcp::Segment::init(&mut bytes[..]).unwrap().payload_mut().copy_from_slice(payload);
    frame(ipv4::TCP, &bytes)
}

fn write(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let headers = inlane_rdma::data_headers(opcode).unwrap_or(roce::BTH + roce::RETH);
    let mut bytes = vec![0; udp::HEADER + headers];
    bytes.extend_from_slice(payload);
    bytes.extend_from_slice(&[9; roce::ICRC]);
    let len = bytes.len() as u16;
    udp::Datagram::new(&mut bytes[..]).unwrap().set_length(len);
    roce::Bth::new(&mut bytes[udp::HEADER..]).unwrap().fill(opcode, 7, 1, false, 0);
    frame(ipv4::UDP, &bytes)
}

#[test]
fn only_frames_with_four_bytes_of_data_carry_a_message() {
    let message = 0x0102_0304u32.to_be_bytes();
    let writes =
        [roce::opcode::WRITE_ONLY, roce::opcode::WRITE_ONLY_IMMEDIATE].map(|code| write(code, &message));
    for carries in [segment(&message)].into_iter().chain(writes) {
        assert_eq!(number(&carries), Some(0x0102_0304));
        for len in 0..carries.len() {
            assert_eq!(number(&carries[..len]), None, "cut to {len} bytes");
        }
    }
    for other in
        [segment(&[]), segment(&[1; 5]), write(roce::opcode::MANUFACTURER, &message), frame(6, &message)]
    {
        assert_eq!(number(&other), None);
    }
}

fn way(times: [u64; POINTS]) -> Way {
    times.map(|time| (time > 0).then_some(time))
}

#[test]
fn stages_add_up_to_the_whole() {
    let stages = ticks(&way([10, 11, 13, 16, 20, 25, 31, 38, 46, 55, 65])).unwrap();
    assert_eq!(stages, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10].map(Some));
    // A stage without an end of its own counts in the next one.
    let stages = ticks(&way([10, 0, 0, 16, 0, 25, 31, 0, 0, 0, 65])).unwrap();
    assert_eq!(stages, [None, None, Some(6), None, Some(9), Some(6), None, None, None, Some(34)]);
    // Others act before send(), the flush and the engine's round have returned, and the engine asks before the frame is there.
    let stages = ticks(&way([10, 15, 13, 16, 20, 40, 12, 38, 46, 70, 65])).unwrap();
    assert_eq!(stages, [3, 0, 3, 4, 18, 0, 0, 8, 19, 0].map(Some));
    assert_eq!(ticks(&way([0, 11, 13, 16, 20, 25, 31, 38, 46, 55, 65])), None);
    assert_eq!(ticks(&way([10, 11, 13, 16, 20, 25, 31, 38, 46, 55, 0])), None);
}

#[test]
fn the_times_of_all_messages_have_a_median_and_a_p99() {
    let clock = Clock::new();
    let times = Times::of(&clock, (1..=1000).map(|n| n * 1_000_000).collect()).unwrap();
    let ns = |ticks: u64| clock.between_ns(0, ticks) as f64;
    assert_eq!((times.median_ns, times.p99_ns), (ns(501_000_000), ns(990_000_000)));
    assert!((times.mean_ns / ns(500_500_000) - 1.0).abs() < 1e-6);
    assert_eq!(Times::of(&clock, Vec::new()), None);
}

/// A queue that keeps one frame, and hands it out.
#[derive(Default)]
struct Loop {
    memory: Vec<u8>,
    takes_in_place: bool,
}

// SAFETY: no packet is sent.
unsafe impl Tx for Loop {
    unsafe fn send(&mut self, _: &[Packet]) -> inlane_core::Result<usize> {
        Ok(0)
    }

    fn reserve(&mut self, len: usize) -> Reservation {
        self.memory.resize(len, 0);
        Reservation::Memory(NonNull::new(self.memory.as_mut_ptr()).unwrap())
    }

    fn commit(&mut self) {}

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

// SAFETY: no packet is received.
unsafe impl Rx for Loop {
    fn receive(&mut self, _: &mut [Packet]) -> inlane_core::Result<usize> {
        Ok(0)
    }

    fn receive_in_place(
        &mut self,
        _: usize,
        visit: &mut dyn FnMut(*const u8, usize) -> bool,
    ) -> inlane_core::Result<Option<usize>> {
        self.takes_in_place = visit(self.memory.as_ptr(), self.memory.len());
        Ok(Some(1))
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

#[test]
fn queues_and_loop_record_a_message_in_order() {
    let (clock, first) = (Clock::new(), 77);
    let recorder = Recorder::new(&clock, first, 2);
    let message = segment(&(first + 1).to_be_bytes());
    let mut tx = TracedTx::new(Box::new(Loop::default()), recorder.clone());
    recorder.asked(true);
    let Reservation::Memory(memory) = tx.reserve(message.len()) else { panic!() };
    // SAFETY: the queue has reserved as many bytes.
    unsafe { memory.as_ptr().copy_from_nonoverlapping(message.as_ptr(), message.len()) };
    tx.commit();
    recorder.served();
    tx.flush().unwrap();
    let mut rx = TracedRx::new(Box::new(Loop { memory: message, takes_in_place: false }), recorder.clone());
    let mut visited = 0;
    rx.receive_in_place(1, &mut |_, len| {
        visited = len;
        true
    })
    .unwrap();
    assert!(visited > 0);
    recorder.processed();
    recorder.served();
    let points = [
        Point::Found,
        Point::Begun,
        Point::Written,
        Point::Flushed,
        Point::Polled,
        Point::Received,
        Point::Processed,
        Point::Published,
    ];
    let times = points.map(|point| recorder.time(1, point));
    assert!(times.iter().all(Option::is_some) && times.is_sorted(), "{times:?}");
    assert!(points.iter().all(|&point| recorder.time(0, point).is_none()));
    // The next rounds concern no message.
    recorder.processed();
    recorder.served();
    assert_eq!(points.map(|point| recorder.time(1, point)), times);
}
