//! Reports of packet functions: counters and tables that are read from the state after a run.

use crate::abi::CounterPlace;
use schemars::JsonSchema;
use serde::Serialize;

/// The results that a packet function counted or collected.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct FunctionReport {
    /// The counters.
    pub counters: Vec<Counter>,
    /// The tables.
    pub tables: Vec<Table>,
}

/// A counter of a packet function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Counter {
    /// The name of what was counted, in the form of a JSON key, for example `expired_packets`.
    pub name: String,
    /// The count at the end of the run.
    pub value: u64,
}

/// A counter that a user's function declares with `INLANE_COUNTER`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateCounter {
    /// The name of the member of the function's state.
    pub name: String,
    /// Where the member lies in the state.
    pub place: CounterPlace,
}

/// A table of text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Table {
    /// The title.
    pub title: String,
    /// The headings, one per column.
    pub columns: Vec<String>,
    /// The rows. Each has one cell per column.
    pub rows: Vec<Vec<String>>,
}

impl FunctionReport {
    /// Returns the value of the counter `name`, or `None` if there is none.
    pub fn counter(&self, name: &str) -> Option<u64> {
        self.counters.iter().find(|counter| counter.name == name).map(|counter| counter.value)
    }

    /// Makes a report of counters, one for each of `names`: consecutive 64-bit numbers in a state, from
    /// `offset` on.
    pub(crate) fn from_numbers(state: &[u8], offset: usize, names: &[&str]) -> Self {
        let counters = names
            .iter()
            .enumerate()
            .map(|(i, name)| Counter { name: (*name).into(), value: u64_at(state, offset + 8 * i) });
        Self { counters: counters.collect(), tables: Vec::new() }
    }

    /// Makes a report of the counters that a user's function declares, from its state. Elements of an array have the names
    /// `NAME_0`, `NAME_1` and so on.
    pub(crate) fn from_places(state: &[u8], counters: &[StateCounter]) -> Self {
        let values = counters.iter().flat_map(|StateCounter { name, place }| {
            let (offset, each) = (place.offset as usize, place.each as usize);
            let count = place.bytes as usize / each;
            (0..count).map(move |index| Counter {
                name: if count == 1 { name.clone() } else { format!("{name}_{index}") },
                value: match each {
                    4 => u32_at(state, offset + 4 * index).into(),
                    _ => u64_at(state, offset + 8 * index),
                },
            })
        });
        Self { counters: values.collect(), tables: Vec::new() }
    }

    /// Adds another pipeline's report: sums counters of the same name and appends tables.
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
    /// Creates a table without rows.
    pub(crate) fn new(title: impl Into<String>, columns: &[&str]) -> Self {
        Self {
            title: title.into(),
            columns: columns.iter().map(|&column| column.into()).collect(),
            rows: Vec::new(),
        }
    }
}

/// Reads the 64-bit number at offset `at` of a state. Returns 0 beyond the end.
pub(crate) fn u64_at(state: &[u8], at: usize) -> u64 {
    state.get(at..at + 8).map_or(0, |bytes| u64::from_ne_bytes(bytes.try_into().expect("8 bytes")))
}

/// Reads the 32-bit number at offset `at` of a state. Returns 0 beyond the end.
pub(crate) fn u32_at(state: &[u8], at: usize) -> u32 {
    state.get(at..at + 4).map_or(0, |bytes| u32::from_ne_bytes(bytes.try_into().expect("4 bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declared_counters_are_read_from_the_state() {
        let mut state = vec![0u8; 32];
        state[4..8].copy_from_slice(&7u32.to_ne_bytes());
        state[8..16].copy_from_slice(&(1u64 << 40).to_ne_bytes());
        state[16..24].copy_from_slice(&5u64.to_ne_bytes());
        let counter = |name: &str, offset, bytes, each| StateCounter {
            name: name.into(),
            place: CounterPlace { offset, bytes, each },
        };
        let places = [counter("small", 4, 4, 4), counter("large", 8, 16, 8), counter("beyond", 32, 8, 8)];
        let report = FunctionReport::from_places(&state, &places);
        let found: Vec<_> = report.counters.iter().map(|it| (it.name.as_str(), it.value)).collect();
        assert_eq!(found, [("small", 7), ("large_0", 1 << 40), ("large_1", 5), ("beyond", 0)]);
    }

    #[test]
    fn reports_of_pipelines_are_added() {
        let state: Vec<u8> = [1u64, 2].into_iter().flat_map(u64::to_ne_bytes).collect();
        let mut sum = FunctionReport::from_numbers(&state, 0, &["a", "b"]);
        let mut other = FunctionReport::from_numbers(&state, 8, &["a"]);
        other.counters.push(Counter { name: "c".into(), value: 9 });
        other.tables.push(Table::new("rules", &["rule"]));
        sum.merge(other);
        assert_eq!(["a", "b", "c", "d"].map(|name| sum.counter(name)), [Some(3), Some(2), Some(9), None]);
        assert_eq!(sum.tables.len(), 1);
    }
}
