//! The transport over memory windows. A PE stores into the memory of each other PE through a window, sends requests to
//! the PE that owns the memory, and wakes sleeping waiters by doorbells.

mod connection;
mod hub;
pub mod layout;
mod mover;
mod operations;
pub mod options;
mod record;
mod requests;
mod service;
#[cfg(test)]
mod tests;
pub mod threshold;
mod twin;
pub mod wait;
pub mod wakeup;

use crate::error::{Error, Lost, Result};
pub use mover::MoverChoice;

use connection::connect_peers;
use inlane_core::completion::CompletionMode;
use inlane_core::mover::{Mover, Ticket};
use inlane_core::region::{Location, Region};
use inlane_ntb::device::Ntb;
use inlane_ntb::fault::Faults;
use inlane_ntb::handshake;
use inlane_ntb::window::Window;
use layout::{HEADER_WORDS, LANDING, Layout, MAGIC};
use requests::Requests;
use service::{NextRequests, encode_push};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use threshold::calibrate;
use wait::{FailureScope, WaitOptions, Waits};
use wakeup::{BACKSTOP, Interest, Notifier, Stored};

/// The doorbell bit for requests.
const REQUEST: u64 = 1;
/// The doorbell bit for sleeping waiters.
const WAKE: u64 = 1 << 32;
/// The link is checked once for this many gets from a peer, if the window is coherent. After a failed check,
/// the next get checks again. The peer's memory stays mapped after the link is lost. Gets between two checks
/// therefore still return what the peer has stored.
const CHECK_EVERY: u32 = 16;

/// The settings of the transport.
pub struct Settings {
    /// The completion mode of waits.
    pub completion: CompletionMode,
    /// How long a handshake may take.
    pub connect_timeout: Duration,
    /// How long a request may be unanswered while the link is up. `None`: no limit.
    pub request_timeout: Option<Duration>,
    /// True if there are more PEs than processors. Polling then yields the processor.
    pub yields: bool,
    /// A get of at least this many bytes asks the owner to push the bytes. With `None`, this applies to gets
    /// of at least 256 bytes on posted windows, and to no gets on coherent windows.
    pub push_from: Option<usize>,
    /// The mover for large puts, and the smallest put in bytes that it copies. If this size is `None`, it is
    /// measured while connecting.
    pub mover: Option<(Box<dyn Mover>, Option<usize>)>,
    /// If true, a word's owner carries out all atomics on it. If false, the calling PE's processor does,
    /// provided that all windows are coherent and no faults are injected.
    pub atomics_by_owner: bool,
    /// Faults to inject in tests. The transport itself only kills the process at a step of the protocol. The
    /// NTB device injects all other faults.
    pub faults: Faults,
    /// The longest sleep of a waiter if no doorbell arrives. It is limited because doorbells can be lost. The
    /// first value applies to the first sleep of a wait. Each further sleep doubles the time, up to the
    /// second value.
    pub backstop: (Duration, Duration),
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            completion: CompletionMode::Adaptive,
            connect_timeout: Duration::from_secs(20),
            request_timeout: Some(Duration::from_secs(60)),
            yields: false,
            push_from: None,
            mover: None,
            atomics_by_owner: false,
            faults: Faults::default(),
            backstop: BACKSTOP,
        }
    }
}

struct Peer {
    pub window: Window,
    pub tag: AtomicU32,
    /// The peer's epoch in this connection. An epoch identifies one attempt of the peer to connect.
    theirs: AtomicU32,
    generation: AtomicU64,
    notifier: Mutex<Notifier>,
    /// The alignment in bytes of the peer's inbound memory at its address in the peer's process. The smallest
    /// of these alignments limits the alignment of symmetric memory.
    alignment: usize,
    /// True if this PE must do more than usual after a store to the peer:
    ///
    /// * The peer is this PE itself. This PE then checks whether its own threads sleep, and rings its own
    ///   doorbell.
    /// * The memory window is not coherent. The PE then needs a full barrier after each store, before it checks
    ///   whether the peer has announced a sleep.
    pub is_exceptional: bool,
    /// The peer's last announcement of a sleep that this PE has answered with a doorbell. This is a copy of
    /// the notifier's value. It can be read without the notifier's lock.
    pub answered: AtomicU64,
    issued: AtomicU64,
    delivered: AtomicU64,
    pub unanswered: AtomicU64,
    pub refused: AtomicBool,
    pub requests: Requests,
    /// True if the mover has copies to this peer for which no thread waits yet. The peer was not woken after
    /// these copies. `PeContext::finish` later waits for them and then wakes the peer.
    unwoken: AtomicBool,
    /// The approximate number of gets from this peer that used loads. Threads that count at the same time may
    /// lose counts.
    loads: AtomicU32,
    notified: AtomicU32,
    taken: AtomicU32,
}

