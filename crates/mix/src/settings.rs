//! Settings of loads: texts that become typed values.

mod rate;

pub use rate::parse_rate;

use inlane_core::cores;
use inlane_core::names::{did_you_mean, similar};
use inlane_core::setting::Choice;
use inlane_core::units::{self, Rate};
use std::collections::BTreeMap;
use std::str::FromStr;

/// A key of a load.
#[derive(Debug, PartialEq, Eq)]
pub struct Key {
    /// The name.
    pub name: &'static str,
    /// What it sets, with its default.
    pub help: &'static str,
}

/// Creates a key.
pub(crate) const fn key(name: &'static str, help: &'static str) -> Key {
    Key { name, help }
}

/// The settings of a load, as they are written.
pub(crate) struct Settings<'a>(pub &'a BTreeMap<String, String>);

/// A setting that cannot be used.
#[derive(Debug)]
pub(crate) struct Wrong {
    pub key: &'static str,
    pub why: String,
}

impl Settings<'_> {
    /// Returns the text of a setting.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// Parses a setting. `None` if it is not given.
    pub fn parsed<T, E: std::fmt::Display>(
        &self,
        key: &'static str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<Option<T>, Wrong> {
        self.text(key).map(parse).transpose().map_err(|why| Wrong { key, why: why.to_string() })
    }

    /// Parses a setting that has its own parser. `None` if it is not given.
    pub fn of<T: FromStr<Err: std::fmt::Display>>(&self, key: &'static str) -> Result<Option<T>, Wrong> {
        self.parsed(key, str::parse)
    }

    /// Returns the text of a setting that must be given. `example` is a sentence.
    pub fn required(&self, key: &'static str, example: &str) -> Result<&str, Wrong> {
        self.text(key).ok_or_else(|| Wrong { key, why: format!("the key {key} is missing; {example}") })
    }

    /// Returns a size in bytes.
    pub fn size(&self, key: &'static str) -> Result<Option<usize>, Wrong> {
        self.parsed(key, |text| units::parse_size(text).map(|bytes| bytes as usize))
    }

    /// Returns a number from 1 to `most`.
    pub fn count(&self, key: &'static str, most: usize) -> Result<Option<usize>, Wrong> {
        self.parsed(key, |text| {
            let number = text.parse().ok().filter(|number| (1..=most).contains(number));
            number.ok_or_else(|| format!("'{text}': give a whole number from 1 to {most}"))
        })
    }

    /// Returns one of the named values of a setting.
    pub fn choice<T: Choice>(&self, key: &'static str, default: T) -> Result<T, Wrong> {
        let named = self.parsed(key, |text| {
            T::named(text).ok_or_else(|| {
                let names: Vec<&str> = T::CHOICES.iter().map(|(_, name, _)| *name).collect();
                let near = did_you_mean(&similar(text, names.iter().copied()));
                format!("'{text}': {near}choose {}", names.join(", "))
            })
        })?;
        Ok(named.unwrap_or(default))
    }

    /// Returns a list of cores, empty if it is not given.
    pub fn cores(&self, key: &'static str) -> Result<Vec<usize>, Wrong> {
        Ok(self.parsed(key, cores::parse_list)?.unwrap_or_default())
    }

    /// Returns a rate.
    pub fn rate(&self, key: &'static str) -> Result<Option<Rate>, Wrong> {
        self.parsed(key, parse_rate)
    }
}
