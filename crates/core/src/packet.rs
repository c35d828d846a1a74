//! A packet as ports and executors pass it, and the pools that its buffer comes from and returns to.
//!
//! A [`Packet`] is a plain value: whoever holds it owns its buffer, until it is handed to a [`crate::port::Tx`] or given
//! back to its [`Pool`]. Nothing frees a packet when the value is dropped: on hot paths packets travel as arrays,
//! and pools count what is out, so that a leak shows at the end of every run ([`Pool::outstanding`]).

use crate::error::{Error, Result};
use crate::region::Region;
use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomData;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// One packet: address and length of its first (mostly only) contiguous bytes, and what its pool knows it by.
///
/// Its first 16 bytes lie as a [`crate::ring::layout::Descriptor`] does, so that a packet function runs on either.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Where its bytes begin, in the place of its pool's region.
    pub address: u64,
    /// Bytes at `address`. A packet of several segments has more behind them, which [`Pool::for_each_segment`] shows.
    pub length: u32,
    /// The port to send to, after a verdict that names one; otherwise 0.
    pub port: u32,
    /// The pool's name for the buffer (a DPDK mbuf's address, a slot's index). Meaningless to anyone else.
    pub cookie: u64,
}

impl Packet {
    /// The value arrays of packets are filled with before use.
    pub const EMPTY: Packet = Packet { address: 0, length: 0, port: 0, cookie: 0 };

    /// Its contiguous bytes.
    ///
    /// # Safety
    /// The packet is held by the caller, lies in memory that the CPU maps, and nobody writes it meanwhile.
    pub unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: the pool made address and length so; the caller vouches for the rest.
        unsafe { std::slice::from_raw_parts(self.address as *const u8, self.length as usize) }
    }

    /// Its contiguous bytes, to change.
    ///
    /// # Safety
    /// As for [`Packet::bytes`], and nobody reads them meanwhile.
    #[expect(clippy::mut_from_ref, reason = "the bytes are behind the address, not in the value")]
    pub unsafe fn bytes_mut(&self) -> &mut [u8] {
        // SAFETY: the pool made address and length so; the caller vouches for the rest.
        unsafe { std::slice::from_raw_parts_mut(self.address as *mut u8, self.length as usize) }
    }
}

/// What a port metas of a packet beside its bytes, for ports that care (captures keep their timestamps by it).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketMeta {
    /// When the packet was captured or due, in nanoseconds since the epoch of its source.
    pub time_ns: u64,
    /// Its length on the wire where a capture kept less (snap length); 0 when nothing was cut.
    pub wire_length: u32,
    /// Set by the source, kept for the sink: which of a capture's interfaces.
    pub interface: u32,
}

/// Where packets' buffers come from. Thread-safe; calls are per burst, not per packet.
/// A device that needs its own kind of pool finds it by upcasting to [`std::any::Any`].
pub trait Pool: std::any::Any + Send + Sync {
    /// Takes up to `packets.len()` buffers, `length` 0 and `address` at the start of data; returns how many there were.
    fn allocate(&self, packets: &mut [Packet]) -> usize;

    /// Gives packets back that came from this pool.
    fn free(&self, packets: &[Packet]);

    /// The calling thread is the one that takes and gives, for as long as it holds what this returns: that then costs it no lock. Others
    /// still may. `None` where that makes no difference, or another thread has settled.
    fn own(&self) -> Option<PoolOwner<'_>> {
        None
    }

    /// Bytes that a packet of one segment can hold from its address.
    fn room(&self) -> usize;

    /// How many buffers it has in all.
    fn capacity(&self) -> usize;

    /// How many buffers are out: held by ports, rings and callers.
    fn outstanding(&self) -> usize;

    /// The memory the data lies in.
    fn region(&self) -> &Region;

    /// The meta of a packet.
    fn meta(&self, packet: &Packet) -> PacketMeta;

    /// Writes the meta of a packet that the caller holds.
    fn set_meta(&self, packet: &Packet, meta: PacketMeta);

    /// Calls `visit` with each contiguous span (address, length) of a packet, the first with the packet's own length.
    fn for_each_segment(&self, packet: &Packet, visit: &mut dyn FnMut(u64, u32)) {
        visit(packet.address, packet.length);
    }
}

/// On cache lines of its own, the prefetched neighbour included.
#[repr(align(128))]
struct CacheAligned<T>(T);

