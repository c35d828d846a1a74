//! The address of a PCI function: domain, bus, device and function.

use std::fmt;

/// The address of a PCI function, written as the kernel does: `0000:b5:00.0`. Sorts in bus order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// The domain, or segment. Bridges such as VMD create domains with numbers above 16 bits.
    pub domain: u32,
    /// The bus number.
    pub bus: u8,
    /// The device number, 0 to 31.
    pub device: u8,
    /// The function number, 0 to 7.
    pub function: u8,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{}", self.domain, self.bus, self.device, self.function)
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
    fn parses_what_the_kernel_writes() {
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
        fn text_round_trips(domain: u32, bus: u8, device in 0u8..32, function in 0u8..8) {
            let address = Address { domain, bus, device, function };
            prop_assert_eq!(address.to_string().parse::<Address>().unwrap(), address);
        }

        #[test]
        fn no_text_panics(text in ".{0,20}") {
            let _ = text.parse::<Address>();
        }
    }
}
