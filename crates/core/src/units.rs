//! Parses and prints quantities.
//!
//! | quantity | parsed | printed | base unit |
//! | --- | --- | --- | --- |
//! | size | `64`, `4K`, `16M`, `1G` (binary: K = 1024) | `4 KiB` | bytes |
//! | rate | `100G`, `1.5M` (decimal: K = 1000) | `100.00 Gb/s` | bits per second |
//! | line rate | `1GbE`, `2.5GbE` (decimal) | | bits per second |
//! | packet rate | `10Mpps` | `10.00 Mpps` | packets per second |
//! | time | `5s`, `50us`, `200ns`, `2m` | `50.0 us` | nanoseconds |

use std::time::Duration;

/// A text that is not a quantity, or a quantity out of range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not {what}: {why}; give for example {example}")]
pub struct ParseError {
    /// The text.
    pub text: String,
    /// The expected quantity: "a size", "a rate".
    pub what: &'static str,
    /// Why the text was refused.
    pub why: String,
    /// A valid value.
    pub example: &'static str,
}

/// The result of parsing a quantity.
pub type Result<T, E = ParseError> = std::result::Result<T, E>;

fn split(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(text.len());
    text.split_at(end)
}

fn scaled(
    text: &str,
    what: &'static str,
    example: &'static str,
    scale: impl Fn(&str) -> Option<f64>,
) -> Result<f64> {
    let bad = |why: &str| ParseError { text: text.into(), what, why: why.into(), example };
    let (number, unit) = split(text.trim());
    let number: f64 = number.replace('_', "").parse().map_err(|_| match text.trim().starts_with('-') {
        true => bad("it is negative"),
        false => bad("it does not begin with a number"),
    })?;
    let scale = scale(unit.trim()).ok_or_else(|| match unit.trim() {
        "" => bad("it has no unit"),
        unit => bad(&format!("'{unit}' is not a unit")),
    })?;
    let value = number * scale;
    if value.is_finite() && value < 9.0e18 { Ok(value) } else { Err(bad("it is too large")) }
}

/// Parses a size in bytes. Suffixes are binary: `4K` is 4096. `B`, `KiB` and the like are accepted, too.
///
/// # Errors
/// [`ParseError`] for other text, for a fraction of a byte, and from 9e18 bytes on.
pub fn parse_size(text: &str) -> Result<u64> {
    let value = scaled(text, "a size", "64, 4K, 16M or 1G", |unit| {
        Some(match unit.trim_end_matches("iB").trim_end_matches('B') {
            "" => 1.0,
            "k" | "K" => 1024.0,
            "m" | "M" => 1048576.0,
            "g" | "G" => 1073741824.0,
            "T" => 1099511627776.0,
            _ => return None,
        })
    })?;
    if value.fract() != 0.0 {
        return Err(ParseError {
            text: text.into(),
            what: "a size",
            why: "it is not a whole number of bytes".into(),
            example: "4K",
        });
    }
    Ok(value as u64)
}

/// A rate at which packets are offered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// Bits per second of frames alone, without preamble, inter-frame gap and FCS.
    Bits(f64),
    /// Bits per second on an Ethernet line. Each frame occupies [`Rate::LINE_OVERHEAD`] bytes in addition to
    /// its own.
    Line(f64),
    /// Packets per second.
    Packets(f64),
}

impl Rate {
    /// The bytes that Ethernet adds to a frame on the line: FCS (4), preamble and start delimiter (8),
    /// inter-frame gap (12).
    pub const LINE_OVERHEAD: u64 = 24;

    /// Converts the rate to packets per second, for frames that have `bytes` bytes on average.
    pub fn packets_per_second(self, bytes: f64) -> f64 {
        match self {
            Rate::Bits(bits) => bits / 8.0 / bytes,
            Rate::Line(bits) => bits / 8.0 / (bytes + Self::LINE_OVERHEAD as f64),
            Rate::Packets(packets) => packets,
        }
    }
}

/// Parses a rate, with decimal suffixes. `10G` and `10Gb/s` are bits of frames per second, `10GbE` is
/// Ethernet's line rate, `1.5Mpps` is packets per second.
///
/// # Errors
/// [`ParseError`] for other text, and for 0.
pub fn parse_rate(text: &str) -> Result<Rate> {
    let decimal = |unit: &str| {
        Some(match unit {
            "" => 1.0,
            "k" | "K" => 1e3,
            "m" | "M" => 1e6,
            "g" | "G" => 1e9,
            "T" => 1e12,
            _ => return None,
        })
    };
    let example = "10G (bits of frames/s), 10GbE (line rate) or 1.5Mpps";
    let packets = text.trim().ends_with("pps");
    let line = text.trim().ends_with("bE");
    let value = scaled(text, "a rate", example, |unit| {
        let unit =
            ["pps", "bit/s", "b/s", "bps", "bE"].iter().find_map(|s| unit.strip_suffix(s)).unwrap_or(unit);
        decimal(unit)
    })?;
    if value <= 0.0 {
        return Err(ParseError {
            text: text.into(),
            what: "a rate",
            why: "it must be above zero".into(),
            example,
        });
    }
    Ok(match (packets, line) {
        (true, _) => Rate::Packets(value),
        (_, true) => Rate::Line(value),
        _ => Rate::Bits(value),
    })
}

