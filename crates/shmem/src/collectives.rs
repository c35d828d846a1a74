//! Barriers and collectives, over teams and over active sets. The functions for teams return 0, or -1 if the
//! team is invalid.
//!
//! The caller of an unsafe function guarantees that the pointers are valid, as the OpenSHMEM specification
//! demands.

use crate::numbers::Combine;
use crate::teams::{self, Team};
use crate::world::{check, invalid, world};
use inlane_pgas::error::Result;
use inlane_pgas::world::{Group, Set};
use std::ffi::{c_int, c_void};

/// The PEs of a collective: a team or an active set.
pub trait Members {
    /// What the C function returns: a status for a team, nothing for an active set.
    type Outcome;

    /// Carries out a collective over these PEs.
    fn over(self, collective: impl FnOnce(Group<'_>) -> Result<()>) -> Self::Outcome;
}

impl Members for Team {
    type Outcome = c_int;

    /// Returns 0, or -1 if the team is invalid.
    fn over(self, collective: impl FnOnce(Group<'_>) -> Result<()>) -> c_int {
        match teams::state(self) {
            Some(state) => {
                check(collective(state.group()));
                0
            }
            None => -1,
        }
    }
}

/// An active set: its first PE, the logarithm to base 2 of its stride, and its number of PEs.
#[derive(Clone, Copy)]
pub struct ActiveSet(pub c_int, pub c_int, pub c_int);

impl Members for ActiveSet {
    type Outcome = ();

    fn over(self, collective: impl FnOnce(Group<'_>) -> Result<()>) {
        let ActiveSet(start, log_stride, size) = self;
        // Convert invalid values to values that the library refuses: a negative start becomes a very large
        // number, and a bad stride or a negative size becomes 0.
        let stride = 1i32.checked_shl(log_stride as u32).unwrap_or(0);
        let set = Set { start: start as u32, stride, size: size.max(0) as u32 };
        check(collective(set.into()));
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

/// Blocks until all members have called this function and their earlier puts are delivered.
pub fn barrier<M: Members>(members: M) -> M::Outcome {
    members.over(|group| world().barrier(group))
}

/// Blocks until all members have called this function.
pub fn sync<M: Members>(members: M) -> M::Outcome {
    members.over(|group| world().sync(group))
}

/// Copies `bytes` bytes from the root's source to the destination of all PEs of the team, the root included.
pub unsafe fn broadcast(
    team: Team,
    destination: *mut c_void,
    source: *const c_void,
    bytes: usize,
    root: c_int,
) -> c_int {
    team.over(|team| {
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
    set: ActiveSet,
    destination: *mut c_void,
    source: *const c_void,
    bytes: usize,
    root: c_int,
) {
    // SAFETY: the caller's pointers are valid.
    set.over(|set| unsafe {
        world().broadcast(set, root as u32, destination as usize, source.cast(), bytes)
    });
}

/// Concatenates the sources of all members in each member's destination. Their lengths may differ.
pub unsafe fn collect<M: Members>(
    members: M,
    destination: *mut c_void,
    source: *const c_void,
    bytes: usize,
) -> M::Outcome {
    // SAFETY: the caller's pointers are valid.
    members.over(|group| unsafe { world().collect(group, destination as usize, source.cast(), bytes) })
}

/// Concatenates the sources of all members in each member's destination. All sources have `bytes` bytes.
pub unsafe fn fcollect<M: Members>(
    members: M,
    destination: *mut c_void,
    source: *const c_void,
    bytes: usize,
) -> M::Outcome {
    // SAFETY: the caller's pointers are valid.
    members.over(|group| unsafe { world().fcollect(group, destination as usize, source.cast(), bytes) })
}

/// Sends block i of the source to the member at index i. A block has `bytes` bytes. Each receiver stores the block in its
/// own `destination`, at the sender's index.
pub unsafe fn all_to_all<M: Members>(
    members: M,
    destination: *mut c_void,
    source: *const c_void,
    bytes: usize,
) -> M::Outcome {
    // SAFETY: the caller's pointers are valid.
    members.over(|group| unsafe { world().all_to_all(group, destination as usize, source.cast(), bytes) })
}

/// Sends elements to each member, like [`all_to_all`], but the elements are not contiguous. `elements` is the number of
/// elements for each member, and their width in bytes. `strides` is the distance from one element to the next, in elements,
/// first at the destination and then at the source.
pub unsafe fn all_to_all_strided<M: Members>(
    members: M,
    destination: *mut c_void,
    source: *const c_void,
    strides: (isize, isize),
    elements: (usize, usize),
) -> M::Outcome {
    // SAFETY: the caller's pointers are valid.
    members.over(|group| unsafe {
        world().all_to_all_strided(group, destination as usize, source.cast(), strides, elements)
    })
}

/// Combines the source arrays of all members, element by element. Stores the result in each member's destination.
/// `elements` is the number of elements and the width of one element in bytes.
pub unsafe fn reduce<M: Members>(
    members: M,
    destination: *mut c_void,
    source: *const c_void,
    elements: (usize, usize),
    combine: Combine,
) -> M::Outcome {
    // SAFETY: `World::reduce` passes arrays of `count` elements.
    let all = |sum: *mut u8, other: *const u8, count: usize| unsafe { combine(sum, other, count) };
    // SAFETY: the caller's pointers are valid.
    members
        .over(|group| unsafe { world().reduce(group, destination as usize, source.cast(), elements, &all) })
}

/// Returns the number of elements of a reduction over an active set. Ends the job if it is negative.
pub fn elements(count: c_int) -> usize {
    let negative =
        || invalid(format!("a reduction of {count} elements"), "the number is negative; give 0 or more");
    usize::try_from(count).unwrap_or_else(|_| negative())
}
