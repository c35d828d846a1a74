//! The transport over memory windows: a window onto each peer, requests to the owner, doorbells for those who sleep.

mod connection;
mod operations;

use super::layout::{HEADER_WORDS, LANDING, Layout, MAGIC};
use super::requests::Requests;
use super::service::{NextRequests, encode_push};
use super::threshold::calibrate;
use super::wait::{FailureScope, WaitOptions, Waits};
use super::wakeup::{BACKSTOP, Interest, Notifier, Stored, register_for_barriers};
use crate::error::{Error, Lost, Result};
use connection::connect_peer;
use inlane_core::completion::CompletionMode;
use inlane_core::mover::{Mover, Ticket};
use inlane_core::region::{Location, Region};
use inlane_ntb::device::Ntb;
use inlane_ntb::fault::Faults;
use inlane_ntb::handshake;
use inlane_ntb::window::Window;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The doorbell bit for requests, and its vector.
pub(super) const REQUEST: u64 = 1;
/// The doorbell bit for sleepers, and its vector.
pub(super) const WAKE: u64 = 1 << 32;

/// How the transport behaves.
pub struct Settings {
    /// How waits end.
    pub completion: CompletionMode,
    /// Limit of a handshake.
    pub connect_timeout: Duration,
    /// Limit of a request's answer while the link is up; waits for other PEs to get somewhere have none.
    pub request_timeout: Duration,
    /// More PEs than processors: let others run while polling.
    pub yields: bool,
    /// Gets of this many bytes and more ask the owner to push; `None`: as measured for this kind of window.
    pub push_from: Option<usize>,
    /// Copies bulk, and from how many bytes on; `None` there: from where it beats stores, measured while connecting.
    pub mover: Option<(Box<dyn Mover>, Option<usize>)>,
    /// Where the process is to die, for tests.
    pub faults: Faults,
    /// The first and the longest sleep without a doorbell, after which a waiter looks again. Doorbells can be lost.
    pub backstop: (Duration, Duration),
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            completion: CompletionMode::Adaptive,
            connect_timeout: Duration::from_secs(20),
            request_timeout: Duration::from_secs(60),
            yields: false,
            push_from: None,
            mover: None,
            faults: Faults::default(),
            backstop: BACKSTOP,
        }
    }
}

pub(super) struct Peer {
    pub window: Window,
    pub tag: AtomicU32,
    /// The peer's epoch in this connection.
    theirs: AtomicU32,
    generation: AtomicU64,
    notifier: Mutex<Notifier>,
    /// True if the notifier must order its store and its look by a barrier of its own.
    pub needs_barrier: bool,
    /// The announcement answered last, for a look without the lock.
    pub answered: AtomicU64,
    issued: AtomicU64,
    delivered: AtomicU64,
    pub unanswered: AtomicU64,
    pub refused: AtomicBool,
    pub requests: Requests,
    /// The mover has copies for it that nobody awaited, so it was not rung for them.
    unwoken: AtomicBool,
    notified: AtomicU32,
    taken: AtomicU32,
}

/// What the threads of one PE share.
pub(super) struct PeContext {
    pub ntb: Arc<dyn Ntb>,
    pub me: u32,
    pub pes: u32,
    pub layout: Layout,
    pub base: *mut u8,
    pub peers: Vec<Peer>,
    pub waits: Waits,
    pub next_requests: Mutex<NextRequests>,
    pub yields: bool,
    pub faults: Faults,
    pub backstop: (Duration, Duration),
    pub stop: AtomicBool,
    completion: CompletionMode,
    request_timeout: Duration,
    push_from: usize,
    /// No wire, no posted window: what has left the store buffer is delivered.
    pub coherent: bool,
    /// Vectors of the doorbell bits REQUEST and WAKE.
    pub request_vector: u32,
    pub wake_vector: u32,
    mover: Option<Mutex<Box<dyn Mover>>>,
    mover_from: usize,
    /// Copies that were submitted and not awaited.
    pending: AtomicU64,
    landing: Mutex<()>,
    _inbound: Region,
}

// SAFETY: `base` leads to the inbound memory, which `_inbound` keeps and every process shares; words in it are accessed as
// atomics, bulk by raw copies whose order is the users' business, as for any one-sided access.
unsafe impl Send for PeContext {}
// SAFETY: as above.
unsafe impl Sync for PeContext {}

