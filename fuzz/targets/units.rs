//! Parses arbitrary text as a quantity. Each text must be refused or parsed. If a parsed size is printed as a
//! number, that number must parse to the same size.

#![no_main]

use inlane_core::units::*;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
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
});
