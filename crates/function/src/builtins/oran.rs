//! Reads the settings and the output region of `oran-reorder`. `functions/oran_reorder.cu` processes packets,
//! and `include/inlane_oran.h` describes the output region.
//!
//! ```text
//! oran-reorder[:KEY=VALUE,...]
//!   eaxc=0+1+2+3      the antenna-carriers (eAxC) to assemble, also as 0x10; at most 16
//!   prbs=273          PRBs per symbol, 1 to 288
//!   scs=30            subcarrier spacing in kHz: 15, 30, 60 or 120
//!   iq=16             bits of I and of Q, 1 to 16; bfp9: block floating point with 9 bits
//!   header            sections carry udCompHdr, and it must match iq
//!   windows=4         slots assembled at a time: 1, 2, 4, 8 or 16
//!   limit=1ms         deliver a slot this long after its first packet, even if packets are missing
//!   pass              forward assembled packets instead of dropping them
//! ```

use crate::report::{FunctionReport, Table, u32_at, u64_at};
use inlane_core::ring::layout::{DROP, FORWARD};
use inlane_core::struct_layout;
use std::mem::offset_of;

const STREAMS: usize = 16;
const WINDOWS: usize = 16;
const SYMBOLS: usize = 14;
/// The most PRBs per symbol. `oran_reorder.cu` keeps a bit for each in nine 32-bit words.
const PRBS: u64 = 288;
/// The function's `output_bytes`.
const OUTPUT: usize = 32 << 20;
/// The number of records that the output region keeps.
const RECORDS: usize = 64;
/// The offset of the assembled data in the output region.
const DATA: usize = RECORDS * size_of::<Record>() + WINDOWS * STREAMS * SYMBOLS * 4;

/// The first fields of the function's state, `struct oran_reorder` in C++: settings and counters.
#[repr(C)]
struct State {
    streams: u32,
    prbs: u32,
    prb_bytes: u32,
    slots_per_subframe: u32,
    windows: u32,
    has_compression: u32,
    compression: u32,
    taken: u32,
    limit_ns: u64,
    eaxc: [u32; STREAMS],
    packets: u64,
    others: u64,
    malformed: u64,
    late: u64,
    received: u64,
    duplicates: u64,
    missing: u64,
    delivered: [u64; 3],
    next_record: u64,
}

/// The record of a delivered slot in the output region: `oran_record` in the C++ header.
#[repr(C)]
struct Record {
    sequence: u64,
    opened_ns: u64,
    delivered_ns: u64,
    data: u64,
    received: u32,
    missing: u32,
    counts: u32,
    symbol_bytes: u32,
    stream_bytes: u32,
    prb_bytes: u32,
    frame: u8,
    subframe: u8,
    slot: u8,
    reason: u8,
    reserved: u32,
}

/// Returns C++ text that asserts the layouts of the state and of an output record.
pub(super) fn layout() -> String {
    let state = struct_layout!(State as beginning of "oran_reorder" {
        streams, prbs, prb_bytes, slots_per_subframe, windows, has_compression, compression, taken, limit_ns, eaxc, packets,
        others, malformed, late, received, duplicates, missing, delivered, next_record
    });
    state
        + &struct_layout!(Record as "oran_record" {
            sequence, opened_ns, delivered_ns, data, received, missing, counts, symbol_bytes, stream_bytes, prb_bytes, frame,
            subframe, slot, reason, reserved
        })
}

/// The names of the counters, in their order in the state. The first is `State::packets`.
const COUNTED: [&str; 10] = [
    "uplane_packets",
    "other_packets",
    "malformed_packets",
    "late_packets",
    "received_prbs",
    "duplicate_prbs",
    "missing_prbs",
    "complete_slots",
    "timed_out_slots",
    "overtaken_slots",
];

/// The reason why a radio slot was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryReason {
    /// All PRBs of the radio slot had arrived.
    Complete,
    /// The radio slot's time limit had passed.
    TimeUp,
    /// A later radio slot needed this slot's window. The window is the memory in which a slot is assembled.
    Overtaken,
}

/// A radio slot that `oran-reorder` delivered to its output region.
#[derive(Clone, Copy, Debug)]
pub struct OranSlot<'a> {
    output: &'a [u8],
    record: &'a [u8],
}

/// Returns the `n`th delivered slot, counted from 0. Returns `None` if this slot is not among the last 64
/// delivered slots.
///
/// Slots whose numbers differ by a multiple of the setting `windows` share memory. So the first packet of
/// such a later slot overwrites the data.
pub fn oran_slot(output: &[u8], n: u64) -> Option<OranSlot<'_>> {
    let at = (n % RECORDS as u64) as usize * size_of::<Record>();
    let record = output.get(at..at + size_of::<Record>())?;
    (u64_at(record, offset_of!(Record, sequence)) == n + 1).then_some(OranSlot { output, record })
}

