//! The operations of the UCX transport. The modules `transfers` and `atomics` have the largest ones.

use super::library::OperationParameters;
use super::{ALIGNMENT, MOST_CONTEXTS, NOTIFICATION, Peer, Segment, Ucx, Worker};
use crate::error::Result;
use crate::transport::{Atomic, Awaited, Capabilities, Check, Reuse, Transport};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex};

impl Worker {
    /// Waits until all started operations are complete at their targets.
    fn flush(&self) -> Result<()> {
        if self.broken.load(Ordering::Acquire) {
            self.check()?;
            return Err(self.lost(self.me));
        }
        let handles = self.handles();
        let started = self.started.load(Ordering::Relaxed);
        let mut requests = Vec::new();
        // Flush each endpoint separately. In UCX 1.13, a flush of the worker does not wait for operations
        // that the peer's processor executes.
        for (pe, endpoint) in (0..).zip(&handles.endpoints) {
            let Some(endpoint) = endpoint else { continue };
            // SAFETY: the lock of the handles is held.
            let pointer = unsafe { (self.library.ep_flush)(endpoint.handle, &OperationParameters::NONE) };
            if !pointer.is_null() {
                requests.push((pe, pointer));
            }
        }
        drop(handles);
        requests.into_iter().try_for_each(|(pe, pointer)| self.finish(pointer, pe, true, "a quiet"))?;
        self.flushed.fetch_max(started, Ordering::AcqRel);
        self.check()
    }

    /// Returns true if an operation was started that no flush has completed.
    pub(super) fn is_in_flight(&self) -> bool {
        self.started.load(Ordering::Relaxed) != self.flushed.load(Ordering::Acquire)
    }

    fn notification(&self, pe: u32) -> &AtomicU64 {
        // SAFETY: `self.memory` begins with an aligned word for each PE, before the symmetric memory. Peers
        // write these words, so they are accessed only as atomics.
        unsafe { AtomicU64::from_ptr(self.memory.add(pe as usize * NOTIFICATION).cast()) }
    }
}

impl Transport for Ucx {
    fn me(&self) -> u32 {
        self.worker.me
    }

    fn pes(&self) -> u32 {
        self.worker.peers.len() as u32
    }

    fn symmetric(&self) -> (*mut u8, usize) {
        let worker = &*self.worker;
        (worker.memory.wrapping_add(worker.private_bytes), worker.symmetric_bytes)
    }

    fn context(&self) -> Option<Self> {
        let default = self.worker.default.as_ref().unwrap_or(&self.worker);
        let mut contexts = default.contexts();
        // Only the list holds the worker of an ended context.
        let ended = contexts.iter().find(|worker| Arc::strong_count(worker) == 1);
        let worker = match ended {
            Some(worker) => worker.clone(),
            None if contexts.len() == MOST_CONTEXTS => return None,
            None => {
                let worker = Arc::new(Worker::new(default.shared.clone(), Some(default.clone())));
                contexts.push(worker.clone());
                worker
            }
        };
        Some(Self { worker, service: Mutex::new(None) })
    }

    fn alignment(&self) -> usize {
        ALIGNMENT
    }

    fn direct(&self, pe: u32, offset: usize) -> Option<*mut u8> {
        let worker = &*self.worker;
        let segment = worker.segment_of(offset, 1).ok()?;
        worker.mapped_address(pe, worker.peer(pe).ok()?, segment, offset).ok()?
    }

    fn capabilities(&self) -> Capabilities {
        let worker = &*self.worker;
        // Count the PEs whose heaps this PE accesses through a pointer. Count this PE, too. Its own pointer
        // is null until it has connected to itself.
        let mapped =
            |(pe, peer): &(u32, &Peer)| *pe == worker.me || !peer.direct.load(Ordering::Relaxed).is_null();
        Capabilities {
            name: "ucx".into(),
            methods: worker.methods(),
            mapped_pes: (0..).zip(&worker.peers).filter(mapped).count() as u32,
            atomics: "the calling PE's processor on mapped heaps, if UCX would use it, too; otherwise UCX \
                      (UCX_ATOMIC_MODE chooses the processor or the network device)"
                .into(),
            nonblocking: true,
        }
    }

    #[inline]
    unsafe fn put(
        &self,
        pe: u32,
        offset: usize,
        source: *const u8,
        length: usize,
        reuse: Reuse,
    ) -> Result<()> {
        // SAFETY: the caller keeps the promises that this call needs.
        unsafe { self.worker.copy_to(pe, offset, source, length, reuse) }
    }

    unsafe fn get(
        &self,
        pe: u32,
        offset: usize,
        destination: *mut u8,
        length: usize,
        reuse: Reuse,
    ) -> Result<()> {
        // SAFETY: the caller keeps the promises that this call needs.
        unsafe { self.worker.copy_from(pe, offset, destination, length, reuse) }
    }

