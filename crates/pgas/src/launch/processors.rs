//! Whether the PEs of this machine share processors. Each PE announces its machine and the processors that it
//! may use, because a launcher may bind each PE to other ones.

use super::processors;
use crate::transport::machine::machine;
use inlane_core::cores::MOST_CORES as MOST_PROCESSORS;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

/// The longest text that a PE announces, in bytes. Process managers store no longer ones.
const LONGEST_TEXT: usize = 250;
/// The room in bytes for the number of processors that are left out.
const LONGEST_NUMBER: usize = 8;

/// Returns what this PE announces: its machine and its processors, such as `MACHINE/0-3,8-8,`. If the list is
/// too long, the number of the processors that are left out follows it, such as `MACHINE/0-3,8-8,+200`.
pub(super) fn announcement() -> String {
    encode(&machine(), &processors())
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
    let mut left_out = processors.len();
    for range in ranges {
        let one = format!("{}-{},", range.start(), range.end());
        if text.len() + one.len() + LONGEST_NUMBER > LONGEST_TEXT {
            return format!("{text}+{left_out}");
        }
        text += &one;
        left_out -= range.count();
    }
    text
}

/// What a PE has announced.
struct Announcement<'a> {
    machine: &'a str,
    /// The processors that the PE may use, without those that were left out.
    processors: BTreeSet<usize>,
    left_out: usize,
}

/// Decodes an announcement. Ignores parts that are not ranges, and processors from [`MOST_PROCESSORS`] on.
fn decode(text: &str) -> Announcement<'_> {
    let (machine, list) = text.split_once('/').unwrap_or_default();
    let (list, left_out) = list.split_once('+').unwrap_or((list, "0"));
    let ranges = list.split(',').filter_map(|range| {
        let (first, last) = range.split_once('-')?;
        Some(first.parse().ok()?..=last.parse::<usize>().ok()?.min(MOST_PROCESSORS - 1))
    });
    let mut processors = BTreeSet::new();
    // Insert one by one, because collecting would first need memory for all ranges, which may overlap.
    for processor in ranges.flatten() {
        processors.insert(processor);
    }
    let left_out = left_out.parse().unwrap_or(0usize).min(MOST_PROCESSORS);
    Announcement { machine, processors, left_out }
}

/// Returns true if the PEs that run on the machine of the announcement `own` are more than the processors that
/// they may use together. `all` are the announcements of all PEs of the job. Returns false if a PE of this
/// machine does not know its processors.
///
/// Processors that PEs have left out of their lists may be the same ones. Only those of one PE therefore count.
pub(super) fn are_shared<'a>(own: &str, all: impl Iterator<Item = &'a str>) -> bool {
    let here = decode(own).machine;
    let (mut pes, mut usable, mut most) = (0, BTreeSet::new(), 0);
    for one in all.map(decode).filter(|one| one.machine == here) {
        pes += 1;
        let count = one.processors.len() + one.left_out;
        if count == 0 {
            return false;
        }
        most = most.max(count);
        usable.extend(one.processors);
    }
    pes > most.max(usable.len())
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
        assert!(!shared(&["a/", "a/", "a/"]), "unknown processors");
        assert!(!shared(&["a/0-0,", "a/", "a/0-0,"]), "a PE with unknown processors");
    }

    #[test]
    fn long_lists_end_with_the_number_of_processors_left_out() {
        let odd: Vec<usize> = (0..512).map(|index| 2 * index + 1).collect();
        let text = encode("a", &odd);
        assert!((200..=LONGEST_TEXT).contains(&text.len()));
        let Announcement { processors, left_out, .. } = decode(&text);
        assert_eq!(processors.len() + left_out, 512);
        assert!(processors.iter().eq(odd.iter().take(processors.len())));
        let (enough, few) = (vec![text.as_str(); 512], vec![text.as_str(); 513]);
        assert!(!are_shared(&text, enough.into_iter()));
        assert!(are_shared(&text, few.into_iter()));
    }

    #[test]
    fn processors_that_no_system_has_are_ignored() {
        let last = MOST_PROCESSORS - 1;
        let text = format!("a/3-{0},{0}-{1},0-99999999999,9-8,{1}-,-,1", last, usize::MAX);
        assert_eq!(decode(&text).processors.len(), MOST_PROCESSORS);
        assert!(decode(&format!("a/{MOST_PROCESSORS}-{},", usize::MAX)).processors.is_empty());
    }

    #[test]
    fn this_process_may_use_a_processor() {
        assert!(!super::super::processors().is_empty());
    }

    proptest! {
        #[test]
        fn processors_are_read_as_written(set in proptest::collection::btree_set(0usize..1024, 0..20)) {
            let list: Vec<usize> = set.into_iter().collect();
            let text = encode("m", &list);
            let read = decode(&text);
            prop_assert_eq!(read.machine, "m");
            prop_assert!(read.processors.into_iter().eq(list));
        }

        #[test]
        fn any_text_is_an_announcement(text in ".{0,200}", other in "[0-9,/+-]{0,50}") {
            are_shared(&text, [text.as_str(), other.as_str()].into_iter());
        }
    }
}
