//! Packets as ports and executors pass them, and the pools that own their buffers.
//!
//! A [`Packet`] is a plain value that works like a raw pointer: it can be copied, but following its address
//! or freeing its buffer is unsafe. At any time exactly one part of the program **holds** a packet. It begins
//! to hold the packet by receiving it from an [`Rx`](crate::port::Rx) or allocating it from a [`Pool`]. It
//! ends by sending the packet to a [`Tx`](crate::port::Tx) or freeing it.
//!
//! Dropping a `Packet` does not free its buffer, because packets travel in arrays. Pools count their
//! allocated buffers. A leak is therefore visible at the end of a run ([`Pool::outstanding`]).

mod heap;

use crate::region::Region;

pub use heap::{HEADROOM, HeapPool, PoolOwner};

/// One packet: the address and length of its first segment, and a cookie that identifies the buffer in its
/// pool. Its first 16 bytes have the layout of a [`Descriptor`](crate::ring::layout::Descriptor), so that
/// packet functions can process packets and descriptors alike.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The address of the packet's first byte. It is in the region of the packet's pool.
    pub address: u64,
    /// The number of bytes at `address`. A packet of several segments has more bytes; see
    /// [`Pool::for_each_segment`].
    pub length: u32,
    /// The number of the transmit port, if a verdict named one; otherwise 0.
    pub port: u32,
    /// Identifies the buffer in its pool: the address of a DPDK mbuf, or an index.
    pub cookie: u64,
}

impl Packet {
    /// A packet without a buffer. Use it to initialize arrays of packets.
    pub const EMPTY: Packet = Packet { address: 0, length: 0, port: 0, cookie: 0 };

    /// Returns the bytes of the packet's first segment.
    ///
    /// # Safety
    /// The caller holds the packet. The packet's address and length lie in its buffer. The CPU can access
    /// that memory, and nobody writes it while the slice lives.
    pub unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: the caller guarantees that the packet's bytes are mapped and that nobody writes them.
        unsafe { std::slice::from_raw_parts(self.address as *const u8, self.length as usize) }
    }

    /// Returns the bytes of the packet's first segment, for writing.
    ///
    /// # Safety
    /// As for [`Packet::bytes`], and nothing else reads the bytes while the slice lives.
    #[expect(clippy::mut_from_ref, reason = "the bytes are behind the address, not in the value")]
    pub unsafe fn bytes_mut(&self) -> &mut [u8] {
        // SAFETY: the caller guarantees that these bytes are mapped and that nothing else accesses them.
        unsafe { std::slice::from_raw_parts_mut(self.address as *mut u8, self.length as usize) }
    }
}

/// A packet's metadata. It carries the timestamp of a captured packet from the source to the sink.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketMeta {
    /// When the packet was captured or sent, in nanoseconds since 1970. If a capture is repeated, the times
    /// go on growing from lap to lap.
    pub time_ns: u64,
    /// The packet's length on the wire in bytes, if the capture cut the packet (snap length). 0 if it is
    /// complete.
    pub wire_length: u32,
    /// The number of the interface that captured the packet, counted in the source's capture file. The sink
    /// writes this number into its own capture file.
    pub interface: u32,
}

/// A pool that frees buffers by their offsets. A list of offsets is shorter than a list of packets.
pub trait FreeByOffset {
    /// Frees the buffers in which these offsets in [`Pool::region`] lie.
    ///
    /// # Safety
    /// As for [`Pool::free`], for the packets that begin at these offsets.
    unsafe fn free_at(&self, offsets: &[u64]);
}

/// A source of packet buffers. Threads may share it. Allocate and free whole bursts, because a call may take
/// a lock.
///
/// A device that needs its own type of pool checks the type by upcasting to [`std::any::Any`]. Accessing or
/// freeing a packet is unsafe, because nothing checks who holds the packet:
///
/// ```compile_fail,E0133
/// # use inlane_core::{HeapPool, Packet, Pool};
/// let pool = HeapPool::new(8, 2048)?;
/// let forged = Packet { address: 0, length: 0, port: 0, cookie: 0xdead };
/// pool.free(&[forged]);
/// # Ok::<(), inlane_core::Error>(())
/// ```
///
/// # Safety
/// Callers follow the addresses that a pool returns. An implementer promises for each packet that
/// [`Pool::allocate`] returns: nobody else holds its buffer until it is freed. The buffer lies in
/// [`Pool::region`], and has [`Pool::room`] bytes from `address`.
pub unsafe trait Pool: std::any::Any + Send + Sync {
    /// Allocates up to `packets.len()` buffers, and returns how many. Each packet has length 0 and the
    /// address of its data room.
    fn allocate(&self, packets: &mut [Packet]) -> usize;

    /// Frees packets.
    ///
    /// # Safety
    /// The caller holds each packet, and uses none afterwards. Each is from this pool and in `packets` once.
    unsafe fn free(&self, packets: &[Packet]);

    /// Returns this pool if it can free buffers by their offsets. Returns `None` if it finds them by more than that.
    fn by_offset(&self) -> Option<&dyn FreeByOffset> {
        None
    }

    /// Makes the calling thread the pool's owner until the guard is dropped. The owner needs no lock. Returns
    /// `None` if another thread is the owner, or this kind of pool has no owner.
    fn own(&self) -> Option<PoolOwner<'_>> {
        None
    }

    /// Returns the data room in bytes: the most data that one buffer can hold from the packet's address.
    fn room(&self) -> usize;

    /// Returns the number of buffers, free and allocated.
    fn capacity(&self) -> usize;

    /// Returns the number of allocated buffers. The number is exact while no thread allocates or frees.
    fn outstanding(&self) -> usize;

    /// Returns the memory that contains the buffers.
    fn region(&self) -> &Region;

    /// Returns a packet's metadata.
    ///
    /// # Safety
    /// The caller holds the packet, and it is from this pool.
    unsafe fn meta(&self, packet: &Packet) -> PacketMeta;

    /// Sets a packet's metadata.
    ///
    /// # Safety
    /// The caller holds the packet, and it is from this pool.
    unsafe fn set_meta(&self, packet: &Packet, meta: PacketMeta);

    /// Calls `visit` with the address and the length of each segment of a packet. The first segment is the
    /// one at [`Packet::address`].
    ///
    /// # Safety
    /// The caller holds the packet, and it is from this pool.
    unsafe fn for_each_segment(&self, packet: &Packet, visit: &mut dyn FnMut(u64, u32)) {
        visit(packet.address, packet.length);
    }

    /// Returns the number of bytes in all segments of a packet.
    ///
    /// # Safety
    /// The caller holds the packet, and it is from this pool.
    unsafe fn length(&self, packet: &Packet) -> usize {
        let mut length = 0;
        // SAFETY: the caller's promises.
        unsafe { self.for_each_segment(packet, &mut |_, bytes| length += bytes as usize) };
        length
    }

    /// Calls `visit` with the bytes of each segment of a packet, in order. Use it to join the segments.
    ///
    /// # Safety
    /// The caller holds the packet, it is from this pool, and nobody writes its bytes. The CPU can access the pool's memory.
    unsafe fn for_each_part(&self, packet: &Packet, visit: &mut dyn FnMut(&[u8])) {
        // SAFETY: the caller's promises. Each segment has as many bytes as its length says.
        unsafe {
            self.for_each_segment(packet, &mut |address, length| {
                visit(std::slice::from_raw_parts(address as *const u8, length as usize));
            });
        }
    }
}