/// The state of a PE, shared by all threads of the PE.
struct PeContext {
    pub ntb: Arc<dyn Ntb>,
    pub me: u32,
    pub pes: u32,
    pub layout: Layout,
    pub base: *mut u8,
    pub peers: Vec<Peer>,
    pub waits: Waits,
    pub next_requests: Mutex<NextRequests>,
    pub yields: bool,
    /// The counted bytes that were issued before the last fence or quiet; see
    /// [`crate::transport::Transport::yield_if_idle`]. Used only if PEs share processors.
    ordered: AtomicU64,
    pub faults: Faults,
    pub backstop: (Duration, Duration),
    pub stop: AtomicBool,
    completion: CompletionMode,
    request_timeout: Option<Duration>,
    push_from: usize,
    /// True if the memory windows of the bridge are coherent memory. Reading through them is then fast. Equal
    /// on all PEs.
    reads_are_fast: bool,
    /// True if all windows are coherent and no faults are injected. A store is then delivered once it has
    /// left the store buffer.
    pub coherent: bool,
    /// True if this PE executes atomics on other PEs' memory with its own processor. If false, the owner of
    /// the word executes them. PEs may differ in this setting, and their atomics on one word are still atomic
    /// to each other. The reason: owners and callers both use processor instructions on coherent memory.
    direct_atomics: bool,
    /// The smallest of the PEs' `alignment`s, in bytes.
    alignment: usize,
    /// The interrupt vector of the doorbell bit `REQUEST`.
    pub request_vector: u32,
    /// The interrupt vector of the doorbell bit `WAKE`.
    pub wake_vector: u32,
    mover: Option<Mutex<Box<dyn Mover>>>,
    mover_from: usize,
    /// The ticket of the last copy submitted to the mover, or 0 if all copies have been waited for.
    pending: AtomicU64,
    landing: Mutex<()>,
    _inbound: Region,
}

// SAFETY: `base` is the inbound memory, which `_inbound` keeps mapped. Other processes share it. Its words
// are accessed as atomics. Bulk data is copied through raw pointers. The program must order such copies, as
// for any one-sided access.
unsafe impl Send for PeContext {}
// SAFETY: as for `Send`.
unsafe impl Sync for PeContext {}

/// The sizes from which a connected transport copies the bytes of a put or a get by another method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
pub struct Thresholds {
    /// A get of at least this many bytes asks the owner of the bytes to answer with a put. Null if all gets
    /// use loads.
    pub push_from_bytes: Option<u64>,
    /// The mover copies puts of at least this many bytes. Null if all puts use stores.
    pub mover_from_bytes: Option<u64>,
}

/// Checks that the bridge can carry the protocol. Returns the interrupt vectors of the doorbell bits
/// [`REQUEST`] and [`WAKE`].
fn vectors(ntb: &dyn Ntb) -> Result<(u32, u32)> {
    let capabilities = ntb.capabilities();
    let refuse = |why: String| Err(Error::invalid(format!("bridge {}", capabilities.name), why));
    if capabilities.windows == 0 {
        return refuse("it has no memory window; choose another bridge".into());
    }
    let needed = REQUEST | WAKE | handshake::DOORBELL;
    if capabilities.doorbells & needed != needed {
        return refuse(format!(
            "it lacks doorbell bits {:#x}; choose another bridge",
            needed & !capabilities.doorbells
        ));
    }
    let vector = |bit| (0..capabilities.vectors).find(|vector| ntb.vector_bits(*vector) & bit != 0);
    match (vector(REQUEST), vector(WAKE)) {
        (Some(request), Some(wake)) if request != wake => Ok((request, wake)),
        _ => refuse("requests and wake-ups need two interrupt vectors; choose another bridge".into()),
    }
}

/// Limits an alignment to 4 KiB to 1 GiB, and rounds it down to a power of two. This is necessary because a
/// peer may announce any number.
fn alignment(announced: u64) -> usize {
    let within = announced.clamp(4096, 1 << 30);
    1 << within.ilog2()
}

