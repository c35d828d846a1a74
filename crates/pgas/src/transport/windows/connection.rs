//! Connects to peers: a first handshake with each peer, and a new handshake after the link to a peer was
//! lost.

use super::layout::{HEADER_WORDS, Layout, MAGIC};
use super::requests::Requests;
use super::{Peer, Settings, Windows};
use crate::error::{Lost, Result};
use crate::field::HEAP;
use inlane_core::region::Region;
use inlane_ntb::device::{Ntb, Ordering as Promise};
use inlane_ntb::handshake::{self, Offer};
use inlane_ntb::window::Window;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

impl Windows {
    /// Connects to `pe` again after the link to `pe` was lost. Both sides must call this. Requests and
    /// notifications of the old connection are discarded. Symmetric memory keeps its contents. Returns the
    /// counts of the old connection: bytes issued, bytes delivered, and unanswered requests.
    ///
    /// # Errors
    /// Errors of the handshake. The connection then stays lost.
    pub fn reconnect(&self, pe: u32, timeout: Duration) -> Result<Lost> {
        let context = &*self.context;
        let peer = context.peer(pe)?;
        let lost = peer.lost();
        // Hold both locks during the handshake. While `next` is locked, no other thread can post requests to
        // the peer. While `expected` is locked, no other thread can serve the peer's requests.
        let mut next = peer.requests.next.lock().unwrap_or_else(PoisonError::into_inner);
        let mut expected = context.next_requests.lock().unwrap_or_else(PoisonError::into_inner);
        let inbound = context.ntb.inbound().slice(0, context.layout.bytes())?;
        let offer = Offer { inbound: &inbound, epoch: handshake::fresh_epoch(), timeout };
        let connection = handshake::connect(&*context.ntb, pe, &offer, &context.faults)?;
        // Read the link's generation only after the handshake, because the link may have come up during the
        // handshake. If the generation changes from now on, the link was lost.
        let generation = context.ntb.link(pe).generation;
        *next = 1;
        expected[pe as usize] = 1;
        peer.requests.slots.iter().for_each(|slot| slot.store(0, Ordering::Relaxed));
        for counter in [&peer.issued, &peer.delivered, &peer.unanswered] {
            counter.store(0, Ordering::Relaxed);
        }
        peer.refused.store(false, Ordering::Relaxed);
        peer.notified.store(0, Ordering::Relaxed);
        peer.taken.store(0, Ordering::Relaxed);
        peer.tag.store(connection.tag(), Ordering::Release);
        peer.theirs.store(connection.theirs, Ordering::Release);
        peer.generation.store(generation, Ordering::Release);
        Ok(lost)
    }
}

/// Connects this PE to all PEs, itself included. Returns the peers by their numbers.
pub(super) fn connect_peers(
    ntb: &dyn Ntb,
    inbound: &Region,
    layout: &Layout,
    settings: &Settings,
) -> Result<Vec<Peer>> {
    let me = ntb.port();
    let others: Vec<u32> = (0..ntb.ports()).filter(|pe| *pe != me).collect();
    let epoch = handshake::fresh_epoch();
    let offer = Offer { inbound, epoch, timeout: settings.connect_timeout };
    let own = Window::new(me, inbound.clone(), Promise::Coherent, None);
    let mut peers = vec![(me, peer(own, (1, 0), ntb.link(me).generation, true, usize::MAX))];
    handshake::connect_all(ntb, &others, &offer, &settings.faults, |pe, connection| -> Result<()> {
        // Read the link's generation only after the handshake, because the link may have come up during the
        // handshake. If the generation changes from now on, the link was lost.
        let generation = ntb.link(pe).generation;
        let window = ntb.peer_window(pe, 0)?;
        let alignment = check_window(pe, &window, layout)?;
        let needs_barrier = window.ordering() != Promise::Coherent;
        let epochs = (connection.tag(), connection.theirs);
        peers.push((pe, peer(window, epochs, generation, needs_barrier, alignment)));
        Ok(())
    })?;
    peers.sort_unstable_by_key(|(pe, _)| *pe);
    Ok(peers.into_iter().map(|(_, peer)| peer).collect())
}

/// Returns a peer at the start of a connection, with the connection's tag and the peer's epoch.
fn peer(
    window: Window,
    (tag, theirs): (u32, u32),
    generation: u64,
    is_exceptional: bool,
    alignment: usize,
) -> Peer {
    Peer {
        window,
        tag: AtomicU32::new(tag),
        theirs: AtomicU32::new(theirs),
        generation: AtomicU64::new(generation),
        notifier: Mutex::default(),
        alignment,
        is_exceptional,
        answered: AtomicU64::new(0),
        issued: AtomicU64::new(0),
        delivered: AtomicU64::new(0),
        unanswered: AtomicU64::new(0),
        refused: AtomicBool::new(false),
        requests: Requests::default(),
        unwoken: AtomicBool::new(false),
        loads: AtomicU32::new(0),
        notified: AtomicU32::new(0),
        taken: AtomicU32::new(0),
    }
}

/// Checks that `window` begins with a valid header and has the sizes of `layout`, because offsets would
/// differ otherwise. Returns the alignment of the peer's memory.
fn check_window(pe: u32, window: &Window, layout: &Layout) -> Result<usize> {
    let mut header = [0u64; HEADER_WORDS];
    // SAFETY: `header` is a local variable, and the length is its size.
    unsafe { window.load_into(header.as_mut_ptr().cast(), 0, size_of_val(&header))? };
    if window.len() != layout.bytes() || header[0] != MAGIC || header[2] != layout.symmetric_bytes() as u64 {
        return Err(inlane_ntb::error::Error::Window {
            peer: pe,
            why: format!(
                "it has {} bytes with {} of symmetric memory, but this side has {} with {}; give all PEs the same program and {HEAP}",
                window.len(),
                header[2],
                layout.bytes(),
                layout.symmetric_bytes()
            ),
        }
        .into());
    }
    Ok(super::alignment(header[4]))
}
