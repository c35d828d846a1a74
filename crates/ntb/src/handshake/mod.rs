//! The handshake with one peer. Both sides exchange their sizes and epochs through scratchpads until they
//! agree.
//!
//! [`protocol`] defines the exchanged values. This module writes the values over a bridge, and repeats this
//! until the peer answers. A lost write or doorbell therefore only delays the handshake.

pub mod protocol;
#[cfg(test)]
mod tests;

use crate::device::Ntb;
use crate::error::{Error, Result};
use crate::fault::Faults;
use crate::field::HEAP;
use inlane_core::region::Region;
use protocol::{ConnectionEpochs, Handshake, NextStep, ROW, VERSION};
use std::time::{Duration, Instant};

/// The doorbell bit that tells the peer to read this side's row of scratchpads. [`protocol`] describes the
/// row.
pub const DOORBELL: u64 = 1 << 33;
const PAGE: u64 = 4096;
/// How long to wait for an answer before a row is written again: the first and the longest time. Each repetition
/// doubles the time, because many peers may start late.
const REWRITE_AFTER: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(640));
/// The pause for each remaining peer before all rows are read again, if a peer has just connected. The pause doubles as
/// long as no peer connects.
const FIRST_PAUSE: Duration = Duration::from_micros(2);
/// The longest pause before fewer than 16 rows are read again. Each 16 rows add as much.
const LONGEST_PAUSE: Duration = Duration::from_micros(500);

/// The longest pause in a job of more than 16 peers.
const LONGEST_PAUSE_OF_LARGE_JOBS: Duration = Duration::from_millis(640);

/// Returns the pause before the remaining `rows` rows of `peers` peers are read again. `pause` is the last pause, `connected`
/// is true if a peer has connected since then, and `elapsed` is the time since the first read.
fn next_pause((rows, peers): (u32, u32), pause: Duration, connected: bool, elapsed: Duration) -> Duration {
    // Pause in proportion to the number of rows, because reading them takes processor time that peers may need.
    let next = if connected { FIRST_PAUSE * rows } else { pause * 2 };
    let next = next.min(LONGEST_PAUSE * (1 + rows / 16));
    // The peers of a large job start one after another. If each of them made every other PE read all rows, the time that
    // the job needs to start would grow with the third power of its PEs.
    if peers > 16 { next.max((elapsed / 32).min(LONGEST_PAUSE_OF_LARGE_JOBS)) } else { next }
}

/// One side's memory and settings for the handshake.
pub struct Offer<'a> {
    /// The memory onto which the peer gets a window.
    pub inbound: &'a Region,
    /// This side's epoch, a number that identifies one attempt to connect. Use a new number for each attempt.
    pub epoch: u32,
    /// How long to try before the handshake fails.
    pub timeout: Duration,
}

/// Returns a random epoch. It almost certainly differs from the epochs of this port's earlier processes and
/// connections.
pub fn fresh_epoch() -> u32 {
    let mut bytes = [0u8; 4];
    // SAFETY: the call writes at most the variable's 4 bytes.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), 4, 0) };
    let random = if got == 4 { u32::from_ne_bytes(bytes) } else { 0 };
    let time =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.subsec_nanos());
    (random ^ time.rotate_left(16) ^ std::process::id()).max(1)
}

fn read_row(ntb: &dyn Ntb, peer: u32) -> [u32; ROW] {
    std::array::from_fn(|index| ntb.scratchpad_read(peer * ROW as u32 + index as u32))
}

/// Returns the epoch in the row of scratchpads that `peer` wrote. If this epoch differs from the epoch in the
/// [`ConnectionEpochs`], the peer has restarted or is reconnecting.
pub fn epoch_in_row(ntb: &dyn Ntb, peer: u32) -> u32 {
    ntb.scratchpad_read(peer * ROW as u32 + 1)
}

fn write_row(ntb: &dyn Ntb, peer: u32, words: &[u32; ROW]) -> Result<()> {
    let row = ntb.port() * ROW as u32;
    // Invalidate the check word first. Otherwise, the peer could accept a row that is only half written.
    ntb.peer_scratchpad_write(peer, row + ROW as u32 - 1, !words[ROW - 1])?;
    for (index, word) in words.iter().enumerate() {
        ntb.peer_scratchpad_write(peer, row + index as u32, *word)?;
    }
    ntb.peer_doorbell_set(peer, DOORBELL)
}

/// Connects to `peer`. Each side writes its sizes and its epoch into a row of scratchpads at the other side.
/// Returns when the peer's row contains this side's epoch, and both sides have set their address
/// translations.
///
/// # Errors
/// * [`Error::Window`] if the memory of one side does not fit into the memory window of the other.
/// * [`Error::Version`] if the peer uses another protocol version.
/// * [`Error::Handshake`] if the bridge has too few scratchpads, or if the peer does not answer in time or
///   only with garbage.
/// * Errors of the bridge.
pub fn connect(ntb: &dyn Ntb, peer: u32, offer: &Offer<'_>, faults: &Faults) -> Result<ConnectionEpochs> {
    let mut connection = None;
    connect_all(ntb, &[peer], offer, faults, |_, epochs| -> Result<()> {
        connection = Some(epochs);
        Ok(())
    })?;
    connection.ok_or_else(|| Error::Handshake { peer, why: "it has no connection".into() })
}

