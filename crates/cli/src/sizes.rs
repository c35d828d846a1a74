//! Parses the value of `--sizes`: one size, a list, or a range.

use inlane_core::{Error, units};

/// Parses sizes: `1M`, `4K,1M`, `4K..256M` (each size is four times the previous one) or `4K..256M,x2`. A
/// range always includes its last size, even if the step would skip it.
///
/// # Errors
/// If the text is not a size, list or range. If a size is zero or above `largest`.
pub fn parse(text: &str, largest: u64) -> Result<Vec<u64>, Error> {
    let invalid = |why: &str| {
        let example = "give one size (1M), a list (4K,1M) or a range (4K..256M, or 4K..256M,x2)";
        Error::invalid(format!("sizes '{text}'"), format!("{why}; {example}"))
    };
    let size = |part: &str| match units::parse_size(part).map_err(|_| invalid(&not_a_size(text, part)))? {
        0 => Err(invalid("a transfer has at least 1 byte")),
        bytes if bytes > largest => {
            Err(invalid(&format!("a transfer has at most {}", units::bytes(largest))))
        }
        bytes => Ok(bytes),
    };
    let Some((first, rest)) = text.split_once("..") else { return text.split(',').map(size).collect() };
    let (last, step) = match rest.split_once(",x") {
        Some((last, step)) => (last, step.parse().map_err(|_| invalid("the step must be a whole number"))?),
        None => (rest, 4),
    };
    if step < 2 {
        return Err(invalid("the step must be 2 or more"));
    }
    let (first, last) = (size(first)?, size(last)?);
    if first > last {
        return Err(invalid("the end is less than the start"));
    }
    let steps = std::iter::successors(Some(first), |size: &u64| size.checked_mul(step));
    let mut sizes: Vec<u64> = steps.take_while(|size| *size < last).collect();
    sizes.push(last);
    Ok(sizes)
}

/// Returns why a part of `--sizes` is not a size.
fn not_a_size(text: &str, part: &str) -> String {
    let range = part
        .split_once('-')
        .filter(|(first, last)| units::parse_size(first).is_ok() && units::parse_size(last).is_ok());
    match range {
        Some((first, last)) => format!("a range has two dots: {first}..{last}"),
        None if part.is_empty() && text.is_empty() => "no size is given".into(),
        None if part.is_empty() => "a size is missing".into(),
        None => format!("'{part}' is not a size"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_one_a_list_or_a_range() {
        let parsed = |text: &str| parse(text, 1 << 40).unwrap();
        assert_eq!(parsed("1M"), [1 << 20]);
        assert_eq!(parsed("4K,1M,7"), [4096, 1 << 20, 7]);
        assert_eq!(parsed("4K..100K"), [4096, 16384, 65536, 102400]);
        assert_eq!(parsed("1K..4K,x2"), [1024, 2048, 4096]);
        assert_eq!(parsed("64..64"), [64]);
        for bad in ["", "0", "1M..4K", "4K,", "x", "..", "-1", "2T", "1K..4K,x1", "1K..4K,xy"] {
            assert!(parse(bad, 1 << 40).is_err(), "{bad}");
        }
    }

    #[test]
    fn every_refusal_shows_the_accepted_forms() {
        for (bad, why) in [
            ("4KB-1MB", "a range has two dots: 4KB..1MB"),
            ("4Kb", "'4Kb' is not a size"),
            ("4K 8K", "'4K 8K' is not a size"),
            ("4K..", "a size is missing"),
            ("4K,,8K", "a size is missing"),
            ("", "no size is given"),
            ("0", "a transfer has at least 1 byte"),
        ] {
            let forms = "give one size (1M), a list (4K,1M) or a range (4K..256M, or 4K..256M,x2)";
            assert_eq!(
                parse(bad, 1 << 40).unwrap_err().to_string(),
                format!("sizes '{bad}': {why}; {forms}")
            );
        }
    }
}