/// A pool over any region, without DPDK: for captures, generators, and memory of a device.
///
/// ```text
/// region: | headroom | data ... | headroom | data ... |    one stride a buffer, cookie = index
/// ```
pub struct HeapPool {
    region: Region,
    stride: usize,
    headroom: usize,
    count: usize,
    free: CacheAligned<Mutex<Vec<u32>>>,
    // Where who gives back and who takes are different threads, each has a list of its own, so that they meet only when the takers'
    // list is empty.
    returned: CacheAligned<Mutex<Vec<u32>>>,
    /// The number of the thread that has settled, or 0.
    settled: AtomicU64,
    own: CacheAligned<Own>,
    metas: Box<[UnsafeCell<PacketMeta>]>,
}

/// What the thread that has settled has at hand.
struct Own {
    list: UnsafeCell<Vec<u32>>,
    /// Its length, for others.
    count: AtomicUsize,
}

// SAFETY: a meta is touched only by who holds its packet (the trait's contract), free lists are behind their locks, and the settled
// thread's is touched by no other (`with_own`).
unsafe impl Sync for HeapPool {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for HeapPool {}

const UNPOISONED: &str = "nothing panics while a free list is held";

/// Bytes kept free in front of packet data, as DPDK keeps them: room to prepend headers.
pub const HEADROOM: usize = 128;

impl HeapPool {
    /// A pool of `count` buffers with room for `room` bytes each, in host memory.
    ///
    /// # Errors
    /// [`Error::Invalid`] for sizes that make no pool, [`Error::Memory`] when there is none left.
    pub fn new(count: usize, room: usize) -> Result<Self> {
        let bytes = Self::bytes(count, room).ok_or_else(|| Error::Invalid {
            what: format!("a pool of {count} buffers of {room} bytes"),
            why: "give 1 to 16M buffers of 1 B to 64 KiB".into(),
        })?;
        Self::over(Region::host(bytes)?, room)
    }

    /// The bytes that [`HeapPool::over`] needs for `count` buffers; `None` beyond any sense.
    pub fn bytes(count: usize, room: usize) -> Option<usize> {
        let sensible = (1..=1 << 24).contains(&count) && (1..=65536).contains(&room);
        sensible.then(|| Self::stride(room) * count)
    }

    fn stride(room: usize) -> usize {
        // A multiple of two cache lines: a GPU's sector and the CPU's adjacent-line prefetch.
        (HEADROOM + room).next_multiple_of(128)
    }

    /// A pool over `region`, as many buffers as fit.
    ///
    /// # Errors
    /// [`Error::Invalid`] when not one fits.
    pub fn over(region: Region, room: usize) -> Result<Self> {
        let stride = Self::stride(room);
        let count = (region.len() / stride).min(1 << 24);
        if count == 0 || room == 0 {
            return Err(Error::Invalid {
                what: format!("a pool of buffers of {room} bytes in {region:?}"),
                why: format!("not one buffer fits; the region needs at least {stride} bytes"),
            });
        }
        Ok(Self {
            stride,
            headroom: HEADROOM,
            count,
            free: CacheAligned(Mutex::new((0..count as u32).rev().collect())),
            returned: CacheAligned(Mutex::new(Vec::with_capacity(count))),
            settled: AtomicU64::new(0),
            own: CacheAligned(Own {
                list: UnsafeCell::new(Vec::with_capacity(count)),
                count: AtomicUsize::new(0),
            }),
            metas: (0..count).map(|_| UnsafeCell::new(PacketMeta::default())).collect(),
            region,
        })
    }

    /// Calls `f` with the settled thread's list, if this is that thread.
    #[inline]
    fn with_own<R>(&self, f: impl FnOnce(&mut Vec<u32>) -> R) -> Option<R> {
        // No other thread stores this one's number, so it need not be ordered with anything.
        if self.settled.load(Ordering::Relaxed) != thread_number() {
            return None;
        }
        // SAFETY: the thread with this number alone gets here, and from `f`, which is this module's, not again.
        let list = unsafe { &mut *self.own.0.list.get() };
        let result = f(list);
        self.own.0.count.store(list.len(), Ordering::Relaxed);
        Some(result)
    }