/// The transport over memory windows. Any thread may use it.
pub struct Windows {
    context: Arc<PeContext>,
    service: Option<std::thread::JoinHandle<()>>,
}

impl Windows {
    /// Connects to all peers of `ntb` and gives them access to the first `bytes` bytes of this PE's inbound
    /// memory.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the memory is too small, or if the bridge lacks a window, doorbell bits or
    /// interrupt vectors. Also the errors of the handshakes.
    pub fn connect(ntb: Arc<dyn Ntb>, bytes: usize, settings: Settings) -> Result<Self> {
        let (me, pes) = (ntb.port(), ntb.ports());
        let layout = Layout::new(pes, bytes)?;
        let inbound = ntb.inbound().slice(0, bytes)?;
        let base = inbound.as_ptr();
        let (request_vector, wake_vector) = vectors(&*ntb)?;
        let own_alignment = alignment(1 << (base as usize).trailing_zeros().min(63));
        let header: [u64; HEADER_WORDS] =
            [MAGIC, pes as u64, layout.symmetric_bytes() as u64, 0, own_alignment as u64];
        for (index, word) in header.iter().enumerate() {
            // SAFETY: the header's words lie inside the memory, and no peer reads them before the handshake.
            unsafe { base.cast::<u64>().add(index).write_volatile(*word) };
        }
        ntb.link_enable(true);
        let peers = connect_peers(&*ntb, &inbound, &layout, &settings)?;
        // Use the smallest alignment of all PEs. All PEs read the same headers, so they all get the same
        // result.
        let alignment = peers.iter().map(|peer| peer.alignment).fold(own_alignment, usize::min);
        let coherent = peers.iter().all(|peer| peer.window.coherent_base().is_some());
        let direct_atomics = coherent && !settings.atomics_by_owner && settings.faults.are_none();
        // A load through a coherent window is as fast as a load by the owner of the memory, so gets always
        // use loads. Through a posted window, a load of 8 bytes costs a round trip. Larger gets therefore ask
        // the owner to push the bytes.
        let reads_are_fast = ntb.capabilities().ordering == inlane_ntb::device::Ordering::Coherent;
        let push_from = settings.push_from.unwrap_or(if coherent { usize::MAX } else { 256 });
        let (mover, mover_from) = match settings.mover {
            Some((mut mover, from)) => {
                let from = match (from, peers.iter().find(|peer| peer.window.peer() != me)) {
                    // Use a threshold of at least 1, because a mover does not copy 0 bytes.
                    (Some(from), _) => from.max(1),
                    // Measure by writing to the peer's memory for the results of gets (the landing area). It
                    // is unused until all PEs have connected.
                    (None, Some(peer)) => calibrate(&mut *mover, &peer.window, layout.landing(), LANDING)?,
                    (None, None) => usize::MAX,
                };
                tracing::debug!(
                    mover = mover.name(),
                    from_bytes = from,
                    "the mover copies puts from this size on"
                );
                (Some(Mutex::new(mover)), from)
            }
            None => (None, usize::MAX),
        };
        let context = Arc::new(PeContext {
            me,
            pes,
            layout,
            base,
            peers,
            waits: Waits::default(),
            next_requests: Mutex::new(vec![1; pes as usize]),
            request_vector,
            wake_vector,
            yields: settings.yields,
            ordered: AtomicU64::new(u64::MAX),
            faults: settings.faults,
            backstop: settings.backstop,
            stop: AtomicBool::new(false),
            completion: settings.completion,
            request_timeout: settings.request_timeout,
            push_from,
            reads_are_fast,
            coherent,
            direct_atomics,
            alignment,
            mover,
            mover_from,
            pending: AtomicU64::new(0),
            landing: Mutex::new(()),
            _inbound: inbound,
            ntb,
        });
        let theirs = context.clone();
        let service = std::thread::Builder::new()
            .name("ntb-service".into())
            .spawn(move || theirs.service())
            .map_err(|error| Error::os("the service thread", error))?;
        Ok(Self { context, service: Some(service) })
    }

    /// Returns the bridge whose windows this transport uses.
    pub fn ntb(&self) -> &Arc<dyn Ntb> {
        &self.context.ntb
    }

