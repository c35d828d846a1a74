//! A pool of packet buffers in any memory region, without DPDK. It has three lists of free buffers: one to
//! allocate from, one that receives freed buffers, and one for the owner.

use super::{FreeByOffset, Packet, PacketMeta, Pool};
use crate::cache::CacheAligned;
use crate::error::{Error, Result};
use crate::region::Region;
use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomData;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A pool of packet buffers in any region, for captures, generators and GPUs.
///
/// ```text
/// region: | headroom | data room | headroom | data room |    one buffer per stride, cookie = buffer's index
/// ```
pub struct HeapPool {
    region: Region,
    stride: usize,
    /// [`reciprocal`] of `stride`.
    reciprocal: u64,
    headroom: usize,
    count: usize,
    /// Free buffers. Threads that do not own the pool allocate from this list. The owner refills its own list
    /// from it.
    free: CacheAligned<Mutex<Vec<u32>>>,
    /// Buffers that threads have freed. They move to `free` when `free` runs short. Threads that free
    /// therefore rarely contend with threads that allocate.
    returned: CacheAligned<Mutex<Vec<u32>>>,
    /// The number of the thread that owns the pool, or 0.
    owner: AtomicU64,
    owned: CacheAligned<OwnedList>,
    metas: Box<[UnsafeCell<PacketMeta>]>,
}

/// The owner's free buffers.
struct OwnedList {
    list: UnsafeCell<Vec<u32>>,
    /// A copy of the length of `list`. Other threads read it to count the allocated buffers.
    count: AtomicUsize,
}

// SAFETY: only the holder of a packet accesses the packet's metadata (`Pool`'s contract). Of the three free
// lists, locks protect two, and only the owner accesses the third.
unsafe impl Sync for HeapPool {}
// SAFETY: no field is tied to a thread.
unsafe impl Send for HeapPool {}

const UNPOISONED: &str = "nothing panics while it holds a free list";

/// Bytes in front of a packet's data room, as in DPDK: space to prepend headers.
pub const HEADROOM: usize = 128;

/// The largest data room in bytes. Linux may send a datagram of 64 KiB with its Ethernet header and tags
/// before segmentation. This is the least power of two that holds such a frame.
const MAX_ROOM: usize = 128 << 10;

impl HeapPool {
    /// Creates a pool of `count` buffers in host memory, each with a data room of `room` bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless there are 1 to 16M buffers of 1 B to 128 KiB. [`Error::Memory`] if the
    /// system has too little memory.
    pub fn new(count: usize, room: usize) -> Result<Self> {
        let bytes = Self::bytes(count, room).ok_or_else(|| Error::Invalid {
            what: format!("a pool of {count} buffers of {room} bytes").into(),
            why: "give 1 to 16M buffers of 1 B to 128 KiB".into(),
        })?;
        Self::over(Region::host(bytes)?, room)
    }

    /// Returns the bytes that [`HeapPool::over`] needs for `count` buffers. `None` if [`HeapPool::new`] would
    /// refuse the numbers.
    pub fn bytes(count: usize, room: usize) -> Option<usize> {
        let possible = (1..=1 << 24).contains(&count) && (1..=MAX_ROOM).contains(&room);
        possible.then(|| Self::stride(room) * count)
    }

    fn stride(room: usize) -> usize {
        // Round up to whole pairs of cache lines. The adjacent-line prefetcher then fetches no line of
        // another buffer.
        (HEADROOM + room).next_multiple_of(128)
    }

    /// Creates a pool over `region`, with as many buffers as fit but at most 16M.
    ///
    /// # Errors
    /// [`Error::Invalid`] if no buffer fits.
    pub fn over(region: Region, room: usize) -> Result<Self> {
        let stride = Self::stride(room);
        let count = (region.len() / stride).min(1 << 24);
        if count == 0 || room == 0 {
            return Err(Error::Invalid {
                what: format!("a pool of buffers of {room} bytes in {region:?}").into(),
                why: format!(
                    "no buffer fits; give a room of at least 1 byte and at least {stride} bytes of memory"
                ),
            });
        }
        Ok(Self {
            stride,
            reciprocal: reciprocal(stride as u64),
            headroom: HEADROOM,
            count,
            free: CacheAligned(Mutex::new((0..count as u32).rev().collect())),
            returned: CacheAligned(Mutex::new(Vec::with_capacity(count))),
            owner: AtomicU64::new(0),
            owned: CacheAligned(OwnedList {
                list: UnsafeCell::new(Vec::with_capacity(count)),
                count: AtomicUsize::new(0),
            }),
            metas: (0..count).map(|_| UnsafeCell::new(PacketMeta::default())).collect(),
            region,
        })
    }

