//! The two ends of a queue: a call a burst, into `inline.c` and the driver.
//!
//! A port may be stopped while threads still hold its ends. So that none is inside the driver when the device closes,
//! each end says when it is inside ([`Gate`]), with plain stores; the closing side pays for the ordering (membarrier).
//! Before the port is started the gate is closed, too.

use crate::error::Error;
use crate::interface::Interface;
use crate::sys;
use inlane_core::error::Result;
use inlane_core::packet::Packet;
use inlane_core::port::{Counters, Rx, Tx};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, compiler_fence};
use std::sync::{Arc, Mutex};

/// Calls that moved nothing, between two looks whether the device is still there.
const LOOK_EVERY: u32 = 4096;

type Receive = unsafe extern "C" fn(u16, u16, *mut sys::inlane_packet, u16, *mut u64) -> u16;
type Send = unsafe extern "C" fn(u16, u16, *const sys::inlane_packet, u16, *mut u64, *mut u64) -> u16;

/// The functions of `inline.c` that suit a driver.
#[derive(Clone, Copy)]
pub(crate) struct Calls {
    receive: Receive,
    send: Send,
    send_as_received: Send,
}

impl Calls {
    /// For drivers that write the mbufs they hand out.
    pub(crate) const PLAIN: Self = Self {
        receive: sys::inlane_rx_burst,
        send: sys::inlane_tx_burst,
        send_as_received: sys::inlane_tx_burst_as_received,
    };
    /// For those that pass mbufs on as they are.
    pub(crate) const PASSED_ON: Self = Self { receive: sys::inlane_rx_burst_ahead, ..Self::PLAIN };
    /// For those that forget buffers when they close.
    pub(crate) const MARKED: Self = Self {
        receive: sys::inlane_rx_burst_marked,
        send: sys::inlane_tx_burst_marked,
        send_as_received: sys::inlane_tx_burst_marked,
    };
}

/// What a port and its ends share.
pub(crate) struct Shared {
    /// As the user wrote it.
    pub(crate) name: String,
    /// DPDK's number of it.
    pub(crate) port: u16,
    /// The kernel interface under it.
    pub(crate) interface: Option<Interface>,
    /// A peer that leaves takes the port with it (memif).
    pub(crate) has_peer: bool,
    /// Its driver forgets buffers when it closes: packets are marked with who has them, for [`crate::pool::reclaim`].
    pub(crate) forgets: bool,
    calls: Calls,
    gate: Gate,
    /// Stopped, for good.
    ended: AtomicBool,
    /// Packets that the device took through ends which are gone by now.
    sent: AtomicU64,
}

impl Shared {
    pub(crate) fn new(
        name: String,
        port: u16,
        interface: Option<Interface>,
        has_peer: bool,
        forgets: bool,
        calls: Calls,
    ) -> Arc<Self> {
        Arc::new(Self {
            name,
            port,
            interface,
            has_peer,
            forgets,
            calls,
            gate: Gate::default(),
            ended: AtomicBool::new(false),
            sent: AtomicU64::new(0),
        })
    }

    /// Lets the ends into the driver: the device has started.
    pub(crate) fn open_gate(&self) {
        self.gate.open.store(true, Ordering::SeqCst);
    }

    /// No end is in the driver after this, nor will be.
    pub(crate) fn close_gate(&self) {
        self.gate.close();
        self.ended.store(true, Ordering::Release);
    }

    /// Packets sent through ends that were dropped.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Acquire)
    }

    /// What is gone, if something is.
    fn missing(&self) -> Option<String> {
        if self.interface.as_ref().is_some_and(|interface| !interface.is_there()) {
            return Some("its interface".into());
        }
        if self.has_peer && !link_is_up(self.port) {
            return Some("the peer at the other end".into());
        }
        None
    }

    #[cold]
    fn look(&self) -> Result<()> {
        match self.missing() {
            Some(what) => Err(Error::Gone { port: self.name.clone(), what }.into()),
            None => Ok(()),
        }
    }
}

/// The link of an open device.
pub(crate) fn link_is_up(port: u16) -> bool {
    link_megabits(port).is_some()
}

/// What the link of an open device carries in Mb/s, as far as the device says; `None` while it is down.
pub(crate) fn link_megabits(port: u16) -> Option<u32> {
    let mut link = sys::rte_eth_link::default();
    // Where status and speed stand in it differs between releases: C reads them.
    // SAFETY: fills the structure, a port that is not valid is refused; reads it.
    unsafe {
        match sys::rte_eth_link_get_nowait(port, &mut link) {
            0 => u32::try_from(sys::inlane_link_megabits(&link)).ok(),
            _ => None,
        }
    }
}

/// Lets ends into the driver while it is open.
#[derive(Default)]
struct Gate {
    open: AtomicBool,
    seats: Mutex<Vec<Arc<Seat>>>,
}

/// On a line of its own, since its owner writes it twice a burst.
#[derive(Default)]
#[repr(align(128))]
struct Seat {
    inside: AtomicBool,
}

impl Gate {
    fn seat(&self) -> Arc<Seat> {
        let seat = Arc::<Seat>::default();
        self.seats.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(seat.clone());
        seat
    }