    /// Returns the window onto `pe`. Symmetric memory begins at [`Layout::symmetric`].
    ///
    /// # Errors
    /// [`Error::Invalid`] for a PE that does not exist.
    pub fn window(&self, pe: u32) -> Result<&Window> {
        Ok(&self.context.peer(pe)?.window)
    }

    /// Returns the layout of inbound memory.
    pub fn layout(&self) -> &Layout {
        &self.context.layout
    }

    /// Gets bytes by asking the owner to push them, whatever the size. Waits in `completion` mode. If
    /// `completion` is `None`, uses the mode of the settings.
    ///
    /// # Errors
    /// As for [`Transport::get`](crate::transport::Transport::get).
    ///
    /// # Safety
    /// As for [`Transport::get`](crate::transport::Transport::get).
    pub unsafe fn get_pushed(
        &self,
        pe: u32,
        offset: usize,
        destination: *mut u8,
        length: usize,
        completion: Option<CompletionMode>,
    ) -> Result<()> {
        let context = &*self.context;
        let completion = completion.unwrap_or(context.completion);
        let _landing = context.landing.lock().unwrap_or_else(PoisonError::into_inner);
        let at = context.layout.landing();
        let mut done = 0;
        while done < length {
            let piece = (length - done).min(LANDING);
            let contents = encode_push(offset.saturating_add(done), piece, at);
            context.request(
                pe,
                &contents,
                WaitOptions { mode: completion, ..context.wait_options("a get") },
            )?;
            // SAFETY: the owner wrote `piece` bytes to the landing area before its reply, and
            // `done + piece <= length`.
            unsafe { std::ptr::copy_nonoverlapping(context.base.add(at), destination.add(done), piece) };
            done += piece;
        }
        Ok(())
    }

    /// Blocks until `done` returns true, with the given options.
    ///
    /// # Errors
    /// [`Error::LinkLost`] if a peer of `scope` is lost, [`Error::Timeout`] at the options' timeout.
    pub fn wait_with(
        &self,
        options: WaitOptions,
        scope: FailureScope,
        done: impl FnMut() -> bool,
    ) -> Result<()> {
        self.context.wait_for(options, scope, done)
    }

    /// Returns the sizes from which this PE uses two faster methods: gets that the owner of the bytes answers by
    /// a put, and puts that the mover copies.
    pub fn thresholds(&self) -> Thresholds {
        let from = |bytes: usize| (bytes < usize::MAX).then_some(bytes as u64);
        Thresholds {
            push_from_bytes: from(self.context.push_from),
            mover_from_bytes: self.context.mover.as_ref().and_then(|_| from(self.context.mover_from)),
        }
    }
}

impl Peer {
    pub(super) fn lost(&self) -> Lost {
        Lost {
            issued_bytes: self.issued.load(Ordering::Relaxed),
            delivered_bytes: self.delivered.load(Ordering::Relaxed),
            unanswered: self.unanswered.load(Ordering::Relaxed),
        }
    }
}

impl PeContext {
    #[inline(always)]
    pub(super) fn peer(&self, pe: u32) -> Result<&Peer> {
        match self.peers.get(pe as usize) {
            Some(peer) => Ok(peer),
            None => Err(crate::transport::no_such_pe(pe, self.pes)),
        }
    }

    /// Returns an error if the link to a peer of `scope` is down, or has been since the connection was made.
    pub(super) fn check(&self, scope: FailureScope) -> Result<()> {
        let peers = match scope {
            FailureScope::Peer(pe) => pe..pe + 1,
            FailureScope::AnyPeer => 0..self.pes,
        };
        for pe in peers.filter(|pe| *pe != self.me) {
            let peer = &self.peers[pe as usize];
            let link = self.ntb.link(pe);
            // Also compare the peer's epoch with the epoch of the connection. The peer may have noticed a
            // link failure that this PE missed. It has then reconnected with a new epoch.
            let another = handshake::epoch_in_row(&*self.ntb, pe) != peer.theirs.load(Ordering::Acquire);
            if another || !link.up || link.generation != peer.generation.load(Ordering::Acquire) {
                // Make the link check due at the next get, so that the next get fails, too. Otherwise, gets
                // through coherent windows check the link only once in `CHECK_EVERY` gets.
                peer.loads.store(0, Ordering::Relaxed);
                return Err(Error::LinkLost { peer: pe, lost: peer.lost() });
            }
        }
        Ok(())
    }

