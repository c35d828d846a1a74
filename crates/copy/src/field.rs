//! The settings that messages of this crate name.

use inlane_core::setting::Field;

/// Permit reads from BARs.
pub const ALLOW_BAR_READ: Field = Field::new("allow-bar-read");
/// Permit writes to BARs.
pub const ALLOW_BAR_WRITE: Field = Field::new("allow-bar-write");
/// The devices of a matrix.
pub const DEVICES: Field = Field::new("devices");
/// The source endpoint.
pub const FROM: Field = Field::new("from");
/// List the paths between two endpoints.
pub const LIST: Field = Field::new("list");
/// The figures to measure.
pub const MEASURE: Field = Field::new("measure");
/// The path that must be taken.
pub const REQUIRE: Field = Field::new("require");
/// The sizes of transfers.
pub const SIZES: Field = Field::new("sizes");
/// The destination endpoint.
pub const TO: Field = Field::new("to");
/// The paths that must not be taken.
pub const WITHOUT: Field = Field::new("without");

/// All fields of this module.
pub const ALL: &[Field] =
    &[ALLOW_BAR_READ, ALLOW_BAR_WRITE, DEVICES, FROM, LIST, MEASURE, REQUIRE, SIZES, TO, WITHOUT];
