use super::queues::number;
use super::*;
use crate::stack::card::message::{Kind, Message};
use inlane_core::packet::Packet;
use inlane_core::port::{Counters, Reservation, Rx, Tx};
use inlane_wire::{Mac, ethernet, ipv4, roce, tcp, udp};
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

fn card_message(kind: Kind, payload: &[u8]) -> Vec<u8> {
    let message = Message { length: payload.len() as u32, ..Message::new(kind, 7) };
    [&message.encode(Mac([2, 0, 0, 0, 0, 1]))[..], payload].concat()
}

#[test]
fn only_frames_with_four_bytes_of_data_carry_a_message() {
    let message = 0x0102_0304u32.to_be_bytes();
    let writes =
        [roce::opcode::WRITE_ONLY, roce::opcode::WRITE_ONLY_IMMEDIATE].map(|code| write(code, &message));
    let others = [segment(&message), card_message(Kind::Stream, &message)];
    for carries in others.into_iter().chain(writes) {
        assert_eq!(number(&carries), Some(0x0102_0304));
        for len in 0..carries.len() {
            assert_eq!(number(&carries[..len]), None, "cut to {len} bytes");
        }
    }
    let of_cards = [
        card_message(Kind::Stream, &[1; 5]),
        card_message(Kind::Options, &message),
        card_message(Kind::Lost, &[]),
    ];
    let others =
        [segment(&[]), segment(&[1; 5]), write(roce::opcode::MANUFACTURER, &message), frame(6, &message)];
    for other in others.into_iter().chain(of_cards) {
        assert_eq!(number(&other), None);
    }
}

/// Returns the way of a message between two engines. 0 stands for a missing time.
fn way(times: [u64; 11]) -> Way {
    let points = [Point::Called, Point::Returned, Point::Found];
    let points = points.into_iter().chain(STEPS_IN_ORDER.map(|step| Point::At(Hop::Network, step)));
    let points = points.chain([Point::Published, Point::Read]);
    let mut way = [None; POINTS];
    points.zip(times).for_each(|(point, time)| way[point.index()] = (time > 0).then_some(time));
    way
}

const STEPS_IN_ORDER: [Step; STEPS] =
    [Step::Begun, Step::Written, Step::Flushed, Step::Polled, Step::Received, Step::Processed];

/// Returns the stages of a message between two engines. Panics if there are others.
fn between_engines(way: [u64; 11]) -> [Option<u64>; 10] {
    let stages = ticks(&self::way(way)).unwrap();
    let (of_cards, others): (Vec<_>, Vec<_>) =
        Stage::ALL.into_iter().zip(stages).partition(|(stage, _)| stage.is_of_card());
    assert!(of_cards.iter().all(|(_, time)| time.is_none()), "{of_cards:?}");
    others.iter().map(|&(_, time)| time).collect::<Vec<_>>().try_into().unwrap()
}

#[test]
fn stages_add_up_to_the_whole() {
    let stages = between_engines([10, 11, 13, 16, 20, 25, 31, 38, 46, 55, 65]);
    assert_eq!(stages, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10].map(Some));
    let stages = ticks(&way([10, 11, 13, 16, 20, 25, 31, 38, 46, 55, 65])).unwrap();
    assert_eq!(Hop::ALL.map(|hop| passage(&stages, hop)), [None, Some(5 + 6 + 7), None]);
    let stages = ticks(&way([10, 11, 13, 16, 20, 0, 31, 38, 46, 55, 65])).unwrap();
    assert_eq!(passage(&stages, Hop::Network), None);
    // A stage without an end of its own counts in the next one.
    let stages = between_engines([10, 0, 0, 16, 0, 25, 31, 0, 0, 0, 65]);
    assert_eq!(stages, [None, None, Some(6), None, Some(9), Some(6), None, None, None, Some(34)]);
    // Others act before send(), the flush and the engine's round have returned, and the engine asks before the frame is there.
    let stages = between_engines([10, 15, 13, 16, 20, 40, 12, 38, 46, 70, 65]);
    assert_eq!(stages, [3, 0, 3, 4, 18, 0, 0, 8, 19, 0].map(Some));
    assert_eq!(ticks(&way([0, 11, 13, 16, 20, 25, 31, 38, 46, 55, 65])), None);
    assert_eq!(ticks(&way([10, 11, 13, 16, 20, 25, 31, 38, 46, 55, 0])), None);
}

