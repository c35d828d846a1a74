//! Pools of mbufs. The packet data of a pool is in the pool's own host memory, or in a given region of pinned
//! or GPU memory.
//!
//! ```text
//! own memory:   | mempool header | mbuf | private: PacketMeta | headroom | data ... | next object ...
//! any region:   such objects without data, in host memory; at  region + n * stride:  | headroom | data ... |
//! ```
//!
//! A packet's cookie is the address of its mbuf, with a flag in bit 0 (`READ_MBUF` in `sys/mbuf.h`). A thread
//! gets an lcore id when it first uses a queue or a pool. With this id, it has a cache in every pool.

use crate::error::{Error, Result};
use crate::gate::{Gate, Mark, Pause};
use crate::{device, eal, log, sys};
use inlane_core::packet::{HEADROOM, Packet, PacketMeta, Pool};
use inlane_core::region::{Location, Region};
use std::ffi::CString;
use std::ops::RangeInclusive;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

/// The size of a thread's cache in buffers, a multiple of the usual burst sizes. Small pools have smaller
/// caches.
const CACHE: u32 = 256;

/// The addresses of all mempools. While a port takes its lost buffers back, it holds this lock so that
/// threads do not flush their caches.
static POOLS: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// The number of pools created so far. It makes the name of each pool unique, as DPDK demands.
static NAMES: AtomicU32 = AtomicU32::new(0);

/// The gate that threads pass to allocate and free. While [`reclaim`] reads the caches of all threads, the
/// gate is closed.
static GATE: LazyLock<Arc<Gate>> = LazyLock::new(|| {
    let gate = Gate::new();
    gate.open();
    gate
});

thread_local! {
    /// The gate of all pools, and this thread's mark at the gate. The mark is set while the thread uses a
    /// pool.
    static PASS: (Arc<Gate>, Arc<Mark>) = (GATE.clone(), GATE.mark());
}

/// Runs `work`, which uses a mempool. Waits first while [`reclaim`] reads the caches of threads.
#[inline(always)]
fn pass<T>(work: impl FnOnce() -> T) -> T {
    let mut work = Some(work);
    let mut run = |gate: &Gate, mark: &Mark| gate.pass(mark, || work.take().expect("passes once")());
    // While the thread ends, its thread-local gate and mark may already be destroyed. Then use a new mark for
    // this call.
    let outcome = PASS.try_with(|(gate, mark)| run(gate, mark)).unwrap_or_else(|_| run(&GATE, &GATE.mark()));
    outcome.expect("the gate of pools is never closed")
}

/// A pool of packet buffers. The buffers are DPDK mbufs. Ports of this crate accept only such pools.
pub struct MbufPool {
    raw: NonNull<sys::rte_mempool>,
    capacity: usize,
    room: usize,
    region: Region,
    /// True if the user gave the region. The region is then registered with DPDK as external memory.
    external: bool,
    hugepages: bool,
}

// SAFETY: threads may share a mempool. The other fields are plain data.
unsafe impl Send for MbufPool {}
// SAFETY: as above.
unsafe impl Sync for MbufPool {}

impl MbufPool {
    /// Creates a pool of `count` buffers with `room` bytes of data room each, in host memory: in reserved
    /// hugepages if enough are free, or else in transparent hugepages if possible.
    ///
    /// # Errors
    /// [`Error::Pool`] if the sizes are out of range or memory is short. [`Error::Environment`] if DPDK does
    /// not start.
    pub fn new(count: usize, room: usize) -> Result<Arc<Self>> {
        let environment = eal::start()?;
        let (count32, room32) = in_range(count, room)?;
        // A device with virtual addresses sees the whole pool as contiguous, so objects may cross pages
        // (`page` is 0). A device with physical addresses sees only the bytes of one hugepage as contiguous.
        let page = if environment.hugepages && !environment.virtual_addresses { memory::HUGE } else { 0 };
        // SAFETY: the call only computes a size.
        let bytes = unsafe { sys::inlane_pool_bytes(count32, room32, page) };
        let refuse = |why: String| Error::Pool { count, room, why, source: None };
        let mark = log::LogPosition::new();
        let memory = memory::Mapping::new(bytes, environment.hugepages).map_err(|error| Error::Pool {
            count,
            room,
            why: format!("{error}; ask for fewer or smaller buffers"),
            source: Some(error),
        })?;
        let name = name();
        let page = if environment.virtual_addresses { 0 } else { memory.page() };
        // SAFETY: the pool owns memory of this length. The region keeps the memory until the pool is freed.
        let raw = unsafe {
            sys::inlane_pool_create(
                name.as_ptr(),
                count32,
                cache(count32),
                room32,
                sys::rte_socket_id() as i32,
                memory.address() as *mut _,
                memory.len(),
                page,
            )
        };
        let raw = NonNull::new(raw).ok_or_else(|| refuse(refusal(&mark)))?;
        let (address, length, hugepages) = (memory.address(), memory.len(), memory.in_hugepages());
        // SAFETY: the region owns the mapping.
        let region = unsafe { Region::from_raw(address, length, Location::Host, Arc::new(memory)) };
        Ok(Self::registered(raw, count, room, region, false, hugepages))
    }