    fn atomic(&self, pe: u32, atomic: Atomic) -> Result<u64> {
        self.worker.atomic(pe, &atomic)
    }

    fn atomic_nbi(&self, pe: u32, atomic: Atomic) -> Result<()> {
        self.worker.atomic_nbi(pe, &atomic)
    }

    unsafe fn atomic_fetch_nbi(&self, pe: u32, atomic: Atomic, result: *mut u8) -> Result<()> {
        // SAFETY: the caller keeps the promises that this call needs.
        unsafe { self.worker.atomic_fetch_nbi(pe, &atomic, result) }
    }

    fn order(&self) -> Result<()> {
        let worker = &*self.worker;
        fence(Ordering::SeqCst);
        if !worker.is_in_flight() {
            return Ok(());
        }
        let flushed = worker.flushed.load(Ordering::Acquire);
        if worker.flows.iter().any(|flow| flow.overtakable.load(Ordering::Relaxed) > flushed) {
            return worker.flush();
        }
        let handles = worker.handles();
        // SAFETY: the lock of the handles is held.
        let status = unsafe { (worker.library.worker_fence)(handles.worker) };
        worker.library.check(status, "a fence")
    }

    fn fence(&self) -> Result<()> {
        self.order()
    }

    fn quiet(&self) -> Result<()> {
        let worker = &*self.worker;
        fence(Ordering::SeqCst);
        if worker.is_in_flight() {
            worker.flush()?;
        }
        for flow in &worker.flows {
            flow.delivered.store(flow.issued.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        Ok(())
    }

    fn quiet_all(&self) -> Result<()> {
        let in_flight = |worker: &&Arc<Worker>| worker.is_in_flight();
        let contexts: Vec<_> = self.worker.contexts().iter().filter(in_flight).cloned().collect();
        contexts.iter().try_for_each(|worker| worker.flush())?;
        self.quiet()
    }

    fn notify(&self, pe: u32) -> Result<()> {
        let worker = &*self.worker;
        let peer = worker.peer(pe)?;
        let count = u64::from(peer.notified.fetch_add(1, Ordering::Relaxed).wrapping_add(1));
        self.order()?;
        let at = worker.me as usize * NOTIFICATION;
        if pe == worker.me {
            worker.notification(pe).store(count, Ordering::Release);
            return Ok(());
        }
        if let Some(base) = worker.mapped_address(pe, peer, Segment::Memory, 0)? {
            // SAFETY: the word lies before the peer's symmetric memory, in the same mapping.
            let word = unsafe { AtomicU64::from_ptr(base.sub(worker.private_bytes).add(at).cast()) };
            word.store(count, Ordering::Release);
            return Ok(());
        }
        worker.wait_for_room(pe, "a notification")?;
        let (handles, endpoint, _, key) = worker.reach(pe, Segment::Memory, 0)?;
        let reached = (handles, endpoint, peer.memory.wrapping_add(at as u64), key);
        let source = (&raw const count).cast();
        // SAFETY: `count` lives until `put_reached` returns. If `put_reached` fails, UCX does not read the 8
        // bytes later: either it has copied them, or this process does not call UCX again.
        unsafe { worker.put_reached(pe, reached, source, 8, Reuse::AtReturn, "a notification") }
    }

    fn take_notification(&self, pe: u32, check: Check<'_>) -> Result<()> {
        let worker = &*self.worker;
        let expected = worker.peer(pe)?.taken.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let word = worker.notification(pe);
        let arrived = || (word.load(Ordering::Acquire) as u32).wrapping_sub(expected) as i32 >= 0;
        worker.wait_in(worker.settings.completion, Some(pe), None, arrived, check)
    }

    fn wait(&self, awaited: Awaited, done: &mut dyn FnMut() -> bool, check: Check<'_>) -> Result<()> {
        let mode = awaited.mode.unwrap_or(self.worker.settings.completion);
        self.worker.wait_in(mode, None, None, done, check)
    }

    fn progress(&self) {
        let _ = self.worker.progress_once();
    }

    fn shares_processors(&self) -> bool {
        self.worker.settings.yields
    }

    fn yield_if_idle(&self) {
        let worker = &*self.worker;
        if worker.settings.yields {
            let bytes: u64 = worker.flows.iter().map(|flow| flow.issued.load(Ordering::Relaxed)).sum();
            let issued = bytes + worker.started.load(Ordering::Relaxed);
            if worker.ordered.swap(issued, Ordering::Relaxed) == issued {
                worker.progress_once();
                std::thread::yield_now();
            }
        }
    }

    fn leave(&self) -> Result<()> {
        self.quiet()?;
        // Wait for all PEs before ending the service thread: it may still have to progress UCX for a peer's
        // operation.
        self.worker.exchange.gather(&[])?;
        self.stop_service();
        Ok(())
    }
}
