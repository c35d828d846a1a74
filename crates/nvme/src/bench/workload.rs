//! The workload of a bench: pattern, block size, depth and range, named as in fio.

use crate::field::{BS, IODEPTH, NUMJOBS, OFFSET, RW, SIZE, VERIFY};
use crate::initiator::{NamespaceInfo, connection::MAX_ENTRIES};
use crate::{Error, Result};
use inlane_core::setting::{Choice, Field};
use inlane_core::units;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// The kind and order of operations: fio's `rw`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
    /// Sequential reads and writes.
    Rw,
    /// Random reads.
    RandRead,
    /// Random writes.
    RandWrite,
    /// Random reads and writes.
    RandRw,
}

impl Choice for Pattern {
    const CHOICES: &[(Self, &str, &str)] = &[
        (Pattern::Read, "read", "Reads in ascending order"),
        (Pattern::Write, "write", "Writes in ascending order"),
        (Pattern::Rw, "rw", "Reads and writes in ascending order"),
        (Pattern::RandRead, "randread", "Reads at random"),
        (Pattern::RandWrite, "randwrite", "Writes at random"),
        (Pattern::RandRw, "randrw", "Reads and writes at random"),
    ];
}

impl Pattern {
    /// Returns true if blocks are chosen at random.
    pub fn is_random(self) -> bool {
        matches!(self, Pattern::RandRead | Pattern::RandWrite | Pattern::RandRw)
    }

    /// Returns true if the workload writes.
    pub fn writes(self) -> bool {
        !matches!(self, Pattern::Read | Pattern::RandRead)
    }

    /// Returns true if the workload reads.
    pub fn reads(self) -> bool {
        !matches!(self, Pattern::Write | Pattern::RandWrite)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Accept `readwrite`, because it is fio's other name for `rw`.
        let text = if text == "readwrite" { "rw" } else { text };
        Pattern::named(text)
            .ok_or_else(|| "choose one of read, write, rw, randread, randwrite, randrw".into())
    }
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The kind and order of operations.
    pub pattern: Pattern,
    /// The size of an operation in bytes: fio's `bs`.
    pub block_bytes: u64,
    /// The number of operations that each job keeps in flight: fio's `iodepth`.
    pub depth: u32,
    /// The number of jobs: threads with connections of their own.
    pub jobs: u32,
    /// The share of reads in mixed workloads, in percent.
    pub read_percent: u32,
    /// The cores to which the jobs' threads are bound, in turn. Empty: they are not bound.
    pub cores: Vec<usize>,
    /// True if each job ends after one operation for each `block_bytes` bytes of its part of the range. False if the jobs
    /// run until they are stopped.
    pub once: bool,
    /// The offset in the namespace at which the range of the workload starts, in bytes.
    pub offset: u64,
    /// The length of the workload's range in bytes. `None`: up to the end of the namespace.
    pub size: Option<u64>,
    /// True if reads check what writes have stored.
    pub verify: bool,
    /// The seed of the random numbers.
    pub seed: u64,
}

impl Workload {
    /// Checks the workload and divides its range among the jobs. Returns each job's part as a range of bytes
    /// in the namespace. Parts are whole blocks.
    pub(super) fn parts(&self, namespace: &NamespaceInfo) -> Result<Vec<Range<u64>>> {
        let unit = u64::from(namespace.block_bytes);
        let shown = units::bytes;
        let multiple = |field: Field, value: u64| {
            let near = value.div_ceil(unit).saturating_mul(unit);
            let why = format!("give a multiple of {unit}, the namespace's block size, such as {near}");
            Error::require(value.is_multiple_of(unit), field.with(value), why)
        };
        multiple(BS, self.block_bytes)?;
        multiple(OFFSET, self.offset)?;
        let most = u64::from(namespace.max_transfer) / unit * unit;
        let why = format!("give {unit} to {most} bytes, which the target transfers with a command");
        Error::require((1..=most).contains(&self.block_bytes), BS.with(self.block_bytes), why)?;
        let why = format!("give 1 to {}", MAX_ENTRIES - 1);
        Error::require((1..MAX_ENTRIES).contains(&self.depth), IODEPTH, why)?;
        let rest = namespace.bytes().saturating_sub(self.offset);
        let offset = OFFSET.with(shown(self.offset));
        let why = format!("the namespace of {} ends there; give less", shown(namespace.bytes()));
        Error::require(rest > 0, offset.clone(), why)?;
        let size = self.size.unwrap_or(rest);
        let why = format!("the namespace has only {} from {offset}; give less", shown(rest));
        Error::require(size <= rest, SIZE.with(shown(size)), why)?;
        let part = size / u64::from(self.jobs) / self.block_bytes * self.block_bytes;
        let needed = shown(u64::from(self.jobs).saturating_mul(self.block_bytes));
        let what = format!("{} with {}", NUMJOBS.with(self.jobs), BS.with(shown(self.block_bytes)));
        let why = format!(
            "they need {needed}, and the range has {}; give fewer jobs, a smaller {BS} or a larger {SIZE}",
            shown(size)
        );
        Error::require(part > 0, what, why)?;
        let writes = self.pattern.writes();
        let remembered = self.verify && writes && part / self.block_bytes > 1 << 28;
        let why =
            format!("at most 2^28 blocks of each job are remembered; give a smaller {SIZE} or a larger {BS}");
        Error::require(!remembered, VERIFY, why)?;
        let why = "the namespace is read-only; choose read or randread";
        Error::require(!writes || !namespace.read_only, RW, why)?;
        let why = format!("blocks need at least 32 bytes; give a larger {BS}");
        Error::require(!self.verify || self.block_bytes >= super::block::HEADER as u64, VERIFY, why)?;
        Ok((0..u64::from(self.jobs)).map(|n| self.offset + n * part..self.offset + (n + 1) * part).collect())
    }
}
