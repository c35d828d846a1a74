//! Property tests of sequences of broadcasts that nothing separates. Notifications carry no number of their broadcast, so
//! a PE that is late or ahead must not take the notification of one broadcast for that of another.

use super::channel::Group;
use super::tests::{FEW, run_scattered};
use super::{Channel, Set, World};
use crate::transport::Transport;
use inlane_core::completion::CompletionMode;
use proptest::prelude::*;

/// The most bytes of a broadcast.
const LARGEST: usize = 300;

/// One broadcast of a sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// The number of one of the sets of [`sets`].
    set: usize,
    over_channel: bool,
    /// The position of the root in the set, modulo the size of the set.
    root: u32,
    bytes: usize,
    /// The distance between the PEs that yield their processor before this broadcast, and how often they do so.
    delay: (u32, u32),
}

/// Returns overlapping sets of PEs in a job of `pes` PEs.
fn sets(pes: u32) -> [Set; 3] {
    let all = Set { start: 0, stride: 1, size: pes };
    let backwards = Set { start: pes - 1, stride: -1, size: pes - 1 };
    let even = Set { start: 0, stride: 2, size: pes.div_ceil(2) };
    [all, backwards, even]
}

fn step() -> impl Strategy<Value = Step> {
    // Sizes below, at and above the size from which a broadcast is cut into slices.
    let bytes = prop_oneof![1..FEW.0, Just(FEW.0), FEW.0..LARGEST];
    (0..3usize, any::<bool>(), any::<u32>(), bytes, (1..4u32, 0..20u32))
        .prop_map(|(set, over_channel, root, bytes, delay)| Step { set, over_channel, root, bytes, delay })
}

/// Returns random sequences of broadcasts.
pub(crate) fn sequences() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..24)
}

fn faults() -> impl Strategy<Value = String> {
    let list = |seed| format!("delay=20us,reorder,torn,lose=0.3,duplicate=0.3,early=0.3,seed={seed}");
    prop_oneof![Just(String::new()), (0..1000u32).prop_map(list)]
}

/// Makes all broadcasts, each to memory of its own, and checks the bytes of each when it returns. The world has the
/// threshold [`FEW`].
pub(crate) fn broadcast_all<T: Transport>(world: &World<T>, steps: &[Step]) {
    let (me, sets) = (world.me(), sets(world.pes()));
    let array = world.array::<u8>(steps.len() * LARGEST).unwrap();
    let channels: Vec<Option<Channel>> = sets
        .iter()
        .map(|set| set.index(me).map(|_| world.open_channel(*set, *set).unwrap().expect("a place is free")))
        .collect();
    for (number, step) in steps.iter().enumerate() {
        let (set, channel) = (sets[step.set], &channels[step.set]);
        let Some(channel) = channel else { continue };
        let group: Group<'_> = if step.over_channel { channel.into() } else { set.into() };
        let value = |index: usize| (number * 31 + index + 1) as u8;
        let source: Vec<u8> = (0..step.bytes).map(value).collect();
        if me.is_multiple_of(step.delay.0) {
            (0..step.delay.1).for_each(|_| std::thread::yield_now());
        }
        let (root, destination) = (step.root % set.size, array.as_ptr().wrapping_add(number * LARGEST));
        // SAFETY: the source has `bytes` bytes, and the destination has room for them.
        unsafe { world.broadcast(group, root, destination as usize, source.as_ptr(), step.bytes).unwrap() };
        if set.pe(root) == me {
            continue;
        }
        for index in 0..step.bytes {
            // SAFETY: the byte lies in this PE's own copy, and only this broadcast writes it.
            let seen = unsafe { destination.add(index).read_volatile() };
            assert_eq!(seen, value(index), "PE {me}, broadcast {number}, byte {index}: {step:?}");
        }
    }
    world.barrier_all().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn no_broadcast_is_taken_for_another(
        pes in 2..7u32,
        faults in faults(),
        steps in sequences(),
    ) {
        run_scattered(pes, &faults, CompletionMode::Adaptive, None, FEW, |world| broadcast_all(world, &steps));
    }
}