    /// Moves buffers from the others' lists to the settled thread's: at least `wanted`, if there are so many, and not all where
    /// fewer will do.
    #[cold]
    fn fetch(&self, own: &mut Vec<u32>, wanted: usize) {
        let wanted = wanted.max(self.count / 4);
        for list in [&self.returned, &self.free] {
            let mut list = list.0.lock().expect(UNPOISONED);
            let keep = list.len().saturating_sub(wanted.saturating_sub(own.len()));
            own.extend(list.drain(keep..));
        }
    }

    /// Takes as many as there are from the end of `free`, the last given back first.
    #[inline]
    fn fill(&self, packets: &mut [Packet], free: &mut Vec<u32>) -> usize {
        let count = packets.len().min(free.len());
        let keep = free.len() - count;
        // What stays the same is named before: the compiler cannot know that no packet lies over it.
        let (first, stride) = (self.region.address() + self.headroom as u64, self.stride as u64);
        for (packet, &index) in packets.iter_mut().zip(free[keep..].iter().rev()) {
            *packet =
                Packet { address: first + index as u64 * stride, cookie: index as u64, length: 0, port: 0 };
        }
        free.truncate(keep);
        count
    }

    fn meta_cell(&self, packet: &Packet) -> &UnsafeCell<PacketMeta> {
        &self.metas[packet.cookie as usize]
    }
}

impl Pool for HeapPool {
    #[inline]
    fn allocate(&self, packets: &mut [Packet]) -> usize {
        let own = self.with_own(|own| {
            if own.len() < packets.len() {
                self.fetch(own, packets.len());
            }
            self.fill(packets, own)
        });
        own.unwrap_or_else(|| {
            let mut free = self.free.0.lock().expect(UNPOISONED);
            if free.len() < packets.len() {
                free.append(&mut self.returned.0.lock().expect(UNPOISONED));
            }
            self.fill(packets, &mut free)
        })
    }

    #[inline]
    fn free(&self, packets: &[Packet]) {
        let back = |list: &mut Vec<u32>| {
            list.extend(packets.iter().map(|packet| packet.cookie as u32));
            assert!(list.len() <= self.count, "a packet was given back twice");
        };
        let own = self.with_own(|own| {
            back(own);
            if own.len() > self.count / 2 {
                // Others may be waiting for some.
                self.returned.0.lock().expect(UNPOISONED).extend(own.drain(..self.count / 4));
            }
        });
        own.unwrap_or_else(|| back(&mut self.returned.0.lock().expect(UNPOISONED)))
    }

    fn own(&self) -> Option<PoolOwner<'_>> {
        let mine = self.settled.compare_exchange(0, thread_number(), Ordering::Acquire, Ordering::Relaxed);
        mine.ok().map(|_| PoolOwner { pool: self, here: PhantomData })
    }

    fn room(&self) -> usize {
        self.stride - self.headroom
    }

    fn capacity(&self) -> usize {
        self.count
    }

    fn outstanding(&self) -> usize {
        let free = self.free.0.lock().expect(UNPOISONED);
        let returned = self.returned.0.lock().expect(UNPOISONED);
        // Exact when nobody takes or gives meanwhile.
        self.count.saturating_sub(free.len() + returned.len() + self.own.0.count.load(Ordering::Relaxed))
    }

    fn region(&self) -> &Region {
        &self.region
    }

    fn meta(&self, packet: &Packet) -> PacketMeta {
        // SAFETY: the caller holds the packet, so nobody else touches its meta.
        unsafe { *self.meta_cell(packet).get() }
    }

    fn set_meta(&self, packet: &Packet, meta: PacketMeta) {
        // SAFETY: as in `meta`.
        unsafe { *self.meta_cell(packet).get() = meta }
    }
}

/// The calling thread has settled with a pool: see [`Pool::own`]. Ends when dropped; what the thread had at hand is everybody's then.
pub struct PoolOwner<'a> {
    pool: &'a HeapPool,
    /// It stays with its thread.
    here: PhantomData<*const ()>,
}

impl Drop for PoolOwner<'_> {
    fn drop(&mut self) {
        let pool = self.pool;
        pool.with_own(|own| pool.returned.0.lock().expect(UNPOISONED).append(own));
        // Who settles next sees the list as this thread left it.
        pool.settled.store(0, Ordering::Release);
    }
}

