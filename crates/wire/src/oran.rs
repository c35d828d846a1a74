//! O-RAN fronthaul user plane (O-RAN.WG4.CUS): the symbol that a message belongs to, and its sections of IQ
//! samples.
//!
//! ```text
//! 0                             1       2                      4 bytes in all
//! | direction, version, filter | frame | subframe, slot, symbol |          one per message
//! | section (12) rb (1) symInc (1) first PRB (10) PRBs (8) |              4 bytes each section
//! | compression (8) reserved (8) |                                        only if compression is not static
//! | PRBs: each 12 subcarriers of I and Q |                                48 bytes at 16 bits, not compressed
//! ```

/// The length of a message's header, in bytes.
pub const HEADER: usize = 4;
/// The length of a section's header without a compression header, in bytes.
pub const SECTION: usize = 4;
/// Subcarriers of a physical resource block.
pub const SUBCARRIERS: usize = 12;
/// The size of an uncompressed PRB of 16-bit samples, in bytes.
pub const PRB: usize = SUBCARRIERS * 4;
/// Symbols of a slot (normal cyclic prefix).
pub const SYMBOLS: u8 = 14;

view! {
    /// An O-RAN user plane message. It begins with the radio time of its symbol. The sections of IQ samples
    /// follow.
    Message("O-RAN user plane", 4) {
        /// The frame number, modulo 256.
        frame / set_frame: u8 = 1,
    }
}

impl<T: AsRef<[u8]>> Message<T> {
    /// Returns the subframe within the frame, 0 to 9.
    pub fn subframe(&self) -> u8 {
        self.bytes()[2] >> 4
    }

    /// Returns the slot within the subframe, 0 to 63. The numerology may allow fewer slots.
    pub fn slot(&self) -> u8 {
        (self.bytes()[2] & 0xf) << 2 | self.bytes()[3] >> 6
    }

    /// Returns the symbol within the slot, 0 to 13.
    pub fn symbol(&self) -> u8 {
        self.bytes()[3] & 0x3f
    }

    /// Returns the sections of the message. A PRB has `prb` bytes of samples. A section of 0 PRBs covers the
    /// whole carrier of `carrier` PRBs. Stops at a section that is not completely in the buffer.
    pub fn sections(&self, prb: usize, carrier: u16) -> Sections<'_> {
        Sections { rest: &self.bytes()[HEADER..], prb, carrier }
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Message<T> {
    /// Sets the header: the given time, payload version 1, no filter.
    pub fn set_time(&mut self, downlink: bool, frame: u8, subframe: u8, slot: u8, symbol: u8) {
        let bytes = self.0.as_mut();
        bytes[0] = (downlink as u8) << 7 | 1 << 4;
        bytes[1] = frame;
        bytes[2] = subframe << 4 | slot >> 2 & 0xf;
        bytes[3] = slot << 6 | symbol & 0x3f;
    }
}

/// A section's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// Section number, 12 bits.
    pub id: u16,
    /// True if the rb bit is set: the section has only every second PRB. If false, the section has every PRB.
    pub every_second: bool,
    /// True if the symInc bit is set: the section belongs to the symbol after that of the previous section.
    /// If false, the section belongs to the same symbol.
    pub next_symbol: bool,
    /// The first PRB, 10 bits.
    pub first_prb: u16,
    /// The number of PRBs; 0 means the whole carrier.
    pub prbs: u8,
}

impl Section {
    /// Returns the header's bytes.
    pub fn to_bytes(self) -> [u8; SECTION] {
        let word = (self.id as u32 & 0xfff) << 20
            | (self.every_second as u32) << 19
            | (self.next_symbol as u32) << 18
            | (self.first_prb as u32 & 0x3ff) << 8
            | self.prbs as u32;
        word.to_be_bytes()
    }

    /// Reads a header from its bytes.
    pub fn from_bytes(bytes: [u8; SECTION]) -> Self {
        let word = u32::from_be_bytes(bytes);
        Self {
            id: (word >> 20) as u16,
            every_second: word >> 19 & 1 != 0,
            next_symbol: word >> 18 & 1 != 0,
            first_prb: (word >> 8) as u16 & 0x3ff,
            prbs: word as u8,
        }
    }
}

/// An iterator over the sections of a message and their samples.
#[derive(Clone, Debug)]
pub struct Sections<'a> {
    rest: &'a [u8],
    prb: usize,
    carrier: u16,
}

impl<'a> Iterator for Sections<'a> {
    type Item = (Section, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (header, rest) = self.rest.split_first_chunk::<SECTION>()?;
        let section = Section::from_bytes(*header);
        let prbs = if section.prbs == 0 { self.carrier as usize } else { section.prbs as usize };
        let (samples, rest) = rest.split_at_checked(prbs.checked_mul(self.prb)?)?;
        self.rest = rest;
        Some((section, samples))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn times_are_read_as_written(downlink: bool, frame: u8, subframe in 0u8..10, slot in 0u8..64, symbol in 0u8..14) {
            let mut message = Message::new([0u8; 4]).unwrap();
            message.set_time(downlink, frame, subframe, slot, symbol);
            prop_assert_eq!(message.bytes()[0] & 0x80 != 0, downlink);
            prop_assert_eq!((message.frame(), message.subframe(), message.slot(), message.symbol()),
                            (frame, subframe, slot, symbol));
        }

        #[test]
        fn sections_are_read_as_written(id in 0u16..4096, every_second: bool, next_symbol: bool, first_prb in 0u16..1024, prbs: u8) {
            let section = Section { id, every_second, next_symbol, first_prb, prbs };
            prop_assert_eq!(Section::from_bytes(section.to_bytes()), section);
        }

        #[test]
        fn the_walk_ends(bytes in proptest::collection::vec(any::<u8>(), 4..200), prb in 0usize..60, carrier: u16) {
            let message = Message::new(&bytes).unwrap();
            prop_assert!(message.sections(prb, carrier).count() <= bytes.len() / SECTION);
        }
    }

    #[test]
    fn two_sections() {
        let first = Section { id: 1, every_second: false, next_symbol: false, first_prb: 0, prbs: 1 };
        let second = Section { id: 2, every_second: false, next_symbol: false, first_prb: 1, prbs: 0 };
        let mut bytes = vec![0; HEADER];
        bytes.extend(first.to_bytes());
        bytes.extend([1; PRB]);
        bytes.extend(second.to_bytes());
        bytes.extend([2; PRB * 2]);
        let message = Message::new(&bytes).unwrap();
        let found: Vec<_> = message.sections(PRB, 2).collect();
        assert_eq!(found, [(first, &[1; PRB][..]), (second, &[2; PRB * 2][..])]);
        assert_eq!(message.sections(PRB, 3).count(), 1, "the second does not fit");
    }
}
