//! The packets that an O-RAN radio sends. A packet's position in the sequence determines its content.
//!
//! ```text
//! position -> number of the symbol since the start -> frame, subframe, slot, symbol
//!          -> eAxC (antenna-carrier): one after the other within a symbol
//!          -> PRBs (physical resource blocks): as many as fit into a packet, in order
//! ```

use crate::generate::traffic::mix;
use inlane_core::Result;
use inlane_core::port::spec::SpecText;
use inlane_core::units::{Rate, parse_rate};
use inlane_wire::oran::{self, PRB, SECTION, SYMBOLS, Section};
use inlane_wire::{Mac, ecpri, ethernet};

/// The size in bytes of the table with random samples. The samples of a symbol begin at an offset of the
/// table that differs between symbols.
const TABLE: usize = 1 << 16;
/// The largest number of PRBs in a symbol: a PRB's number has 10 bits.
const MAX_PRBS: u64 = 1024;
/// The most PRBs that a section's length field can express. 0 in that field means all PRBs.
const MAX_COUNTED: usize = 255;

/// Describes all packets that a radio sends. A packet's position is its number before packets are shuffled or
/// lost.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Identifiers of the antenna-carriers.
    pub eaxc: Vec<u16>,
    /// PRBs in a symbol.
    pub prbs: usize,
    /// Slots in a subframe: 1, 2, 4 or 8.
    pub slots_per_subframe: u64,
    /// PRBs in a packet. The last packet of a symbol may have fewer.
    prbs_per_packet: usize,
    /// The number of packets that are shuffled together. 1 keeps packets in order.
    pub shuffle: usize,
    /// The share of packets that are not sent, from 0 to 1.
    pub loss: f64,
    /// The seed that determines samples, order and losses.
    pub seed: u64,
    /// True for downlink (towards the antenna), false for uplink.
    pub downlink: bool,
    /// The VLAN of all frames, if they carry an 802.1Q tag.
    pub vlan: Option<u16>,
    macs: (Mac, Mac),
    table: Vec<u8>,
}

/// How many packets a radio sends, and at which rate.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RadioLoad {
    /// The rate. `None` means real time if `realtime` is set, else as fast as packets are received.
    pub rate: Option<Rate>,
    /// If set and `rate` is `None`, the packets of each symbol become due when the symbol begins.
    pub realtime: bool,
    /// The number of packets to send. Includes packets that are lost on purpose. `None` means without end.
    pub positions: Option<u64>,
}

/// The time of a symbol in a packet's header: frame, subframe, slot, and symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SymbolTime {
    /// Frame, 0 to 255.
    pub frame: u8,
    /// Subframe, 0 to 9.
    pub subframe: u8,
    /// Slot within the subframe.
    pub slot: u8,
    /// Symbol within the slot, 0 to 13.
    pub symbol: u8,
}

/// What the packet at a position contains: its symbol, antenna-carrier and PRBs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedPacket {
    /// Number of the packet's symbol, counted from the first symbol that the radio sends.
    pub symbol: u64,
    /// Index in [`Plan::eaxc`].
    pub stream: usize,
    /// Number of the first PRB in the packet.
    pub first_prb: usize,
    /// Number of PRBs in the packet.
    pub prbs: usize,
    /// The packet's eCPRI sequence number. Each eAxC counts its packets.
    pub sequence: u8,
}

