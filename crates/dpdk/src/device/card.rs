//! Checks that a PCI device is a network card that a user-space driver can take: bound to vfio-pci or a uio
//! driver.

use crate::error::{Error, Result};
use crate::interface;
use crate::spec::EthSpec;

/// Checks that the device at PCI address `address` is a network card. Also checks that its kernel driver lets
/// programs use the card.
pub(super) fn check(spec: &EthSpec, address: &str) -> Result<()> {
    let port = spec.text.clone();
    match interface::pci_driver(address).as_deref() {
        Some(_) if !interface::is_network_card(address) => Err(Error::Spec {
            spec: port,
            why: format!("{address} is no network card; list the cards: lspci -D | grep -i net"),
        }),
        None => Err(Error::Missing {
            port,
            what: format!("PCI device {address}"),
            remedy: "list the devices: lspci -D".into(),
        }),
        Some("vfio-pci" | "uio_pci_generic" | "igb_uio") => Ok(()),
        Some("") => Err(Error::Unavailable {
            port,
            why: format!("no driver is bound to {address}"),
            remedy: format!("bind it: dpdk-devbind.py --bind=vfio-pci {address}"),
        }),
        Some(driver) => Err(Error::Unavailable {
            port,
            why: format!("the kernel's driver {driver} uses {address}"),
            remedy: format!(
                "give it to user space, which ends the kernel's network there: dpdk-devbind.py --bind=vfio-pci {address}"
            ),
        }),
    }
}
