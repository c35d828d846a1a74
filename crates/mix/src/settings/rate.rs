//! Rates of loads.

use inlane_core::units::{self, Rate};

/// Parses the rate of a load: bytes (`20GB/s`), bits (`100Gb/s`), packets (`1.5Mpps`) or operations (`2kop/s`) per
/// second.
///
/// # Errors
/// What a rate looks like.
pub fn parse_rate(text: &str) -> Result<Rate, String> {
    let counted = |number: &str| units::parse_rate(&format!("{number}pps"));
    let rate = match (text.strip_suffix("B/s"), text.strip_suffix("op/s")) {
        (Some(bytes), _) => counted(bytes).map(|rate| Rate::Bits(rate.packets_per_second(1.0) * 8.0)),
        (_, Some(operations)) => counted(operations.trim_end()),
        _ => units::parse_rate(text),
    };
    rate.map_err(|error| {
        format!("'{text}' is not a rate: {}; give for example 20GB/s, 100Gb/s, 1.5Mpps or 2kop/s", error.why)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_bytes_bits_packets_or_operations() {
        assert_eq!(parse_rate("20GB/s").unwrap(), Rate::Bits(160e9));
        assert_eq!(parse_rate("20 MB/s").unwrap(), Rate::Bits(160e6));
        assert_eq!(parse_rate("100Gb/s").unwrap(), Rate::Bits(100e9));
        assert_eq!(parse_rate("1.5Mpps").unwrap(), Rate::Packets(1.5e6));
        assert_eq!(parse_rate("2kop/s").unwrap(), Rate::Packets(2e3));
        assert_eq!(parse_rate("500 op/s").unwrap(), Rate::Packets(500.0));
        for bad in ["", "fast", "-1GB/s", "0op/s", "5 parsecs"] {
            let why = parse_rate(bad).unwrap_err();
            assert!(why.contains("20GB/s") && why.contains(&format!("'{bad}'")), "{why}");
        }
    }
}