impl<'a> OranSlot<'a> {
    /// Returns the frame (0 to 255), the subframe and the slot.
    pub fn time(&self) -> (u8, u8, u8) {
        let [frame, subframe, slot] =
            [offset_of!(Record, frame), offset_of!(Record, subframe), offset_of!(Record, slot)];
        (self.record[frame], self.record[subframe], self.record[slot])
    }

    /// Returns two times in nanoseconds of the executor's clock: when the first packet of the slot arrived,
    /// and when the slot was delivered.
    pub fn times_ns(&self) -> (u64, u64) {
        (
            u64_at(self.record, offset_of!(Record, opened_ns)),
            u64_at(self.record, offset_of!(Record, delivered_ns)),
        )
    }

    /// Returns why the radio slot was delivered.
    pub fn reason(&self) -> DeliveryReason {
        match self.record[offset_of!(Record, reason)] {
            0 => DeliveryReason::Complete,
            1 => DeliveryReason::TimeUp,
            _ => DeliveryReason::Overtaken,
        }
    }

    /// Returns the numbers of PRBs that arrived and that did not.
    pub fn received_and_missing(&self) -> (u32, u32) {
        (u32_at(self.record, offset_of!(Record, received)), u32_at(self.record, offset_of!(Record, missing)))
    }

    /// Returns how many PRBs of a symbol arrived. `stream` is the position of the eAxC in the settings.
    pub fn received(&self, stream: usize, symbol: usize) -> u32 {
        let counts = u32_at(self.record, offset_of!(Record, counts)) as usize;
        u32_at(self.output, counts + 4 * (stream * SYMBOLS + symbol))
    }

    /// Returns the first `prbs` PRBs of a symbol in order. PRBs that did not arrive are zero.
    ///
    /// # Panics
    /// If the output region ends before the last of these PRBs.
    pub fn symbol(&self, stream: usize, symbol: usize, prbs: usize) -> &'a [u8] {
        let [symbol_bytes, stream_bytes, prb_bytes] = [
            offset_of!(Record, symbol_bytes),
            offset_of!(Record, stream_bytes),
            offset_of!(Record, prb_bytes),
        ]
        .map(|at| u32_at(self.record, at) as usize);
        let data = u64_at(self.record, offset_of!(Record, data)) as usize;
        let at = data + stream * stream_bytes + symbol * symbol_bytes;
        &self.output[at..at + prbs * prb_bytes]
    }
}

/// The settings of `oran-reorder`, parsed from the command line.
struct Settings {
    eaxc: Vec<u32>,
    prbs: u32,
    spacing: u32,
    bits: u32,
    block_floating_point: bool,
    header: bool,
    windows: u32,
    limit_ns: u64,
    pass: bool,
}

impl Settings {
    fn parse(text: &str) -> Result<Self, String> {
        let mut settings = Self {
            eaxc: vec![0, 1, 2, 3],
            prbs: 273,
            spacing: 30,
            bits: 16,
            block_floating_point: false,
            header: false,
            windows: 4,
            limit_ns: 1_000_000,
            pass: false,
        };
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            settings.set(key, value).map_err(|why| format!("'{part}': {why}"))?;
        }
        let bytes = settings.eaxc.len() * SYMBOLS * settings.symbol_bytes() * settings.windows as usize;
        if DATA + bytes > OUTPUT {
            return Err(format!(
                "'{text}': the windows need {bytes} bytes, but there are {}; give fewer windows, antenna-carriers or PRBs",
                OUTPUT - DATA
            ));
        }
        Ok(settings)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let number = |from: u64, to: u64| {
            let number = match value.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16).ok(),
                None => value.parse().ok(),
            };
            number
                .filter(|number| (from..=to).contains(number))
                .ok_or_else(|| format!("give a number from {from} to {to}"))
        };
        let one_of = |values: &[u32]| {
            let found = value.parse().ok().filter(|number| values.contains(number));
            found.ok_or_else(|| format!("choose one of {values:?}"))
        };
        match key {
            "eaxc" => {
                let id = |text: &str| match text.strip_prefix("0x") {
                    Some(digits) => u16::from_str_radix(digits, 16).ok(),
                    None => text.parse::<u16>().ok(),
                };
                let ids: Option<Vec<u32>> = value.split('+').map(|text| id(text).map(u32::from)).collect();
                let mut ids = ids.ok_or("give ids from 0 to 65535, for example eaxc=0+1+0x10")?;
                let given = ids.len();
                ids.sort_unstable();
                ids.dedup();
                if ids.len() < given || given > STREAMS {
                    return Err(format!("name each antenna-carrier once, and at most {STREAMS}"));
                }
                self.eaxc = value.split('+').filter_map(id).map(u32::from).collect();
            }
            "prbs" => self.prbs = number(1, PRBS)? as u32,
            "scs" => self.spacing = one_of(&[15, 30, 60, 120])?,
            "iq" => {
                self.block_floating_point = value.starts_with("bfp");
                let bits = value.trim_start_matches("bfp").parse().ok();
                self.bits = bits
                    .filter(|bits| (1..=16).contains(bits))
                    .ok_or("give 1 to 16 bits, for example iq=16 or iq=bfp9")?;
            }
            "windows" => self.windows = one_of(&[1, 2, 4, 8, 16])?,
            "limit" => {
                let limit = inlane_core::units::parse_time(value).map_err(|error| error.to_string())?;
                self.limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX).clamp(1, u64::MAX / 4);
            }
            "header" if value.is_empty() => self.header = true,
            "pass" if value.is_empty() => self.pass = true,
            _ => {
                return Err("choose one of eaxc=, prbs=, scs=, iq=, windows=, limit=, header and pass".into());
            }
        }
        Ok(())
    }

    /// Returns the size of a PRB in bytes: twelve subcarriers of I and Q, and the exponent of block floating
    /// point.
    fn prb_bytes(&self) -> usize {
        (12 * 2 * self.bits as usize).div_ceil(8) + self.block_floating_point as usize
    }

    /// Returns the distance in bytes from one symbol's data to the next symbol's data. `oran_reorder.cu`
    /// computes the same.
    fn symbol_bytes(&self) -> usize {
        (self.prbs as usize * self.prb_bytes()).next_multiple_of(128)
    }

    /// Returns the value of udCompHdr: the width of I and Q (0 for 16) in the high four bits, the compression
    /// in the low four.
    fn compression(&self) -> u32 {
        (self.bits % 16) << 4 | self.block_floating_point as u32
    }
}

