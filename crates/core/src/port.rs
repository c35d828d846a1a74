//! Ports: sources and sinks of packets. A [`Port`] is opened, configured, and split into queues. One thread
//! drives each queue through an [`Rx`] or a [`Tx`]. Call their methods once per burst, because they are on
//! the hot path.

pub mod spec;

use crate::error::Result;
use crate::packet::{Packet, Pool};
use crate::stats::LatencyHistogram;
use crate::verification::Verification;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// The counters of a queue or device. `packets` and `bytes` count what [`Rx`] returned or [`Tx`] accepted.
/// `missed` and `errors` count packets lost before they were received or after they were accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets received or sent.
    pub packets: u64,
    /// Bytes of frames, without FCS.
    pub bytes: u64,
    /// Packets dropped because no buffer was free or nobody received them in time.
    pub missed: u64,
    /// Packets that the device refused, that were malformed, or that were lost with the port.
    pub errors: u64,
}

impl std::ops::AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.missed += other.missed;
        self.errors += other.errors;
    }
}

/// The properties of an open port.
#[derive(Clone, Debug, PartialEq)]
pub struct PortInfo {
    /// The port's name, as the user wrote it.
    pub name: String,
    /// The driver and mode that carry the packets, for results: `DPDK net_af_xdp on v0, copy mode`.
    pub path: String,
    /// True if the port accesses packet bytes with the CPU. The CPU must then map the buffers' memory.
    pub touches_payload: bool,
    /// The largest number of queues.
    pub max_queues: u16,
    /// True if the port spreads flows over its receive queues (RSS).
    pub spreads_flows: bool,
    /// The link rate in bits per second, if there is a link.
    pub link_bits_per_second: Option<f64>,
    /// True if the port is a twin, a software stand-in for a device. Measurements are then those of a model.
    pub twin: bool,
}

/// An open port. It sets up its queues and controls them. Call in this order: open, [`Port::configure`], take
/// the queues, [`Port::start`], drive the queues, [`Port::stop`], drop.
pub trait Port: Send {
    /// Returns the port's properties.
    fn info(&self) -> &PortInfo;

    /// Configures `pools.len()` receive queues and `tx_queues` transmit queues. Receive queue i receives into
    /// `pools[i]`.
    ///
    /// # Errors
    /// If the port has fewer queues, or cannot use the pools' memory.
    fn configure(&mut self, pools: &[Arc<dyn Pool>], tx_queues: u16) -> Result<()>;

    /// Returns receive queue `queue`. Each can be taken once.
    ///
    /// # Errors
    /// If the port only sends, or the queue was taken.
    fn take_rx(&mut self, queue: u16) -> Result<Box<dyn Rx>>;

    /// Returns transmit queue `queue`. Each queue can be taken once. It sends packets of one pool: the pool
    /// of receive queue `queue`, or `pool` if the port only sends.
    ///
    /// # Errors
    /// If the port only receives, or the queue was already taken.
    fn take_tx(&mut self, queue: u16, pool: Arc<dyn Pool>) -> Result<Box<dyn Tx>>;

    /// Starts receiving and sending.
    ///
    /// # Errors
    /// If the device refuses.
    fn start(&mut self) -> Result<()> {
        Ok(())
    }

    /// Stops receiving and sending, and frees the buffers that the device holds.
    fn stop(&mut self) {}

    /// Returns file descriptors that become readable when packets arrive. Threads without work sleep on them.
    /// Call this after the port was started. Empty if packets can arrive without making a descriptor
    /// readable.
    fn wait_descriptors(&self) -> Vec<RawFd> {
        Vec::new()
    }

    /// Returns true if the other end of the port's link has announced that it accepts TCP segments with partial checksums: the
    /// checksum field holds only the sum of the pseudo header. Both ends then share memory, in which no packet is damaged. Call
    /// this after the port was configured.
    fn peer_accepts_partial_checksums(&self) -> bool {
        false
    }

    /// Returns a channel to the program at the other end of the port's link, if that program runs on this host, supports it, and is
    /// trusted: it runs as the user of this process or as root. Call this after the port was configured.
    fn peer_channel(&self) -> Option<Arc<dyn PeerChannel>> {
        None
    }

    /// Returns the result of checking packets, if the port checks any. Call it after the queues are dropped.
    fn verification(&self) -> Option<Verification> {
        None
    }

    /// Returns the histogram of latencies, if the port measures them. A packet's latency is the time from its
    /// due time to its arrival. Call this after the queues are dropped.
    fn latency(&self) -> Option<LatencyHistogram> {
        None
    }

    /// Returns counters of packets that the device lost or refused. Packets that a queue has counted are not
    /// included.
    fn device_counters(&self) -> Counters {
        Counters::default()
    }
}

