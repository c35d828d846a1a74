//! Pools of mbufs, in host memory of their own or over any region (pinned memory, a GPU's).
//!
//! ```text
//! own memory:   | mempool header | mbuf | private: PacketMeta | headroom | data ... | next ...      one object a buffer
//! any region:   mbufs as above without data, in host memory; data at  region + n * stride:  | headroom | data ... |
//! ```
//!
//! A packet's cookie is its mbuf's address. Threads that use a pool get a cache in it at their first call.

use crate::error::{Error, Result};
use crate::{eal, log, sys};
use inlane_core::packet::{HEADROOM, Packet, PacketMeta, Pool};
use inlane_core::region::{Location, Region};
use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Buffers a thread keeps for itself, unless the pool is small: what testpmd takes, rounded to whole bursts.
const CACHE: u32 = 256;

/// Every pool alive, for threads that end and devices that close.
static POOLS: Mutex<Vec<usize>> = Mutex::new(Vec::new());

static NAMES: AtomicU32 = AtomicU32::new(0);

/// A pool of mbufs.
pub struct MbufPool {
    raw: NonNull<sys::rte_mempool>,
    capacity: usize,
    room: usize,
    region: Region,
    /// Registered with DPDK as external memory, to be taken back.
    external: bool,
    hugepages: bool,
}

// SAFETY: mempools take calls from any thread; the rest is plain data.
unsafe impl Send for MbufPool {}
// SAFETY: as above.
unsafe impl Sync for MbufPool {}

impl MbufPool {
    /// A pool of `count` buffers with room for `room` bytes each, in host memory: hugepages where free, else
    /// transparent ones where the system gives them.
    ///
    /// # Errors
    /// [`Error::Pool`] for sizes that make no pool or when memory is short, [`Error::Environment`].
    pub fn new(count: usize, room: usize) -> Result<Arc<Self>> {
        let environment = eal::start()?;
        let (count32, room32) = sensible(count, room)?;
        // By virtual addresses all of it is contiguous.
        let page = if environment.hugepages && !environment.virtual_addresses { memory::HUGE } else { 0 };
        // SAFETY: computes a size.
        let bytes = unsafe { sys::inlane_pool_bytes(count32, room32, page) };
        let refuse = |why: String| Error::Pool { count, room, why };
        let mark = log::Mark::new();
        let memory = memory::Mapping::new(bytes, environment.hugepages)
            .map_err(|error| refuse(format!("{error}; ask for fewer or smaller buffers")))?;
        let name = name();
        let page = if environment.virtual_addresses { 0 } else { memory.page() };
        // SAFETY: the memory is ours, of that length, and outlives the pool (in its region).
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
        // SAFETY: the mapping lives in the keeper.
        let region = unsafe { Region::from_raw(address, length, Location::Host, Arc::new(memory)) };
        Ok(Self::registered(raw, count, room, region, false, hugepages))
    }

    /// A pool whose packet data lies in `region`, as many buffers of `room` bytes as fit; the mbufs themselves are in host
    /// memory. A port that touches payload needs a region that the CPU maps; a network card gets it mapped for DMA.
    ///
    /// # Errors
    /// [`Error::Pool`] when not one buffer fits, the region is not aligned to 4 KiB, or DPDK refuses it.
    pub fn over(region: Region, room: usize) -> Result<Arc<Self>> {
        eal::start()?;
        let stride = stride(room);
        let count = region.len() / stride;
        let (count32, room32) = sensible(count, room)?;
        let refuse = |why: String| Error::Pool { count, room, why };
        let page = 4096;
        if !region.address().is_multiple_of(page) || !(region.len() as u64).is_multiple_of(page) {
            return Err(refuse(format!("{region:?} does not begin and end on a multiple of {page} bytes")));
        }
        let mark = log::Mark::new();
        // SAFETY: the region stays valid until it is unregistered in `drop`; DPDK reads no byte of it.
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
        // SAFETY: the description is read during the call; the region outlives the pool.
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
            // SAFETY: registered above.
            unsafe { sys::rte_extmem_unregister(region.as_ptr().cast(), region.len()) };
            return Err(refuse(why));
        };
        Ok(Self::registered(raw, count, room, region, true, false))
    }

    /// The bytes of region that [`MbufPool::over`] needs for `count` buffers of `room` bytes.
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

    /// The data lies in a region that was given, not in the pool's own memory.
    pub fn is_external(&self) -> bool {
        self.external
    }

    /// Its memory is in hugepages of the system's reserve, which stay where they are.
    pub(crate) fn is_in_hugepages(&self) -> bool {
        self.hugepages
    }

    /// Adds a segment with a copy of `bytes` behind `packet`, which the caller holds.
    ///
    /// # Errors
    /// [`Error::Pool`] when no buffer is free or the bytes do not fit one.
    pub fn append_segment(&self, packet: &Packet, bytes: &[u8]) -> Result<()> {
        let refuse = |why: String| Error::Pool {
            count: self.capacity,
            room: self.room,
            why: format!("no segment: {why}"),
        };
        if !self.region.location().is_cpu_memory() {
            return Err(refuse(format!("the CPU cannot write {}", self.region.location())));
        }
        let length = u32::try_from(bytes.len()).map_err(|_| refuse("longer than any packet".into()))?;
        // SAFETY: the caller holds the packet, whose first mbuf takes the length that the packet says; the bytes are
        // read during the call.
        let code = unsafe {
            sys::inlane_append_segment(self.raw(), packet.cookie, packet.length, bytes.as_ptr(), length)
        };
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
            // Someone may still write them: the memory stays for good.
            tracing::warn!(
                out,
                "a pool was dropped while packets of it were out; its memory is not given back"
            );
            std::mem::forget(self.region.clone());
            return;
        }
        // SAFETY: nothing is out, and nobody else knows the pool.
        unsafe { sys::rte_mempool_free(self.raw()) };
        if self.external {
            // SAFETY: registered in `over`, and no pool lies on it any more.
            unsafe { sys::rte_extmem_unregister(self.region.as_ptr().cast(), self.region.len()) };
        }
    }
}