    /// Calls `f` with the owner's list if the calling thread is the owner. Otherwise returns `None`.
    #[inline]
    fn with_owned<R>(&self, f: impl FnOnce(&mut Vec<u32>) -> R) -> Option<R> {
        // Relaxed ordering is enough, because no other thread stores this thread's number.
        if self.owner.load(Ordering::Relaxed) != thread_number() {
            return None;
        }
        // SAFETY: only the owner thread gets here, and no `f` in this module calls `with_owned` again. So
        // this is the only reference to the list.
        let list = unsafe { &mut *self.owned.0.list.get() };
        let result = f(list);
        self.owned.0.count.store(list.len(), Ordering::Relaxed);
        Some(result)
    }

    /// Moves buffers from the shared lists to `owned`, the owner's list. Stops when `owned` has `wanted`
    /// buffers or a quarter of the pool's buffers, whichever is more.
    #[cold]
    fn fetch(&self, owned: &mut Vec<u32>, wanted: usize) {
        let wanted = wanted.max(self.count / 4);
        let mut returned = self.returned.0.lock().expect(UNPOISONED);
        if returned.len() + owned.len() <= wanted {
            // Exchange the lists, because a copy would access memory twice more for each buffer.
            returned.append(owned);
            std::mem::swap(&mut *returned, owned);
        }
        drop(returned);
        for list in [&self.returned, &self.free] {
            let mut list = list.0.lock().expect(UNPOISONED);
            let keep = list.len().saturating_sub(wanted.saturating_sub(owned.len()));
            owned.extend(list.drain(keep..));
        }
    }

    /// Allocates buffers from the end of `free`. The buffer that was freed last comes first, because it is
    /// probably still cached.
    #[inline]
    fn fill(&self, packets: &mut [Packet], free: &mut Vec<u32>) -> usize {
        let count = packets.len().min(free.len());
        let keep = free.len() - count;
        // Load both values before the loop. The compiler cannot exclude that `packets` aliases the pool's
        // fields, so it would otherwise load them again for each packet.
        let (first, stride) = (self.region.address() + self.headroom as u64, self.stride as u64);
        for (packet, &index) in packets.iter_mut().zip(free[keep..].iter().rev()) {
            *packet =
                Packet { address: first + index as u64 * stride, cookie: index as u64, length: 0, port: 0 };
        }
        free.truncate(keep);
        count
    }

    /// Adds freed buffers to the list of the calling thread.
    #[inline]
    fn add(&self, freed: impl Iterator<Item = u32> + Clone) {
        let add = |list: &mut Vec<u32>| {
            list.extend(freed.clone());
            assert!(list.len() <= self.count, "a packet was freed twice");
        };
        let owned = self.with_owned(|owned| {
            add(owned);
            if owned.len() > self.count / 2 {
                // The owner holds more than half of the pool's buffers, and other threads may need some. So
                // return a quarter of the pool to the shared list.
                self.returned.0.lock().expect(UNPOISONED).extend(owned.drain(..self.count / 4));
            }
        });
        owned.unwrap_or_else(|| add(&mut self.returned.0.lock().expect(UNPOISONED)))
    }

    fn meta_cell(&self, packet: &Packet) -> &UnsafeCell<PacketMeta> {
        &self.metas[packet.cookie as usize]
    }
}

impl FreeByOffset for HeapPool {
    unsafe fn free_at(&self, offsets: &[u64]) {
        let reciprocal = self.reciprocal;
        self.add(offsets.iter().map(|&offset| quotient(offset, reciprocal)));
    }
}

// SAFETY: each buffer's index is either in one free list or in one held packet. Index times stride lies in
// the region.
unsafe impl Pool for HeapPool {
    #[inline]
    fn allocate(&self, packets: &mut [Packet]) -> usize {
        let owned = self.with_owned(|owned| {
            if owned.len() < packets.len() {
                self.fetch(owned, packets.len());
            }
            self.fill(packets, owned)
        });
        owned.unwrap_or_else(|| {
            let mut free = self.free.0.lock().expect(UNPOISONED);
            if free.len() < packets.len() {
                free.append(&mut self.returned.0.lock().expect(UNPOISONED));
            }
            self.fill(packets, &mut free)
        })
    }

