//! Why a measurement failed, as a row contains it.

use inlane_core::error::with_causes;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// The error of a row. It keeps the library's error, so programs can match it. Documents contain its text, with its
/// causes.
#[derive(Clone, Debug)]
pub struct RowError(Arc<dyn std::error::Error + Send + Sync>);

impl RowError {
    /// Wraps an error.
    pub fn new(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self(Arc::new(error))
    }

    /// Returns the wrapped error, if it has type `E`.
    pub fn downcast_ref<E: std::error::Error + 'static>(&self) -> Option<&E> {
        self.0.downcast_ref()
    }
}

impl<E: std::error::Error + Send + Sync + 'static> From<Arc<E>> for RowError {
    fn from(error: Arc<E>) -> Self {
        Self(error)
    }
}

impl From<Box<dyn std::error::Error + Send + Sync>> for RowError {
    fn from(error: Box<dyn std::error::Error + Send + Sync>) -> Self {
        error.downcast().map_or_else(|error| Self(error.into()), |error| *error)
    }
}

impl fmt::Display for RowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&with_causes(&*self.0))
    }
}

impl std::error::Error for RowError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.0)
    }
}

impl Serialize for RowError {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl JsonSchema for RowError {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "RowError".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        String::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inlane_core::Error;

    #[test]
    fn documents_contain_the_text_and_programs_find_the_error() {
        let error = RowError::new(Error::invalid("x", "give y"));
        assert_eq!(serde_json::to_value(&error).unwrap(), "x: give y");
        assert!(matches!(error.downcast_ref(), Some(Error::Invalid { .. })));
    }
}
