//! The floors of the stages between a program and its engine: bytes and an index in cache lines that both share.

use super::{Floor, Measured, WARM_UP, Wait, in_two_threads};
use crate::error::Result;
use crate::trace::{Stage, Times};
use inlane_core::clock::Clock;
use std::sync::atomic::{AtomicU32, Ordering};

/// A word in a cache line of its own. Processors also fetch the neighbour of a line.
#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU32);

/// Measures the passing of 4 bytes from a thread on the first core to a thread on the second. `stages` are the stage in which the
/// bytes are stored, and the one in which they are found.
///
/// # Errors
/// If a thread may not use its core, or is not run.
pub fn of_shared_lines(
    clock: &Clock,
    stages: [Stage; 2],
    cores: Option<[usize; 2]>,
    count: usize,
) -> Result<Vec<Floor>> {
    let [bytes, index, answer] = [const { Line(AtomicU32::new(0)) }; 3];
    let rounds = 1..=(WARM_UP + count) as u32;
    let await_in = |line: &Line, round: u32, wait: &mut Wait| -> Result<()> {
        while line.0.load(Ordering::Acquire) != round {
            wait.polled()?;
        }
        Ok(())
    };
    let store = || {
        let mut wait = Wait::new();
        let times = rounds.clone().map(|round| {
            let called = clock.raw();
            bytes.0.store(!round, Ordering::Relaxed);
            index.0.store(round, Ordering::Release);
            let returned = clock.raw();
            await_in(&answer, round, &mut wait)?;
            Ok((called, returned))
        });
        times.collect::<Result<Vec<_>>>()
    };
    let find = || {
        let mut wait = Wait::new();
        let times = rounds.clone().map(|round| {
            await_in(&index, round, &mut wait)?;
            let loaded = bytes.0.load(Ordering::Relaxed);
            let found = clock.raw();
            debug_assert_eq!(loaded, !round);
            answer.0.store(round, Ordering::Release);
            Ok(found)
        });
        times.collect::<Result<Vec<_>>>()
    };
    let (stored, found) = in_two_threads(cores, store, find)?;
    // As in the stages, the bytes are stored at the latest when the other thread has found them.
    let ticks = stored.iter().zip(&found).skip(WARM_UP).map(|(&(called, returned), &found)| {
        let stored = returned.min(found).max(called);
        (stored - called, found.max(stored) - stored)
    });
    let (stored, passed): (Vec<_>, Vec<_>) = ticks.unzip();
    let floors =
        [(stages[0], Measured::StoreToPolledLines, stored), (stages[1], Measured::PassingOfLines, passed)];
    let floor = |(stage, measured, ticks)| Some(Floor { stage, measured, times: Times::of(clock, ticks)? });
    Ok(floors.into_iter().filter_map(floor).collect())
}
