//! The errors of this crate. Each names the device and tells what to do.

use crate::address::Address;
use crate::field::ALLOW_DEVICE;
use inlane_core::error::Class;
use std::path::PathBuf;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A text, such as a command-line argument, names no device or BAR.
    #[error("'{text}' is not {what}: {why}; give for example {example}")]
    Text {
        /// The given text.
        text: String,
        /// The kind of name that was expected.
        what: &'static str,
        /// Why the text is invalid.
        why: String,
        /// A valid text.
        example: &'static str,
    },
    /// This machine has no PCI device with the requested address.
    #[error("PCI device {address} does not exist; /sys/bus/pci/devices lists the devices of this machine")]
    NoDevice {
        /// The requested address.
        address: Address,
    },
    /// The device has no such BAR, or the BAR is not memory.
    #[error("{address} has no memory BAR {bar}: {why}")]
    NoBar {
        /// The device.
        address: Address,
        /// The requested BAR.
        bar: u8,
        /// Why the device has no such BAR.
        why: String,
    },
    /// The BAR is shorter than the requested range.
    #[error("{name} has {size} bytes, but {asked}; request a smaller range")]
    TooSmall {
        /// The BAR.
        name: String,
        /// The BAR's length in bytes.
        size: u64,
        /// The requested range.
        asked: String,
    },
    /// A kernel driver holds the device.
    #[error(
        "{address} is in use by the kernel driver {driver}, so its BARs are not accessed{note}; if nothing needs the device, \
         bind it to vfio-pci: sudo sh -c 'modprobe vfio-pci; cd /sys/bus/pci; echo {address} >devices/{address}/driver/unbind; \
         echo vfio-pci >devices/{address}/driver_override; echo {address} >drivers_probe'"
    )]
    Held {
        /// The device.
        address: Address,
        /// The kernel driver that holds the device.
        driver: String,
        /// A sentence about a setting that has no effect on this device. May be empty.
        note: String,
    },
    /// The device has no driver and is not in the allow list.
    #[error(
        "{address} is not bound to vfio-pci; bind it (sudo sh -c 'modprobe vfio-pci; cd /sys/bus/pci; echo vfio-pci \
         >devices/{address}/driver_override; echo {address} >drivers_probe'), or allow it with \
         {}", ALLOW_DEVICE.with(address)
    )]
    NotAllowed {
        /// The device.
        address: Address,
    },
    /// The user has not permitted this access to a BAR.
    #[error("{name}: a BAR is {what}; {remedy}")]
    NotPermitted {
        /// The BAR.
        name: String,
        /// The end of the message's sentence "a BAR is ...", such as "read only if you allow it".
        what: &'static str,
        /// What the user must add: a setting or a range.
        remedy: String,
    },
    /// The device is in no IOMMU group, so VFIO cannot open it.
    #[error(
        "{address} is in no IOMMU group, so VFIO cannot isolate it; enable VT-d or AMD-Vi in the firmware, add \
         intel_iommu=on or amd_iommu=on to the kernel command line, and reboot"
    )]
    NoIommu {
        /// The device.
        address: Address,
    },
    /// A kernel driver holds another device of the same IOMMU group.
    #[error(
        "IOMMU group {group} of {address} is not viable: {holders}; VFIO takes whole groups, so unbind those devices too, \
         or move the card to another slot"
    )]
    NotViable {
        /// The device.
        address: Address,
        /// The device's IOMMU group.
        group: u32,
        /// The other devices of the IOMMU group that prevent its use, with their drivers.
        holders: String,
    },
    /// Another process has the IOMMU group open.
    #[error(
        "IOMMU group {group} of {address} is in use by another process; sudo fuser -v /dev/vfio/{group} names it"
    )]
    Busy {
        /// The device.
        address: Address,
        /// The device's IOMMU group.
        group: u32,
    },
    /// A file cannot be opened because a permission is missing.
    #[error("cannot open {}: permission denied; {why}", path.display())]
    Denied {
        /// The file.
        path: PathBuf,
        /// The remedy, as the error message gives it.
        why: String,
    },
    /// The PCI device cannot be used in its present state.
    #[error("{address} is not ready: {why}")]
    NotReady {
        /// The device.
        address: Address,
        /// Why the device cannot be used now, and what to do.
        why: String,
    },
    /// The device or this CPU does not support the request.
    #[error("{what}: {why}")]
    Unsupported {
        /// The request.
        what: String,
        /// Why the request is not supported, and what to request instead.
        why: String,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    Os {
        /// The operation and its object.
        what: String,
        /// The system's error.
        source: std::io::Error,
    },
}

/// A result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Returns the class of the error, which determines the exit status.
    pub fn class(&self) -> Class {
        match self {
            Error::Text { .. }
            | Error::NoBar { .. }
            | Error::TooSmall { .. }
            | Error::NotPermitted { .. }
            | Error::Unsupported { .. } => Class::Usage,
            Error::NoDevice { .. }
            | Error::Held { .. }
            | Error::NotAllowed { .. }
            | Error::NoIommu { .. }
            | Error::NotViable { .. }
            | Error::Busy { .. }
            | Error::Denied { .. }
            | Error::NotReady { .. } => Class::Environment,
            Error::Os { .. } => Class::Failed,
        }
    }

    pub(crate) fn os(what: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        Error::Os { what: what.into(), source: source.into() }
    }
}

impl From<Error> for inlane_core::Error {
    fn from(error: Error) -> Self {
        let (why, class) = (error.to_string(), error.class());
        inlane_core::Error::Device { device: "pci".into(), why, class, source: Some(error.into()) }
    }
}