/// Parses the settings of `oran-reorder`. Returns the first bytes of the state; the counters follow.
pub(super) fn settings(text: &str) -> Result<Vec<u8>, String> {
    let settings = Settings::parse(text)?;
    let mut eaxc = settings.eaxc.clone();
    eaxc.resize(STREAMS, 0);
    let numbers = [
        settings.eaxc.len() as u32,
        settings.prbs,
        settings.prb_bytes() as u32,
        settings.spacing / 15,
        settings.windows,
        settings.header as u32,
        settings.compression(),
        if settings.pass { FORWARD } else { DROP },
    ];
    let mut state: Vec<u8> = numbers.into_iter().flat_map(u32::to_ne_bytes).collect();
    state.extend(settings.limit_ns.to_ne_bytes());
    state.extend(eaxc.into_iter().flat_map(u32::to_ne_bytes));
    Ok(state)
}

/// Makes the report: the counters, and a table of the settings with one row per antenna-carrier.
pub(super) fn report(state: &[u8], text: &str) -> FunctionReport {
    let mut report = FunctionReport::from_numbers(state, offset_of!(State, packets), &COUNTED);
    if let Ok(settings) = Settings::parse(text) {
        let mut table =
            Table::new("assembled", &["eAxC", "PRBs", "bytes per PRB", "slots per subframe", "windows"]);
        for eaxc in &settings.eaxc {
            table.rows.push(
                [*eaxc, settings.prbs, settings.prb_bytes() as u32, settings.spacing / 15, settings.windows]
                    .map(|number| number.to_string())
                    .to_vec(),
            );
        }
        report.tables.push(table);
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_become_state() {
        let state =
            settings("eaxc=0x10+3,prbs=100,scs=60,iq=bfp9,windows=8,limit=250us,header,pass").unwrap();
        assert_eq!(state.len(), offset_of!(State, packets));
        let numbers: Vec<u32> = (0..8).map(|i| u32_at(&state, 4 * i)).collect();
        assert_eq!(numbers, [2, 100, 28, 4, 8, 1, 0x91, FORWARD]);
        assert_eq!(u64_at(&state, 32), 250_000);
        assert_eq!((u32_at(&state, 40), u32_at(&state, 44)), (0x10, 3));
        assert_eq!(u32_at(&settings("").unwrap(), 8), 48);
    }

    #[test]
    fn wrong_settings_are_refused_and_named() {
        for text in [
            "eaxc=",
            "eaxc=1+1",
            "eaxc=65536",
            "prbs=0",
            "prbs=289",
            "scs=45",
            "iq=17",
            "iq=bfp",
            "windows=3",
            "limit=x",
            "header=1",
            "frob",
            "limit=",
        ] {
            let error = settings(text).expect_err(text);
            assert!(error.contains(&format!("'{text}'")), "{text}: {error}");
        }
        let all: Vec<String> = (0..16).map(|id: u32| id.to_string()).collect();
        assert!(
            settings(&format!("eaxc={},prbs=288,windows=16", all.join("+"))).unwrap_err().contains("fewer")
        );
        assert!(settings(&format!("eaxc={},prbs=273,windows=8", all.join("+"))).is_ok());
    }
}
