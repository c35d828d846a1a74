//! Compares `io` and `macswap` with references in Rust.

mod harness;

use harness::{Fate, instance, run_shaped};
use proptest::prelude::*;

fn frames() -> impl Strategy<Value = Vec<Vec<u8>>> {
    proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..80), 0..70)
}

fn swapped(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    if frame.len() >= 12 {
        let (destination, rest) = frame.split_at_mut(6);
        destination.swap_with_slice(&mut rest[..6]);
    }
    frame
}

proptest! {
    #[test]
    fn io_changes_nothing(frames in frames(), burst in 1..64usize, as_packets: bool, shift in 0..64usize) {
        let fates = run_shaped(&mut instance("io"), &frames, burst, as_packets, shift, 0);
        prop_assert_eq!(fates, frames.into_iter().map(Fate::Forward).collect::<Vec<_>>());
    }

    #[test]
    fn macswap_swaps(frames in frames(), burst in 1..64usize, as_packets: bool, shift in 0..64usize) {
        let fates = run_shaped(&mut instance("macswap"), &frames, burst, as_packets, shift, 0);
        prop_assert_eq!(fates, frames.iter().map(|frame| Fate::Forward(swapped(frame))).collect::<Vec<_>>());
    }
}

#[test]
fn functions_without_settings_refuse_them() {
    let error = inlane_function::PacketFunction::parse("io:3").unwrap_err().to_string();
    assert!(error.contains("no settings"), "{error}");
    let error = inlane_function::PacketFunction::parse("nonsense").unwrap_err().to_string();
    assert!(error.contains("macswap"), "{error}");
}
