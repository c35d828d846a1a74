//! The test beds that come with inlane: model files of published systems.
//!
//! A test bed is a model file with a table `published`. [`Model`] takes this table out of the file before it solves
//! anything, so a result cannot be an input of its own prediction. A test checks that no value of a case with the
//! status *prediction* equals its published result.

use crate::error::Result;
use crate::file::Model;

/// The test beds: the name and the text of each file.
pub const TEST_BEDS: [(&str, &str); 5] = [
    ("inline-gpu", include_str!("../testbeds/inline-gpu.toml")),
    ("offload", include_str!("../testbeds/offload.toml")),
    ("npu", include_str!("../testbeds/npu.toml")),
    ("smartnic", include_str!("../testbeds/smartnic.toml")),
    ("ntb", include_str!("../testbeds/ntb.toml")),
];

/// Returns the model of a test bed. `None` if there is no test bed with this name.
///
/// # Errors
/// None in a released version, because a test reads all test beds.
pub fn test_bed(name: &str) -> Option<Result<Model>> {
    let (name, text) = TEST_BEDS.iter().find(|(bed, _)| *bed == name)?;
    Some(Model::parse(&format!("testbed:{name}"), text))
}

#[cfg(test)]
mod tests;
