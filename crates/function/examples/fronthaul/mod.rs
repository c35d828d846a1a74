//! O-RAN U-plane frames (O-RAN.WG4.CUS section 8 over eCPRI 2.0), made byte by byte: for the example beside, and for tests.

/// How a carrier is set up.
#[derive(Clone, Copy, Debug)]
pub struct Carrier {
    /// The antenna-carriers; a stream is a position here.
    pub eaxc: &'static [u16],
    /// PRBs a symbol.
    pub prbs: u16,
    /// 1, 2, 4, 8 for subcarriers of 15, 30, 60, 120 kHz.
    pub slots_per_subframe: u32,
    /// 48 for 16 bits of I and Q, 28 for block floating point with 9.
    pub prb_bytes: usize,
    /// udCompHdr, where sections carry it.
    pub header: Option<u8>,
}

/// Some PRBs of one symbol.
#[derive(Clone, Debug)]
pub struct Section {
    /// The first.
    pub start: u16,
    /// How many; 0: all from the first on.
    pub count: u16,
    /// Every second only.
    pub every_second: bool,
    /// They belong to the symbol after the section before's.
    pub next_symbol: bool,
}

impl Section {
    /// `count` PRBs from `start` on.
    pub fn of(start: u16, count: u16) -> Self {
        Self { start, count, every_second: false, next_symbol: false }
    }

    /// The numbers of its PRBs.
    pub fn prbs(&self, carrier: &Carrier) -> Vec<u16> {
        let all = (self.start..carrier.prbs).step_by(1 + self.every_second as usize);
        if self.count == 0 { all.collect() } else { all.take(self.count as usize).collect() }
    }
}

/// A packet.
#[derive(Clone, Debug)]
pub struct UPlane {
    /// Slot number in the cycle of 256 frames.
    pub slot: u32,
    /// Which of the carrier's eAxC.
    pub stream: usize,
    /// Symbol of the first section.
    pub symbol: u8,
    /// With a VLAN tag.
    pub tagged: bool,
    /// What it holds.
    pub sections: Vec<Section>,
}

/// The samples of a PRB: any function of where it belongs, never zero.
pub fn samples(carrier: &Carrier, slot: u32, stream: usize, symbol: u8, prb: u16) -> Vec<u8> {
    let seed = slot.wrapping_mul(1_000_003) + stream as u32 * 10_007 + symbol as u32 * 331 + prb as u32;
    (0..carrier.prb_bytes as u32)
        .map(|i| (seed.wrapping_mul(2_654_435_761).rotate_left(i) >> 7) as u8 | 1)
        .collect()
}

impl UPlane {
    /// The frame on the wire: Ethernet, eCPRI (common header, eAxC, sequence), O-RAN timing, sections.
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

/// All packets of a slot, with `prbs_a_packet` PRBs each.
pub fn whole(carrier: &Carrier, slot: u32, prbs_a_packet: u16) -> Vec<UPlane> {
    let mut packets = Vec::new();
    for stream in 0..carrier.eaxc.len() {
        for symbol in 0..14 {
            for start in (0..carrier.prbs).step_by(prbs_a_packet as usize) {
                let sections = vec![Section::of(start, prbs_a_packet.min(carrier.prbs - start))];
                packets.push(UPlane { slot, stream, symbol, tagged: false, sections });
            }
        }
    }
    packets
}

/// A capture file (classic pcap, nanoseconds) of frames, each with its time.
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
