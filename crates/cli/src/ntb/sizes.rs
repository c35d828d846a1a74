//! The value of `--sizes` of `inlane ntb bench`: one size, a list, or a range with a step.

use inlane_core::Error;

/// Sizes in bytes, ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes(pub Vec<u64>);

/// The largest size.
const LARGEST: u64 = 4 << 30;

impl std::str::FromStr for Sizes {
    type Err = Error;

    /// Parses sizes as [`crate::sizes::parse`] does. If a range spans 8 bytes, adds the size of 8 bytes,
    /// because message rates are commonly compared at this size.
    fn from_str(text: &str) -> Result<Self, Error> {
        let mut sizes = crate::sizes::parse(text, LARGEST)?;
        // Add 8 bytes to a range even if its steps do not include this size. Message rates of different
        // libraries are compared at 8 bytes.
        if text.contains("..") && sizes.iter().any(|size| *size < 8) && sizes.iter().any(|size| *size > 8) {
            sizes.push(8);
        }
        sizes.sort_unstable();
        sizes.dedup();
        Ok(Self(sizes))
    }
}

impl Sizes {
    /// Returns the largest size.
    pub fn largest(&self) -> u64 {
        self.0.last().copied().unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_one_a_list_or_a_range() {
        let sizes = |text: &str| text.parse::<Sizes>().map(|sizes| sizes.0);
        assert_eq!(sizes("1M").unwrap(), [1 << 20]);
        assert_eq!(sizes("4K,8,4K").unwrap(), [8, 4096]);
        assert_eq!(sizes("1..64").unwrap(), [1, 4, 8, 16, 64]);
        assert_eq!(sizes("8..40,x2").unwrap(), [8, 16, 32, 40]);
        for bad in ["", "0", "4..2", "1..", "1..8,x1", "1..8,2", "8G", "many"] {
            assert!(sizes(bad).is_err(), "{bad}");
        }
    }
}
