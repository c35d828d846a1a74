//! The invitation to a job: how a process finds the job's meeting point.

use crate::error::{Error, Result};
use crate::transport::select::TransportKind;
use std::fmt::{Display, Formatter};
use std::str::FromStr;

/// The environment variable by which inlane's launcher passes an [`Invitation`] to each PE.
pub const MEETING: &str = "INLANE_NTB_MEETING";
/// The environment variable with the number of this PE.
pub(super) const PE: &str = "INLANE_NTB_PE";

/// How a process joins a job. As text: `TRANSPORT:INVITATION`, where the second part is the transport's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invitation {
    /// The transport of the job.
    pub kind: TransportKind,
    /// The invitation of the transport's meeting point.
    pub text: String,
}

impl Display for Invitation {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.kind, self.text)
    }
}

impl FromStr for Invitation {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parsed =
            text.split_once(':').and_then(|(kind, text)| Some((kind.parse().ok()?, text.to_string())));
        parsed.map(|(kind, text)| Self { kind, text }).ok_or_else(|| {
            Error::invalid(
                format!("the invitation '{text}'"),
                "it is another release's; use one release for all PEs",
            )
        })
    }
}