/// The thresholds of a connected transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
pub struct Thresholds {
    /// Gets of at least this many bytes ask the owner to push; `None` if all gets load.
    pub push_from_bytes: Option<u64>,
    /// Puts of at least this many bytes go by the mover; `None` if all puts store.
    pub mover_from_bytes: Option<u64>,
    /// True if waiters execute the barriers of all notifiers, by membarrier(2).
    pub wakes_by_membarrier: bool,
}

/// Returns the vectors of the doorbell bits for requests and for sleepers, after checking what the bridge can do.
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

/// See the module.
pub struct Windows {
    context: Arc<PeContext>,
    service: Option<std::thread::JoinHandle<()>>,
}

impl Windows {
    /// Connects to all peers of `ntb`, offering the first `bytes` of its inbound memory.
    ///
    /// # Errors
    /// Those of the handshake with any of them, and [`Error::Invalid`] for memory too small.
    pub fn connect(ntb: Arc<dyn Ntb>, bytes: usize, settings: Settings) -> Result<Self> {
        let (me, pes) = (ntb.port(), ntb.ports());
        let layout = Layout::new(pes, bytes)?;
        let inbound = ntb.inbound().slice(0, bytes)?;
        let base = inbound.as_ptr();
        let (request_vector, wake_vector) = vectors(&*ntb)?;
        let registered = register_for_barriers();
        let header: [u64; HEADER_WORDS] =
            [MAGIC, pes as u64, layout.symmetric_bytes() as u64, registered as u64];
        for (index, word) in header.iter().enumerate() {
            // SAFETY: the header's words, inside the memory; nobody reads them before the handshake.
            unsafe { base.cast::<u64>().add(index).write_volatile(*word) };
        }
        ntb.link_enable(true);
        let epoch = handshake::fresh_epoch();
        let peers = (0..pes)
            .map(|pe| connect_peer(&*ntb, pe, epoch, &inbound, &layout, &settings, registered))
            .collect::<Result<Vec<_>>>()?;
        let coherent = peers.iter().all(|peer| peer.window.coherent_base().is_some());
        // On coherent windows a load is as cheap as the owner's; on posted ones it is a round trip for each 8 bytes.
        let push_from = settings.push_from.unwrap_or(if coherent { usize::MAX } else { 256 });
        let (mover, mover_from) = match settings.mover {
            Some((mut mover, from)) => {
                let from = match (from, peers.iter().find(|peer| peer.window.peer() != me)) {
                    // Of nothing there is nothing to move.
                    (Some(from), _) => from.max(1),
                    // Nobody uses landings before all have connected.
                    (None, Some(peer)) => calibrate(&mut *mover, &peer.window, layout.landing(), LANDING)?,
                    (None, None) => usize::MAX,
                };
                tracing::debug!(mover = mover.name(), from_bytes = from, "bulk goes by the mover");
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
            faults: settings.faults,
            backstop: settings.backstop,
            stop: AtomicBool::new(false),
            completion: settings.completion,
            request_timeout: settings.request_timeout,
            push_from,
            coherent,
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

    /// The bridge below.
    pub fn ntb(&self) -> &Arc<dyn Ntb> {
        &self.context.ntb
    }

    /// The window onto `pe`; symmetric memory begins at [`Layout::symmetric`].
    ///
    /// # Errors
    /// For a PE that does not exist.
    pub fn window(&self, pe: u32) -> Result<&Window> {
        Ok(&self.context.peer(pe)?.window)
    }

    /// How inbound memory is laid out.
    pub fn layout(&self) -> &Layout {
        &self.context.layout
    }

    /// A get that asks the owner to push, whatever the size; its waits end as the settings say unless told otherwise.
    ///
    /// # Errors
    /// As for [`Transport::get`](super::Transport::get).
    ///
    /// # Safety
    /// As for [`Transport::get`](super::Transport::get).
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
            // SAFETY: the landing holds `piece` bytes, written by the owner before its reply; `done + piece <= length`.
            unsafe { std::ptr::copy_nonoverlapping(context.base.add(at), destination.add(done), piece) };
            done += piece;
        }
        Ok(())
    }

    /// Waits until `done` in a options of the caller's choice; ends when `watch` is lost.
    ///
    /// # Errors
    /// [`Error::LinkLost`], [`Error::Timeout`].
    pub fn wait_with(
        &self,
        options: WaitOptions,
        scope: FailureScope,
        done: impl FnMut() -> bool,
    ) -> Result<()> {
        self.context.wait_for(options, scope, done)
    }

    /// Returns the thresholds that this transport has chosen.
    pub fn thresholds(&self) -> Thresholds {
        let from = |bytes: usize| (bytes < usize::MAX).then_some(bytes as u64);
        Thresholds {
            push_from_bytes: from(self.context.push_from),
            mover_from_bytes: self.context.mover.as_ref().and_then(|_| from(self.context.mover_from)),
            wakes_by_membarrier: self.context.peers.iter().all(|peer| !peer.needs_barrier),
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
            None => Err(no_such_pe(pe, self.pes)),
        }
    }

    /// Fails when the link to whom `watch` names is not the one that was connected.
    pub(super) fn check(&self, scope: FailureScope) -> Result<()> {
        let peers = match scope {
            FailureScope::Peer(pe) => pe..pe + 1,
            FailureScope::AnyPeer => 0..self.pes,
        };
        for pe in peers.filter(|pe| *pe != self.me) {
            let peer = &self.peers[pe as usize];
            let link = self.ntb.link(pe);
            // A flap that only the peer noticed shows in the epoch that it starts anew with.
            let another = handshake::epoch_in_row(&*self.ntb, pe) != peer.theirs.load(Ordering::Acquire);
            if another || !link.up || link.generation != peer.generation.load(Ordering::Acquire) {
                return Err(Error::LinkLost { peer: pe, lost: peer.lost() });
            }
        }
        Ok(())
    }

    pub(super) fn wait_options(&self, what: &'static str) -> WaitOptions {
        WaitOptions {
            mode: self.completion,
            bytes: 0,
            interest: Interest::Control,
            timeout: Some(self.request_timeout),
            what,
        }
    }

    #[cold]
    pub(super) fn wake(&self, pe: u32, peer: &Peer, announcement: &AtomicU64, what: Stored) {
        let mut notifier = peer.notifier.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(answered) = notifier.must_ring(announcement, what) {
            peer.answered.store(answered, Ordering::Relaxed);
            peer.window.fence();
            // The peer exists; a doorbell that is lost costs the sleeper its backstop.
            let _ = self.ntb.peer_doorbell_set(pe, WAKE);
        }
    }

    #[inline(always)]
    fn symmetric_offset(&self, offset: usize) -> usize {
        // An overflow leads outside the window, which refuses it.
        offset.saturating_add(self.layout.symmetric())
    }

    #[inline(always)]
    fn count(&self, peer: &Peer, length: usize) {
        // Plain, not a read-modify-write: threads that race lose counts, so what is reported as delivered is never too much.
        peer.issued.store(peer.issued.load(Ordering::Relaxed) + length as u64, Ordering::Relaxed);
    }

    /// Gives a copy to the mover; `later` when the caller does not wait for it and ring the peer itself.
    fn submit(
        &self,
        mover: &Mutex<Box<dyn Mover>>,
        peer: &Peer,
        at: usize,
        (source, length): (*const u8, usize),
        later: bool,
    ) -> Result<Ticket> {
        let destination = peer.window.region().slice(at, length)?;
        // SAFETY: the caller of put promises the bytes until the copy is done, which put or quiet awaits.
        let source = unsafe { Region::from_raw(source as u64, length, Location::Host, Arc::new(())) };
        let mut mover = mover.lock().unwrap_or_else(PoisonError::into_inner);
        let ticket = mover.submit(&source, &destination)?;
        self.pending.store(ticket.0, Ordering::Release);
        if later {
            peer.unwoken.store(true, Ordering::Relaxed);
        }
        Ok(ticket)
    }

    /// Waits for the copies that nobody awaited, and rings those who may sleep for them.
    fn finish(&self) -> Result<()> {
        let Some(mover) = &self.mover else { return Ok(()) };
        if self.pending.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        // What is submitted and unwoken changes under this lock only.
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

#[cold]
fn no_such_pe(pe: u32, pes: u32) -> Error {
    // A C program's negative number arrives as a large one.
    Error::invalid(format!("PE {}", pe as i32), format!("the job has PEs 0 to {}", pes - 1))
}

impl Drop for Windows {
    fn drop(&mut self) {
        self.context.stop.store(true, Ordering::Release);
        // Rings at this side, so that the service thread looks.
        let _ = self.context.ntb.peer_doorbell_set(self.context.me, REQUEST);
        self.context.ntb.doorbell_clear(REQUEST);
        let _ = self.context.ntb.peer_doorbell_set(self.context.me, REQUEST);
        if let Some(service) = self.service.take() {
            let _ = service.join();
        }
    }
}
