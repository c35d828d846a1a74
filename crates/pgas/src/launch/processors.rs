//! Whether the PEs of this machine share processors. Each PE announces its machine and the processors that it
//! may use, because a launcher may bind each PE to other ones.

use super::member::machine;
use super::processors;
use crate::error::Result;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

/// The longest text that a PE announces, in bytes. Process managers store no longer ones.
const LONGEST_TEXT: usize = 250;

/// Returns what this PE announces: its machine and its processors, such as `MACHINE/0-3,8`. A list that is too
/// long is cut off.
pub(super) fn announcement() -> Result<String> {
    Ok(encode(&machine()?, &processors()))
}

fn encode(machine: &str, processors: &[usize]) -> String {
    let mut ranges: Vec<RangeInclusive<usize>> = Vec::new();
    for &processor in processors {
        match ranges.last_mut() {
            Some(last) if *last.end() + 1 == processor => *last = *last.start()..=processor,
            _ => ranges.push(processor..=processor),
        }
    }
    let mut text = format!("{machine}/");
    for range in ranges {
        let one = format!("{}-{},", range.start(), range.end());
        if text.len() + one.len() > LONGEST_TEXT {
            break;
        }
        text += &one;
    }
    text
}

/// Returns the machine and the processors of an announcement. Leaves out what is no range of processors.
fn decode(text: &str) -> (&str, impl Iterator<Item = usize>) {
    let (machine, list) = text.split_once('/').unwrap_or_default();
    let ranges = list.split(',').filter_map(|range| {
        let (first, last) = range.split_once('-')?;
        Some(first.parse().ok()?..=last.parse::<usize>().ok()?.min(libc::CPU_SETSIZE as usize))
    });
    (machine, ranges.flatten())
}

/// Returns true if the PEs that run on the machine of the announcement `own` are more than the processors that
/// they may use together. `all` are the announcements of all PEs of the job.
pub(super) fn are_shared<'a>(own: &str, all: impl Iterator<Item = &'a str>) -> bool {
    let here = decode(own).0;
    let (mut pes, mut usable) = (0, BTreeSet::new());
    for (machine, processors) in all.map(decode) {
        if machine == here {
            pes += 1;
            usable.extend(processors);
        }
    }
    pes > usable.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn processors_are_shared_if_they_are_fewer_than_the_local_pes() {
        let shared = |lists: &[&str]| are_shared(lists[0], lists.iter().copied());
        assert!(!shared(&["a/0-1,", "a/0-1,"]), "two PEs on the same two processors");
        assert!(shared(&["a/0-1,", "a/0-1,", "a/0-1,"]));
        assert!(!shared(&["a/0-0,", "a/5-5,"]), "bound to a processor each");
        assert!(shared(&["a/3-3,", "a/3-3,"]), "bound to one processor");
        assert!(!shared(&["a/0-0,", "b/0-0,", "c/0-0,"]), "on other machines");
        assert!(!shared(&["a/0-0,2-2,", "a/0-0,2-2,"]));
    }

    #[test]
    fn long_lists_are_cut_off() {
        let odd: Vec<usize> = (0..512).map(|index| 2 * index + 1).collect();
        let text = encode("a", &odd);
        assert!((200..=LONGEST_TEXT).contains(&text.len()));
        assert!(decode(&text).1.eq(odd.into_iter().take(decode(&text).1.count())));
    }

    proptest! {
        #[test]
        fn processors_are_read_as_written(set in proptest::collection::btree_set(0usize..1024, 0..20)) {
            let list: Vec<usize> = set.into_iter().collect();
            let text = encode("m", &list);
            let (machine, read) = decode(&text);
            prop_assert_eq!(machine, "m");
            prop_assert!(read.eq(list));
        }

        #[test]
        fn any_text_is_an_announcement(text in ".{0,200}", other in "[0-9,/-]{0,50}") {
            are_shared(&text, [text.as_str(), other.as_str()].into_iter());
        }
    }
}