impl Plan {
    /// Parses
    /// `gen:oran[,eaxc=0+1,prbs=N,scs=15|30|60|120,mtu=N,shuffle=N,loss=N%,seed=N,downlink,vlan=N,smac=M,dmac=M,
    /// slots=N,rate=R,realtime]`. The defaults equal those of the function `oran-reorder`.
    ///
    /// # Errors
    /// If an option is unknown or a value is out of range.
    pub fn parse(text: &str) -> Result<(Self, RadioLoad)> {
        let mut spec = SpecText::parse(text)?;
        let eaxc = spec.option("eaxc", |value| {
            let id = |text: &str| match text.strip_prefix("0x") {
                Some(hex) => u16::from_str_radix(hex, 16).ok(),
                None => text.parse().ok(),
            };
            let ids: Option<Vec<u16>> = value.split('+').map(id).collect();
            let each_once = |ids: &Vec<u16>| ids.iter().enumerate().all(|(at, id)| !ids[..at].contains(id));
            ids.filter(each_once).ok_or_else(|| "give ids from 0 to 65535, each once: eaxc=0+1+0x10".into())
        })?;
        let spacing = spec.option("scs", |value| match value {
            "15" => Ok(1),
            "30" => Ok(2),
            "60" => Ok(4),
            "120" => Ok(8),
            _ => Err("give 15, 30, 60 or 120 (kHz)".into()),
        })?;
        let mtu = spec.number("mtu", 64..=16384)?.unwrap_or(1500usize);
        let loss = spec.option("loss", |value| {
            let (number, scale) = value.strip_suffix('%').map_or((value, 1.0), |number| (number, 0.01));
            let share = number.parse::<f64>().ok().map(|number| number * scale);
            share.filter(|share| (0.0..=1.0).contains(share)).ok_or_else(|| "give 0 % to 100 %".into())
        })?;
        let mac = |value: &str| {
            value.parse::<Mac>().map_err(|_| "give a MAC address such as 02:00:00:00:00:01".into())
        };
        let prbs = spec.number("prbs", 1..=MAX_PRBS)?.unwrap_or(273usize);
        let fit = (mtu - ecpri::DATA_HEADER - oran::HEADER - SECTION) / PRB;
        if fit == 0 {
            return Err(spec.error(format!("mtu={mtu}: a PRB of {PRB} bytes does not fit; give 64 or more")));
        }
        let mut plan = Self {
            eaxc: eaxc.unwrap_or_else(|| vec![0, 1, 2, 3]),
            prbs,
            slots_per_subframe: spacing.unwrap_or(2),
            prbs_per_packet: if fit >= prbs { prbs } else { fit.min(MAX_COUNTED) },
            shuffle: spec.number("shuffle", 1..=4096)?.unwrap_or(1),
            loss: loss.unwrap_or(0.0),
            seed: spec.number("seed", 0..=u64::MAX)?.unwrap_or(1),
            downlink: spec.flag("downlink")?,
            vlan: spec.number("vlan", 0..=4094)?,
            macs: (
                spec.option("smac", mac)?.unwrap_or(Mac([2, 0, 0, 0, 0, 1])),
                spec.option("dmac", mac)?.unwrap_or(Mac([2, 0, 0, 0, 0, 2])),
            ),
            table: Vec::new(),
        };
        let mut state = plan.seed;
        while plan.table.len() < TABLE + prbs * PRB {
            plan.table.extend(mix(&mut state).to_be_bytes());
        }
        let load = RadioLoad {
            rate: spec.option("rate", |value| parse_rate(value).map_err(|error| error.to_string()))?,
            realtime: spec.flag("realtime")?,
            positions: spec
                .number("slots", 0..=1 << 40)?
                .map(|slots: u64| slots * SYMBOLS as u64 * plan.packets_per_symbol()),
        };
        if load.realtime && load.rate.is_some() {
            return Err(spec.error("give a rate or 'realtime', not both"));
        }
        spec.finish()?;
        Ok((plan, load))
    }

    fn packets_per_stream(&self) -> u64 {
        self.prbs.div_ceil(self.prbs_per_packet) as u64
    }

    /// Returns the number of packets per symbol, over all antenna-carriers.
    pub fn packets_per_symbol(&self) -> u64 {
        self.packets_per_stream() * self.eaxc.len() as u64
    }

    /// Returns the mean time between two symbols, in nanoseconds.
    pub fn symbol_ns(&self) -> f64 {
        1e6 / (self.slots_per_subframe * SYMBOLS as u64) as f64
    }

    /// Returns the offset of the samples in a frame, in bytes.
    fn header_length(&self) -> usize {
        let tag = if self.vlan.is_some() { ethernet::TAG } else { 0 };
        ethernet::HEADER + tag + ecpri::DATA_HEADER + oran::HEADER + SECTION
    }

    /// Returns the length of the longest frame in bytes.
    pub fn longest(&self) -> usize {
        self.header_length() + self.prbs_per_packet * PRB
    }

