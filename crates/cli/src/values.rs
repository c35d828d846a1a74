//! Parsers of values that flags of several commands share. Each error names the value and says what to give.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use inlane_core::setting::Choice;
use inlane_core::{Error, units};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

pub use inlane_core::cores::parse_list as core_list;

/// Returns a parser of the names of a setting's values. Help lists the names.
pub fn choice<T: Choice>() -> impl TypedValueParser<Value = T> {
    let values = T::CHOICES.iter().map(|(_, name, help)| PossibleValue::new(*name).help(*help));
    PossibleValuesParser::new(values)
        .map(|name| T::named(&name).expect("the parser accepts only these names"))
}

/// Returns a parser of whole numbers from `least` to `most`.
pub fn count<T: TryFrom<u64>>(least: u64, most: u64) -> impl Fn(&str) -> Result<T, Error> + Clone {
    move |text| {
        let number = text.parse::<u64>().ok().filter(|number| (least..=most).contains(number));
        let digits = text.strip_prefix('-').unwrap_or(text);
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let kind = if is_number { "" } else { "a whole number from " };
        let suffix = match units::parse_size(text) {
            Ok(_) if !is_number => "a count has no unit; ",
            _ => "",
        };
        let why = || format!("{suffix}give {kind}{least} to {most}");
        number
            .and_then(|number| T::try_from(number).ok())
            .ok_or_else(|| Error::invalid(format!("'{text}'"), why()))
    }
}

/// Returns a parser of sizes from `least` to `most` bytes.
pub fn size<T: TryFrom<u64>>(least: u64, most: u64) -> impl Fn(&str) -> Result<T, Error> + Clone {
    move |text| {
        let bytes = Some(units::parse_size(text)?).filter(|bytes| (least..=most).contains(bytes));
        bytes.and_then(|bytes| T::try_from(bytes).ok()).ok_or_else(|| {
            // Show a limit in bytes unless it is a multiple of 1 KiB. `units::bytes` would round 65535 up to
            // 64.0 KiB, which is above the limit.
            let shown = |bytes: u64| {
                if bytes.is_multiple_of(1024) { units::bytes(bytes) } else { format!("{bytes} B") }
            };
            Error::invalid(format!("'{text}'"), format!("give {} to {}", shown(least), shown(most)))
        })
    }
}

/// Parses a size that is a power of two.
pub fn power_of_two(least: u64, most: u64) -> impl Fn(&str) -> Result<u64, Error> + Clone {
    move |text| {
        let bytes = units::parse_size(text)?;
        let is_valid = bytes.is_power_of_two() && (least..=most).contains(&bytes);
        let shown = |bytes| units::bytes(bytes).replace([' ', 'i', 'B'], "");
        let why = || format!("give a power of two from {} to {}", shown(least), shown(most));
        is_valid.then_some(bytes).ok_or_else(|| Error::invalid(format!("'{text}'"), why()))
    }
}

/// Parses a time that is above zero.
pub fn time_above_zero(text: &str) -> Result<Duration, Error> {
    match units::parse_time(text)? {
        time if time.is_zero() => Err(Error::invalid(format!("'{text}'"), "give a time above zero")),
        time => Ok(time),
    }
}

/// Parses a time from zero to one hour.
pub fn time_to_an_hour(text: &str) -> Result<Duration, Error> {
    match units::parse_time(text)? {
        time if time <= Duration::from_secs(3600) => Ok(time),
        _ => Err(Error::invalid(format!("'{text}'"), "give at most one hour")),
    }
}

/// Parses a time that is above zero and at most an hour.
pub fn time_within_an_hour(text: &str) -> Result<Duration, Error> {
    time_above_zero(text)?;
    time_to_an_hour(text)
}

/// Returns a parser of an IP address with a port. Its message has `port` in the examples.
pub fn socket_address(port: u16) -> impl Fn(&str) -> Result<SocketAddr, String> + Clone {
    move |text| {
        text.parse().map_err(|_| {
            let is_number = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
            let why = match text.rsplit_once(':') {
                _ if text.parse::<IpAddr>().is_ok() => "the port is missing; ",
                Some((_, port)) if is_number(port) && port.parse::<u16>().is_err() => {
                    "the port exceeds 65535; "
                }
                _ => "",
            };
            format!("{why}give IP:PORT, for example 127.0.0.1:{port} or [::1]:{port}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_number_is_named_with_the_range() {
        let pes = count::<u32>(1, 64);
        assert_eq!(pes("64").unwrap(), 64);
        for (text, why) in [
            ("0", "'0': give 1 to 64"),
            ("-1", "'-1': give 1 to 64"),
            ("99999999999999999999", "'99999999999999999999': give 1 to 64"),
            ("two", "'two': give a whole number from 1 to 64"),
            ("4K", "'4K': a count has no unit; give a whole number from 1 to 64"),
            ("", "'': give a whole number from 1 to 64"),
            ("-", "'-': give a whole number from 1 to 64"),
        ] {
            assert_eq!(pes(text).unwrap_err().to_string(), why);
        }
        assert!(count::<u16>(0, 1 << 20)("70000").is_err(), "the number exceeds its type");
    }

    #[test]
    fn a_refused_size_is_named_with_the_range() {
        let chunk = size::<usize>(16, 1 << 30);
        assert_eq!(chunk("4K").unwrap(), 4096);
        assert_eq!(chunk("2G").unwrap_err().to_string(), "'2G': give 16 B to 1 GiB");
        assert!(chunk("K").unwrap_err().to_string().contains("'K' is not a size"));
    }

    #[test]
    fn a_size_that_is_no_power_of_two_is_shown_as_given() {
        let buffer = power_of_two(4096, 1 << 30);
        assert_eq!(buffer("1M").unwrap(), 1 << 20);
        for bad in ["3M", "4", "2G"] {
            let why = format!("'{bad}': give a power of two from 4K to 1G");
            assert_eq!(buffer(bad).unwrap_err().to_string(), why);
        }
    }

    #[test]
    fn a_time_of_zero_is_refused() {
        assert_eq!(time_above_zero("1us").unwrap(), Duration::from_micros(1));
        assert_eq!(time_above_zero("0s").unwrap_err().to_string(), "'0s': give a time above zero");
    }

    #[test]
    fn an_address_without_a_port_is_refused_with_an_example() {
        let address = socket_address(9400);
        assert_eq!(address("127.0.0.1:80").unwrap().port(), 80);
        for (bad, why) in
            [("::1", "the port is missing; "), ("[::1]:65536", "the port exceeds 65535; "), ("lo", "")]
        {
            let expected = format!("{why}give IP:PORT, for example 127.0.0.1:9400 or [::1]:9400");
            assert_eq!(address(bad), Err(expected), "{bad}");
        }
    }
}
