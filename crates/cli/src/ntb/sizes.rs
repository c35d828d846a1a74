//! The sizes of `inlane ntb bench`: one, a list, or a range with its step.

use inlane_core::{Error, units};

/// Sizes in bytes, ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes(pub Vec<u64>);

/// The largest size.
const LARGEST: u64 = 4 << 30;

impl std::str::FromStr for Sizes {
    type Err = Error;

    /// Parses `1M`, `8,4K,1M`, `8..1M` (each size four times the one before) or `8..1M,x2`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = |why: &str| {
            Error::invalid(format!("sizes '{text}'"), format!("{why}; write 1M, 8,4K,1M, 8..1M or 8..1M,x2"))
        };
        let size = |text: &str| match units::parse_size(text)? {
            0 => Err(invalid("a transfer has at least 1 byte")),
            bytes if bytes > LARGEST => Err(invalid("a transfer has at most 4 GiB")),
            bytes => Ok(bytes),
        };
        let mut sizes = match text.split_once("..") {
            Some((first, rest)) => {
                let (last, step) = match rest.split_once(",x") {
                    Some((last, step)) => (last, step.parse().map_err(|_| invalid("the step is no number"))?),
                    None => (rest, 4),
                };
                if step < 2 {
                    return Err(invalid("the step is at least 2"));
                }
                let (first, last) = (size(first)?, size(last)?);
                if first > last {
                    return Err(invalid("the range ends before it begins"));
                }
                let steps = std::iter::successors(Some(first), |size| size.checked_mul(step));
                let mut sizes: Vec<u64> = steps.take_while(|size| *size < last).collect();
                sizes.push(last);
                // Message rates are compared at 8 bytes.
                if first < 8 && last > 8 {
                    sizes.push(8);
                }
                sizes
            }
            None => text.split(',').map(size).collect::<Result<_, _>>()?,
        };
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
