//! Software ports of inlane's own: captures, generators, checkers, and wrappers around any port.
//!
//! | port | what it is |
//! | --- | --- |
//! | `gen:SIZE` | [`generate::Generator`]: packets of known flows, by a schedule |

pub mod generate;
pub mod spec;
