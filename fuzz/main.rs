//! Fuzzes the target that the environment variable `FUZZ_TARGET` names. The arguments are libFuzzer's.

#![no_main]

use inlane_fuzz::TARGETS;
use libfuzzer_sys::fuzz_target;
use std::sync::OnceLock;

static TARGET: OnceLock<fn(&[u8])> = OnceLock::new();

fuzz_target!(
    init: {
        let name = std::env::var("FUZZ_TARGET").expect("FUZZ_TARGET names a target");
        let found = TARGETS.iter().find(|target| target.0 == name);
        let _ = TARGET.set(found.unwrap_or_else(|| panic!("there is no target {name}")).1);
    },
    |bytes: &[u8]| TARGET.get().expect("set above")(bytes)
);
