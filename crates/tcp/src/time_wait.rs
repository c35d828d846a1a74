//! TIME-WAIT without a connection: a small entry for an engine's table (RFC 9293, section 3.10.7.4; RFC 6191;
//! RFC 1337).

use crate::segment::{Header, Segment};
use crate::sequence::before;
use crate::{Options, Timestamps};
use inlane_wire::tcp::{ACK, RST, SYN};

/// The TIME-WAIT state of a closed connection. It is kept until the connection's old segments have left the
/// network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeWait {
    /// SND.NXT.
    pub(crate) sequence: u32,
    /// RCV.NXT.
    pub(crate) acknowledgment: u32,
    pub(crate) window: u16,
    /// TS.Recent, and the offset of this side's timestamps. `None` if the connection had no timestamps.
    pub(crate) timestamps: Option<(u32, u32)>,
    pub(crate) until: u64,
}

/// What to do with a segment for a flow in TIME-WAIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeWaitAction {
    /// Nothing.
    Drop,
    /// Send this acknowledgment.
    Reply(Header),
    /// The segment is a SYN that opens a new connection (RFC 6191). Pass it to the [`crate::Listener`]
    /// together with this entry. If the listener replies, remove the entry. If there is no listener, answer
    /// with [`crate::reset_for`].
    Reopen,
}

impl TimeWait {
    /// Returns the time at which TIME-WAIT ends. The engine must then remove this entry from its table.
    pub fn until(&self) -> u64 {
        self.until
    }

    /// Returns the initial sequence number of a new connection of the same flow, for which `sequence` was chosen. Old segments
    /// of the previous connection may still arrive. So the result exceeds that connection's numbers by more than a window of
    /// 65,535 bytes (RFC 6191).
    pub fn sequence_after(&self, sequence: u32) -> u32 {
        let least = self.sequence.wrapping_add(u16::MAX as u32 + 2);
        if before(sequence, least) { least } else { sequence }
    }

    /// Processes a segment. `time_wait` is the length of TIME-WAIT in nanoseconds; a retransmitted FIN restarts it.
    pub fn on_segment(&mut self, now: u64, time_wait: u64, segment: &Segment<'_>) -> TimeWaitAction {
        let header = &segment.header;
        if header.has(RST) {
            return TimeWaitAction::Drop; // RFC 1337
        }
        if header.has(SYN) && !header.has(ACK) {
            let newer = match (self.timestamps, header.options.timestamps) {
                (Some((recent, _)), Some(timestamps)) if timestamps.value != recent => {
                    before(recent, timestamps.value)
                }
                _ => before(self.acknowledgment, header.sequence),
            };
            if newer {
                return TimeWaitAction::Reopen;
            }
        } else if header.has(inlane_wire::tcp::FIN) {
            self.until = self.until.max(now.saturating_add(time_wait));
        } else if segment.payload.is_empty() && header.sequence == self.acknowledgment {
            return TimeWaitAction::Drop; // an acknowledgment must not be answered with another
        }
        let timestamps = self
            .timestamps
            .map(|(recent, offset)| Timestamps { value: crate::timestamp(now, offset), echo: recent });
        TimeWaitAction::Reply(Header {
            sequence: self.sequence,
            acknowledgment: self.acknowledgment,
            window: self.window,
            flags: ACK,
            options: Options { timestamps, ..Options::default() },
        })
    }
}
