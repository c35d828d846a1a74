//! What can be wrong with a PCI device or with what is asked of it, and the remedy.

use crate::address::Address;
use inlane_core::error::Class;
use std::path::PathBuf;

/// This crate's errors. Each names the device and says what to type.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A text that names no device or BAR.
    #[error("'{text}' is not {what}: {why}; write for example {example}")]
    Text {
        /// What was given.
        text: String,
        /// What was expected.
        what: &'static str,
        /// Why it was refused.
        why: String,
        /// What would be taken.
        example: &'static str,
    },
    /// No such device.
    #[error("no PCI device {address}; 'inlane topo' lists those of this machine")]
    NoDevice {
        /// The address asked for.
        address: Address,
    },
    /// The device has no such BAR, or it is no memory.
    #[error("{address} has no memory BAR {bar}: {why}")]
    NoBar {
        /// The device.
        address: Address,
        /// The BAR asked for.
        bar: u8,
        /// What it has instead.
        why: String,
    },
    /// The BAR ends before what was asked for.
    #[error("{name} is {size} bytes long, and {asked}; ask for less")]
    TooSmall {
        /// The BAR.
        name: String,
        /// Its length in bytes.
        size: u64,
        /// What was asked for.
        asked: String,
    },
    /// A kernel driver holds the device.
    #[error(
        "{address} is held by the kernel's driver {driver}, and a BAR is not touched under a driver; if nothing needs \
         it, hand it to vfio-pci: sudo sh -c 'modprobe vfio-pci; cd /sys/bus/pci; echo {address} >devices/{address}/driver/unbind; \
         echo vfio-pci >devices/{address}/driver_override; echo {address} >drivers_probe'"
    )]
    Held {
        /// The device.
        address: Address,
        /// Its driver.
        driver: String,
    },
    /// The device has no driver, and nobody allowed it.
    #[error(
        "{address} is not bound to vfio-pci: bind it (sudo sh -c 'modprobe vfio-pci; cd /sys/bus/pci; echo vfio-pci \
         >devices/{address}/driver_override; echo {address} >drivers_probe'), or name it in the allow list \
         (--allow-device {address})"
    )]
    NotAllowed {
        /// The device.
        address: Address,
    },
    /// Neither read nor write was permitted, or not the one that was tried.
    #[error("{name} may not be {what}: {remedy}")]
    NotPermitted {
        /// The BAR.
        name: String,
        /// "read" or "written".
        what: &'static str,
        /// What to give.
        remedy: String,
    },
    /// The device is in no IOMMU group: VFIO cannot take it.
    #[error(
        "{address} is in no IOMMU group, so VFIO cannot isolate it: enable the IOMMU (VT-d or AMD-Vi in the firmware, \
         intel_iommu=on or amd_iommu=on on the kernel's command line), then boot again"
    )]
    NoIommu {
        /// The device.
        address: Address,
    },
    /// Another device of the group is held by a kernel driver.
    #[error(
        "IOMMU group {group} of {address} is not viable: {holders}; devices of one group go to VFIO together: unbind \
         those too, or move the card to another slot"
    )]
    NotViable {
        /// The device.
        address: Address,
        /// Its group.
        group: u32,
        /// Which devices with which drivers.
        holders: String,
    },
    /// Somebody has the group open.
    #[error(
        "IOMMU group {group} of {address} is in use by another process (sudo fuser -v /dev/vfio/{group} names it)"
    )]
    Busy {
        /// The device.
        address: Address,
        /// Its group.
        group: u32,
    },
    /// The system does not let us.
    #[error("may not open {}: {why}", path.display())]
    Denied {
        /// Which file.
        path: PathBuf,
        /// Why, and what to do.
        why: String,
    },
    /// The device is not in a state to be used.
    #[error("{address} is not ready: {why}")]
    NotReady {
        /// The device.
        address: Address,
        /// What it lacks, and what to do.
        why: String,
    },
    /// The device or this processor cannot do what was asked.
    #[error("{what}: {why}")]
    Unsupported {
        /// What was asked for.
        what: String,
        /// Why not, and what to ask for instead.
        why: String,
    },
    /// The system refused for a reason of its own.
    #[error("{what}: {source}")]
    Os {
        /// What was tried, on which object.
        what: String,
        /// The system's answer.
        source: std::io::Error,
    },
}

/// This crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// The class of this error: who can mend it.
    pub fn class(&self) -> Class {
        match self {
            Error::Text { .. }
            | Error::NoDevice { .. }
            | Error::NoBar { .. }
            | Error::TooSmall { .. }
            | Error::NotPermitted { .. }
            | Error::Unsupported { .. } => Class::Usage,
            Error::Held { .. }
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
        inlane_core::Error::Device { device: "pci".into(), why: error.to_string(), class: error.class() }
    }
}
