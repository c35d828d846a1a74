//! The settings that messages of this crate name.

use inlane_core::setting::Field;

/// A load.
pub const LOAD: Field = Field::new("load");
/// An open parameter of a scenario, or a setting of one of its loads.
pub const SET: Field = Field::new("set");

/// All fields of this module.
pub const ALL: &[Field] = &[LOAD, SET];
