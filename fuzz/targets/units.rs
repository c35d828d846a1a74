//! Parses arbitrary text as a quantity. Each text must be refused or parsed. If a parsed size is printed as a
//! number, that number must parse to the same size.

use inlane_core::units::*;

pub fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(size) = parse_size(text) {
        assert_eq!(parse_size(&format!("{size}B")).unwrap() as f64, size as f64);
        let _ = bytes(size);
    }
    if let Ok(rate) = parse_rate(text) {
        assert!(rate.packets_per_second(64.0) >= 0.0);
    }
    if let Ok(time) = parse_time(text) {
        let _ = nanoseconds(time.as_nanos() as f64);
    }
    let _ = text.parse::<inlane_core::CompletionMode>();
}
