//! The operations of the window transport: put, get, atomics, ordering, notifications and waits.

use super::service::encode_atomic;
use super::wait::{FailureScope, WaitOptions};
use super::wakeup::{Interest, Stored};
use super::{PeContext, Peer, Windows};
use crate::error::{Error, Result};
use crate::transport::{Atomic, Awaited, Capabilities, Check, Operation, Reuse, Transport};
use inlane_core::access::store_fence;
use std::sync::PoisonError;
use std::sync::atomic::{Ordering, fence};

impl Transport for Windows {
    fn me(&self) -> u32 {
        self.context.me
    }

    fn pes(&self) -> u32 {
        self.context.pes
    }

    fn symmetric(&self) -> (*mut u8, usize) {
        let layout = &self.context.layout;
        (self.context.base.wrapping_add(layout.symmetric()), layout.symmetric_bytes())
    }

    fn alignment(&self) -> usize {
        self.context.alignment
    }

    fn slices_from(&self) -> usize {
        // In a sliced collective, a PE reads slices from other PEs. If reads are fast, cutting into slices
        // saves time from a smaller size on. All PEs must return the same size, so it must not depend on the
        // faults that one PE injects.
        match self.context.reads_are_fast {
            true => 4 << 10,
            false => 64 << 10,
        }
    }

    fn direct(&self, pe: u32, offset: usize) -> Option<*mut u8> {
        let base = self.context.peers.get(pe as usize)?.window.coherent_base()?;
        Some(base.wrapping_add(self.context.layout.symmetric() + offset))
    }

