//! Parses and writes TCP options (RFC 9293 section 3.2, RFC 7323, RFC 2018).

/// The length of the timestamps option with its padding, in bytes.
pub const TIMESTAMPS_LEN: usize = 12;
/// The greatest number of blocks in a SACK option.
pub const MAX_SACK_BLOCKS: usize = 4;
/// The greatest length of all options, in bytes.
pub const MAX_LEN: usize = 40;
/// The greatest shift of the window scale option (RFC 7323, section 2.3).
pub const MAX_WINDOW_SCALE: u8 = 14;
/// The MSS to assume for a peer that announces no MSS (RFC 9293, section 3.7.1).
pub(crate) const DEFAULT_MSS: u16 = 536;

const END: u8 = 0;
const NOP: u8 = 1;
const MSS: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;
/// The kind of an experimental option (RFC 6994).
const EXPERIMENT: u8 = 254;
/// The identifier of this crate's experiment, which follows the option's kind and length.
const EXPERIMENT_ID: [u8; 2] = *b"IL";
/// The length of the option that carries an [`Offer`], in bytes.
const OFFER_LEN: usize = 4 + Offer::LEN;

/// The values of a timestamps option (RFC 7323, section 3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamps {
    /// TSval: the sender's clock.
    pub value: u32,
    /// TSecr: the last timestamp that the sender received from its peer.
    pub echo: u32,
}

impl Timestamps {
    /// Returns the option with its padding, as headers hold it.
    #[inline]
    pub(crate) fn to_bytes(self) -> [u8; TIMESTAMPS_LEN] {
        let mut option = [NOP, NOP, TIMESTAMPS, 10, 0, 0, 0, 0, 0, 0, 0, 0];
        option[4..8].copy_from_slice(&self.value.to_be_bytes());
        option[8..12].copy_from_slice(&self.echo.to_be_bytes());
        option
    }
}

/// The blocks of a SACK option (RFC 2018). Each block is a pair of sequence numbers: its left edge and its
/// right edge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SackBlocks {
    blocks: [(u32, u32); MAX_SACK_BLOCKS],
    len: u8,
}

impl SackBlocks {
    /// Appends a block. Has no effect if there are four already.
    #[inline]
    pub fn push(&mut self, left: u32, right: u32) {
        if let Some(block) = self.blocks.get_mut(self.len as usize) {
            *block = (left, right);
            self.len += 1;
        }
    }

    /// Removes blocks from the end until at most `len` remain.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len as u8);
    }

    /// Returns the blocks.
    #[inline]
    pub fn as_slice(&self) -> &[(u32, u32)] {
        &self.blocks[..self.len as usize]
    }

    /// Returns true if there is no SACK block.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of blocks.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }
}

/// An offer to carry the connection's data by another transport. A SYN and its SYN,ACK contain one as an
/// experimental option (RFC 6994). The other transport defines the meaning of the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offer(pub [u8; Self::LEN]);

impl Offer {
    /// The number of bytes.
    pub const LEN: usize = 14;
}

/// The TCP options of a segment, as far as this crate uses them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
    /// Selective acknowledgments.
    pub sack: SackBlocks,
    /// The greatest segment payload that the sender of the option accepts, in bytes.
    pub mss: Option<u16>,
    /// The shift that the option's sender applies to its own window field.
    pub window_scale: Option<u8>,
    /// True if the SYN has the option SACK-permitted: its sender accepts selective acknowledgments.
    pub sack_permitted: bool,
    /// The offer of another transport. Only SYN segments have it.
    pub offer: Option<Offer>,
}