/// A channel to the program at the other end of a port's link, by which both pass descriptors of memory.
pub trait PeerChannel: Send + Sync {
    /// Sends a message with a descriptor. Returns false if the peer accepts none now.
    fn send(&self, message: &[u8; PEER_MESSAGE], descriptor: BorrowedFd<'_>) -> bool;

    /// Returns the next message that the peer has sent. Does not wait.
    fn receive(&self) -> Option<([u8; PEER_MESSAGE], OwnedFd)>;
}

/// The length of a message of a [`PeerChannel`] in bytes.
pub const PEER_MESSAGE: usize = 64;

/// The receiving end of one queue.
///
/// # Safety
/// Callers follow the addresses of received packets. An implementer guarantees three facts for each packet
/// that [`Rx::receive`] returns. The packet is from the queue's pool. Its address and length lie in its
/// buffer. Nobody else holds the packet.
pub unsafe trait Rx: Send {
    /// Receives packets into the front of `packets`, and returns how many. The caller then holds them.
    ///
    /// # Errors
    /// If the port is gone or its input is broken. Earlier packets are not affected.
    fn receive(&mut self, packets: &mut [Packet]) -> Result<usize>;

    /// Receives up to `most` frames without copying them to packets, if the queue can. Calls `visit` with the address and length
    /// of each frame, which is valid during that call. The peer may write to the frame at any time, so load each value once
    /// before you check it. Ends when `visit` returns false: the frame then stays the next one of the queue. Returns the number
    /// of received frames, or `None` if the queue only supports [`Rx::receive`].
    ///
    /// # Errors
    /// As for [`Rx::receive`].
    fn receive_in_place(
        &mut self,
        most: usize,
        visit: &mut dyn FnMut(*const u8, usize) -> bool,
    ) -> Result<Option<usize>> {
        let _ = (most, visit);
        Ok(None)
    }

    /// Prepares the queue for a thread that is about to sleep on the port's wait descriptors: from now on, a packet makes the
    /// queue's descriptor readable. Returns false if packets are there already, so the thread must not sleep.
    fn begin_sleep(&mut self) -> bool {
        true
    }

    /// Ends what [`Rx::begin_sleep`] has begun, and makes the queue's wait descriptor unreadable again if the queue can. Call it
    /// after each sleep, and each time the descriptor was reported as readable.
    fn end_sleep(&mut self) {}

    /// Returns true if no packet will ever follow, as at the end of a capture. Call this only after `receive`
    /// has returned 0.
    fn exhausted(&self) -> bool {
        false
    }

    /// Returns the queue's counters.
    fn counters(&self) -> Counters;
}

/// The result of [`Tx::reserve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reservation {
    /// The queue only supports [`Tx::send`], at least for frames of this length.
    Unsupported,
    /// The queue has no free memory now. Try again later.
    Full,
    /// The address of the reserved memory. The peer may access it at any time.
    Memory(NonNull<u8>),
}

/// The sending end of one queue.
///
/// # Safety
/// Callers continue to use unsent packets. So an implementer keeps and frees only as many packets as
/// [`Tx::send`] returns. It keeps and frees none if the call fails.
pub unsafe trait Tx: Send {
    /// Sends packets from the front of `packets`. Returns the number of packets sent. The port then holds
    /// these packets. If the queue is full, sends only some of them. Send the remaining ones later.
    ///
    /// # Errors
    /// If the port is gone or the disk is full. The caller then still holds every packet of this call.
    ///
    /// # Safety
    /// The caller holds each packet, and does not use a packet after it was sent. Each packet is in `packets`
    /// once, is from the pool of this queue (see [`Port::take_tx`]), and has its address and length in its
    /// buffer.
    unsafe fn send(&mut self, packets: &[Packet]) -> Result<usize>;

    /// Sends packets with fewer checks than [`Tx::send`]. Their addresses and lengths must be those that
    /// [`Rx::receive`] returned.
    ///
    /// # Errors
    /// As for [`Tx::send`].
    ///
    /// # Safety
    /// The same as for [`Tx::send`]. Also, no packet's address or length has changed since the packet was
    /// received.
    unsafe fn send_as_received(&mut self, packets: &[Packet]) -> Result<usize> {
        // SAFETY: the caller promises all that `send` requires.
        unsafe { self.send(packets) }
    }

    /// Reserves memory for a frame of `len` bytes in the queue itself. Write the frame there and call [`Tx::commit`], so that
    /// it is not copied from a packet. A reservation ends with the next call of any other method.
    fn reserve(&mut self, len: usize) -> Reservation {
        let _ = len;
        Reservation::Unsupported
    }

    /// Sends the frame that was written to the reserved memory. Its length is the reserved one. Readers may see it only
    /// after [`Tx::flush`].
    ///
    /// # Panics
    /// If nothing was reserved.
    fn commit(&mut self) {
        unreachable!("nothing can be reserved")
    }

    /// Sends the packets that the queue has buffered. Call it when there are no more packets to send for now.
    /// At the end of a run, call [`Tx::finish`] instead.
    ///
    /// # Errors
    /// As for [`Tx::send`].
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    /// Tells the queue that its thread has had no packets for so long that it yields the processor. That begins later than the call of
    /// [`Tx::flush`]. Call it in each round in which the thread has yielded.
    fn idle(&mut self) {}

    /// Flushes buffered packets at the end of a run. If a slow reader does not take them, tries again while
    /// `keep_waiting` returns true. Packets that remain are lost, and [`Tx::counters`] counts them as errors.
    ///
    /// # Errors
    /// As for [`Tx::send`], and if packets were lost.
    fn finish(&mut self, keep_waiting: &mut dyn FnMut() -> bool) -> Result<()> {
        let _ = keep_waiting;
        self.flush()
    }

    /// Returns the queue's counters.
    fn counters(&self) -> Counters;
}
