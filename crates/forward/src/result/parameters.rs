//! The parameters of a run, with units, such as burst and size. They distinguish the runs of one result.

use inlane_core::units::{self, Rate};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::borrow::Cow;

/// The value of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum Quantity {
    /// A number without a unit.
    Number(f64),
    /// A word or a name.
    Text(String),
    /// A time in nanoseconds.
    Time(f64),
    /// A number of bytes.
    Size(u64),
    /// A rate: bits of frames in a second, or packets in a second.
    Rate(Rate),
    /// A percentage.
    Percent(f64),
}

impl Quantity {
    /// Parses a flag's value. `kind` is the placeholder in the flag's help (`TIME`, `SIZE`, `RATE` and the
    /// like). Other text becomes [`Quantity::Text`].
    pub fn of_flag(kind: &str, text: &str) -> Self {
        let parsed = match kind {
            "TIME" => units::parse_time(text).ok().map(|time| Self::Time(time.as_nanos() as f64)),
            "SIZE" | "BYTES" => units::parse_size(text).ok().map(Self::Size),
            "RATE" => units::parse_rate(text).ok().map(Self::Rate),
            "PERCENT" => text.parse().ok().map(Self::Percent),
            _ => text.parse().ok().map(Self::Number),
        };
        parsed.unwrap_or_else(|| Self::Text(text.into()))
    }

    /// Returns the value in the unit of figures (SVG): microseconds, bytes, Gb/s, Mpps or per cent. `None`
    /// for a text.
    pub fn drawn(&self) -> Option<f64> {
        match *self {
            Self::Number(number) | Self::Percent(number) => Some(number),
            Self::Time(ns) => Some(ns / 1e3),
            Self::Size(bytes) => Some(bytes as f64),
            Self::Rate(Rate::Bits(bits) | Rate::Line(bits)) => Some(bits / 1e9),
            Self::Rate(Rate::Packets(packets)) => Some(packets / 1e6),
            Self::Text(_) => None,
        }
    }

    /// Returns the unit of [`Quantity::drawn`]. Empty if the number has none.
    pub fn drawn_unit(&self) -> &'static str {
        match self {
            Self::Number(_) | Self::Text(_) => "",
            Self::Time(_) => "us",
            Self::Size(_) => "bytes",
            Self::Rate(Rate::Bits(_)) => "Gb/s of frames",
            Self::Rate(Rate::Line(_)) => "Gb/s on the line",
            Self::Rate(Rate::Packets(_)) => "Mpps",
            Self::Percent(_) => "%",
        }
    }

    /// Returns the suffix that names the unit in a JSON key, for example `_ns`. Empty if there is no unit.
    fn suffix(&self) -> &'static str {
        match self {
            Self::Number(_) | Self::Text(_) => "",
            Self::Time(_) => "_ns",
            Self::Size(_) => "_bytes",
            Self::Rate(Rate::Bits(_)) => "_bits_per_second",
            Self::Rate(Rate::Line(_)) => "_line_bits_per_second",
            Self::Rate(Rate::Packets(_)) => "_packets_per_second",
            Self::Percent(_) => "_percent",
        }
    }
}

impl std::fmt::Display for Quantity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => f.write_str(text),
            Self::Time(ns) => f.write_str(&units::nanoseconds(*ns)),
            Self::Size(bytes) => f.write_str(&units::bytes(*bytes)),
            Self::Rate(Rate::Bits(bits)) => f.write_str(&units::bits_per_second(*bits)),
            Self::Rate(Rate::Line(bits)) => write!(f, "{} on the line", units::bits_per_second(*bits)),
            Self::Rate(Rate::Packets(packets)) => f.write_str(&units::packets_per_second(*packets)),
            Self::Percent(percent) => write!(f, "{percent} %"),
        }
    }
}

impl From<&str> for Quantity {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Quantity {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// The parameters that distinguish a run from other runs in the same result, such as burst and method. In
/// JSON, they are one object. Its keys contain the units: `flush_ns`, `size_bytes`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameters(Vec<(String, Quantity)>);

impl Parameters {
    /// Sets a parameter. Replaces its earlier value.
    pub fn set(&mut self, name: &str, value: impl Into<Quantity>) {
        let value = value.into();
        match self.0.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => *known = value,
            None => self.0.push((name.into(), value)),
        }
    }

    /// Returns a parameter's value.
    pub fn get(&self, name: &str) -> Option<&Quantity> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    /// Returns the parameters in the order in which they were set.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Quantity)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }
}

impl<N: Into<String>, V: Into<Quantity>> FromIterator<(N, V)> for Parameters {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(parameters: I) -> Self {
        Self(parameters.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

impl Serialize for Parameters {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            let key = format!("{}{}", name.replace('-', "_"), value.suffix());
            match value {
                // Whole numbers are written without a fraction: 64, not 64.0.
                Quantity::Number(number) | Quantity::Time(number) | Quantity::Percent(number)
                    if number.fract() == 0.0 && number.abs() < 9e15 =>
                {
                    map.serialize_entry(&key, &(*number as i64))?;
                }
                Quantity::Number(number) | Quantity::Time(number) | Quantity::Percent(number) => {
                    map.serialize_entry(&key, number)?;
                }
                Quantity::Text(text) => map.serialize_entry(&key, text)?,
                Quantity::Size(bytes) => map.serialize_entry(&key, bytes)?,
                Quantity::Rate(Rate::Bits(rate) | Rate::Line(rate) | Rate::Packets(rate)) => {
                    map.serialize_entry(&key, rate)?
                }
            }
        }
        map.end()
    }
}

impl JsonSchema for Parameters {
    fn schema_name() -> Cow<'static, str> {
        "Parameters".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "The parameters that distinguish this run from its neighbours. A key with a unit has a number: `flush_ns`, `size_bytes`, `rate_packets_per_second`.",
            "type": "object",
            "additionalProperties": { "type": ["string", "number"] },
            "patternProperties": {
                "_(ns|bytes|percent|bits_per_second|packets_per_second)$": { "type": "number" },
                "^(burst|slots|workers|pipelines|blocks|threads|streams)$": { "type": "integer" }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_become_numbers_with_their_unit_in_the_key() {
        let mut parameters = Parameters::default();
        for (name, kind, text) in [
            ("burst", "N", "64"),
            ("work", "TIME", "50ns"),
            ("rate", "RATE", "1.5Mpps"),
            ("header-split", "BYTES", "128"),
            ("room", "SIZE", "4K"),
            ("load", "PERCENT", "12.5"),
            ("method", "METHOD|auto", "split"),
        ] {
            parameters.set(name, Quantity::of_flag(kind, text));
        }
        let json = serde_json::to_string(&parameters).unwrap();
        assert_eq!(
            json,
            r#"{"burst":64,"work_ns":50,"rate_packets_per_second":1500000.0,"header_split_bytes":128,"room_bytes":4096,"load_percent":12.5,"method":"split"}"#
        );
    }

    #[test]
    fn drawn_numbers_have_one_unit_each() {
        assert_eq!(Quantity::of_flag("TIME", "50ns").drawn(), Some(0.05));
        assert_eq!(Quantity::of_flag("RATE", "10G").drawn(), Some(10.0));
        assert_eq!(Quantity::of_flag("RATE", "2Mpps").drawn(), Some(2.0));
        assert_eq!(Quantity::of_flag("METHOD", "split").drawn(), None);
    }
}