    fn capabilities(&self) -> Capabilities {
        let context = &*self.context;
        let mapped = |peer: &&Peer| peer.window.coherent_base().is_some();
        Capabilities {
            name: "windows".into(),
            methods: vec![context.ntb.capabilities().name.into()],
            mapped_pes: context.peers.iter().filter(mapped).count() as u32,
            atomics: match context.direct_atomics {
                true => "the processor of the PE that calls",
                false => "a processor of the PE that owns the word",
            }
            .into(),
            nonblocking: context.mover.is_some(),
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
        let context = &*self.context;
        let peer = context.peer(pe)?;
        let at = context.symmetric_offset(offset);
        match &context.mover {
            Some(mover) if length >= context.mover_from => {
                let later = reuse == Reuse::AtQuiet;
                let ticket = context.submit(mover, peer, at, (source, length), later)?;
                if later {
                    context.count(peer, length);
                    return Ok(());
                }
                let mut mover = mover.lock().unwrap_or_else(PoisonError::into_inner);
                mover.wait(ticket, context.completion)?;
            }
            // SAFETY: the caller promises that `source` is readable for `length` bytes. The window checks
            // the destination.
            _ => unsafe { peer.window.store_from(at, source, length)? },
        }
        context.count(peer, length);
        context.stored(pe, peer, Stored::Put(offset, length));
        Ok(())
    }

    unsafe fn get(
        &self,
        pe: u32,
        offset: usize,
        destination: *mut u8,
        length: usize,
        _reuse: Reuse,
    ) -> Result<()> {
        let context = &*self.context;
        let peer = context.peer(pe)?;
        if length < context.push_from || pe == context.me {
            context.check_load(pe, peer)?;
            // SAFETY: the caller promises that `destination` is writable for `length` bytes. The window
            // checks the source.
            unsafe { peer.window.load_into(destination, context.symmetric_offset(offset), length)? };
            return Ok(());
        }
        // SAFETY: the caller keeps the promises that this call needs.
        unsafe { self.get_pushed(pe, offset, destination, length, None) }
    }

    fn atomic(&self, pe: u32, atomic: Atomic) -> Result<u64> {
        let context = &*self.context;
        let peer = context.peer(pe)?;
        if pe == context.me {
            let before = context.apply(&atomic).ok_or(Error::Refused { peer: pe, what: "an atomic" })?;
            context.changed_own_memory();
            return Ok(before);
        }
        if context.direct_atomics {
            context.check(FailureScope::Peer(pe))?;
            return context.atomic_directly(pe, peer, &atomic);
        }
        context.request(pe, &encode_atomic(&atomic), context.wait_options("an atomic"))
    }

    fn atomic_nbi(&self, pe: u32, atomic: Atomic) -> Result<()> {
        let context = &*self.context;
        let peer = context.peer(pe)?;
        if pe == context.me {
            return self.atomic(pe, atomic).map(|_| ());
        }
        if context.direct_atomics {
            // Do not check whether the link is up. The next quiet checks it.
            context.count(peer, atomic.width);
            return context.atomic_directly(pe, peer, &atomic).map(|_| ());
        }
        context.request_later(pe, &encode_atomic(&atomic))
    }

    unsafe fn atomic_fetch_nbi(&self, pe: u32, atomic: Atomic, result: *mut u8) -> Result<()> {
        let before = self.atomic(pe, atomic)?.to_le_bytes();
        // SAFETY: the caller promises that `result` is writable for the atomic's width. The copy never reads
        // beyond `before`.
        unsafe { std::ptr::copy_nonoverlapping(before.as_ptr(), result, atomic.width.min(before.len())) };
        Ok(())
    }

    fn order(&self) -> Result<()> {
        self.context.finish()?;
        if self.context.coherent {
            store_fence();
        } else {
            // A fence orders stores, but not the copies of a mover. If there is a mover, wait until the
            // stores are delivered. Later copies then arrive after the stores.
            let mixed = self.context.mover.is_some();
            let order = |peer: &Peer| if mixed { peer.window.flush() } else { peer.window.fence() };
            self.context.peers.iter().for_each(order);
        }
        Ok(())
    }

    fn fence(&self) -> Result<()> {
        let context = &*self.context;
        // Wait for the answers to earlier atomics. The PE that owns a word executes the atomic itself. Until
        // it answers, a later put to the word could overtake the atomic.
        context.peers.iter().zip(0..).try_for_each(|(peer, pe)| context.collect(pe, peer))?;
        self.order()
    }

    fn quiet(&self) -> Result<()> {
        let context = &*self.context;
        context.finish()?;
        fence(Ordering::SeqCst);
        store_fence();
        context.faults.step("quiet");
        for (pe, peer) in context.peers.iter().enumerate() {
            let issued = peer.issued.load(Ordering::Relaxed);
            let open = issued != peer.delivered.load(Ordering::Relaxed);
            context.collect(pe as u32, peer)?;
            if open || !context.coherent {
                peer.window.flush();
                if open {
                    context.check(FailureScope::Peer(pe as u32))?;
                    peer.delivered.store(issued, Ordering::Relaxed);
                }
            }
        }
        Ok(())
    }

    fn notify(&self, pe: u32) -> Result<()> {
        let context = &*self.context;
        let peer = context.peer(pe)?;
        context.faults.step("notify");
        let count = peer.notified.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let tag = peer.tag.load(Ordering::Acquire) as u64;
        peer.window.fence();
        peer.window.store_word(context.layout.notifications(context.me), tag << 32 | count as u64)?;
        context.stored(pe, peer, Stored::Control);
        Ok(())
    }

    fn take_notification(&self, pe: u32, check: Check<'_>) -> Result<()> {
        let context = &*self.context;
        let peer = context.peer(pe)?;
        let expected = peer.taken.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let tag = peer.tag.load(Ordering::Acquire);
        let word = context.word(context.layout.notifications(pe));
        let options = WaitOptions { timeout: None, ..context.wait_options("a notification") };
        let arrived = || {
            let value = word.load(Ordering::Acquire);
            (value >> 32) as u32 == tag && (value as u32).wrapping_sub(expected) as i32 >= 0
        };
        context.wait_until(options, FailureScope::Peer(pe), false, arrived, check)
    }

    fn wait(&self, awaited: Awaited, done: &mut dyn FnMut() -> bool, check: Check<'_>) -> Result<()> {
        let interest = awaited.word.map_or(Interest::Any, |(offset, width)| Interest::word(offset, width));
        let mode = awaited.mode.unwrap_or(self.context.completion);
        let options =
            WaitOptions { mode, timeout: None, interest, ..self.context.wait_options("a condition") };
        let scope = awaited.pe.map_or(FailureScope::AnyPeer, FailureScope::Peer);
        self.context.wait_until(options, scope, false, done, check)
    }

    fn progress(&self) {
        self.context.serve(false);
    }

    fn shares_processors(&self) -> bool {
        self.context.yields
    }

    fn yield_if_idle(&self) {
        let context = &*self.context;
        if context.yields {
            let issued = context.peers.iter().map(|peer| peer.issued.load(Ordering::Relaxed)).sum();
            if context.ordered.swap(issued, Ordering::Relaxed) == issued {
                std::thread::yield_now();
            }
        }
    }

    fn leave(&self) -> Result<()> {
        let context = &*self.context;
        context.finish()?;
        fence(Ordering::SeqCst);
        store_fence();
        if !context.coherent {
            context.peers.iter().for_each(|peer| peer.window.flush());
        }
        // Leave without waiting for other PEs. They may still store to this PE's memory, because stores
        // through a window do not need this PE's service thread.
        Ok(())
    }
}

impl PeContext {
    /// Performs an atomic operation on the memory of `peer` with this PE's processor. The memory must be
    /// coherent.
    #[inline]
    fn atomic_directly(&self, pe: u32, peer: &Peer, atomic: &Atomic) -> Result<u64> {
        let before = peer.window.coherent_base().and_then(|base| self.apply_at(base, atomic));
        let before = before.ok_or(Error::Refused { peer: pe, what: "an atomic" })?;
        if atomic.operation != Operation::Fetch {
            self.stored(pe, peer, Stored::Put(atomic.offset, atomic.width));
        }
        Ok(before)
    }
}