#[test]
fn with_cards_each_link_has_its_stages() {
    // Stage n takes n ticks.
    let mut way: Way = std::array::from_fn(|point| Some(100 + (point * (point + 1) / 2) as u64));
    let times: Vec<u64> = (1..POINTS as u64).collect();
    assert_eq!(ticks(&way).unwrap().map(Option::unwrap).to_vec(), times);
    // A card that polls asks for messages before the engine has sent this one.
    let [flushed, polled] = [Step::Flushed, Step::Polled].map(|step| Point::At(Hop::FromCard, step).index());
    way[polled] = Some(101);
    let stages = ticks(&way).unwrap().map(Option::unwrap);
    assert_eq!((stages[polled - 1], stages[polled]), (0, (polled + polled + 1) as u64));
    assert_eq!(stages.iter().sum::<u64>(), times.iter().sum::<u64>());
    assert_eq!(Stage::ALL[flushed - 1], Stage::FromCardSendPort);
    assert_eq!(Stage::ALL[polled - 1], Stage::FromCardWire);
}

#[test]
fn the_recorders_of_engines_and_cards_complete_a_way() {
    let clock = Clock::new();
    for places in [&Place::ENGINES[..], &Place::WITH_CARDS[..]] {
        let mut way = [None; POINTS];
        for &place in places {
            let recorder = Recorder::new(&clock, place, 0, 1);
            (0..RECORDED).for_each(|recorded| recorder.record(0, recorded, 7));
            let before = way;
            recorder.add_to(&mut way, 0);
            let twice = before.iter().zip(&way).filter(|(before, after)| before.is_some() && after.is_none());
            assert_eq!(twice.count(), 0);
        }
        let missing: Vec<usize> = (0..POINTS).filter(|&point| way[point].is_none()).collect();
        // The programs record the others.
        let of_programs = [Point::Called, Point::Returned, Point::Read].map(Point::index);
        let of_cards = Stage::ALL.iter().filter(|stage| stage.is_of_card()).count();
        let cards = if places.len() == 4 { 0 } else { of_cards };
        assert_eq!(missing.len(), of_programs.len() + cards, "{missing:?}");
        assert!(of_programs.iter().all(|point| missing.contains(point)), "{missing:?}");
    }
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
    let (clock, first) = (Clock::new(), 77u32);
    let bytes = (first + 1).to_be_bytes();
    for (message, places) in [
        (segment(&bytes), &Place::ENGINES[..]),
        (card_message(Kind::Stream, &bytes), &[Place::WITH_CARDS[0], Place::WITH_CARDS[2]]),
    ] {
        let recorders = [0, 1].map(|at| Recorder::new(&clock, places[at], first, 2));
        let [sender, receiver] = &recorders;
        let mut tx = TracedTx::new(Box::new(Loop::default()), sender.clone());
        let mut other = TracedTx::new(Box::new(Loop::default()), sender.clone());
        sender.asked(true);
        let Reservation::Memory(memory) = tx.reserve(message.len()) else { panic!() };
        // SAFETY: the queue has reserved as many bytes.
        unsafe { memory.as_ptr().copy_from_nonoverlapping(message.as_ptr(), message.len()) };
        tx.commit();
        // The flush of a card's other queue sends nothing.
        other.flush().unwrap();
        sender.served();
        let served = clock.raw();
        tx.flush().unwrap();
        let mut rx =
            TracedRx::new(Box::new(Loop { memory: message, takes_in_place: false }), receiver.clone());
        let mut visited = 0;
        rx.receive_in_place(1, &mut |_, len| {
            visited = len;
            true
        })
        .unwrap();
        assert!(visited > 0);
        receiver.processed();
        receiver.served();
        let ways = |index: usize| {
            let mut way = [None; POINTS];
            recorders.iter().for_each(|recorder| recorder.add_to(&mut way, index));
            way
        };
        let hop = places[0].to.unwrap();
        let steps = STEPS_IN_ORDER.map(|step| Point::At(hop, step));
        let end = if places[1].to.is_none() { Some(Point::Published) } else { None };
        let points: Vec<Point> = [Point::Found].into_iter().chain(steps).chain(end).collect();
        let way = ways(1);
        let times: Vec<_> = points.iter().map(|point| way[point.index()]).collect();
        assert!(times.iter().all(Option::is_some) && times.is_sorted(), "{times:?}");
        assert!(way[Point::At(hop, Step::Flushed).index()] >= Some(served), "{times:?}");
        assert_eq!(way.iter().flatten().count(), points.len());
        assert_eq!(ways(0), [None; POINTS]);
        // The next rounds concern no message.
        recorders.iter().for_each(|recorder| {
            recorder.processed();
            recorder.served();
        });
        assert_eq!(ways(1), way);
    }
}