    /// Creates a pool with packet data in `region`. The pool has as many buffers of `room` bytes as the
    /// region can hold. The mbufs lie in host memory. If a port reads or writes packet bytes with the CPU,
    /// map the region for the CPU first.
    ///
    /// # Errors
    /// [`Error::Pool`] if the region is too small for one buffer, is not aligned to 4 KiB, or is refused by
    /// DPDK.
    pub fn over(region: Region, room: usize) -> Result<Arc<Self>> {
        eal::start()?;
        let stride = stride(room);
        let count = region.len() / stride;
        let (count32, room32) = in_range(count, room)?;
        let refuse = |why: String| Error::Pool { count, room, why, source: None };
        let page = 4096;
        if !region.address().is_multiple_of(page) || !(region.len() as u64).is_multiple_of(page) {
            return Err(refuse(format!("{region:?} does not begin and end at a multiple of {page} bytes")));
        }
        let mark = log::LogPosition::new();
        // SAFETY: the region stays valid until it is unregistered in `drop`. DPDK reads no byte of it.
        let code = unsafe {
            sys::rte_extmem_register(
                region.as_ptr().cast(),
                region.len(),
                std::ptr::null_mut(),
                0,
                page as usize,
            )
        };
        if code != 0 {
            return Err(refuse(refusal(&mark)));
        }
        let memory = sys::rte_pktmbuf_extmem {
            buf_ptr: region.as_ptr().cast(),
            buf_iova: region.address(),
            buf_len: count * stride,
            elt_size: stride as u16,
        };
        let name = name();
        // SAFETY: the description is read during the call. The region outlives the mempool.
        let raw = unsafe {
            sys::rte_pktmbuf_pool_create_extbuf(
                name.as_ptr(),
                count32,
                cache(count32),
                sys::INLANE_PRIVATE_BYTES as u16,
                (HEADROOM as u32 + room32) as u16,
                sys::rte_socket_id() as i32,
                &memory,
                1,
            )
        };
        let Some(raw) = NonNull::new(raw) else {
            let why = refusal(&mark);
            // SAFETY: the region was registered above.
            unsafe { sys::rte_extmem_unregister(region.as_ptr().cast(), region.len()) };
            return Err(refuse(why));
        };
        Ok(Self::registered(raw, count, room, region, true, false))
    }

    /// Returns the size of the region that [`MbufPool::over`] needs for `count` buffers of `room` bytes.
    pub fn bytes(count: usize, room: usize) -> usize {
        (count * stride(room)).next_multiple_of(4096)
    }

    fn registered(
        raw: NonNull<sys::rte_mempool>,
        capacity: usize,
        room: usize,
        region: Region,
        external: bool,
        hugepages: bool,
    ) -> Arc<Self> {
        pools().push(raw.as_ptr() as usize);
        Arc::new(Self { raw, capacity, room, region, external, hugepages })
    }

    pub(crate) fn raw(&self) -> *mut sys::rte_mempool {
        self.raw.as_ptr()
    }

    /// Returns true if the packet data lies in a region that the user gave.
    pub fn is_external(&self) -> bool {
        self.external
    }

    /// Returns true if the pool's memory lies in reserved hugepages, whose physical addresses do not change.
    pub(crate) fn is_in_hugepages(&self) -> bool {
        self.hugepages
    }

