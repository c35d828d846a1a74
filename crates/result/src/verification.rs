//! The outcome of checking transferred bytes.

use schemars::JsonSchema;
use serde::Serialize;

/// The outcome of checking transferred bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ByteVerification {
    /// How bytes were checked.
    pub method: String,
    /// All bytes that were moved, checked or not.
    pub transferred_bytes: u64,
    /// The bytes in which the check could have found an error.
    pub verified_bytes: u64,
    /// The bytes that differed from what was expected.
    pub altered_bytes: u64,
}
