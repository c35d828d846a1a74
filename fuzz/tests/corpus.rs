//! Runs each fuzz target on known and on altered inputs, without libFuzzer.

use inlane_fuzz::TARGETS;
use inlane_ntb::fault::Random;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// The maximum size of an altered input, as in packaging/fuzz.
const LONGEST: usize = 4096;

#[test]
fn each_target_accepts_its_corpus_and_altered_inputs() {
    for (target, run) in TARGETS {
        check(target, *run);
    }
}

/// Runs the target on each input of its corpus, and on as many altered inputs as property tests try. Altered inputs are the same in each run.
fn check(target: &str, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let mut files: Vec<_> = folder
        .read_dir()
        .map(|entries| entries.map(|entry| entry.unwrap().path()).collect())
        .unwrap_or_default();
    files.sort();
    let mut corpus: Vec<_> = files.iter().map(|file| std::fs::read(file).unwrap()).collect();
    let try_one = |what: &str, input: &[u8]| {
        if catch_unwind(AssertUnwindSafe(|| run(input))).is_err() {
            panic!("the target {target} failed, the panic stands above; {what}: {}", input.escape_ascii());
        }
    };
    for (file, input) in files.iter().zip(&corpus) {
        try_one(&file.display().to_string(), input);
    }
    // The base of the altered inputs of a target without a corpus.
    corpus.push(Vec::new());
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(256);
    let mut random = Random::new(1);
    for case in 0..cases {
        let mut input = corpus[random.next_u64() as usize % corpus.len()].clone();
        for _ in 0..1 + random.next_u64() % 8 {
            alter(&mut input, &mut random);
        }
        input.truncate(LONGEST);
        try_one(&format!("altered input {case}"), &input);
    }
}

/// Replaces, removes, inserts or repeats some bytes at one place.
fn alter(input: &mut Vec<u8>, random: &mut Random) {
    let mut below = |limit: usize| random.next_u64() as usize % limit.max(1);
    let at = below(input.len() + 1);
    let end = (at + below(32)).min(input.len());
    match below(4) {
        0 => input[at..end].fill_with(|| below(256) as u8),
        1 => drop(input.drain(at..end)),
        2 => drop(input.splice(at..at, (0..1 + below(64)).map(|_| below(256) as u8).collect::<Vec<_>>())),
        _ => drop(input.splice(at..at, input[at..end].to_vec())),
    }
}
