//! Where a PCI function is: domain, bus, device, function.

use crate::error::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// A PCI function as the kernel writes it: `0000:b5:00.0`. Ordered as the bus is walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// Domain ("segment"); beyond 16 bits for those that bridges such as VMD make.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device, 0 to 31.
    pub device: u8,
    /// Function, 0 to 7.
    pub function: u8,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{}", self.domain, self.bus, self.device, self.function)
    }
}

impl FromStr for Address {
    type Err = Error;

    /// Reads `0000:b5:00.0`; without a domain (`b5:00.0`) it is domain 0.
    fn from_str(text: &str) -> Result<Self> {
        let bad = |why: &str| Error::Text {
            text: text.into(),
            what: "the address of a PCI device",
            why: why.into(),
            example: "0000:b5:00.0",
        };
        let hex = |field: &str, digits: std::ops::RangeInclusive<usize>, most: u32| {
            if !digits.contains(&field.len()) || !field.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(bad("its fields are hexadecimal, separated by ':' and '.'"));
            }
            u32::from_str_radix(field, 16)
                .ok()
                .filter(|&n| n <= most)
                .ok_or_else(|| bad("a field is too large"))
        };
        let (rest, function) = text.rsplit_once('.').ok_or_else(|| bad("no '.' before a function"))?;
        let (rest, device) = rest.rsplit_once(':').ok_or_else(|| bad("no ':' before a device"))?;
        let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0000", rest));
        Ok(Self {
            domain: hex(domain, 4..=8, u32::MAX)?,
            bus: hex(bus, 2..=2, 255)? as u8,
            device: hex(device, 2..=2, 31)? as u8,
            function: hex(function, 1..=1, 7)? as u8,
        })
    }
}

impl serde::Serialize for Address {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl schemars::JsonSchema for Address {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "PciAddress".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "pattern": "^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\\.[0-7]$" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_the_kernel_writes() {
        let address: Address = "0000:b5:1f.7".parse().unwrap();
        assert_eq!(address, Address { domain: 0, bus: 0xb5, device: 0x1f, function: 7 });
        assert_eq!("b5:1f.7".parse::<Address>().unwrap(), address);
        assert_eq!("10000:e1:00.0".parse::<Address>().unwrap().to_string(), "10000:e1:00.0");
        for bad in [
            "",
            ":",
            "0000:b5:00",
            "0000:b5:20.0",
            "0000:b5:00.8",
            "0000:+5:00.0",
            "0:b5:00.0",
            "0000:b5:00.0 ",
        ] {
            assert!(bad.parse::<Address>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn survives_its_own_text(domain: u32, bus: u8, device in 0u8..32, function in 0u8..8) {
            let address = Address { domain, bus, device, function };
            prop_assert_eq!(address.to_string().parse::<Address>().unwrap(), address);
        }

        #[test]
        fn nothing_panics(text in ".{0,20}") {
            let _ = text.parse::<Address>();
        }
    }
}
