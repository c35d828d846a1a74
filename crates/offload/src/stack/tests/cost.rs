//! Measures the processor time that two stacks take for messages and bulk data by TCP and by RDMA, over memory as a memif port
//! has it, and without programs:
//!
//! ```console
//! $ cargo test --release -p inlane-offload --lib cost -- --ignored --nocapture
//! ```
//!
//! It prints the fastest of many runs, so other load hardly matters. Valgrind counts instructions: give the test to
//! `valgrind --tool=callgrind --toggle-collect='*measured*'`.

use super::*;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

const SLOTS: usize = 1024;
const SLOT: usize = 9088;

/// The frames in one direction. `sent` and `received` count them.
struct Queue {
    frames: Box<[UnsafeCell<[u8; SLOT]>]>,
    lens: Box<[AtomicUsize]>,
    sent: AtomicUsize,
    received: AtomicUsize,
}

// SAFETY: the test uses a queue on one thread.
unsafe impl Sync for Queue {}

impl Queue {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            frames: (0..SLOTS).map(|_| UnsafeCell::new([0; SLOT])).collect(),
            lens: (0..SLOTS).map(|_| AtomicUsize::new(0)).collect(),
            sent: AtomicUsize::new(0),
            received: AtomicUsize::new(0),
        })
    }

    fn push(&self, len: usize) {
        let sent = self.sent.load(Ordering::Relaxed);
        self.lens[sent % SLOTS].store(len, Ordering::Relaxed);
        self.sent.store(sent + 1, Ordering::Relaxed);
    }

    fn next(&self) -> *mut u8 {
        self.frames[self.sent.load(Ordering::Relaxed) % SLOTS].get().cast()
    }
}

struct QueueTx {
    pool: Arc<dyn Pool>,
    queue: Arc<Queue>,
    reserved: usize,
}

// SAFETY: `send` frees the packets that it reports as sent, which is all of them.
unsafe impl Tx for QueueTx {
    unsafe fn send(&mut self, packets: &[Packet]) -> inlane_core::Result<usize> {
        for packet in packets {
            // SAFETY: the caller owns the packet. Nothing else uses the next frame of the queue.
            unsafe {
                let bytes = packet.bytes();
                self.queue.next().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
                self.queue.push(bytes.len());
            }
        }
        // SAFETY: the packets are of this pool. The caller guarantees not to use them any more.
        unsafe { self.pool.free(packets) };
        Ok(packets.len())
    }

    fn reserve(&mut self, len: usize) -> Reservation {
        if self.queue.sent.load(Ordering::Relaxed) - self.queue.received.load(Ordering::Relaxed) == SLOTS {
            return Reservation::Full;
        }
        self.reserved = len;
        Reservation::Memory(NonNull::new(self.queue.next()).unwrap())
    }