    /// Runs `work` inside, or not at all where it is closed.
    #[inline(always)]
    fn pass<T>(&self, seat: &Seat, work: impl FnOnce() -> T) -> Option<T> {
        // Store, then load, in program order: the compiler keeps it, and `close` makes every CPU keep it.
        seat.inside.store(true, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        let outcome = if self.open.load(Ordering::Acquire) { Some(work()) } else { None };
        seat.inside.store(false, Ordering::Release);
        outcome
    }

    fn close(&self) {
        self.open.store(false, Ordering::SeqCst);
        barrier_on_all_threads();
        // From here on every thread sees it closed before it enters; who was inside before is seen inside.
        for seat in self.seats.lock().unwrap_or_else(std::sync::PoisonError::into_inner).iter() {
            while seat.inside.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
        }
    }
}

/// A full memory barrier on every running thread of this process.
fn barrier_on_all_threads() {
    const GLOBAL: i32 = 1;
    const PRIVATE_EXPEDITED: i32 = 1 << 3;
    const REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;
    // SAFETY: no memory is passed; commands unknown to the kernel are refused.
    unsafe {
        if libc::syscall(libc::SYS_membarrier, REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0
            && libc::syscall(libc::SYS_membarrier, PRIVATE_EXPEDITED, 0, 0) == 0
        {
            return;
        }
        if libc::syscall(libc::SYS_membarrier, GLOBAL, 0, 0) == 0 {
            return;
        }
    }
    // Without the call (kernels of another decade): longer than any store stays in a buffer.
    std::sync::atomic::fence(Ordering::SeqCst);
    std::thread::sleep(std::time::Duration::from_millis(50));
}

/// The receiving end of a queue.
pub(crate) struct EthRx {
    shared: Arc<Shared>,
    calls: Calls,
    seat: Arc<Seat>,
    queue: u16,
    idle: u32,
    counters: Counters,
}

impl EthRx {
    pub(crate) fn new(shared: Arc<Shared>, queue: u16) -> Self {
        let (seat, calls) = (shared.gate.seat(), shared.calls);
        Self { shared, calls, seat, queue, idle: 0, counters: Counters::default() }
    }
}

// SAFETY: the device returns mbufs of the pool that its queue was set up with, and each once.
unsafe impl Rx for EthRx {
    #[inline]
    fn receive(&mut self, packets: &mut [Packet]) -> Result<usize> {
        let (port, queue, bytes) = (self.shared.port, self.queue, &mut self.counters.bytes);
        let count = packets.len().min(u16::MAX as usize) as u16;
        let got = self.shared.gate.pass(&self.seat, || {
            // SAFETY: room for `count` packets of the asserted layout; the device is open and configured with this
            // queue, which only this value drives.
            unsafe { (self.calls.receive)(port, queue, packets.as_mut_ptr().cast(), count, bytes) as usize }
        });
        let got = got.unwrap_or(0);
        self.counters.packets += got as u64;
        if got == 0 {
            self.idle += 1;
            if self.idle >= LOOK_EVERY {
                self.idle = 0;
                self.shared.look()?;
            }
        }
        Ok(got)
    }

    fn exhausted(&self) -> bool {
        self.shared.ended.load(Ordering::Acquire)
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

/// The sending end of a queue.
pub(crate) struct EthTx {
    shared: Arc<Shared>,
    calls: Calls,
    seat: Arc<Seat>,
    queue: u16,
    idle: u32,
    counters: Counters,
}

impl EthTx {
    pub(crate) fn new(shared: Arc<Shared>, queue: u16) -> Self {
        let (seat, calls) = (shared.gate.seat(), shared.calls);
        Self { shared, calls, seat, queue, idle: 0, counters: Counters::default() }
    }
}

impl EthTx {
    #[inline(always)]
    fn send_by(&mut self, send: Send, packets: &[Packet]) -> Result<usize> {
        let (port, queue, counters) = (self.shared.port, self.queue, &mut self.counters);
        let count = packets.len().min(u16::MAX as usize) as u16;
        let errors_before = counters.errors;
        let sent = self.shared.gate.pass(&self.seat, || {
            // SAFETY: `count` packets, each an mbuf of a pool that the port was given and held by the caller (the
            // trait's contract); the device is open and configured with this queue, which only this value drives.
            unsafe {
                let packets = packets.as_ptr().cast();
                send(port, queue, packets, count, &mut counters.bytes, &mut counters.errors) as usize
            }
        });
        let Some(sent) = sent else {
            let why = "it is not started, or was stopped".to_owned();
            return Err(Error::Usage { port: self.shared.name.clone(), why }.into());
        };
        // Those with a length that leaves their buffer were taken, and dropped.
        self.counters.packets += sent as u64 - (self.counters.errors - errors_before);
        if sent == 0 && count > 0 {
            self.idle += 1;
            if self.idle >= LOOK_EVERY {
                self.idle = 0;
                self.shared.look()?;
            }
        }
        Ok(sent)
    }
}

// SAFETY: the shim takes exactly the packets that it counts, and `send_by` fails before it takes any.
unsafe impl Tx for EthTx {
    #[inline]
    unsafe fn send(&mut self, packets: &[Packet]) -> Result<usize> {
        self.send_by(self.calls.send, packets)
    }

    #[inline]
    unsafe fn send_as_received(&mut self, packets: &[Packet]) -> Result<usize> {
        self.send_by(self.calls.send_as_received, packets)
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

impl Drop for EthTx {
    fn drop(&mut self) {
        self.shared.sent.fetch_add(self.counters.packets, Ordering::Release);
    }
}

/// Counts ports opened, to name devices.
pub(crate) static OPENED: AtomicUsize = AtomicUsize::new(0);
