//! The values that cells show: quantities with their units, counts, names, and phrases of these. Rows contain values, and
//! only this module makes their text.

use inlane_core::units::{self, Rate};
use std::fmt;

/// A number with its unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Quantity {
    /// A number without a unit.
    Number(f64),
    /// A number of bytes.
    Bytes(u64),
    /// A time in nanoseconds.
    Time(f64),
    /// Bytes per second.
    ByteRate(f64),
    /// Bits of frames per second, bits on an Ethernet line per second, or packets per second.
    Rate(Rate),
    /// Operations per second.
    PerSecond(f64),
    /// Seconds of processor time for each 10^9 bytes.
    SecondsPerGigabyte(f64),
    /// A fraction, which is shown as a percentage: 0.25 is 25%.
    Share(f64),
    /// A percentage that a setting gives: 25.0 is 25 %.
    Percent(f64),
}

impl Quantity {
    /// Creates a rate in packets per second.
    pub fn packets_per_second(rate: f64) -> Self {
        Self::Rate(Rate::Packets(rate))
    }

    /// Creates a rate in bits per second.
    pub fn bits_per_second(rate: f64) -> Self {
        Self::Rate(Rate::Bits(rate))
    }

    /// Returns the number, in the unit of the variant.
    pub fn number(self) -> f64 {
        match self {
            Self::Bytes(bytes) => bytes as f64,
            Self::Rate(Rate::Bits(number) | Rate::Line(number) | Rate::Packets(number))
            | Self::Number(number)
            | Self::Time(number)
            | Self::ByteRate(number)
            | Self::PerSecond(number)
            | Self::SecondsPerGigabyte(number)
            | Self::Share(number)
            | Self::Percent(number) => number,
        }
    }

    /// Returns another number of the same unit.
    #[must_use]
    pub fn with_number(self, number: f64) -> Self {
        match self {
            Self::Bytes(_) => Self::Bytes(number as u64),
            Self::Rate(Rate::Bits(_)) => Self::bits_per_second(number),
            Self::Rate(Rate::Line(_)) => Self::Rate(Rate::Line(number)),
            Self::Rate(Rate::Packets(_)) => Self::packets_per_second(number),
            Self::Number(_) => Self::Number(number),
            Self::Time(_) => Self::Time(number),
            Self::ByteRate(_) => Self::ByteRate(number),
            Self::PerSecond(_) => Self::PerSecond(number),
            Self::SecondsPerGigabyte(_) => Self::SecondsPerGigabyte(number),
            Self::Share(_) => Self::Share(number),
            Self::Percent(_) => Self::Percent(number),
        }
    }

    /// Returns the number in the unit of figures (SVG): microseconds, bytes, GB/s, Gb/s, Mpps or per cent.
    pub fn drawn(self) -> f64 {
        match self {
            Self::Time(ns) => ns / 1e3,
            Self::ByteRate(rate) | Self::Rate(Rate::Bits(rate) | Rate::Line(rate)) => rate / 1e9,
            Self::Rate(Rate::Packets(rate)) => rate / 1e6,
            Self::Share(share) => share * 100.0,
            other => other.number(),
        }
    }

