//! Rates, times and sizes of model files. All values need a unit, except sizes.

use crate::error::{Problem, Result};
use crate::network::RANGE;
use crate::tree::{Reader, Value};
use inlane_core::units::{self, ParseError, Rate};

const RATES: &str = "400 Gb/s, 55.4 GB/s or 1988 MiB/s";
const TIMES: &str = "200ns, 4us or 5ms";

fn scaled(
    text: &str,
    what: &'static str,
    example: &'static str,
    scale: impl Fn(&str) -> Option<f64>,
) -> Result<f64, ParseError> {
    let bad = |why: String| ParseError { text: text.into(), what, why, example };
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: f64 = number.parse().map_err(|_| bad("it does not begin with a number".into()))?;
    let scale = scale(unit.trim()).ok_or_else(|| {
        bad(match unit.trim() {
            "" => "it has no unit".into(),
            unit => format!("'{unit}' is not a unit"),
        })
    })?;
    let value = number * scale;
    if value == 0.0 || RANGE.contains(&value) { Ok(value) } else { Err(bad("it is out of range".into())) }
}

/// Parses bytes per second: `55.4 GB/s`, `1988 MiB/s`, `400 Gb/s`.
fn parse_byte_rate(text: &str) -> Result<f64, ParseError> {
    scaled(text.trim(), "a rate", RATES, |unit| {
        let (prefix, bits) = match (unit.strip_suffix("B/s"), unit.strip_suffix("b/s")) {
            (Some(prefix), _) => (prefix, 1.0),
            (_, Some(prefix)) => (prefix, 8.0),
            _ => return None,
        };
        let prefixes = [("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12)];
        let binary = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40)];
        let binary = binary.iter().map(|(prefix, power)| (*prefix, 2f64.powi(*power)));
        prefixes.into_iter().chain(binary).find(|(name, _)| *name == prefix).map(|(_, scale)| scale / bits)
    })
}

/// Parses seconds: `4us`.
fn parse_seconds(text: &str) -> Result<f64, ParseError> {
    scaled(text.trim(), "a time", TIMES, |unit| {
        let units = [("ps", 1e-12), ("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
        units.into_iter().find(|(name, _)| *name == unit).map(|(_, scale)| scale)
    })
}

impl Reader<'_> {
    /// Returns this rate in bytes per second.
    pub fn rate(&self) -> Result<f64> {
        self.positive(parse_byte_rate, "a rate in quotes, such as \"55.4 GB/s\" or \"400 Gb/s\"")
    }

    /// Returns this rate in bytes per second of packets with `packet` bytes. It may also be a number of packets per second,
    /// or the rate of an Ethernet line.
    pub fn traffic_rate(&self, packet: Option<f64>) -> Result<f64> {
        let Value::Text(text) = self.node() else { return self.rate() };
        match units::parse_rate(text) {
            Ok(Rate::Bits(bits)) => Ok(bits / 8.0),
            Ok(rate) => {
                let packet = packet.ok_or_else(|| self.wrong(Problem::NoSize { key: "packet" }))?;
                Ok(rate.packets_per_second(packet) * packet)
            }
            Err(_) => self.rate(),
        }
    }

    /// Returns this time in seconds. It may be zero.
    pub fn seconds(&self) -> Result<f64> {
        self.quantity(parse_seconds, "a time in quotes, such as \"4us\"")
    }

    /// Returns this size in bytes.
    pub fn bytes(&self) -> Result<f64> {
        match self.node() {
            Value::Number(_) => self.number(1.0, *RANGE.end()),
            _ => self.positive(
                |text| units::parse_size(text).map(|bytes| bytes as f64),
                "a size, such as 1024 or \"64K\"",
            ),
        }
    }

    fn quantity(
        &self,
        parse: impl Fn(&str) -> Result<f64, ParseError>,
        expected: &'static str,
    ) -> Result<f64> {
        match self.node() {
            Value::Text(text) => parse(text).map_err(|error| self.wrong(error.into())),
            _ => Err(self.wrong(Problem::Type { expected })),
        }
    }

    fn positive(
        &self,
        parse: impl Fn(&str) -> Result<f64, ParseError>,
        expected: &'static str,
    ) -> Result<f64> {
        let value = self.quantity(parse, expected)?;
        let (least, most) = (*RANGE.start(), *RANGE.end());
        if value >= least { Ok(value) } else { Err(self.wrong(Problem::Range { value, least, most })) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_times_need_units() {
        assert_eq!(parse_byte_rate("400 Gb/s").unwrap(), 50e9);
        assert_eq!(parse_byte_rate("55.4GB/s").unwrap(), 55.4e9);
        assert_eq!(parse_byte_rate("2 MiB/s").unwrap(), 2097152.0);
        assert!((parse_seconds("3.7us").unwrap() - 3.7e-6).abs() < 1e-18);
        for bad in ["", "5", "GB/s", "-1 GB/s", "1 XB/s", "1e3 GB/s", "nan GB/s", "1 Gb"] {
            assert!(parse_byte_rate(bad).is_err(), "{bad}");
        }
        assert!(parse_seconds("99999999999999999999999999999999s").is_err());
    }
}