    /// Returns what packet number `position` contains. Packets are counted from 0 in the order before
    /// shuffling.
    #[inline]
    pub fn packet(&self, position: u64) -> PlannedPacket {
        let (symbol, rest) = (position / self.packets_per_symbol(), position % self.packets_per_symbol());
        let (stream, part) = (rest / self.packets_per_stream(), rest % self.packets_per_stream());
        let first_prb = part as usize * self.prbs_per_packet;
        PlannedPacket {
            symbol,
            stream: stream as usize,
            first_prb,
            prbs: self.prbs_per_packet.min(self.prbs - first_prb),
            sequence: (symbol * self.packets_per_stream() + part) as u8,
        }
    }

    /// Returns the time of symbol number `symbol`.
    pub fn time(&self, symbol: u64) -> SymbolTime {
        let slot = symbol / SYMBOLS as u64;
        let subframe = slot / self.slots_per_subframe;
        SymbolTime {
            frame: (subframe / 10) as u8,
            subframe: (subframe % 10) as u8,
            slot: (slot % self.slots_per_subframe) as u8,
            symbol: (symbol % SYMBOLS as u64) as u8,
        }
    }

    /// Returns true if packet number `position` is left out, to simulate its loss.
    #[inline]
    pub fn is_lost(&self, position: u64) -> bool {
        self.loss > 0.0 && {
            let random = mix(&mut (self.seed ^ position.rotate_left(32)));
            ((random >> 11) as f64) < self.loss * (1u64 << 53) as f64
        }
    }

    /// Writes the positions of a group of `shuffle` consecutive packets to `order`, in sending order. `block`
    /// is the number of the group.
    pub fn order(&self, block: u64, order: &mut Vec<u64>) {
        let start = block * self.shuffle as u64;
        order.clear();
        order.extend(start..start + self.shuffle as u64);
        let mut state = self.seed ^ block.rotate_left(16);
        for at in (1..order.len()).rev() {
            order.swap(at, (mix(&mut state) % (at as u64 + 1)) as usize);
        }
    }

    /// Returns the samples of all PRBs of a symbol for antenna-carrier number `stream`. A PRB has 12
    /// subcarriers with I and Q as big-endian 16-bit numbers.
    pub fn samples(&self, stream: usize, symbol: u64) -> &[u8] {
        let start = mix(&mut (self.seed ^ (stream as u64) << 56 ^ symbol)) as usize % (TABLE / 4) * 4;
        &self.table[start..start + self.prbs * PRB]
    }

    /// Writes packet `position` to `bytes`, which must hold the longest frame. Returns its length.
    pub fn write(&self, position: u64, bytes: &mut [u8]) -> usize {
        let packet = self.packet(position);
        let headers = self.header_length();
        let length = headers + packet.prbs * PRB;
        let bytes = &mut bytes[..length];
        bytes[..6].copy_from_slice(&self.macs.1.0);
        bytes[6..12].copy_from_slice(&self.macs.0.0);
        let mut at = 12;
        if let Some(vlan) = self.vlan {
            bytes[12..14].copy_from_slice(&ethernet::VLAN.to_be_bytes());
            bytes[14..16].copy_from_slice(&vlan.to_be_bytes());
            at = 16;
        }
        bytes[at..at + 2].copy_from_slice(&ethernet::ECPRI.to_be_bytes());
        let mut message =
            ecpri::Message::init(&mut bytes[at + 2..]).expect("the frame has room for its headers");
        message.set_pc_id(self.eaxc[packet.stream]);
        message.set_sequence(packet.sequence);
        let payload = message.payload_mut();
        let time = self.time(packet.symbol);
        let mut header = oran::Message::new(&mut payload[..]).expect("the frame has room for its headers");
        header.set_time(self.downlink, time.frame, time.subframe, time.slot, time.symbol);
        let section = Section {
            id: 0,
            every_second: false,
            next_symbol: false,
            first_prb: packet.first_prb as u16,
            prbs: u8::try_from(packet.prbs).unwrap_or(0),
        };
        payload[oran::HEADER..oran::HEADER + SECTION].copy_from_slice(&section.to_bytes());
        let samples =
            &self.samples(packet.stream, packet.symbol)[packet.first_prb * PRB..][..packet.prbs * PRB];
        payload[oran::HEADER + SECTION..].copy_from_slice(samples);
        length
    }
}