    fn commit(&mut self) {
        self.queue.push(self.reserved);
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

struct Pair {
    world: World,
    queues: [Arc<Queue>; 2],
    keys: [Key; 2],
    pool: Arc<dyn Pool>,
}

impl Pair {
    fn new(rdma: bool) -> Self {
        let setup = Setup {
            segment_mtu: 9000,
            in_place: true,
            rdma,
            accepts_partial: true,
            peer_accepts_partial: true,
            buffer: 1 << 20,
            ..Setup::default()
        };
        let mut world = World::of([setup; 2]);
        world.machines[1].listen(80);
        let remote = SocketAddr::new(world.machines[1].address(), 80);
        let client = world.machines[0].connect(world.now, remote);
        (0..20).for_each(|_| world.step(&mut |_| 1));
        let keys = [client, world.machines[1].accepted[0]];
        let queues = [0, 1].map(|_| Queue::new());
        for (machine, queue) in world.machines.iter_mut().zip(&queues) {
            let pool = machine.stack.network.pool.clone();
            let tx = QueueTx { pool, queue: queue.clone(), reserved: 0 };
            machine.stack.network.set_tx(Box::new(tx));
        }
        let pool = Arc::new(HeapPool::new(256, SLOT).unwrap());
        Self { world, queues, keys, pool }
    }

    /// Lets a machine receive, as the engine's loop does, and send.
    fn serve(&mut self, at: usize) {
        self.world.now += 500;
        let (machine, queue, now) = (&mut self.world.machines[at], &self.queues[1 - at], self.world.now);
        let (mut received, sent) =
            (queue.received.load(Ordering::Relaxed), queue.sent.load(Ordering::Relaxed));
        for _ in 0..(sent - received).min(16) {
            let len = queue.lens[received % SLOTS].load(Ordering::Relaxed);
            let frame: *const u8 = queue.frames[received % SLOTS].get().cast();
            // SAFETY: the queue has the frame until `received` is stored.
            if !unsafe { machine.stack.on_frame_in_place(now, frame, len) } {
                let mut packet = [Packet::EMPTY];
                assert_eq!(self.pool.allocate(&mut packet), 1);
                packet[0].length = len as u32;
                // SAFETY: the packet was just allocated and has room for the frame. It is freed after its last use.
                unsafe {
                    (packet[0].address as *mut u8).copy_from_nonoverlapping(frame, len);
                    let outcome = machine.stack.on_frame(now, packet[0].bytes());
                    machine.on_outcome(now, outcome);
                    self.pool.free(&packet);
                }
            }
            received += 1;
        }
        queue.received.store(received, Ordering::Relaxed);
        machine.serve(now);
    }

    fn stream(&mut self, at: usize) -> &mut crate::stack::stream::Stream {
        let socket = self.world.machines[at].stack.sockets.get_mut(self.keys[at]).unwrap();
        let Role::Stream(stream) = &mut socket.role else { panic!("a stream") };
        stream
    }

    /// Appends `len` bytes to what an end sends, without writing them.
    fn write(&mut self, at: usize, len: u64) {
        self.stream(at).add_written(len);
        let key = self.keys[at];
        self.world.machines[at].stack.touch(key);
    }

    /// Takes everything that an end has received. Returns its length.
    fn read(&mut self, at: usize) -> u64 {
        let stream = self.stream(at);
        let len = stream.undelivered();
        if len > 0 {
            stream.delivered += len;
            stream.publish_delivered();
            let key = self.keys[at];
            self.world.machines[at].stack.touch(key);
        }
        len
    }

    #[inline(never)]
    fn measured_messages(&mut self, count: usize) {
        for _ in 0..count {
            for from in [0, 1] {
                self.write(from, 4);
                self.serve(from);
                self.serve(1 - from);
                assert_eq!(self.read(1 - from), 4);
            }
        }
    }

    #[inline(never)]
    fn measured_bulk(&mut self, mut len: u64) {
        while len > 0 {
            let stream = self.stream(0);
            let room = stream.room(stream.send.capacity() as u64);
            if room > 0 {
                self.write(0, room);
            }
            self.serve(0);
            self.serve(1);
            len = len.saturating_sub(self.read(1));
        }
    }

    fn frames(&self) -> [usize; 2] {
        self.queues.each_ref().map(|queue| queue.sent.load(Ordering::Relaxed))
    }
}

#[test]
#[ignore = "measures"]
fn cost_of_messages_and_bytes() {
    let runs: usize = std::env::var("RUNS").map_or(300, |runs| runs.parse().unwrap());
    let only = std::env::var("ONLY").unwrap_or_default();
    for (name, rdma) in [("TCP", false), ("RDMA", true)] {
        let measure = |what: &str, units: u64, run: fn(&mut Pair, u64)| {
            if !format!("{name} {what}").contains(&only) {
                return;
            }
            let mut pair = Pair::new(rdma);
            run(&mut pair, units);
            let before = pair.frames();
            let times = (0..runs).map(|_| {
                let start = Instant::now();
                run(&mut pair, units);
                start.elapsed().as_nanos() as u64
            });
            let best = times.min().unwrap() as f64 / units as f64;
            let [sent, answered] = pair.frames();
            let frames = [sent - before[0], answered - before[1]]
                .map(|frames| frames as f64 / runs as f64 / units as f64);
            println!("{name} {what}: {best:.3} ns each, {frames:.7?} frames each");
        };
        measure("round trips", 1000, |pair, count| pair.measured_messages(count as usize));
        measure("bytes", 4 << 20, |pair, len| pair.measured_bulk(len));
    }
}
