//! `oran-reorder`: its settings, and its output read by the host. The other half of `functions/oran_reorder.cu` and
//! `include/inlane_oran.h`.
//!
//! ```text
//! oran-reorder[:KEY=VALUE,...]
//!   eaxc=0+1+2+3      the antenna-carriers to assemble (0x10 too; at most 16)
//!   prbs=273          PRBs a symbol, 1 to 288
//!   scs=30            subcarrier spacing in kHz: 15, 30, 60, 120
//!   iq=16             bits of I and of Q, 1 to 16; bfp9: block floating point with 9
//!   header            sections carry udCompHdr, and it must say the same
//!   windows=4         slots assembled at a time: 1, 2, 4, 8, 16
//!   limit=1ms         a slot is delivered so long after its first packet
//!   pass              assembled packets are forwarded, too
//! ```

use crate::report::{FunctionReport, Table, u32_at, u64_at};
use inlane_core::ring::layout::{DROP, FORWARD};

const STREAMS: usize = 16;
const WINDOWS: usize = 16;
const SYMBOLS: usize = 14;
/// Most PRBs a symbol: nine words of bits.
const PRBS: u64 = 288;
/// `output_bytes` of the function.
const OUTPUT: usize = 32 << 20;
/// Where the counters begin in the state.
const COUNTERS: usize = 40 + 4 * STREAMS;
const RECORDS: usize = 64;
const RECORD: usize = 64;
/// Where the data begins in the output region.
const DATA: usize = RECORDS * RECORD + WINDOWS * STREAMS * SYMBOLS * 4;

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

/// Why a slot was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// All of it had come.
    Complete,
    /// Its time was up.
    TimeUp,
    /// A later slot needed its window.
    Overtaken,
}

/// A slot that `oran-reorder` delivered, in its output region.
#[derive(Clone, Copy, Debug)]
pub struct OranSlot<'a> {
    output: &'a [u8],
    record: &'a [u8],
}

/// Slot `n`, counted from 0 in the order of delivery; `None` while it is not there. The last 64 are kept, their data until
/// a slot `windows` later begins.
pub fn oran_slot(output: &[u8], n: u64) -> Option<OranSlot<'_>> {
    let at = (n % RECORDS as u64) as usize * RECORD;
    let record = output.get(at..at + RECORD)?;
    (u64_at(record, 0) == n + 1).then_some(OranSlot { output, record })
}

impl<'a> OranSlot<'a> {
    /// Frame (0 to 255), subframe and slot.
    pub fn time(&self) -> (u8, u8, u8) {
        (self.record[56], self.record[57], self.record[58])
    }

    /// When its first packet came, and when it was delivered, in nanoseconds of the executor's clock.
    pub fn times_ns(&self) -> (u64, u64) {
        (u64_at(self.record, 8), u64_at(self.record, 16))
    }

    /// Why it was delivered.
    pub fn reason(&self) -> Reason {
        match self.record[59] {
            0 => Reason::Complete,
            1 => Reason::TimeUp,
            _ => Reason::Overtaken,
        }
    }

    /// PRBs that came, and PRBs that did not.
    pub fn received_and_missing(&self) -> (u32, u32) {
        (u32_at(self.record, 32), u32_at(self.record, 36))
    }

    /// PRBs that came of a symbol of stream `stream`, the position of its eAxC in the settings.
    pub fn received(&self, stream: usize, symbol: usize) -> u32 {
        u32_at(self.output, u32_at(self.record, 40) as usize + 4 * (stream * SYMBOLS + symbol))
    }

    /// The PRBs of a symbol, `prbs` of them, one after the other; those that did not come are zero.
    ///
    /// # Panics
    /// When there are not so many in the output region.
    pub fn symbol(&self, stream: usize, symbol: usize, prbs: usize) -> &'a [u8] {
        let [symbol_bytes, stream_bytes, prb_bytes] = [44, 48, 52].map(|at| u32_at(self.record, at) as usize);
        let at = u64_at(self.record, 24) as usize + stream * stream_bytes + symbol * symbol_bytes;
        &self.output[at..at + prbs * prb_bytes]
    }
}

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
                "{bytes} bytes to assemble in; there are {}: give fewer windows, antenna-carriers or PRBs",
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
            number.filter(|number| (from..=to).contains(number)).ok_or_else(|| format!("{from} to {to}"))
        };
        let one_of = |values: &[u32]| {
            let found = value.parse().ok().filter(|number| values.contains(number));
            found.ok_or_else(|| format!("one of {values:?}"))
        };
        match key {
            "eaxc" => {
                let id = |text: &str| match text.strip_prefix("0x") {
                    Some(digits) => u16::from_str_radix(digits, 16).ok(),
                    None => text.parse::<u16>().ok(),
                };
                let ids: Option<Vec<u32>> = value.split('+').map(|text| id(text).map(u32::from)).collect();
                let mut ids = ids.ok_or("ids from 0 to 65535, as in eaxc=0+1+0x10")?;
                let given = ids.len();
                ids.sort_unstable();
                ids.dedup();
                if ids.len() < given || given > STREAMS {
                    return Err(format!("each once, at most {STREAMS}"));
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
                    .ok_or("1 to 16 bits, as in iq=16 or iq=bfp9")?;
            }
            "windows" => self.windows = one_of(&[1, 2, 4, 8, 16])?,
            "limit" => {
                let limit = inlane_core::units::parse_time(value).map_err(|error| error.to_string())?;
                self.limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX).clamp(1, u64::MAX / 4);
            }
            "header" if value.is_empty() => self.header = true,
            "pass" if value.is_empty() => self.pass = true,
            _ => {
                return Err("settings are eaxc=, prbs=, scs=, iq=, windows=, limit=, header and pass".into());
            }
        }
        Ok(())
    }

    /// Twelve subcarriers of I and Q, and the exponent of block floating point.
    fn prb_bytes(&self) -> usize {
        (12 * 2 * self.bits as usize).div_ceil(8) + self.block_floating_point as usize
    }

    fn symbol_bytes(&self) -> usize {
        (self.prbs as usize * self.prb_bytes()).next_multiple_of(128)
    }

    /// udCompHdr: width (0 for 16) and method.
    fn compression(&self) -> u32 {
        (self.bits % 16) << 4 | self.block_floating_point as u32
    }
}

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

pub(super) fn report(state: &[u8], text: &str) -> FunctionReport {
    let mut report = FunctionReport::from_numbers(state, COUNTERS, &COUNTED);
    if let Ok(settings) = Settings::parse(text) {
        let mut table =
            Table::new("assembled", &["eAxC", "PRBs", "bytes a PRB", "slots a subframe", "windows"]);
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
    fn settings_are_read() {
        let state =
            settings("eaxc=0x10+3,prbs=100,scs=60,iq=bfp9,windows=8,limit=250us,header,pass").unwrap();
        assert_eq!(state.len(), COUNTERS);
        let numbers: Vec<u32> = (0..8).map(|i| u32_at(&state, 4 * i)).collect();
        assert_eq!(numbers, [2, 100, 28, 4, 8, 1, 0x91, FORWARD]);
        assert_eq!(u64_at(&state, 32), 250_000);
        assert_eq!((u32_at(&state, 40), u32_at(&state, 44)), (0x10, 3));
        assert_eq!(u32_at(&settings("").unwrap(), 8), 48);
    }

    #[test]
    fn wrong_settings_are_refused_by_name() {
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
