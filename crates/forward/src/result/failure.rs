//! Why a run failed, as a row contains it.

use crate::error::Error;
use inlane_core::error::with_causes;
use serde::{Serialize, Serializer};
use std::fmt;
use std::sync::Arc;

/// The error of a run. Documents contain its text, with its causes.
#[derive(Clone, Debug)]
pub struct RunFailure(Arc<Error>);

impl From<Error> for RunFailure {
    fn from(error: Error) -> Self {
        Self(Arc::new(error))
    }
}

impl fmt::Display for RunFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&with_causes(&*self.0))
    }
}

impl std::error::Error for RunFailure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.0)
    }
}

impl Serialize for RunFailure {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