    /// Returns the unit of [`Quantity::drawn`]. Empty if the number has none.
    pub fn drawn_unit(self) -> &'static str {
        match self {
            Self::Number(_) => "",
            Self::Time(_) => "us",
            Self::Bytes(_) => "bytes",
            Self::ByteRate(_) => "GB/s",
            Self::Rate(Rate::Bits(_)) => "Gb/s of frames",
            Self::Rate(Rate::Line(_)) => "Gb/s on the line",
            Self::Rate(Rate::Packets(_)) => "Mpps",
            Self::PerSecond(_) => "/s",
            Self::SecondsPerGigabyte(_) => "s/GB",
            Self::Share(_) | Self::Percent(_) => "%",
        }
    }

    /// Returns the suffix that names the unit in a key of JSON, such as `_ns`. Empty if the number has no unit.
    pub fn key_suffix(self) -> &'static str {
        match self {
            Self::Number(_) => "",
            Self::Time(_) => "_ns",
            Self::Bytes(_) => "_bytes",
            Self::ByteRate(_) => "_bytes_per_second",
            Self::Rate(Rate::Bits(_)) => "_bits_per_second",
            Self::Rate(Rate::Line(_)) => "_line_bits_per_second",
            Self::Rate(Rate::Packets(_)) => "_packets_per_second",
            Self::PerSecond(_) => "_per_second",
            Self::SecondsPerGigabyte(_) => "_seconds_per_gigabyte",
            Self::Share(_) => "_share",
            Self::Percent(_) => "_percent",
        }
    }

    /// Splits a key of JSON into a name and its number with the unit: `size_bytes` and 64 are `size` and 64 B. The inverse of
    /// [`Quantity::key_suffix`].
    pub fn of_key(key: &str, number: f64) -> (&str, Self) {
        let units: [fn(f64) -> Self; 9] = [
            Self::bits_per_second,
            |rate| Self::Rate(Rate::Line(rate)),
            Self::packets_per_second,
            Self::ByteRate,
            Self::PerSecond,
            Self::SecondsPerGigabyte,
            Self::Share,
            Self::Percent,
            Self::Time,
        ];
        let bytes = (number >= 0.0 && number.fract() == 0.0).then_some(Self::Bytes(number as u64));
        let known = units.iter().map(|unit| unit(number)).chain(bytes);
        let fits = known.filter_map(|quantity| Some((key.strip_suffix(quantity.key_suffix())?, quantity)));
        // `_line_bits_per_second` also ends in `_bits_per_second`: the longest suffix leaves the shortest name.
        fits.min_by_key(|(name, _)| name.len()).unwrap_or((key, Self::Number(number)))
    }

    /// Returns a value that shows the quantity in a fixed unit: divided by `divisor`, and with this number of decimals.
    /// The cell's name contains the unit. A share keeps its percent sign.
    pub fn fixed(self, divisor: f64, decimals: usize) -> Value {
        Value::Fixed { quantity: self, divisor, decimals }
    }
}

/// Shows the quantity with its unit and a prefix that suits its size.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&match *self {
            Self::Bytes(bytes) => units::bytes(bytes),
            Self::Time(ns) => units::nanoseconds(ns),
            Self::ByteRate(rate) => units::bytes_per_second(rate),
            Self::Rate(Rate::Bits(rate)) => units::bits_per_second(rate),
            Self::Rate(Rate::Packets(rate)) => units::packets_per_second(rate),
            Self::Rate(Rate::Line(rate)) => return write!(f, "{} on the line", units::bits_per_second(rate)),
            Self::Number(number) => return write!(f, "{number}"),
            Self::PerSecond(rate) => return write!(f, "{rate:.0}/s"),
            Self::SecondsPerGigabyte(seconds) => return write!(f, "{seconds:.3} s/GB"),
            Self::Share(share) => return write!(f, "{:.0} %", share * 100.0),
            Self::Percent(percent) => return write!(f, "{percent} %"),
        })
    }
}

/// The value of a cell.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Value {
    /// The row has no value.
    #[default]
    Absent,
    /// A name, a choice, or a sentence.
    Text(String),
    /// A number of things.
    Count(u64),
    /// A quantity, shown with its unit.
    Quantity(Quantity),
    /// A quantity in the unit that the cell's name contains.
    Fixed {
        /// The quantity.
        quantity: Quantity,
        /// What the quantity's number is divided by.
        divisor: f64,
        /// The digits after the decimal point.
        decimals: usize,
    },
    /// Several values and the words between them.
    Phrase(Vec<Value>),
}

impl Value {
    /// Creates a share as a percentage: `12.5%`.
    pub fn percent(share: f64, decimals: usize) -> Self {
        Quantity::Share(share).fixed(1.0, decimals)
    }

    /// Returns true for a value that shows nothing: an absent one, or an empty text.
    pub fn is_empty(&self) -> bool {
        matches!(self, Value::Absent) || matches!(self, Value::Text(text) if text.is_empty())
    }

    /// Returns the quantity. `None` for other values.
    pub fn quantity(&self) -> Option<Quantity> {
        match self {
            Value::Quantity(quantity) | Value::Fixed { quantity, .. } => Some(*quantity),
            _ => None,
        }
    }