    /// Checks the link to `pe` if a check is due. Returns an error if the link is down. For coherent windows,
    /// a check is due once in [`CHECK_EVERY`] gets, because it takes as long as a copy of 1 KiB.
    #[inline(always)]
    fn check_load(&self, pe: u32, peer: &Peer) -> Result<()> {
        let loads = peer.loads.load(Ordering::Relaxed);
        if !self.coherent || loads.is_multiple_of(CHECK_EVERY) {
            self.check(FailureScope::Peer(pe))?;
        }
        peer.loads.store(loads.wrapping_add(1), Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn wait_options(&self, what: &'static str) -> WaitOptions {
        WaitOptions {
            mode: self.completion,
            bytes: 0,
            interest: Interest::Control,
            timeout: self.request_timeout,
            what,
        }
    }

    #[cold]
    pub(super) fn wake(&self, pe: u32, peer: &Peer, announcement: &AtomicU64, what: Stored) {
        let mut notifier = peer.notifier.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(answered) = notifier.must_ring(announcement, what) {
            peer.answered.store(answered, Ordering::Relaxed);
            peer.window.fence();
            // The call fails only if the peer does not exist, and this peer exists. If the doorbell is lost,
            // the peer's thread sleeps until its backstop, the time limit of the sleep.
            let _ = self.ntb.peer_doorbell_set(pe, WAKE);
        }
    }

    #[inline(always)]
    fn symmetric_offset(&self, offset: usize) -> usize {
        // Saturate the sum instead of wrapping it. The window then refuses the offset, because it is beyond
        // the window's end.
        offset.saturating_add(self.layout.symmetric())
    }

    #[inline(always)]
    fn count(&self, peer: &Peer, length: usize) {
        // Count without an atomic addition, because every put executes this code. If two threads race, some
        // bytes are not counted, so the count is never too high.
        peer.issued.store(peer.issued.load(Ordering::Relaxed) + length as u64, Ordering::Relaxed);
    }

    /// Submits a copy to the mover. Set `later` if the caller neither waits for the copy nor wakes the peer;
    /// the next `finish` then wakes the peer.
    fn submit(
        &self,
        mover: &Mutex<Box<dyn Mover>>,
        peer: &Peer,
        at: usize,
        (source, length): (*const u8, usize),
        later: bool,
    ) -> Result<Ticket> {
        let destination = peer.window.region().slice(at, length)?;
        // SAFETY: the caller keeps the bytes until the copy is complete. Put or quiet waits for this.
        let source = unsafe { Region::from_raw(source as u64, length, Location::Host, Arc::new(())) };
        let mut mover = mover.lock().unwrap_or_else(PoisonError::into_inner);
        let ticket = mover.submit(&source, &destination)?;
        self.pending.store(ticket.0, Ordering::Release);
        if later {
            peer.unwoken.store(true, Ordering::Relaxed);
        }
        Ok(ticket)
    }

    /// Waits for the copies in flight, then wakes the PEs they were written to.
    fn finish(&self) -> Result<()> {
        let Some(mover) = &self.mover else { return Ok(()) };
        if self.pending.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        // Hold the lock, so that no other thread submits copies or changes `unwoken`.
        let mut mover = mover.lock().unwrap_or_else(PoisonError::into_inner);
        let pending = self.pending.load(Ordering::Relaxed);
        if pending > 0 {
            mover.wait(Ticket(pending), self.completion)?;
            self.pending.store(0, Ordering::Release);
        }
        for (pe, peer) in self.peers.iter().enumerate() {
            if peer.unwoken.swap(false, Ordering::Relaxed) {
                self.stored(pe as u32, peer, Stored::Put(0, usize::MAX));
            }
        }
        Ok(())
    }
}

impl Drop for Windows {
    fn drop(&mut self) {
        self.context.stop.store(true, Ordering::Release);
        // Ring this PE's own doorbell. The service thread then wakes and sees `stop`. If a doorbell bit is
        // already set, setting it raises no event. So clear the bit and ring again.
        let _ = self.context.ntb.peer_doorbell_set(self.context.me, REQUEST);
        self.context.ntb.doorbell_clear(REQUEST);
        let _ = self.context.ntb.peer_doorbell_set(self.context.me, REQUEST);
        if let Some(service) = self.service.take() {
            let _ = service.join();
        }
    }
}