    #[inline]
    unsafe fn free(&self, packets: &[Packet]) {
        self.add(packets.iter().map(|packet| packet.cookie as u32));
    }

    fn by_offset(&self) -> Option<&dyn FreeByOffset> {
        Some(self)
    }

    fn own(&self) -> Option<PoolOwner<'_>> {
        let won = self.owner.compare_exchange(0, thread_number(), Ordering::Acquire, Ordering::Relaxed);
        won.ok().map(|_| PoolOwner { pool: self, same_thread: PhantomData })
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
        self.count.saturating_sub(free.len() + returned.len() + self.owned.0.count.load(Ordering::Relaxed))
    }

    fn region(&self) -> &Region {
        &self.region
    }

    unsafe fn meta(&self, packet: &Packet) -> PacketMeta {
        // SAFETY: the caller holds the packet, so no other thread accesses its metadata.
        unsafe { *self.meta_cell(packet).get() }
    }

    unsafe fn set_meta(&self, packet: &Packet, meta: PacketMeta) {
        // SAFETY: as in `meta`.
        unsafe { *self.meta_cell(packet).get() = meta }
    }
}

/// A guard. The calling thread is the pool's owner until the guard is dropped; see [`Pool::own`]. Dropping
/// the guard makes the owner's free buffers available to all threads.
pub struct PoolOwner<'a> {
    pool: &'a HeapPool,
    /// Prevents the guard from being sent to another thread.
    same_thread: PhantomData<*const ()>,
}

impl Drop for PoolOwner<'_> {
    fn drop(&mut self) {
        let pool = self.pool;
        pool.with_owned(|owned| pool.returned.0.lock().expect(UNPOISONED).append(owned));
        // Release ordering: it makes this owner's changes to the list visible to the next owner.
        pool.owner.store(0, Ordering::Release);
    }
}

/// Returns 2^64 / `stride`, rounded up. It divides faster than a division does; see [`quotient`].
fn reciprocal(stride: u64) -> u64 {
    u64::MAX / stride + 1
}

/// Returns `offset` / `stride`, rounded down. The result is right if `offset` times `stride` is at most 2^64: rounding up the reciprocal adds less than
/// 1 / `stride` then. Offsets have at most 42 bits, and strides 18.
#[inline]
fn quotient(offset: u64, reciprocal: u64) -> u32 {
    ((u128::from(offset) * u128::from(reciprocal)) >> 64) as u32
}