/// A number of the calling thread that no other thread of the process has or had; never 0.
#[inline]
fn thread_number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    thread_local!(static NUMBER: Cell<u64> = const { Cell::new(0) });
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(LAST.fetch_add(1, Ordering::Relaxed) + 1);
        }
        number.get()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_out_is_counted() {
        let pool = HeapPool::new(4, 1500).unwrap();
        let mut packets = [Packet::EMPTY; 6];
        assert_eq!(pool.allocate(&mut packets), 4);
        assert_eq!(pool.outstanding(), 4);
        assert_eq!(pool.allocate(&mut packets[4..]), 0);
        pool.free(&packets[..3]);
        assert_eq!(pool.outstanding(), 1);
        pool.free(&packets[3..4]);
        assert_eq!(pool.outstanding(), 0);
    }

    #[test]
    fn who_has_settled_shares() {
        let pool = HeapPool::new(64, 64).unwrap();
        let mut packets = [Packet::EMPTY; 64];
        let settled = pool.own().unwrap();
        assert!(pool.own().is_none(), "one at a time");
        assert_eq!(pool.allocate(&mut packets), 64, "all of them, if need be");
        assert_eq!((pool.allocate(&mut [Packet::EMPTY]), pool.outstanding()), (0, 64));
        pool.free(&packets);
        assert_eq!(pool.outstanding(), 0);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                assert!(pool.own().is_none(), "another has");
                let mut packets = [Packet::EMPTY; 64];
                let got = pool.allocate(&mut packets);
                assert!(got >= 16, "{got}: nobody keeps them all");
                pool.free(&packets[..got]);
            });
            other.join().unwrap();
        });
        assert_eq!((pool.allocate(&mut packets[..40]), pool.outstanding()), (40, 40));
        drop(settled);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let _owner = pool.own().expect("nobody has any more");
                let mut rest = [Packet::EMPTY; 64];
                assert_eq!((pool.allocate(&mut rest), pool.outstanding()), (24, 64));
                pool.free(&rest[..24]);
            });
            other.join().unwrap();
        });
        pool.free(&packets[..40]);
        assert_eq!((pool.allocate(&mut packets), pool.outstanding()), (64, 64));
        packets.sort_by_key(|packet| packet.cookie);
        assert!(packets.iter().enumerate().all(|(i, packet)| packet.cookie == i as u64), "each once");
    }

    #[test]
    fn threads_beside_the_settled_one_lose_nothing() {
        let pool = HeapPool::new(96, 64).unwrap();
        let rounds = if cfg!(miri) { 100 } else { 20_000 };
        let work = |seed: usize| {
            let mut held = Vec::new();
            for round in 0..rounds {
                let mut packets = [Packet::EMPTY; 13];
                let got = pool.allocate(&mut packets[..1 + (round * seed) % 13]);
                for packet in &packets[..got] {
                    // SAFETY: just taken; host memory. Who else had it would write it, too.
                    unsafe { *(packet.address as *mut usize) = seed };
                }
                held.extend_from_slice(&packets[..got]);
                let keep = (round * 7 + seed) % 30;
                let back = held.len().saturating_sub(keep);
                // SAFETY: still held.
                assert!(held.iter().all(|packet| unsafe { *(packet.address as *const usize) } == seed));
                pool.free(&held[..back]);
                held.drain(..back);
            }
            pool.free(&held);
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _owner = pool.own().unwrap();
                work(5);
            });
            scope.spawn(|| work(3));
        });
        assert_eq!(pool.outstanding(), 0);
    }

    #[test]
    fn buffers_do_not_overlap() {
        let pool = HeapPool::new(8, 100).unwrap();
        let mut packets = [Packet::EMPTY; 8];
        assert_eq!(pool.allocate(&mut packets), 8);
        for (i, packet) in packets.iter_mut().enumerate() {
            packet.length = pool.room() as u32;
            // SAFETY: just taken; host memory.
            unsafe { packet.bytes_mut() }.fill(i as u8);
        }
        for (i, packet) in packets.iter().enumerate() {
            // SAFETY: still held.
            assert!(unsafe { packet.bytes() }.iter().all(|&byte| byte == i as u8));
        }
        pool.free(&packets);
    }

    #[test]
    fn senseless_pools_are_refused() {
        assert!(HeapPool::new(0, 100).is_err());
        assert!(HeapPool::new(1, 0).is_err());
        assert!(HeapPool::new(usize::MAX, 65536).is_err());
    }
}