// SAFETY: DPDK hands out each mbuf once, and its data room is that of the pool.
unsafe impl Pool for MbufPool {
    fn allocate(&self, packets: &mut [Packet]) -> usize {
        let count = packets.len().min(u32::MAX as usize) as u32;
        // SAFETY: room for `count` packets; layouts are asserted equal.
        unsafe { sys::inlane_pool_take(self.raw(), packets.as_mut_ptr().cast(), count) as usize }
    }

    unsafe fn free(&self, packets: &[Packet]) {
        for packets in packets.chunks(u32::MAX as usize) {
            // SAFETY: the trait's contract: packets of this pool, held by the caller.
            unsafe { sys::inlane_pool_give(packets.as_ptr().cast(), packets.len() as u32) }
        }
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
        // SAFETY: the packet is of this pool and held by the caller; its private area holds a meta, zero at first.
        unsafe { *sys::inlane_packet_meta_of(packet.cookie).cast::<PacketMeta>() }
    }

    unsafe fn set_meta(&self, packet: &Packet, meta: PacketMeta) {
        // SAFETY: as in `meta`.
        unsafe { *sys::inlane_packet_meta_of(packet.cookie).cast::<PacketMeta>() = meta }
    }

    unsafe fn for_each_segment(&self, packet: &Packet, visit: &mut dyn FnMut(u64, u32)) {
        visit(packet.address, packet.length);
        let (mut address, mut length) = (0, 0);
        // SAFETY: the packet is held by the caller, and so are its segments.
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

/// Hands what the thread of `lcore` cached back to all. Called on that thread.
pub(crate) fn flush_caches(lcore: u32) {
    for &raw in pools().iter() {
        // SAFETY: pools leave the list before they are freed, under its lock; the cache is this thread's.
        unsafe { sys::inlane_flush_cache(raw as *mut _, lcore) }
    }
}

/// Gives mbufs back that the closed device `port` held; `filled` lists the pools it received into.
pub(crate) fn reclaim(port: u16, filled: &[Arc<MbufPool>]) -> u32 {
    let mut reclaimed = 0;
    for &raw in pools().iter() {
        let raw = raw as *mut sys::rte_mempool;
        // SAFETY: pools leave the list before they are freed.
        if unsafe { sys::rte_mempool_in_use_count(raw) } > 0 {
            let receives_into = filled.iter().any(|pool| std::ptr::eq(pool.raw(), raw)).into();
            // SAFETY: as above; the device is closed, so what it held is nobody's.
            reclaimed += unsafe { sys::inlane_reclaim(raw, port, receives_into) };
        }
    }
    reclaimed
}

fn name() -> CString {
    CString::new(format!("inlane-{}", NAMES.fetch_add(1, Ordering::Relaxed))).expect("no zero byte in it")
}

fn refusal(mark: &log::Mark) -> String {
    mark.explain(format!("{}; ask for fewer or smaller buffers", sys::error_text(sys::last_error())))
}

/// A cache may hold half as much again, and DPDK refuses a pool smaller than that.
fn cache(count: u32) -> u32 {
    CACHE.min(count / 2).min(sys::RTE_MEMPOOL_CACHE_MAX_SIZE)
}

/// Bytes between buffers of an external region: two cache lines' multiple, as `HeapPool` lays them.
fn stride(room: usize) -> usize {
    (HEADROOM + room).next_multiple_of(128)
}

fn sensible(count: usize, room: usize) -> Result<(u32, u32)> {
    // An mbuf's buffer length has 16 bits, with headroom and rounding inside.
    let most = 65535 - HEADROOM - 127;
    if !(1..=1 << 24).contains(&count) || !(1..=most).contains(&room) {
        return Err(Error::Pool { count, room, why: format!("give 1 to 16M buffers of 1 to {most} bytes") });
    }
    Ok((count as u32, room as u32))
}

mod memory;
#[cfg(test)]
mod tests;
