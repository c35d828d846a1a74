//! Published results, and what a model's value beside them is worth.

use crate::error::Result;
use crate::tree::Reader;
use schemars::JsonSchema;
use serde::Serialize;

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
        let what = reader.require("what", "say what was measured, for example what = \"sum\"")?;
        let unit = reader.require("unit", "give the unit of the value, for example unit = \"Gb/s\"")?;
        let published = Self {
            what: what.text()?.into(),
            value: reader.value("value").map(|value| value.number(1e-9, 1e18)).transpose()?,
            unit: unit.choice(&PublishedUnit::CHOICES)?,
        };
        reader.finish()?;
        Ok(published)
    }
}
