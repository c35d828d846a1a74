//! The settings that messages of this crate name.

use inlane_core::setting::Field;

/// Permits reads of BARs.
pub const ALLOW_BAR_READ: Field = Field::new("allow-bar-read");
/// Permits writes to a range of a BAR.
pub const ALLOW_BAR_WRITE: Field = Field::new("allow-bar-write");
/// Adds a device without a driver to the allow list.
pub const ALLOW_DEVICE: Field = Field::new("allow-device");

/// All fields of this module.
pub const ALL: &[Field] = &[ALLOW_BAR_READ, ALLOW_BAR_WRITE, ALLOW_DEVICE];
