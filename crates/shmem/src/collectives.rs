//! Barriers and collectives, over teams and over active sets. The functions for teams return 0, or -1 if the
//! team is invalid. An active set is described by its first PE, the logarithm of its stride, and its size.
//!
//! The caller of an unsafe function guarantees that the pointers are valid, as the OpenSHMEM specification
//! demands.

use crate::numbers::Combine;
use crate::teams::{self, Team};
use crate::world::{check, invalid, world};
use inlane_pgas::world::{Group, Set};
use std::ffi::{c_int, c_void};

/// An active set: its first PE, the logarithm to base 2 of its stride, and its number of PEs.
type ActiveSet = (c_int, c_int, c_int);

fn active((start, log_stride, size): ActiveSet) -> Set {
    // Convert invalid values to values that the library refuses: a negative start becomes a very large
    // number, and a bad stride or a negative size becomes 0.
    let stride = 1i32.checked_shl(log_stride as u32).unwrap_or(0);
    let size = size.max(0) as u32;
    Set { start: start as u32, stride, size }
}

/// Carries out a collective over the team's PEs. Returns 0, or -1 if the team is invalid.
fn over(team: Team, collective: impl FnOnce(Group<'_>) -> inlane_pgas::error::Result<()>) -> c_int {
    match teams::state(team) {
        Some(state) => {
            check(collective(state.group()));
            0
        }
        None => -1,
    }
}

/// Blocks until all PEs have called this function, and until all puts before these calls are delivered.
pub fn barrier_all() {
    check(world().barrier_all());
}

/// Blocks until all PEs have called this function.
pub fn sync_all() {
    check(world().sync(world().all()));
}

/// Blocks until all PEs of the team have called this function.
pub fn team_sync(team: Team) -> c_int {
    over(team, |team| world().sync(team))
}

/// Blocks until all PEs of the set have called this function and the earlier puts of these PEs are delivered.
pub fn barrier(set: ActiveSet) {
    check(world().barrier(active(set)));
}

/// Blocks until all PEs of the set have called this function.
pub fn sync(set: ActiveSet) {
    check(world().sync(active(set)));
}

/// Copies `bytes` bytes from the root's source to the destination of all PEs of the team, the root included.
pub unsafe fn broadcast(
    team: Team,
    destination: *mut c_void,
    source: *const c_void,
    bytes: usize,
    root: c_int,
) -> c_int {
    over(team, |team| {
        // SAFETY: the caller's pointers are valid.
        unsafe {
            world().broadcast(team, root as u32, destination as usize, source.cast(), bytes)?;
            if team.set().pe(root as u32) == world().me() {
                std::ptr::copy(source.cast::<u8>(), destination.cast(), bytes);
            }
        }
        Ok(())
    })
}

/// Copies `bytes` bytes from the source of the root PE to the destinations of all other PEs of the set.
pub unsafe fn broadcast_active(
    destination: *mut c_void,
    source: *const c_void,
    bytes: usize,
    root: c_int,
    set: ActiveSet,
) {
    // SAFETY: the caller's pointers are valid.
    check(unsafe { world().broadcast(active(set), root as u32, destination as usize, source.cast(), bytes) });
}

/// Concatenates the sources of all PEs of the team in each PE's destination. Their lengths may differ.
pub unsafe fn collect(team: Team, destination: *mut c_void, source: *const c_void, bytes: usize) -> c_int {
    // SAFETY: the caller's pointers are valid.
    over(team, |team| unsafe { world().collect(team, destination as usize, source.cast(), bytes) })
}

/// Concatenates the sources of all PEs of the set in each PE's destination. Their lengths may differ.
pub unsafe fn collect_active(destination: *mut c_void, source: *const c_void, bytes: usize, set: ActiveSet) {
    // SAFETY: the caller's pointers are valid.
    check(unsafe { world().collect(active(set), destination as usize, source.cast(), bytes) });
}

/// Concatenates the sources of all PEs of the team. All sources have `bytes` bytes. Stores the result in each
/// PE's destination.
pub unsafe fn fcollect(team: Team, destination: *mut c_void, source: *const c_void, bytes: usize) -> c_int {
    // SAFETY: the caller's pointers are valid.
    over(team, |team| unsafe { world().fcollect(team, destination as usize, source.cast(), bytes) })
}

/// Concatenates the source data of all PEs of the set in the `destination` of each PE. All sources have the
/// same length.
pub unsafe fn fcollect_active(destination: *mut c_void, source: *const c_void, bytes: usize, set: ActiveSet) {
    // SAFETY: the caller's pointers are valid.
    check(unsafe { world().fcollect(active(set), destination as usize, source.cast(), bytes) });
}

/// Sends block i of the source to PE i of the team. A block has `bytes` bytes. Each receiver stores the block
/// in its own `destination`, at the sender's index.
pub unsafe fn all_to_all(team: Team, destination: *mut c_void, source: *const c_void, bytes: usize) -> c_int {
    // SAFETY: the caller's pointers are valid.
    over(team, |team| unsafe { world().all_to_all(team, destination as usize, source.cast(), bytes) })
}

/// Sends block i of the source to PE i of the set. A block has `bytes` bytes. The receiver stores the block
/// in its `destination`, at the index of the sender.
pub unsafe fn all_to_all_active(
    destination: *mut c_void,
    source: *const c_void,
    bytes: usize,
    set: ActiveSet,
) {
    // SAFETY: the caller's pointers are valid.
    check(unsafe { world().all_to_all(active(set), destination as usize, source.cast(), bytes) });
}

/// Sends elements to each PE of the team, like [`all_to_all`], but the elements are not contiguous.
/// `elements` is the number of elements for each PE, and their width in bytes. `strides` is the distance from
/// one element to the next, in elements, first at the destination and then at the source.
pub unsafe fn all_to_all_strided(
    team: Team,
    destination: *mut c_void,
    source: *const c_void,
    strides: (isize, isize),
    elements: (usize, usize),
) -> c_int {
    // SAFETY: the caller's pointers are valid.
    over(team, |team| unsafe {
        world().all_to_all_strided(team, destination as usize, source.cast(), strides, elements)
    })
}

/// Sends strided elements to each PE of an active set. The arguments are those of [`all_to_all_strided`], but
/// with an active set instead of a team.
pub unsafe fn all_to_all_strided_active(
    destination: *mut c_void,
    source: *const c_void,
    strides: (isize, isize),
    elements: (usize, usize),
    set: ActiveSet,
) {
    // SAFETY: the caller's pointers are valid.
    check(unsafe {
        world().all_to_all_strided(active(set), destination as usize, source.cast(), strides, elements)
    });
}

/// Combines the source arrays of all PEs of the team, element by element. Stores the result in each PE's
/// destination. `elements` is the number of elements and the width of one element in bytes.
pub unsafe fn reduce(
    team: Team,
    destination: *mut c_void,
    source: *const c_void,
    elements: (usize, usize),
    combine: Combine,
) -> c_int {
    // SAFETY: `World::reduce` passes arrays of `count` elements.
    let all = |sum: *mut u8, other: *const u8, count: usize| unsafe { combine(sum, other, count) };
    // SAFETY: the caller's pointers are valid.
    over(team, |team| unsafe { world().reduce(team, destination as usize, source.cast(), elements, &all) })
}

/// Combines the source arrays of all PEs of the set element by element. Stores the result in each PE's
/// `destination`. `count` is the number of elements of an array, and `width` is the width of an element in
/// bytes.
pub unsafe fn to_all(
    destination: *mut c_void,
    source: *const c_void,
    (count, width): (c_int, usize),
    set: ActiveSet,
    combine: Combine,
) {
    let Ok(count) = usize::try_from(count) else {
        invalid(format!("a reduction of {count} elements"), "the number is negative; give 0 or more")
    };
    // SAFETY: `World::reduce` passes arrays of `count` elements.
    let all = |sum: *mut u8, other: *const u8, count: usize| unsafe { combine(sum, other, count) };
    // SAFETY: the caller's pointers are valid.
    check(unsafe { world().reduce(active(set), destination as usize, source.cast(), (count, width), &all) });
}
