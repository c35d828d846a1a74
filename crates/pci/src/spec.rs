//! The name of a BAR on the command line: `pci:ADDRESS/barN[@START+LENGTH][:wc]`.

use crate::address::Address;
use crate::error::{Error, Result};
use inlane_core::units::parse_size;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// A BAR, or a range of a BAR, as the user names it.
///
/// `pci:0000:b5:00.0/bar2` is all of BAR 2 and read-only. `pci:0000:b5:00.0/bar2@1M+64K` is a range, which is
/// also writable. A suffix `:wc` requests a write-combining mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BarSpec {
    /// The device's address.
    pub address: Address,
    /// The index of the BAR, 0 to 5.
    pub bar: u8,
    /// The range in bytes; `None` is the whole BAR.
    pub range: Option<Range<u64>>,
    /// True for a write-combining mapping.
    pub write_combining: bool,
}

impl BarSpec {
    /// Names an explicit range of a BAR, mapped uncached.
    pub fn new(address: Address, bar: u8, range: Range<u64>) -> Self {
        Self { address, bar, range: Some(range), write_combining: false }
    }
}

impl FromStr for BarSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = |why: &str| Error::Text {
            text: text.into(),
            what: "a PCI BAR",
            why: why.into(),
            example: "pci:0000:b5:00.0/bar2 or pci:0000:b5:00.0/bar2@0+1M:wc",
        };
        let rest = text.strip_prefix("pci:").ok_or_else(|| bad("it does not start with 'pci:'"))?;
        let (address, rest) =
            rest.split_once('/').ok_or_else(|| bad("there is no '/barN' after the address"))?;
        let (rest, write_combining) = match rest.split_once(':') {
            Some((rest, "wc")) => (rest, true),
            Some(_) => return Err(bad("only ':wc' can follow the BAR")),
            None => (rest, false),
        };
        let (bar, range) = match rest.split_once('@') {
            Some((bar, range)) => (bar, Some(range)),
            None => (rest, None),
        };
        let bar = match bar.strip_prefix("bar").map(str::as_bytes) {
            Some([digit @ b'0'..=b'5']) => digit - b'0',
            _ => return Err(bad("the BAR must be bar0 to bar5")),
        };
        let range = range.map(|range| {
            let (start, length) =
                range.split_once('+').ok_or_else(|| bad("the range must be START+LENGTH"))?;
            let read = |what: &str, size: &str| {
                parse_size(size).map_err(|_| match size {
                    "" => bad(&format!("the {what} of the range is missing")),
                    _ => bad(&format!("the {what} of the range, '{size}', is not a size")),
                })
            };
            let (start, length) = (read("start", start)?, read("length", length)?);
            // `parse_size` returns at most 2^62, so the sum does not overflow.
            if length == 0 { Err(bad("the length of the range is 0")) } else { Ok(start..start + length) }
        });
        Ok(Self { address: address.parse()?, bar, range: range.transpose()?, write_combining })
    }
}

impl fmt::Display for BarSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pci:{}/bar{}", self.address, self.bar)?;
        if let Some(range) = &self.range {
            write!(f, "@{}+{}", Size(range.start), Size(range.end - range.start))?;
        }
        if self.write_combining { f.write_str(":wc") } else { Ok(()) }
    }
}

/// A number of bytes. It is displayed in the form that `parse_size` accepts: `1M`, `64K`, `100`.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit =
            [(30, "G"), (20, "M"), (10, "K")].into_iter().find(|(bits, _)| self.0.is_multiple_of(1 << bits));
        match unit.filter(|_| self.0 > 0) {
            Some((bits, unit)) => write!(f, "{}{unit}", self.0 >> bits),
            None => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn all_forms_are_parsed() {
        let whole: BarSpec = "pci:0000:b5:00.0/bar2".parse().unwrap();
        assert_eq!((whole.bar, whole.range, whole.write_combining), (2, None, false));
        let part: BarSpec = "pci:b5:00.0/bar0@1M+64K:wc".parse().unwrap();
        assert_eq!((part.bar, part.range.clone()), (0, Some(0x100000..0x110000)));
        assert!(part.write_combining);
        assert_eq!(part.to_string(), "pci:0000:b5:00.0/bar0@1M+64K:wc");
        assert_eq!(part.to_string().parse::<BarSpec>().unwrap(), part);
        assert_eq!(BarSpec::new(part.address, 1, 0..100).to_string(), "pci:0000:b5:00.0/bar1@0+100");
        for bad in [
            "0000:b5:00.0/bar2",
            "pci:0000:b5:00.0",
            "pci:0000:b5:00.0/bar6",
            "pci:0000:b5:00.0/bar22",
            "pci:0000:b5:00.0/bar2:uc",
            "pci:0000:b5:00.0/bar2@4K",
            "pci:0000:b5:00.0/bar2@0+0",
            "pci:0000:b5:00.0/bar2@-1+4",
            "pci:0000:b5:00.0/bar2:wc@0+4K",
        ] {
            assert!(bad.parse::<BarSpec>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(pci:)?[0-9a-f:.]{0,14}(/bar)?[0-9]?@?[0-9A-Z+]{0,24}(:wc)?") {
            let _ = text.parse::<BarSpec>();
        }
    }
}