    /// Returns the length of the longest frame that an AF_XDP socket could receive with buffers of `room`
    /// bytes. Returns `None` if the kernel does not accept such buffers.
    pub(crate) fn longest_xdp_frame(&self, room: u32) -> Option<u32> {
        /// The sizes of memory chunks that the kernel accepts for a socket: `XDP_UMEM_MIN_CHUNK_SIZE` to a
        /// page.
        const CHUNKS: RangeInclusive<u32> = 2048..=4096;
        // SAFETY: the mempool is alive.
        let (chunk, headroom) = unsafe {
            (sys::inlane_pool_xdp_chunk(self.raw(), room), sys::inlane_pool_xdp_headroom(self.raw()))
        };
        CHUNKS.contains(&chunk).then(|| chunk - headroom)
    }

    /// Appends a segment to a packet, and copies `bytes` into the segment.
    ///
    /// # Errors
    /// [`Error::Pool`] if no buffer is free or the bytes do not fit one.
    ///
    /// # Safety
    /// The caller holds the packet, and the packet is from this pool.
    pub unsafe fn append_segment(&self, packet: &Packet, bytes: &[u8]) -> Result<()> {
        let refuse = |why: String| Error::Pool {
            count: self.capacity,
            room: self.room,
            why: format!("no segment: {why}"),
            source: None,
        };
        if !self.region.location().is_cpu_memory() {
            return Err(refuse(format!("the CPU cannot write {}", self.region.location())));
        }
        let length = u32::try_from(bytes.len()).map_err(|_| refuse("longer than any packet".into()))?;
        // SAFETY: the caller holds the packet, whose first mbuf gets its length. The bytes outlive the call.
        let code = pass(|| unsafe {
            sys::inlane_append_segment(self.raw(), packet.cookie, packet.length, bytes.as_ptr(), length)
        });
        if code == 0 { Ok(()) } else { Err(refuse(sys::error_text(code))) }
    }
}

impl std::fmt::Debug for MbufPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} mbufs of {} bytes in {:?}", self.capacity, self.room, self.region)
    }
}

impl Drop for MbufPool {
    fn drop(&mut self) {
        let out = self.outstanding();
        pools().retain(|&raw| raw != self.raw() as usize);
        if out > 0 {
            // Keep the memory until the process ends, because other code still holds these packets and may
            // write to them.
            tracing::warn!(
                "a pool was dropped while {out} of its packets were in use; its memory is not freed"
            );
            std::mem::forget(self.region.clone());
            return;
        }
        // SAFETY: no packet is in use. The pool is no longer in the list, so [`reclaim`] and [`flush_caches`]
        // do not use it.
        unsafe { sys::rte_mempool_free(self.raw()) };
        if self.external {
            // SAFETY: the region was registered in `over`, and no mempool uses it any more.
            unsafe { sys::rte_extmem_unregister(self.region.as_ptr().cast(), self.region.len()) };
        }
    }
}

// SAFETY: DPDK gives an mbuf to only one caller until it is freed. The mbuf's data lies in the region, and
// `room` bytes from the packet's address on belong to it.
unsafe impl Pool for MbufPool {
    fn allocate(&self, packets: &mut [Packet]) -> usize {
        let count = packets.len().min(u32::MAX as usize) as u32;
        // SAFETY: `packets` has room for `count` packets, in C's layout (asserted in `sys`).
        pass(|| unsafe { sys::inlane_pool_allocate(self.raw(), packets.as_mut_ptr().cast(), count) as usize })
    }

    unsafe fn free(&self, packets: &[Packet]) {
        // SAFETY: the caller guarantees that it holds these packets of this pool and does not use them
        // afterwards.
        unsafe { free(packets) }
    }

