//! Published results beside the model's values, and the test beds that come with inlane.
//!
//! A test bed is a model file with a table `published`. [`Model`] takes this table out of the file before it solves
//! anything, so a result cannot be an input of its own prediction. A test checks that no value of a case with the
//! status *prediction* equals its published result.

use crate::error::Result;
use crate::file::{Case, Model, Quantity};
use crate::tree::Reader;
use schemars::JsonSchema;
use serde::Serialize;

/// The test beds: the name and the text of each file.
pub const TEST_BEDS: [(&str, &str); 5] = [
    ("inline-gpu", include_str!("../testbeds/inline-gpu.toml")),
    ("offload", include_str!("../testbeds/offload.toml")),
    ("npu", include_str!("../testbeds/npu.toml")),
    ("smartnic", include_str!("../testbeds/smartnic.toml")),
    ("ntb", include_str!("../testbeds/ntb.toml")),
];

/// What a model's value beside a published result is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The value follows from inputs other than the result. Its assumptions are listed.
    Prediction,
    /// The result is the sum or quotient of other published numbers. It says nothing about the model.
    Identity,
    /// An input was chosen so that the value fits.
    Tuned,
    /// Several explanations fit, or the publication leaves out what decides between them.
    NotDetermined,
}

impl Status {
    pub(crate) const CHOICES: [(&str, Status); 4] = [
        ("prediction", Status::Prediction),
        ("identity", Status::Identity),
        ("tuned", Status::Tuned),
        ("not determined", Status::NotDetermined),
    ];

    /// Returns the status in words.
    pub fn words(self) -> &'static str {
        Self::CHOICES.iter().find(|(_, status)| *status == self).map_or("", |(words, _)| words)
    }
}

/// The unit of a published result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub enum PublishedUnit {
    /// 10^9 bits per second.
    #[serde(rename = "Gb/s")]
    Gigabits,
    /// 10^6 bits per second.
    #[serde(rename = "Mb/s")]
    Megabits,
    /// 2^20 bytes per second.
    #[serde(rename = "MiB/s")]
    Mebibytes,
    /// Microseconds.
    #[serde(rename = "us")]
    Microseconds,
    /// Percent of another rate.
    #[serde(rename = "%")]
    Percent,
}

impl PublishedUnit {
    const CHOICES: [(&str, PublishedUnit); 5] = [
        ("Gb/s", PublishedUnit::Gigabits),
        ("Mb/s", PublishedUnit::Megabits),
        ("MiB/s", PublishedUnit::Mebibytes),
        ("us", PublishedUnit::Microseconds),
        ("%", PublishedUnit::Percent),
    ];

    /// Returns the unit's symbol.
    pub fn symbol(self) -> &'static str {
        Self::CHOICES.iter().find(|(_, unit)| *unit == self).map_or("", |(symbol, _)| symbol)
    }
}

/// A published result.
#[derive(Clone, Debug, PartialEq)]
pub struct Published {
    /// What was measured.
    pub what: String,
    /// The number. `None` if the publication gives none, for example only an order.
    pub value: Option<f64>,
    /// The unit of the number.
    pub unit: PublishedUnit,
}

impl Published {
    pub(crate) fn read(reader: &Reader<'_>) -> Result<Self> {
        let what = crate::file::require(reader, "what", "say what was measured, for example what = \"sum\"")?;
        let unit =
            crate::file::require(reader, "unit", "give the unit of the value, for example unit = \"Gb/s\"")?;
        let published = Self {
            what: what.text()?.into(),
            value: reader.value("value").map(|value| value.number(1e-9, 1e18)).transpose()?,
            unit: unit.choice(&PublishedUnit::CHOICES)?,
        };
        reader.finish()?;
        Ok(published)
    }

    /// Returns the case's value in the unit of this result. `None` if the case predicts another kind of quantity.
    pub fn model_value(&self, case: &Case) -> Option<f64> {
        let sum = |flows: &[usize]| flows.iter().map(|flow| case.solution.flows[*flow].rate).sum::<f64>();
        let (rate, time, share) = match case.quantity.as_ref()? {
            Quantity::Rates(of, over) if over.is_empty() => (Some(sum(of)), None, None),
            Quantity::Rates(of, over) => (None, None, Some(sum(of) / sum(over))),
            Quantity::Chain(chain) => (case.chains[*chain].rate(), Some(case.chains[*chain].time), None),
        };
        match self.unit {
            PublishedUnit::Gigabits => rate.map(|rate| rate * 8.0 / 1e9),
            PublishedUnit::Megabits => rate.map(|rate| rate * 8.0 / 1e6),
            PublishedUnit::Mebibytes => rate.map(|rate| rate / 1048576.0),
            PublishedUnit::Microseconds => time.map(|time| time * 1e6),
            PublishedUnit::Percent => share.map(|share| share * 100.0),
        }
    }
}

/// Returns the model of a test bed. `None` if there is no test bed with this name.
///
/// # Errors
/// None in a released version, because a test reads all test beds.
pub fn test_bed(name: &str) -> Option<Result<Model>> {
    let (name, text) = TEST_BEDS.iter().find(|(bed, _)| *bed == name)?;
    Some(Model::parse(&format!("testbed:{name}"), text))
}

#[cfg(test)]
mod tests;