/// Connects to all `peers` at the same time, as [`connect`] does. Calls `connected` as soon as the connection to a
/// peer exists, in any order of the peers.
///
/// # Errors
/// The first error of a connection, or of `connected`.
pub fn connect_all<E: From<Error>>(
    ntb: &dyn Ntb,
    peers: &[u32],
    offer: &Offer<'_>,
    faults: &Faults,
    mut connected: impl FnMut(u32, ConnectionEpochs) -> Result<(), E>,
) -> Result<(), E> {
    let mut open: Vec<_> =
        peers.iter().map(|peer| Connecting::new(ntb, *peer, offer)).collect::<Result<_>>()?;
    faults.step("hello");
    let (start, mut pause) = (Instant::now(), FIRST_PAUSE);
    while !open.is_empty() {
        let before = open.len();
        ntb.doorbell_clear(DOORBELL);
        let mut index = 0;
        while let Some(connecting) = open.get_mut(index) {
            match connecting.step(ntb, offer, faults)? {
                Some(epochs) => connected(open.swap_remove(index).peer, epochs)?,
                None => index += 1,
            }
        }
        match open.first() {
            Some(first) if start.elapsed() > offer.timeout => {
                let why = no_answer(ntb, first.peer, &first.side, offer);
                return Err(Error::Handshake { peer: first.peer, why }.into());
            }
            // Sleep instead of polling, because the peers may need this core.
            Some(_) => std::thread::sleep(pause),
            None => {}
        }
        let rows = (open.len() as u32, peers.len() as u32);
        pause = next_pause(rows, pause, open.len() < before, start.elapsed());
    }
    Ok(())
}

/// The handshake with one peer while it is in progress.
struct Connecting {
    peer: u32,
    side: Handshake,
    /// When this side's row was last written. `None` if it must be written now.
    written: Option<Instant>,
    /// How long to wait for an answer before the row is written again.
    rewrite_after: Duration,
}

impl Connecting {
    fn new(ntb: &dyn Ntb, peer: u32, offer: &Offer<'_>) -> Result<Self> {
        let capabilities = ntb.capabilities();
        if capabilities.scratchpads < ntb.ports() * ROW as u32 {
            return Err(Error::Handshake {
                peer,
                why: format!(
                    "the bridge has {} scratchpads for {} ports but needs 8 for each port; bridges with message registers are not supported yet",
                    capabilities.scratchpads,
                    ntb.ports()
                ),
            });
        }
        let pages = |bytes: u64| u32::try_from(bytes / PAGE).unwrap_or(u32::MAX);
        let (limit, inbound) = (capabilities.window.size_max_bytes, offer.inbound.len() as u64);
        let side = Handshake::new(offer.epoch, pages(limit), pages(inbound), false);
        Ok(Self { peer, side, written: None, rewrite_after: REWRITE_AFTER.0 })
    }

    /// Reads the peer's row, and writes this side's row if it is new or has no answer. Returns the epochs once the
    /// connection exists.
    fn step(
        &mut self,
        ntb: &dyn Ntb,
        offer: &Offer<'_>,
        faults: &Faults,
    ) -> Result<Option<ConnectionEpochs>> {
        let (peer, side) = (self.peer, &mut self.side);
        let progress = side.read(&read_row(ntb, peer));
        if let Some(row) = side.peer().filter(|row| row.version == VERSION && row.seen == offer.epoch) {
            check_sizes(peer, &side.row(), &row)?;
            if !side.row().ready {
                ntb.set_translation(peer, 0, offer.inbound)?;
                side.set_ready();
                self.written = None;
                faults.step("ready");
            }
        }
        match progress {
            NextStep::Connected(connection) => {
                // Write this side's final row once more. The peer connects only after it has read the final
                // row.
                write_row(ntb, peer, &side.row().encode())?;
                faults.step("connected");
                return Ok(Some(connection));
            }
            NextStep::OtherVersion(theirs) => {
                write_row(ntb, peer, &side.row().encode())?;
                return Err(Error::Version { peer, ours: VERSION, theirs });
            }
            NextStep::Write => self.written = None,
            NextStep::Wait => {}
        }
        if self.written.is_none_or(|at| at.elapsed() > self.rewrite_after) {
            write_row(ntb, peer, &side.row().encode())?;
            if self.written.replace(Instant::now()).is_some() {
                self.rewrite_after = (self.rewrite_after * 2).min(REWRITE_AFTER.1);
            }
        }
        Ok(None)
    }
}

fn check_sizes(peer: u32, own: &protocol::ScratchpadRow, row: &protocol::ScratchpadRow) -> Result<()> {
    let refuse = |why: String| Err(Error::Window { peer, why });
    if own.inbound_pages > row.limit_pages {
        return refuse(format!(
            "the peer's window takes {} pages of 4 KiB, but this side's memory has {}; give a smaller {HEAP}",
            row.limit_pages, own.inbound_pages
        ));
    }
    if row.inbound_pages > own.limit_pages {
        return refuse(format!(
            "this side's window takes {} pages of 4 KiB, but the peer's memory has {}; give the peer a smaller {HEAP}",
            own.limit_pages, row.inbound_pages
        ));
    }
    Ok(())
}

fn no_answer(ntb: &dyn Ntb, peer: u32, side: &Handshake, offer: &Offer<'_>) -> String {
    let seconds = offer.timeout.as_secs_f64();
    let link = if ntb.link(peer).up { "the link is up" } else { "the link is down" };
    match side.peer() {
        None if read_row(ntb, peer).iter().all(|word| *word == 0) => {
            format!("no answer in {seconds} s ({link}); check that the peer's program runs")
        }
        None => format!(
            "only garbage in its scratchpads for {seconds} s ({link}); check that the peer runs inlane"
        ),
        Some(row) if row.seen != offer.epoch => format!(
            "for {seconds} s its scratchpads answered another epoch, {:#x} instead of {:#x} ({link}); restart the peer, because they may be stale",
            row.seen, offer.epoch
        ),
        Some(_) => format!("it did not set its translation in {seconds} s ({link}); restart the peer"),
    }
}