/// Returns the number of the calling thread: above 0 and unique in the process.
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

    /// Frees packets that the test allocated and does not use again.
    fn free(pool: &HeapPool, packets: &[Packet]) {
        // SAFETY: the calling test allocated the packets and does not use them again.
        unsafe { pool.free(packets) }
    }

    #[test]
    fn allocated_buffers_are_counted() {
        let pool = HeapPool::new(4, 1500).unwrap();
        let mut packets = [Packet::EMPTY; 6];
        assert_eq!(pool.allocate(&mut packets), 4);
        assert_eq!(pool.outstanding(), 4);
        assert_eq!(pool.allocate(&mut packets[4..]), 0);
        free(&pool, &packets[..3]);
        assert_eq!(pool.outstanding(), 1);
        free(&pool, &packets[3..4]);
        assert_eq!(pool.outstanding(), 0);
    }

    #[test]
    fn buffers_are_freed_by_the_offsets_of_their_packets() {
        for (count, room) in [(7, 1), (64, 64), (100, 1500), (33, 2048), (5, MAX_ROOM)] {
            let pool = HeapPool::new(count, room).unwrap();
            let mut packets = vec![Packet::EMPTY; count];
            assert_eq!(pool.allocate(&mut packets), count);
            // Each buffer's first and last byte, and a byte between them.
            for at in [0, HEADROOM, pool.stride - 1] {
                let offsets: Vec<_> = (0..count).map(|index| (index * pool.stride + at) as u64).collect();
                // SAFETY: the packets were allocated, and are not used again.
                unsafe { pool.free_at(&offsets[..count / 2]) };
                assert_eq!(pool.outstanding(), count - count / 2);
                // SAFETY: as above.
                unsafe { pool.free_at(&offsets[count / 2..]) };
                assert_eq!(pool.allocate(&mut packets), count);
                packets.sort_by_key(|packet| packet.cookie);
                assert!(packets.iter().enumerate().all(|(i, packet)| packet.cookie == i as u64), "{room}");
            }
            free(&pool, &packets);
        }
        // The largest pool: 16M buffers of 128 KiB.
        let stride = HeapPool::stride(MAX_ROOM) as u64;
        for index in [0, 1, (1 << 24) - 1] {
            let reciprocal = reciprocal(stride);
            assert_eq!(quotient(index * stride, reciprocal), index as u32);
            assert_eq!(quotient(index * stride + stride - 1, reciprocal), index as u32);
        }
    }

    #[test]
    fn an_owner_leaves_buffers_to_other_threads() {
        let pool = HeapPool::new(64, 64).unwrap();
        let mut packets = [Packet::EMPTY; 64];
        let owner = pool.own().unwrap();
        assert!(pool.own().is_none(), "a pool has one owner");
        assert_eq!(pool.allocate(&mut packets), 64, "the owner can allocate every buffer");
        assert_eq!((pool.allocate(&mut [Packet::EMPTY]), pool.outstanding()), (0, 64));
        free(&pool, &packets);
        assert_eq!(pool.outstanding(), 0);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                assert!(pool.own().is_none(), "another thread is the owner");
                let mut packets = [Packet::EMPTY; 64];
                let got = pool.allocate(&mut packets);
                assert!(got >= 16, "{got} buffers: the owner left too few");
                free(&pool, &packets[..got]);
            });
            other.join().unwrap();
        });
        assert_eq!((pool.allocate(&mut packets[..40]), pool.outstanding()), (40, 40));
        drop(owner);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let _owner = pool.own().expect("the pool has no owner now");
                let mut rest = [Packet::EMPTY; 64];
                assert_eq!((pool.allocate(&mut rest), pool.outstanding()), (24, 64));
                free(&pool, &rest[..24]);
            });
            other.join().unwrap();
        });
        free(&pool, &packets[..40]);
        assert_eq!((pool.allocate(&mut packets), pool.outstanding()), (64, 64));
        packets.sort_by_key(|packet| packet.cookie);
        assert!(
            packets.iter().enumerate().all(|(i, packet)| packet.cookie == i as u64),
            "each buffer is allocated once"
        );
    }

    #[test]
    fn no_buffer_is_lost_or_held_twice_beside_an_owner() {
        let pool = HeapPool::new(96, 64).unwrap();
        let rounds = if cfg!(miri) { 100 } else { 20_000 };
        let work = |seed: usize| {
            let mut held = Vec::new();
            for round in 0..rounds {
                let mut packets = [Packet::EMPTY; 13];
                let got = pool.allocate(&mut packets[..1 + (round * seed) % 13]);
                for packet in &packets[..got] {
                    // SAFETY: the packet was just allocated, in host memory. If another thread has the same
                    // buffer, the check below finds its value.
                    unsafe { *(packet.address as *mut usize) = seed };
                }
                held.extend_from_slice(&packets[..got]);
                let keep = (round * 7 + seed) % 30;
                let excess = held.len().saturating_sub(keep);
                // SAFETY: this thread still holds the packet.
                assert!(held.iter().all(|packet| unsafe { *(packet.address as *const usize) } == seed));
                free(&pool, &held[..excess]);
                held.drain(..excess);
            }
            free(&pool, &held);
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
            // SAFETY: the packet was just allocated, in host memory.
            unsafe { packet.bytes_mut() }.fill(i as u8);
        }
        for (i, packet) in packets.iter().enumerate() {
            // SAFETY: this thread still holds the packet.
            assert!(unsafe { packet.bytes() }.iter().all(|&byte| byte == i as u8));
        }
        free(&pool, &packets);
    }

    #[test]
    fn impossible_pools_are_refused() {
        assert!(HeapPool::new(0, 100).is_err());
        assert!(HeapPool::new(1, 0).is_err());
        assert!(HeapPool::new(usize::MAX, 65536).is_err());
        assert!(HeapPool::new(1, 65549).is_ok() && HeapPool::new(1, (128 << 10) + 1).is_err());
    }
}
