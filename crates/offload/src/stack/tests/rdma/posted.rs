//! Bytes that are placed into buffers of the program, by TCP and by RDMA. The tests play the host and the program.

use super::*;
use crate::stack::posted::PostedBuffers;
use crate::stack::ring::{ByteRing, Span};
use crate::stack::stream::Stream;
use inlane_offload_protocol::slots::{POSITION, Posted, Slot};

const BUFFER: usize = 16384;
const POISON: u8 = 0xa5;
/// The bytes of the arena in which the program allocates buffers.
const ARENA: usize = 65536;

/// A connection whose receive ring at machine 1 lies in a slot, and the program that receives there.
struct Receiving {
    link: Link,
    area: Area,
    slot: Slot,
    /// The part of the arena that is used. It keeps the memory of the area.
    arena: Region,
    /// The index of the byte at position 0 of the receive ring.
    base: u64,
    posted: Option<(Posted, usize)>,
    /// The bytes that were placed into the posted buffer.
    placed: usize,
}

impl Receiving {
    fn new(rdma: bool, len: u32) -> Self {
        let setup = Setup { in_place: true, rdma, buffer: BUFFER, ..Setup::default() };
        let mut link = Link::of([setup; 2], [data(len), data(700)]);
        while link.server.is_none() {
            link.step(&mut |_| 1);
        }
        let (memory, area) = new_area(BUFFER);
        let slot = area.slot(3).unwrap();
        let offset = |at: *mut u8| at as usize - memory.as_ptr() as usize;
        let rings = slot.rings();
        let part = |at, len| memory.slice(at, len).unwrap();
        let arena = part(offset(area.arena()), ARENA);
        let ring = |number| ByteRing::shared(part(offset(rings) + number * BUFFER, BUFFER));
        let mut receiving = Self { link, area, slot, arena, base: 0, posted: None, placed: 0 };
        receiving.stream().replace_rings([ring(0), ring(1)]);
        receiving.poison(0, ARENA);
        receiving
    }

    fn stream(&mut self) -> &mut Stream {
        let key = self.link.server.unwrap();
        match &mut self.link.world.machines[1].stack.sockets.get_mut(key).unwrap().role {
            Role::Stream(stream) => stream,
            _ => unreachable!("the connection's role does not change"),
        }
    }

    fn expect_posts(&mut self) {
        let (base, slot, arena) = (self.base, self.slot, Span { start: self.area.arena(), len: ARENA });
        self.stream().expect_posts(Some(base), || PostedBuffers::new(slot, arena, Arc::new(())));
    }

    fn poison(&self, offset: usize, len: usize) {
        // SAFETY: the bytes lie in the arena, and no buffer is posted there.
        unsafe { self.arena.as_ptr().add(offset).write_bytes(POISON, len) };
    }

    fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        // SAFETY: the bytes lie in the arena, which only this thread uses.
        unsafe { std::slice::from_raw_parts(self.arena.as_ptr().add(offset), len) }.to_vec()
    }

    /// Runs a round of the link, and counts the placed bytes as the host does. Calls `meanwhile` before that.
    fn step(&mut self, fate: &mut impl FnMut(&mut Vec<u8>) -> usize, meanwhile: impl FnOnce(&mut Self)) {
        self.expect_posts();
        self.link.step(fate);
        meanwhile(self);
        let placed = self.stream().take_placed().unwrap() as usize;
        self.base += placed as u64;
        if placed > 0 {
            let (_, offset) = self.posted.as_ref().expect("only a posted buffer is filled");
            let bytes = self.bytes(offset + self.placed, placed);
            self.link.received[1].extend(bytes);
            self.placed += placed;
        }
    }

    /// Posts a buffer. The program has taken all bytes of the ring if `position` is `None`.
    fn post(&mut self, offset: usize, len: usize, position: Option<u64>) {
        let base = self.base;
        let empty = self.stream().delivered.wrapping_sub(base) & POSITION;
        let post = self.slot.post().post(offset as u64, len as u64, position.unwrap_or(empty));
        (self.posted, self.placed) = (Some((post.expect("the post is free"), offset)), 0);
    }

    /// Takes the buffer back. Seizes it instead if the engine is writing there: the program then sees that memory no longer.
    fn take_back(&mut self) {
        let Some((posted, _)) = self.posted.take() else { return };
        let post = self.slot.post();
        let placed = post.take_back(&posted).or_else(|| post.seize(&posted));
        assert_eq!(placed, Some(self.placed as u64), "the program counts what the engine has placed");
    }

    fn is_poisoned(&self) -> bool {
        self.bytes(0, ARENA).iter().all(|&byte| byte == POISON)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Buffers are posted, taken back and seized at any time, on a link that loses and doubles frames.
    #[test]
    fn each_byte_arrives_once_in_buffers_or_the_ring(
        rdma in any::<bool>(), hostile in any::<bool>(), seed in any::<u64>(), len in 1000u32..200_000, lost in 0u64..5,
    ) {
        let mut receiving = Receiving::new(rdma, len);
        let expected = data(len);
        let mut random = seed | 1;
        let mut draw = move || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        let mut fate = draw;
        for _ in 0..100_000 {
            if receiving.link.received[1].len() >= expected.len() {
                break;
            }
            if receiving.posted.is_none() {
                let (offset, len) = (draw() as usize % 30_000, 1 + draw() as usize % 30_000);
                let position = (hostile && draw() % 4 == 0).then(|| draw() % 5000);
                receiving.post(offset, len, position);
            } else if draw() % 3 == 0 {
                receiving.take_back();
                receiving.poison(0, ARENA);
            }
            let seizes = draw() % 16 == 0;
            let fate = &mut |_: &mut Vec<u8>| if fate() % 100 < lost { 0 } else { 1 + usize::from(fate() % 50 == 0) };
            receiving.step(fate, |receiving| {
                if seizes {
                    receiving.take_back();
                }
            });
            if seizes {
                receiving.poison(0, ARENA);
            }
            prop_assert!(receiving.posted.is_some() || receiving.is_poisoned());
        }
        prop_assert!(receiving.link.received[1] == expected);
        receiving.take_back();
    }
}

#[test]
fn a_buffer_outside_the_arena_is_refused_and_nothing_is_written() {
    for (offset, len) in [(ARENA, 1), (ARENA - 10, 11), (usize::MAX - 5, 10), (0, ARENA + 1)] {
        let mut receiving = Receiving::new(false, 100_000);
        receiving.post(offset, len, None);
        receiving.expect_posts();
        while receiving.link.received[1].len() < 100_000 {
            receiving.link.step(&mut |_| 1);
        }
        assert!(receiving.stream().take_placed().is_err(), "{offset} {len}");
        assert!(receiving.is_poisoned() && receiving.link.received[1] == data(100_000));
    }
}

/// The ring is replaced while bytes are in a buffer, and those received bytes must then be in the new ring.
#[test]
fn bytes_in_a_buffer_move_to_a_new_ring() {
    let mut receiving = Receiving::new(false, 100_000);
    receiving.post(0, 5000, None);
    receiving.expect_posts();
    while receiving.stream().undelivered() == 0 {
        receiving.link.step(&mut |_| 1);
    }
    assert!(!receiving.is_poisoned(), "bytes are in the buffer");
    let ring = || ByteRing::new(Region::host(BUFFER).unwrap());
    receiving.stream().replace_rings([ring(), ring()]);
    receiving.take_back();
    receiving.poison(0, ARENA);
    while receiving.link.received[1].len() < 100_000 {
        receiving.link.step(&mut |_| 1);
    }
    assert!(receiving.link.received[1] == data(100_000));
}

/// The program always waits, so all bytes go into its buffers.
#[test]
fn all_bytes_of_a_program_that_waits_are_placed() {
    for rdma in [false, true] {
        let mut receiving = Receiving::new(rdma, 200_000);
        let mut placed = 0;
        while receiving.link.received[1].len() < 200_000 {
            receiving.link.received[1]
                .extend(receiving.link.world.machines[1].read(receiving.link.server.unwrap()));
            receiving.post(0, 50_000, None);
            receiving.step(&mut |_| 1, |_| {});
            placed += receiving.placed;
            receiving.take_back();
        }
        assert!(receiving.link.received[1] == data(200_000) && placed > 100_000, "{rdma}: {placed}");
    }
}
