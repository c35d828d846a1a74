//! Parses the addresses of PCI functions.

use crate::address::Address;
use crate::error::{Error, Result};
use std::str::FromStr;

impl FromStr for Address {
    type Err = Error;

    /// Parses `0000:b5:00.0`, or `b5:00.0` for domain 0.
    fn from_str(text: &str) -> Result<Self> {
        let bad = |why: &str| Error::Text {
            text: text.into(),
            what: "the address of a PCI device",
            why: why.into(),
            example: "0000:b5:00.0",
        };
        let hex = |field: &str, digits: std::ops::RangeInclusive<usize>, most: u32| {
            if !digits.contains(&field.len()) || !field.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(bad("its fields must be hexadecimal numbers separated by ':' and '.'"));
            }
            u32::from_str_radix(field, 16)
                .ok()
                .filter(|&n| n <= most)
                .ok_or_else(|| bad("a field is larger than ff (bus), 1f (device) or 7 (function)"))
        };
        let (rest, function) =
            text.rsplit_once('.').ok_or_else(|| bad("there is no '.' before the function"))?;
        let (rest, device) = rest.rsplit_once(':').ok_or_else(|| bad("there is no ':' before the device"))?;
        let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0000", rest));
        Ok(Self {
            domain: hex(domain, 4..=8, u32::MAX)?,
            bus: hex(bus, 2..=2, 255)? as u8,
            device: hex(device, 2..=2, 31)? as u8,
            function: hex(function, 1..=1, 7)? as u8,
        })
    }
}
