//! Endpoints as the user writes them: `host`, `gpu:0`, `twin:1`, `pci:0000:00:04.0/bar2@0+1M:wc`.

use inlane_core::{Error, Result};
use inlane_pci::BarSpec;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// A source or destination of transfers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Host memory, pinned if a GPU is among the endpoints of the operation.
    Host,
    /// The memory of a GPU.
    Gpu(u32),
    /// The memory of an accelerator's twin. Twins model the accelerators of the published experiment
    /// ([`crate::published`]). A twin with an even index models the one in slot 0, a twin with an odd index
    /// the one in slot 1.
    Twin(u32),
    /// A BAR of a PCI device, or a range of such a BAR.
    Bar(BarSpec),
}

impl Endpoint {
    /// Returns true if the endpoint is a twin of an accelerator.
    pub fn is_twin(&self) -> bool {
        matches!(self, Endpoint::Twin(_))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Host => write!(f, "host"),
            Endpoint::Gpu(index) => write!(f, "gpu:{index}"),
            Endpoint::Twin(index) => write!(f, "twin:{index}"),
            Endpoint::Bar(spec) => write!(f, "{spec}"),
        }
    }
}

/// Documents contain the endpoint as the user writes it.
impl Serialize for Endpoint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl JsonSchema for Endpoint {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Endpoint".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        String::json_schema(generator)
    }
}

impl FromStr for Endpoint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = |why: &str| {
            Error::invalid(
                format!("endpoint '{text}'"),
                format!("{why}; give host, gpu:0, twin:0 or pci:0000:b5:00.0/bar2[@START+LENGTH][:wc]"),
            )
        };
        let number =
            |digits: &str| digits.parse::<u32>().map_err(|_| bad("the part after the colon is not a number"));
        if text == "host" {
            return Ok(Endpoint::Host);
        }
        if let Some(digits) = text.strip_prefix("gpu:") {
            return Ok(Endpoint::Gpu(number(digits)?));
        }
        if let Some(digits) = text.strip_prefix("twin:") {
            return Ok(Endpoint::Twin(number(digits)?));
        }
        if text.starts_with("pci:") {
            return text.parse().map(Endpoint::Bar).map_err(|error: inlane_pci::Error| {
                // The error of `BarSpec` already says what to write, so no advice is added.
                Error::invalid("endpoint", error.to_string())
            });
        }
        Err(bad("unknown kind of endpoint"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn text_round_trips() {
        for text in ["host", "gpu:0", "twin:15", "pci:0000:b5:00.0/bar2", "pci:0000:00:04.7/bar0@0+4K:wc"] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn invalid_texts_are_refused_with_examples() {
        for text in
            ["", "gpu", "gpu:", "gpu:-1", "gpu:x", "nic:0", "pci:0000:b5:00.0", "pci:0000:b5:00.8/bar0"]
        {
            let error = text.parse::<Endpoint>().unwrap_err();
            let example = if text.starts_with("pci:") { "give for example " } else { "give host, gpu:0" };
            assert!(error.to_string().contains(example), "{error}");
        }
        for text in ["pci:0000:b5:00.0/bar6", "pci:0000:b5:00.0/barx", "pci:../../../../x/bar0"] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(pci:|gpu:|twin:)?[0-9a-f:./bar]{0,24}") {
            if let Ok(endpoint) = text.parse::<Endpoint>() {
                prop_assert_eq!(endpoint.to_string().parse::<Endpoint>().unwrap(), endpoint);
            }
        }
    }
}
