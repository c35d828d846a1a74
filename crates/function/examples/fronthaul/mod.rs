//! Builds O-RAN U-plane frames (O-RAN.WG4.CUS section 8, over eCPRI 2.0), for the example `oran_capture` and
//! for tests.

/// The settings of a carrier.
#[derive(Clone, Copy, Debug)]
pub struct Carrier {
    /// The ids of the antenna-carriers. A stream is an index into this list.
    pub eaxc: &'static [u16],
    /// The number of PRBs per symbol.
    pub prbs: u16,
    /// The number of slots per subframe: 1, 2, 4 or 8, for subcarriers of 15, 30, 60 or 120 kHz.
    pub slots_per_subframe: u32,
    /// Bytes of a PRB: 48 for 16-bit I and Q, 28 for block floating point with 9 bits.
    pub prb_bytes: usize,
    /// The value of udCompHdr, if sections carry it.
    pub header: Option<u8>,
}

/// A section: some PRBs of one symbol.
#[derive(Clone, Debug)]
pub struct Section {
    /// The first PRB.
    pub start: u16,
    /// The number of PRBs. 0 means all from `start` to the last PRB of the carrier.
    pub count: u16,
    /// True if only every second PRB is included.
    pub every_second: bool,
    /// True if the section belongs to the symbol that follows the previous section's symbol.
    pub next_symbol: bool,
}

impl Section {
    /// Returns a section of `count` PRBs from `start` on.
    pub fn of(start: u16, count: u16) -> Self {
        Self { start, count, every_second: false, next_symbol: false }
    }

    /// Returns the numbers of the section's PRBs.
    pub fn prbs(&self, carrier: &Carrier) -> Vec<u16> {
        let all = (self.start..carrier.prbs).step_by(1 + self.every_second as usize);
        if self.count == 0 { all.collect() } else { all.take(self.count as usize).collect() }
    }
}

/// A U-plane packet.
#[derive(Clone, Debug)]
pub struct UPlane {
    /// The slot's number in its cycle. A cycle has 256 frames (2560 ms), and its first slot is 0.
    pub slot: u32,
    /// The index of the antenna-carrier in `Carrier::eaxc`.
    pub stream: usize,
    /// The symbol of the first section.
    pub symbol: u8,
    /// True if the frame has a VLAN tag.
    pub tagged: bool,
    /// The sections.
    pub sections: Vec<Section>,
}

/// Returns test samples for a PRB. They depend only on the arguments. No byte is zero, so samples differ from
/// a missing PRB.
pub fn samples(carrier: &Carrier, slot: u32, stream: usize, symbol: u8, prb: u16) -> Vec<u8> {
    let seed = slot.wrapping_mul(1_000_003) + stream as u32 * 10_007 + symbol as u32 * 331 + prb as u32;
    (0..carrier.prb_bytes as u32)
        .map(|i| (seed.wrapping_mul(2_654_435_761).rotate_left(i) >> 7) as u8 | 1)
        .collect()
}

impl UPlane {
    /// Returns the frame: Ethernet, eCPRI (common header, eAxC, sequence), O-RAN timing, and sections.
    pub fn frame(&self, carrier: &Carrier) -> Vec<u8> {
        let mut body = Vec::new();
        let (subframes, slot) =
            (self.slot / carrier.slots_per_subframe, self.slot % carrier.slots_per_subframe);
        let (frame, subframe) = (subframes / 10 % 256, subframes % 10);
        body.extend([0x10, frame as u8, (subframe << 4 | slot >> 2) as u8, (slot << 6) as u8 | self.symbol]);
        let mut symbol = self.symbol;
        for section in &self.sections {
            symbol += section.next_symbol as u8;
            let word = 5 << 20
                | (section.every_second as u32) << 19
                | (section.next_symbol as u32) << 18
                | (section.start as u32) << 8
                | section.count as u32;
            body.extend(word.to_be_bytes());
            body.extend(carrier.header.into_iter().flat_map(|header| [header, 0]));
            for prb in section.prbs(carrier) {
                body.extend(samples(carrier, self.slot, self.stream, symbol, prb));
            }
        }
        let mut out = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        if self.tagged {
            out.extend([0x81, 0, 0x60, 5]);
        }
        out.extend([0xae, 0xfe, 0x10, 0]);
        out.extend((body.len() as u16 + 4).to_be_bytes());
        out.extend(carrier.eaxc[self.stream].to_be_bytes());
        out.extend([9, 0x80]);
        out.extend(body);
        out.resize(out.len().max(60), 0);
        out
    }
}

/// Returns all packets of a slot, with up to `prbs_per_packet` PRBs each.
pub fn whole(carrier: &Carrier, slot: u32, prbs_per_packet: u16) -> Vec<UPlane> {
    let mut packets = Vec::new();
    for stream in 0..carrier.eaxc.len() {
        for symbol in 0..14 {
            for start in (0..carrier.prbs).step_by(prbs_per_packet as usize) {
                let sections = vec![Section::of(start, prbs_per_packet.min(carrier.prbs - start))];
                packets.push(UPlane { slot, stream, symbol, tagged: false, sections });
            }
        }
    }
    packets
}

/// Returns a classic pcap file with nanosecond times. `frames` holds each frame with its time.
pub fn pcap(frames: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_3c4du32, 4 << 16 | 2, 0, 0, 65535, 1] {
        file.extend(word.to_le_bytes());
    }
    for (time_ns, frame) in frames {
        let length = frame.len() as u32;
        for word in [(time_ns / 1_000_000_000) as u32, (time_ns % 1_000_000_000) as u32, length, length] {
            file.extend(word.to_le_bytes());
        }
        file.extend(frame);
    }
    file
}