    fn room(&self) -> usize {
        self.room
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn outstanding(&self) -> usize {
        // SAFETY: the pool is alive.
        unsafe { sys::rte_mempool_in_use_count(self.raw()) as usize }
    }

    fn region(&self) -> &Region {
        &self.region
    }

    unsafe fn meta(&self, packet: &Packet) -> PacketMeta {
        // SAFETY: the caller guarantees that it holds this packet of this pool. The packet's private area
        // contains a `PacketMeta`, initially zero.
        unsafe { *sys::inlane_packet_meta_of(packet.cookie).cast::<PacketMeta>() }
    }

    unsafe fn set_meta(&self, packet: &Packet, meta: PacketMeta) {
        // SAFETY: as in `meta`.
        unsafe { *sys::inlane_packet_meta_of(packet.cookie).cast::<PacketMeta>() = meta }
    }

    unsafe fn for_each_segment(&self, packet: &Packet, visit: &mut dyn FnMut(u64, u32)) {
        visit(packet.address, packet.length);
        let (mut address, mut length) = (0, 0);
        // SAFETY: the caller holds the packet, and thereby all its segments.
        let mut next = unsafe { sys::inlane_segment(packet.cookie, &mut address, &mut length) };
        while next != 0 {
            // SAFETY: as above.
            next = unsafe { sys::inlane_segment(next, &mut address, &mut length) };
            visit(address, length);
        }
    }
}

fn pools() -> MutexGuard<'static, Vec<usize>> {
    POOLS.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Returns the buffers in the calling thread's caches to their pools. `lcore` is the thread's lcore id.
pub(crate) fn flush_caches(lcore: u32) {
    for &raw in pools().iter() {
        // SAFETY: a mempool stays in the list until it is freed. The cache belongs to this thread. The lock
        // prevents [`reclaim`] from running now.
        unsafe { sys::inlane_flush_cache(raw as *mut _, lcore) }
    }
}

/// Frees packets of any pool.
///
/// # Safety
/// The caller holds the packets and does not use them afterwards. The packets are mbufs.
pub(crate) unsafe fn free(packets: &[Packet]) {
    for packets in packets.chunks(u32::MAX as usize) {
        // SAFETY: the caller promises what this call requires.
        pass(|| unsafe { sys::inlane_pool_free(packets.as_ptr().cast(), packets.len() as u32) });
    }
}

/// Frees the packets that are waiting in a receive queue.
///
/// # Safety
/// The queue was configured, and no other thread calls the driver of `port`.
pub(crate) unsafe fn free_received(port: u16, queue: u16) {
    // SAFETY: the caller promises what this call requires.
    pass(|| unsafe { sys::inlane_free_received(port, queue) });
}

/// Frees the mbufs that the closed device `port` still held, and returns their number. `filled` are the pools
/// that the device received into.
pub(crate) fn reclaim(port: u16, filled: &[Arc<MbufPool>]) -> u32 {
    // Keep other threads from setting up or closing devices, because drivers use mempools during these
    // operations.
    let _control = device::control();
    let pools = pools();
    let _pause = Pause::begin();
    let mut reclaimed = 0;
    for &raw in pools.iter() {
        let raw = raw as *mut sys::rte_mempool;
        // SAFETY: a mempool is in the list until it is freed.
        if unsafe { sys::rte_mempool_in_use_count(raw) } > 0 {
            let receives_into = filled.iter().any(|pool| std::ptr::eq(pool.raw(), raw)).into();
            // SAFETY: a mempool is in the list until it is freed. The device is closed, so nobody else holds
            // its mbufs. No other thread uses a mempool now. Threads that allocate, free, or drive queues
            // wait at their gates. Threads that set up devices wait for `_control`, and ending threads wait
            // for `pools`.
            reclaimed += unsafe { sys::inlane_reclaim(raw, port, receives_into) };
        }
    }
    reclaimed
}

fn name() -> CString {
    CString::new(format!("inlane-{}", NAMES.fetch_add(1, Ordering::Relaxed)))
        .expect("the name contains no zero byte")
}

fn refusal(mark: &log::LogPosition) -> String {
    mark.explain(format!("{}; ask for fewer or smaller buffers", sys::error_text(sys::last_error())))
}

/// Returns the size of each thread's cache. DPDK refuses a pool with fewer buffers than one and a half
/// caches.
fn cache(count: u32) -> u32 {
    CACHE.min(count / 2).min(sys::RTE_MEMPOOL_CACHE_MAX_SIZE)
}

/// Returns the bytes from one buffer of an external region to the next: a multiple of two cache lines.
fn stride(room: usize) -> usize {
    (HEADROOM + room).next_multiple_of(128)
}

/// The largest data room of an mbuf in bytes. An mbuf's buffer length has 16 bits, and includes headroom and
/// up to 127 bytes of rounding.
pub const MAX_ROOM: usize = 65535 - HEADROOM - 127;

/// Checks the number and size of buffers against DPDK's limits.
fn in_range(count: usize, room: usize) -> Result<(u32, u32)> {
    let most = MAX_ROOM;
    if !(1..=1 << 24).contains(&count) || !(1..=most).contains(&room) {
        let why = format!("give 1 to 16M buffers of 1 to {most} bytes");
        return Err(Error::Pool { count, room, why, source: None });
    }
    Ok((count as u32, room as u32))
}

mod memory;
#[cfg(test)]
mod tests;