impl Options {
    /// Reads options from a header's bytes. Skips unknown options. Stops at the first malformed one, because
    /// its end is unknown.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Self {
        // Most segments have only timestamps.
        if let [NOP, NOP, TIMESTAMPS, 10, values @ ..] = bytes
            && values.len() == 8
        {
            let timestamps = Timestamps { value: number(values, 0), echo: number(values, 4) };
            return Self { timestamps: Some(timestamps), ..Self::default() };
        }
        if bytes.is_empty() { Self::default() } else { Self::parse_each(bytes) }
    }

    fn parse_each(mut bytes: &[u8]) -> Self {
        let mut options = Self::default();
        while let [kind, rest @ ..] = bytes {
            match *kind {
                END => break,
                NOP => {
                    bytes = rest;
                    continue;
                }
                _ => {}
            }
            let Some(&len) = rest.first() else { break };
            if len < 2 || len as usize > bytes.len() {
                break;
            }
            let (option, next) = bytes.split_at(len as usize);
            let value = &option[2..];
            match (*kind, value.len()) {
                (MSS, 2) => options.mss = Some(u16::from_be_bytes([value[0], value[1]])),
                (WINDOW_SCALE, 1) => options.window_scale = Some(value[0].min(MAX_WINDOW_SCALE)),
                (SACK_PERMITTED, 0) => options.sack_permitted = true,
                (TIMESTAMPS, 8) => {
                    options.timestamps = Some(Timestamps { value: number(value, 0), echo: number(value, 4) });
                }
                (EXPERIMENT, _) if value.len() == OFFER_LEN - 2 && value[..2] == EXPERIMENT_ID => {
                    options.offer = value[2..].try_into().ok().map(Offer);
                }
                (SACK, len) if len % 8 == 0 => {
                    for block in value.chunks_exact(8) {
                        options.sack.push(number(block, 0), number(block, 4));
                    }
                }
                _ => {}
            }
            bytes = next;
        }
        options
    }

    /// Returns the length of the options on the wire with their padding, in bytes.
    #[inline]
    pub fn wire_len(&self) -> usize {
        let mut len = 0;
        if self.timestamps.is_some() {
            len += TIMESTAMPS_LEN;
        }
        if !self.sack.is_empty() {
            len += 4 + 8 * self.sack.len();
        }
        if self.mss.is_some() {
            len += 4;
        }
        if self.window_scale.is_some() {
            len += 4;
        }
        if self.sack_permitted && !self.shares_padding() {
            len += 4;
        }
        if self.offer.is_some() {
            len += OFFER_LEN.next_multiple_of(4);
        }
        len
    }

    /// Returns true if SACK-permitted takes the place of the padding before the timestamps. Otherwise an offer
    /// would not fit into the header.
    fn shares_padding(&self) -> bool {
        self.offer.is_some() && self.sack_permitted && self.timestamps.is_some()
    }

    /// Returns the timestamps if the segment has no other option.
    #[inline]
    pub fn only_timestamps(&self) -> Option<Timestamps> {
        self.timestamps.filter(|_| self.wire_len() == TIMESTAMPS_LEN)
    }

    /// Writes the options and returns their length, a multiple of 4. Leaves out options that do not fit into
    /// 40 bytes.
    pub fn write(&self, bytes: &mut [u8; MAX_LEN]) -> usize {
        let mut at = 0;
        let mut put = |option: &[u8]| {
            if let Some(room) = bytes.get_mut(at..at + option.len()) {
                room.copy_from_slice(option);
                at += option.len();
            }
        };
        if let Some(mss) = self.mss {
            let [high, low] = mss.to_be_bytes();
            put(&[MSS, 4, high, low]);
        }
        if self.sack_permitted && !self.shares_padding() {
            put(&[NOP, NOP, SACK_PERMITTED, 2]);
        }
        if let Some(shift) = self.window_scale {
            put(&[NOP, WINDOW_SCALE, 3, shift]);
        }
        if let Some(timestamps) = self.timestamps {
            let mut option = timestamps.to_bytes();
            if self.shares_padding() {
                option[..2].copy_from_slice(&[SACK_PERMITTED, 2]);
            }
            put(&option);
        }
        if !self.sack.is_empty() {
            let mut option = [0; 4 + 8 * MAX_SACK_BLOCKS];
            let len = 4 + 8 * self.sack.len();
            option[..4].copy_from_slice(&[NOP, NOP, SACK, len as u8 - 2]);
            for (room, (left, right)) in option[4..].chunks_exact_mut(8).zip(self.sack.as_slice()) {
                room[..4].copy_from_slice(&left.to_be_bytes());
                room[4..].copy_from_slice(&right.to_be_bytes());
            }
            put(&option[..len]);
        }
        if let Some(Offer(bytes)) = self.offer {
            let mut option = [END; OFFER_LEN.next_multiple_of(4)];
            option[..2].copy_from_slice(&[EXPERIMENT, OFFER_LEN as u8]);
            option[2..4].copy_from_slice(&EXPERIMENT_ID);
            option[4..OFFER_LEN].copy_from_slice(&bytes);
            put(&option);
        }
        at
    }
}

#[inline]
fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_parse(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let options = Options::parse(&bytes);
            prop_assert!(options.window_scale.is_none_or(|shift| shift <= MAX_WINDOW_SCALE));
        }

        #[test]
        fn options_read_back_as_written(mss: Option<u16>, scale in proptest::option::of(0u8..=14), permitted: bool,
                                        timestamps: Option<(u32, u32)>, offer: Option<[u8; Offer::LEN]>,
                                        blocks in proptest::collection::vec(any::<(u32, u32)>(), 0..=2)) {
            let offer = offer.map(Offer);
            let mut options = Options { mss, window_scale: scale, sack_permitted: permitted, offer, ..Options::default() };
            options.timestamps = timestamps.map(|(value, echo)| Timestamps { value, echo });
            for (left, right) in blocks {
                options.sack.push(left, right);
            }
            let mut bytes = [0; MAX_LEN];
            let len = options.write(&mut bytes);
            if options.wire_len() <= MAX_LEN {
                prop_assert_eq!(len, options.wire_len());
                prop_assert_eq!(Options::parse(&bytes[..len]), options);
            }
        }
    }

    #[test]
    fn an_offer_fits_beside_all_other_options_of_a_syn() {
        let timestamps = Some(Timestamps { value: 1, echo: 2 });
        let (mss, window_scale, offer) = (Some(1460), Some(7), Some(Offer([5; Offer::LEN])));
        let options =
            Options { mss, window_scale, timestamps, offer, sack_permitted: true, ..Options::default() };
        assert_eq!(options.wire_len(), MAX_LEN);
        let mut bytes = [0; MAX_LEN];
        assert_eq!(options.write(&mut bytes), MAX_LEN);
        assert_eq!(Options::parse(&bytes), options);
        bytes[22] ^= 1; // another experiment
        assert_eq!(Options::parse(&bytes), Options { offer: None, ..options });
    }

    #[test]
    fn rfc7323_a_window_scale_above_14_is_used_as_14() {
        assert_eq!(Options::parse(&[3, 3, 15, 0]).window_scale, Some(14));
    }
}
