//! The data structures that commands return to the host: those of Identify, and the discovery log page.

mod controller;
mod discovery;
mod namespace;
#[cfg(test)]
mod tests;

pub use controller::{IdentifyController, controller_type, oncs};
pub use discovery::{DiscoveryEntry, DiscoveryHeader, subsystem_type};
pub use namespace::{IdentifyNamespace, LbaFormat, descriptor_type, descriptors};

/// The values of CNS in Identify (Base section 5.17.1).
pub mod cns {
    /// Identify Namespace.
    pub const NAMESPACE: u8 = 0x00;
    /// Identify Controller.
    pub const CONTROLLER: u8 = 0x01;
    /// The list of the active namespaces whose identifiers are greater than the command's NSID.
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    /// Namespace Identification Descriptors.
    pub const NAMESPACE_DESCRIPTORS: u8 = 0x03;
    /// Identify Controller for an I/O command set. Bits 31:24 of dword 11 name the set; 0 is NVM.
    pub const COMMAND_SET_CONTROLLER: u8 = 0x06;
}

/// The length of the data of Identify, in bytes.
pub const IDENTIFY_BYTES: usize = 4096;

/// Copies `text` into an ASCII field of `N` bytes. Pads with spaces, and truncates text that is too long.
pub fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    let len = text.len().min(N);
    field[..len].copy_from_slice(&text.as_bytes()[..len]);
    field
}

/// Copies `text` into a zero-terminated field. Cuts the text if it is too long.
pub fn terminated<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [0; N];
    let len = text.len().min(N - 1);
    field[..len].copy_from_slice(&text.as_bytes()[..len]);
    field
}

/// Returns the text of a field without its padding. Replaces unprintable bytes, because a hostile peer could
/// send control sequences to a terminal.
pub fn text(field: &[u8]) -> String {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    let printable =
        |byte: &u8| if byte.is_ascii_graphic() || *byte == b' ' { char::from(*byte) } else { '?' };
    field[..end].iter().map(printable).collect::<String>().trim_end().into()
}
