//! Any text where a PCI address, a BAR or faults are expected: an error or a value, and a value that is printed reads as
//! the same.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(address) = text.parse::<inlane_pci::Address>() {
        assert_eq!(address.to_string().parse::<inlane_pci::Address>().unwrap(), address);
    }
    if let Ok(bar) = text.parse::<inlane_pci::BarSpec>() {
        assert_eq!(bar.to_string().parse::<inlane_pci::BarSpec>().unwrap(), bar);
    }
    let _ = text.parse::<inlane_ntb::fault::Faults>();
});
