//! Endpoints as people write them: `host`, `gpu:0`, `twin:1`, `pci:0000:00:04.0/bar2@0+1M:wc`.

use inlane_core::{Error, Result};
use inlane_pci::BarSpec;
use std::fmt;
use std::str::FromStr;

/// Where bytes come from or go to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Memory of this host; pinned where a device takes part.
    Host,
    /// Memory of GPU n.
    Gpu(u32),
    /// Memory of a software stand-in for an accelerator; its costs are those of the published accelerator, in slot
    /// n modulo 2.
    Twin(u32),
    /// A base address register of a PCI device, or a range of one.
    Bar(BarSpec),
}

impl Endpoint {
    /// A software stand-in.
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

impl FromStr for Endpoint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = |why: &str| {
            Error::invalid(
                format!("endpoint '{text}'"),
                format!("{why}; write host, gpu:0, twin:0 or pci:0000:b5:00.0/bar2[@START+LENGTH][:wc]"),
            )
        };
        let number = |digits: &str| digits.parse::<u32>().map_err(|_| bad("its number cannot be read"));
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
            return text
                .parse()
                .map(Endpoint::Bar)
                .map_err(|error: inlane_pci::Error| bad(&error.to_string()));
        }
        Err(bad("unknown kind of endpoint"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn written_as_read() {
        for text in ["host", "gpu:0", "twin:15", "pci:0000:b5:00.0/bar2", "pci:0000:00:04.7/bar0@0+4K:wc"] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn refuses_what_is_none() {
        for text in
            ["", "gpu", "gpu:", "gpu:-1", "gpu:x", "nic:0", "pci:0000:b5:00.0", "pci:0000:b5:00.8/bar0"]
        {
            let error = text.parse::<Endpoint>().unwrap_err();
            assert!(error.to_string().contains("write host, gpu:0"), "{error}");
        }
        for text in ["pci:0000:b5:00.0/bar6", "pci:0000:b5:00.0/barx", "pci:../../../../x/bar0"] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "(pci:|gpu:|twin:)?[0-9a-f:./bar]{0,24}") {
            if let Ok(endpoint) = text.parse::<Endpoint>() {
                prop_assert_eq!(endpoint.to_string().parse::<Endpoint>().unwrap(), endpoint);
            }
        }
    }
}
