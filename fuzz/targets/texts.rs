//! Parses arbitrary text as a PCI address, a BAR, faults, ports and the size of a symmetric heap. Each parser
//! must return a value or an error. A printed PCI address or BAR must parse to the same value.

pub fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(address) = text.parse::<inlane_pci::Address>() {
        assert_eq!(address.to_string().parse::<inlane_pci::Address>().unwrap(), address);
    }
    if let Ok(bar) = text.parse::<inlane_pci::BarSpec>() {
        assert_eq!(bar.to_string().parse::<inlane_pci::BarSpec>().unwrap(), bar);
    }
    let _ = text.parse::<inlane_ntb::fault::Faults>();
    let _ = text.parse::<inlane_pgas::variables::HeapSize>();
    let _ = inlane_ports::wrap::fault::Faults::parse(text);
    let _ = inlane_ports::generate::Traffic::parse(text);
}