    /// Joins values by `separator`.
    pub fn list(values: impl IntoIterator<Item = Value>, separator: &str) -> Self {
        let mut parts = Vec::new();
        for value in values {
            if !parts.is_empty() {
                parts.push(separator.into());
            }
            parts.push(value);
        }
        Value::Phrase(parts)
    }
}

/// Makes the text of a value, for people. An absent value is empty.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Absent => Ok(()),
            Value::Text(text) => f.write_str(text),
            Value::Count(count) => write!(f, "{count}"),
            Value::Quantity(quantity) => write!(f, "{quantity}"),
            Value::Fixed { quantity: Quantity::Share(share), decimals, .. } => {
                write!(f, "{:.decimals$}%", share * 100.0)
            }
            Value::Fixed { quantity, divisor, decimals } => {
                write!(f, "{:.decimals$}", quantity.number() / divisor)
            }
            Value::Phrase(parts) => parts.iter().try_for_each(|part| write!(f, "{part}")),
        }
    }
}

impl From<Quantity> for Value {
    fn from(quantity: Quantity) -> Self {
        Value::Quantity(quantity)
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Value::Text(text)
    }
}

impl From<&String> for Value {
    fn from(text: &String) -> Self {
        Value::Text(text.clone())
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::Text(text.into())
    }
}

impl From<u64> for Value {
    fn from(count: u64) -> Self {
        Value::Count(count)
    }
}

impl From<u32> for Value {
    fn from(count: u32) -> Self {
        Value::Count(count.into())
    }
}

impl From<usize> for Value {
    fn from(count: usize) -> Self {
        Value::Count(count as u64)
    }
}

/// `None` is absent.
impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Value::Absent, Into::into)
    }
}

/// Joins values to a phrase: `phrase![8, " reads (", Quantity::Bytes(4096), ")"]` is shown as `8 reads (4 KiB)`.
#[macro_export]
macro_rules! phrase {
    ($($part:expr),* $(,)?) => {
        $crate::Value::Phrase(vec![$($crate::Value::from($part)),*])
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shown_with_their_unit_or_in_the_unit_of_their_column() {
        let time = Quantity::Time(49_960.0);
        assert_eq!(Value::from(time).to_string(), "50.0 us");
        assert_eq!(time.fixed(1e3, 2).to_string(), "49.96");
        assert_eq!(Value::percent(0.125, 1).to_string(), "12.5%");
        assert_eq!(Quantity::Rate(Rate::Line(1e9)).to_string(), "1.00 Gb/s on the line");
        assert_eq!(Value::from(None::<u64>).to_string(), "");
        assert_eq!((time.drawn(), time.drawn_unit(), time.key_suffix()), (49.96, "us", "_ns"));
    }

    #[test]
    fn keys_name_their_unit() {
        for (key, name, quantity) in [
            ("size_bytes", "size", Quantity::Bytes(64)),
            ("rate_line_bits_per_second", "rate", Quantity::Rate(Rate::Line(64.0))),
            ("rate_packets_per_second", "rate", Quantity::packets_per_second(64.0)),
            ("operations_per_second", "operations", Quantity::PerSecond(64.0)),
            ("flush_ns", "flush", Quantity::Time(64.0)),
            ("burst", "burst", Quantity::Number(64.0)),
        ] {
            assert_eq!(Quantity::of_key(key, 64.0), (name, quantity));
            assert_eq!(format!("{name}{}", quantity.key_suffix()), key);
        }
        assert_eq!(Quantity::of_key("size_bytes", -1.0), ("size_bytes", Quantity::Number(-1.0)));
    }

    #[test]
    fn a_phrase_keeps_its_numbers() {
        let phrase = phrase![8u64, " reads (", Quantity::Bytes(4096), ")"];
        assert_eq!(phrase.to_string(), "8 reads (4 KiB)");
        let Value::Phrase(parts) = phrase else { panic!() };
        assert_eq!(parts[2], Value::Quantity(Quantity::Bytes(4096)));
        assert_eq!(Value::list([1u64.into(), "two".into()], ", ").to_string(), "1, two");
    }
}