/// Parses a time with its unit: `ns`, `us`, `ms`, `s`, `m` or `h`. Only `0` needs no unit.
///
/// # Errors
/// [`ParseError`] for other text.
pub fn parse_time(text: &str) -> Result<Duration> {
    if text.trim() == "0" {
        return Ok(Duration::ZERO);
    }
    let nanoseconds = scaled(text, "a time", "200ns, 50us, 5s or 2m", |unit| {
        Some(match unit {
            "ns" => 1.0,
            "us" | "µs" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" | "min" => 60e9,
            "h" => 3600e9,
            _ => return None,
        })
    })?;
    Ok(Duration::from_nanos(nanoseconds as u64))
}

/// Returns a number with a noun in the singular or plural: `1 core`, `2 cores`.
pub fn counted(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

fn decimal(value: f64, unit: &str) -> String {
    let (scaled, prefix) = match value.abs() {
        v if v >= 1e12 => (value / 1e12, "T"),
        v if v >= 1e9 => (value / 1e9, "G"),
        v if v >= 1e6 => (value / 1e6, "M"),
        v if v >= 1e3 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    format!("{scaled:.2} {prefix}{unit}")
}

/// Prints a rate in bits per second: `12.35 Gb/s`.
pub fn bits_per_second(value: f64) -> String {
    decimal(value, "b/s")
}

/// Prints a rate in packets per second: `12.35 Mpps`.
pub fn packets_per_second(value: f64) -> String {
    decimal(value, "pps")
}

/// Prints a rate in bytes per second with a decimal prefix: `12.35 GB/s`.
pub fn bytes_per_second(value: f64) -> String {
    decimal(value, "B/s")
}

/// Prints a size with a binary prefix: `4 KiB`, `1.5 MiB`, `100 B`.
pub fn bytes(value: u64) -> String {
    let (unit, scale) = match value {
        v if v >= 1 << 40 => ("TiB", 1u64 << 40),
        v if v >= 1 << 30 => ("GiB", 1 << 30),
        v if v >= 1 << 20 => ("MiB", 1 << 20),
        v if v >= 1 << 10 => ("KiB", 1 << 10),
        _ => return format!("{value} B"),
    };
    if value.is_multiple_of(scale) {
        format!("{} {unit}", value / scale)
    } else {
        format!("{:.1} {unit}", value as f64 / scale as f64)
    }
}

/// Prints a time: `830 ns`, `50.0 us`, `1.20 ms`, `3.50 s`.
pub fn nanoseconds(value: f64) -> String {
    match value {
        v if v < 1e3 => format!("{v:.0} ns"),
        v if v < 1e6 => format!("{:.1} us", v / 1e3),
        v if v < 1e9 => format!("{:.2} ms", v / 1e6),
        v => format!("{:.2} s", v / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_binary() {
        assert_eq!(parse_size("64").unwrap(), 64);
        assert_eq!(parse_size("4K").unwrap(), 4096);
        assert_eq!(parse_size("1.5KiB").unwrap(), 1536);
        assert_eq!(parse_size("1G").unwrap(), 1 << 30);
        for bad in ["", "K", "1.5", "-4", "4Q", "99999999999G", "1e400"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn rates_are_decimal_bits_or_packets() {
        assert_eq!(parse_rate("100G").unwrap(), Rate::Bits(100e9));
        assert_eq!(parse_rate("10Gb/s").unwrap(), Rate::Bits(10e9));
        assert_eq!(parse_rate("1.5Mpps").unwrap(), Rate::Packets(1.5e6));
        assert!(parse_rate("0").is_err());
        assert_eq!(parse_rate("2.5GbE").unwrap(), Rate::Line(2.5e9));
        assert!(parse_rate("GbE").is_err() && parse_rate("1GbEps").is_err());
        // RFC 1242: 14,880 frames of 64 bytes with FCS per second on 10 Mb/s. Without FCS, a frame has 60
        // bytes.
        assert_eq!(Rate::Line(10e6).packets_per_second(60.0) as u64, 14_880);
        assert_eq!(Rate::Bits(8000.0).packets_per_second(100.0), 10.0);
    }

    #[test]
    fn times_need_a_unit() {
        assert_eq!(parse_time("50us").unwrap(), Duration::from_micros(50));
        assert_eq!(parse_time("0").unwrap(), Duration::ZERO);
        assert!(parse_time("5").is_err());
    }

    #[test]
    fn quantities_are_printed_short() {
        assert_eq!(bytes(4096), "4 KiB");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bits_per_second(12.345e9), "12.35 Gb/s");
        assert_eq!(nanoseconds(49_960.0), "50.0 us");
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in ".{0,24}") {
            let _ = (parse_size(&text), parse_rate(&text), parse_time(&text));
        }

        #[test]
        fn whole_sizes_are_parsed_as_printed(value in 0u64..1 << 40) {
            prop_assert_eq!(parse_size(&value.to_string()).unwrap(), value);
        }
    }
}
