//! What programs ask of the transport: put, get, atomics, order, notifications, waiting.

use super::{Peer, Windows};
use crate::error::{Error, Result};
use crate::transport::service::encode_atomic;
use crate::transport::wait::{Manner, Watch};
use crate::transport::wakeup::{Stored, Wanted};
use crate::transport::{Atomic, Transport};
use inlane_ntb::store::store_fence;
use std::sync::PoisonError;
use std::sync::atomic::{Ordering, fence};

impl Transport for Windows {
    fn me(&self) -> u32 {
        self.shared.me
    }

    fn pes(&self) -> u32 {
        self.shared.pes
    }

    fn symmetric(&self) -> (*mut u8, usize) {
        let layout = &self.shared.layout;
        (self.shared.base.wrapping_add(layout.symmetric()), layout.symmetric_bytes())
    }

    fn direct(&self, pe: u32) -> Option<*mut u8> {
        let base = self.shared.peers.get(pe as usize)?.window.coherent_base()?;
        Some(base.wrapping_add(self.shared.layout.symmetric()))
    }

    #[inline]
    unsafe fn put(&self, pe: u32, offset: usize, source: *const u8, length: usize) -> Result<()> {
        let shared = &*self.shared;
        let peer = shared.peer(pe)?;
        let at = shared.symmetric_offset(offset);
        match &shared.mover {
            Some(mover) if length >= shared.mover_from => {
                let ticket = shared.submit(mover, peer, at, (source, length), false)?;
                let mut mover = mover.lock().unwrap_or_else(PoisonError::into_inner);
                mover.wait(ticket, shared.completion)?;
            }
            // SAFETY: the caller's promise; the window checks the destination.
            _ => unsafe { peer.window.store_from(at, source, length)? },
        }
        shared.count(peer, length);
        shared.stored(pe, peer, Stored::Put(offset, length));
        Ok(())
    }

    unsafe fn put_nbi(&self, pe: u32, offset: usize, source: *const u8, length: usize) -> Result<()> {
        let shared = &*self.shared;
        match &shared.mover {
            Some(mover) if length >= shared.mover_from => {
                let peer = shared.peer(pe)?;
                shared.submit(mover, peer, shared.symmetric_offset(offset), (source, length), true)?;
                shared.count(peer, length);
                Ok(())
            }
            // SAFETY: the caller's promise.
            _ => unsafe { self.put(pe, offset, source, length) },
        }
    }

    unsafe fn get(&self, pe: u32, offset: usize, destination: *mut u8, length: usize) -> Result<()> {
        let shared = &*self.shared;
        let peer = shared.peer(pe)?;
        if length < shared.push_from || pe == shared.me {
            shared.check(Watch::Peer(pe))?;
            // SAFETY: the caller's promise; the window checks the source.
            unsafe { peer.window.load_into(destination, shared.symmetric_offset(offset), length)? };
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.get_pushed(pe, offset, destination, length, None) }
    }

    fn atomic(&self, pe: u32, atomic: Atomic) -> Result<u64> {
        let shared = &*self.shared;
        shared.peer(pe)?;
        if pe == shared.me {
            let before = shared.apply(&atomic).ok_or(Error::Refused { peer: pe, what: "an atomic" })?;
            shared.changed_own_memory();
            return Ok(before);
        }
        shared.request(pe, &encode_atomic(&atomic), shared.manner("an atomic"))
    }

    fn atomic_nbi(&self, pe: u32, atomic: Atomic) -> Result<()> {
        let shared = &*self.shared;
        shared.peer(pe)?;
        if pe == shared.me {
            return self.atomic(pe, atomic).map(|_| ());
        }
        shared.request_later(pe, &encode_atomic(&atomic))
    }

    fn order(&self) -> Result<()> {
        self.shared.finish()?;
        if self.shared.coherent {
            store_fence();
        } else {
            // A fence orders stores alone; what a mover will copy must find them delivered.
            let mixed = self.shared.mover.is_some();
            let order = |peer: &Peer| if mixed { peer.window.flush() } else { peer.window.fence() };
            self.shared.peers.iter().for_each(order);
        }
        Ok(())
    }

    fn fence(&self) -> Result<()> {
        let shared = &*self.shared;
        // An owner carries them out whenever it comes to it: nothing else orders puts behind them.
        shared.peers.iter().zip(0..).try_for_each(|(peer, pe)| shared.collect(pe, peer))?;
        self.order()
    }

    fn quiet(&self) -> Result<()> {
        let shared = &*self.shared;
        shared.finish()?;
        fence(Ordering::SeqCst);
        store_fence();
        shared.faults.step("quiet");
        for (pe, peer) in shared.peers.iter().enumerate() {
            let issued = peer.issued.load(Ordering::Relaxed);
            let open = issued != peer.delivered.load(Ordering::Relaxed);
            shared.collect(pe as u32, peer)?;
            if open || !shared.coherent {
                peer.window.flush();
                if open {
                    shared.check(Watch::Peer(pe as u32))?;
                    peer.delivered.store(issued, Ordering::Relaxed);
                }
            }
        }
        Ok(())
    }

    fn notify(&self, pe: u32) -> Result<()> {
        let shared = &*self.shared;
        let peer = shared.peer(pe)?;
        shared.faults.step("notify");
        let count = peer.notified.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let tag = peer.tag.load(Ordering::Acquire) as u64;
        peer.window.fence();
        peer.window.store_word(shared.layout.notifications(shared.me), tag << 32 | count as u64)?;
        shared.stored(pe, peer, Stored::Control);
        Ok(())
    }

    fn take_notification(&self, pe: u32) -> Result<()> {
        let shared = &*self.shared;
        let peer = shared.peer(pe)?;
        let expected = peer.taken.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let tag = peer.tag.load(Ordering::Acquire);
        let word = shared.word(shared.layout.notifications(pe));
        let manner = Manner { timeout: None, ..shared.manner("a notification") };
        shared.wait_for(manner, Watch::Peer(pe), || {
            let value = word.load(Ordering::Acquire);
            (value >> 32) as u32 == tag && (value as u32).wrapping_sub(expected) as i32 >= 0
        })
    }

    fn wait(&self, word: Option<(usize, usize)>, done: &mut dyn FnMut() -> bool) -> Result<()> {
        let wanted = word.map_or(Wanted::Any, |(offset, width)| Wanted::word(offset, width));
        let manner = Manner { timeout: None, wanted, ..self.shared.manner("a condition") };
        self.shared.wait_for(manner, Watch::Any, done)
    }

    fn progress(&self) {
        self.shared.serve(false);
    }
}
