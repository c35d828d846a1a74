//! What a function has to say after a run, read from its state: counters and tables.

use schemars::JsonSchema;
use serde::Serialize;

/// A function's own results.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct FunctionReport {
    /// What it counted.
    pub counters: Vec<Counter>,
    /// What it collected.
    pub tables: Vec<Table>,
}

/// One number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Counter {
    /// What was counted, as a key: `expired_packets`.
    pub name: String,
    /// How many.
    pub value: u64,
}

/// Rows of text under headings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Table {
    /// What it shows.
    pub title: String,
    /// One heading a column.
    pub columns: Vec<String>,
    /// As many cells a row as columns.
    pub rows: Vec<Vec<String>>,
}

impl FunctionReport {
    /// The value of a counter.
    pub fn counter(&self, name: &str) -> Option<u64> {
        self.counters.iter().find(|counter| counter.name == name).map(|counter| counter.value)
    }

    /// Counters from 64-bit numbers that lie one after the other in `state` from `offset` on.
    pub(crate) fn from_numbers(state: &[u8], offset: usize, names: &[&str]) -> Self {
        let counters = names
            .iter()
            .enumerate()
            .map(|(i, name)| Counter { name: (*name).into(), value: u64_at(state, offset + 8 * i) });
        Self { counters: counters.collect(), tables: Vec::new() }
    }

    /// Adds another pipeline's: counters of one name are summed, tables follow one another.
    pub fn merge(&mut self, other: Self) {
        for counter in other.counters {
            match self.counters.iter_mut().find(|mine| mine.name == counter.name) {
                Some(mine) => mine.value += counter.value,
                None => self.counters.push(counter),
            }
        }
        self.tables.extend(other.tables);
    }
}

impl Table {
    pub(crate) fn new(title: impl Into<String>, columns: &[&str]) -> Self {
        Self {
            title: title.into(),
            columns: columns.iter().map(|&column| column.into()).collect(),
            rows: Vec::new(),
        }
    }
}

/// The 64-bit number at `at` of a state; 0 behind its end.
pub(crate) fn u64_at(state: &[u8], at: usize) -> u64 {
    state.get(at..at + 8).map_or(0, |bytes| u64::from_ne_bytes(bytes.try_into().expect("eight")))
}

/// The 32-bit number at `at` of a state; 0 behind its end.
pub(crate) fn u32_at(state: &[u8], at: usize) -> u32 {
    state.get(at..at + 4).map_or(0, |bytes| u32::from_ne_bytes(bytes.try_into().expect("four")))
}
