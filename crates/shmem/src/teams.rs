//! Teams: regular sets of PEs (OpenSHMEM 1.5, section 9.4).
//!
//! The PEs of a new team open a channel. Threads of one PE can then run collectives of different teams at the
//! same time. The handles of the predefined teams are the smallest numbers. The handle of another team is 3
//! plus the index of its state. All other values are therefore recognised as invalid. An index is reused after
//! its team is destroyed.

use crate::setup;
use crate::world::{check, world};
use inlane_pgas::world::{Channel, Group, Set};
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// A handle, C's `shmem_team_t`.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct Team(usize);

impl Team {
    /// No team.
    pub const INVALID: Team = Team(0);
    /// All PEs.
    pub const WORLD: Team = Team(1);
    /// The team of the PEs that can access each other's memory by loads and stores.
    pub const SHARED: Team = Team(2);
}

/// C's `shmem_team_config_t`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct TeamConfig {
    num_contexts: c_int,
}

const NUM_CONTEXTS: i64 = 1;

/// This PE's view of a team: its PEs, its configuration and its channel.
#[derive(Clone)]
pub struct TeamState {
    set: Set,
    config: TeamConfig,
    /// The channel for the collectives of the team. `None` for the team of all PEs.
    channel: Option<Arc<Channel>>,
}

impl TeamState {
    /// Returns what the team's collectives take as their group: the team's channel, or its set of PEs if it
    /// has no channel.
    pub fn group(&self) -> Group<'_> {
        self.channel.as_deref().map_or(self.set.into(), Group::from)
    }
}

/// The predefined team SHMEM_TEAM_SHARED.
static SHARED: OnceLock<TeamState> = OnceLock::new();

fn shared() -> TeamState {
    // PEs of one machine reach the same PEs. A team is a regular set, so irregular PEs form several teams.
    let set = Set::regular_part(&setup::reachable(), world().me());
    let channel = Some(Arc::new(check(world().fixed_channel(set))));
    TeamState { set, config: TeamConfig::default(), channel }
}

/// The states of the teams that are not predefined. `None` for a destroyed team.
static STATES: Mutex<Vec<Option<TeamState>>> = Mutex::new(Vec::new());
/// The handle of the team with the first of these states.
const FIRST: usize = Team::SHARED.0 + 1;

fn states() -> MutexGuard<'static, Vec<Option<TeamState>>> {
    STATES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn make(state: TeamState) -> Team {
    let mut states = states();
    let index = states.iter().position(Option::is_none).unwrap_or_else(|| {
        states.push(None);
        states.len() - 1
    });
    states[index] = Some(state);
    Team(FIRST + index)
}

/// Returns this PE's view of `team`. Returns `None` if `team` is invalid or was destroyed.
pub fn state(team: Team) -> Option<TeamState> {
    match team {
        Team::INVALID => None,
        Team::WORLD => Some(TeamState { set: world().all(), config: TeamConfig::default(), channel: None }),
        Team::SHARED => Some(SHARED.get_or_init(shared).clone()),
        Team(handle) => states().get(handle - FIRST)?.clone(),
    }
}

/// Returns the PEs of a team. `None` if the team is invalid.
pub fn set(team: Team) -> Option<Set> {
    state(team).map(|state| state.set)
}

/// Returns this PE's number in the team. Returns -1 if the team is invalid or does not contain this PE.
pub fn my_pe(team: Team) -> c_int {
    set(team).and_then(|set| set.index(world().me())).map_or(-1, |index| index as c_int)
}

/// Returns the number of PEs of the team, or -1 if the team is invalid.
pub fn n_pes(team: Team) -> c_int {
    set(team).map_or(-1, |set| set.size as c_int)
}

/// Stores the team's configuration in `config`, unless `mask` is 0. Returns 0, or -1 if an argument is
/// invalid.
pub unsafe fn get_config(team: Team, mask: i64, config: *mut TeamConfig) -> c_int {
    let Some(state) = state(team) else { return -1 };
    if mask & !NUM_CONTEXTS != 0 || (mask != 0 && config.is_null()) {
        return -1;
    }
    if mask != 0 {
        // SAFETY: the caller's pointer is valid, as the specification demands.
        unsafe { config.write(state.config) };
    }
    0
}

/// Converts a PE's number in team `from` to its number in team `to`. Returns -1 if the PE is not in both
/// teams, or if a team is invalid.
pub fn translate_pe(from: Team, pe: c_int, to: Team) -> c_int {
    let (Some(from), Some(to)) = (set(from), set(to)) else { return -1 };
    match u32::try_from(pe) {
        Ok(pe) if pe < from.size => to.index(from.pe(pe)).map_or(-1, |index| index as c_int),
        _ => -1,
    }
}

/// Returns the configuration for a new team: the default if `mask` is 0, else `config`. `None` if an
/// argument is invalid.
unsafe fn wanted(config: *const TeamConfig, mask: i64) -> Option<TeamConfig> {
    if mask == 0 {
        return Some(TeamConfig::default());
    }
    // SAFETY: the caller's pointer is valid unless it is null.
    let config = unsafe { config.as_ref() }?;
    (mask == NUM_CONTEXTS && config.num_contexts >= 0).then_some(*config)
}

/// Returns the subset of `parent`: `size` PEs from `start` on, at distance `stride`. `None` if it is invalid.
fn subset(parent: Set, start: c_int, stride: c_int, size: c_int) -> Option<Set> {
    let within = Set { start: u32::try_from(start).ok()?, stride, size: u32::try_from(size).ok()? };
    let stride = parent.stride.checked_mul(stride)?;
    within.is_within(parent.size).then(|| Set { start: parent.pe(within.start), stride, size: within.size })
}

/// Makes a team of some PEs of `parent`. Stores the team's handle in `team`. On PEs outside the new team,
/// stores [`Team::INVALID`]. Returns 0, or -1 if an argument is invalid or if a PE has no room for another team.
pub unsafe fn split_strided(
    parent: Team,
    (start, stride, size): (c_int, c_int, c_int),
    config: *const TeamConfig,
    mask: i64,
    team: *mut Team,
) -> c_int {
    // SAFETY: the caller's pointers are valid, as the specification demands.
    unsafe {
        team.write(Team::INVALID);
        let Some(config) = wanted(config, mask) else { return -1 };
        let Some(parent) = state(parent) else { return -1 };
        let Some(set) = subset(parent.set, start, stride, size) else { return -1 };
        if set.index(world().me()).is_some() {
            // Refuse the team if there is no channel for it. Without a channel of its own for each team, collectives that
            // two threads call on two teams could wait for each other forever.
            let Some(channel) = check(world().open_channel(parent.group(), set)) else { return -1 };
            team.write(make(TeamState { set, config, channel: Some(Arc::new(channel)) }));
        }
    }
    0
}

/// One of the two dimensions of a 2D split. It consists of the configuration of its team, the mask of the
/// configuration's fields to use, and the place where the team's handle is stored.
type Axis = (*const TeamConfig, i64, *mut Team);

/// Puts each PE of `parent` into two new teams: its row of `xrange` PEs, and its column. Returns 0, or -1 if
/// an argument is invalid or if a PE has no room for another team.
pub unsafe fn split_2d(parent: Team, xrange: c_int, x: Axis, y: Axis) -> c_int {
    // SAFETY: the caller's pointers are valid, as the specification demands.
    unsafe {
        x.2.write(Team::INVALID);
        y.2.write(Team::INVALID);
    }
    let Some(set) = set(parent) else { return -1 };
    let (Some(me), true) = (set.index(world().me()), xrange > 0) else { return -1 };
    let (me, size) = (me as c_int, set.size as c_int);
    let xrange = xrange.min(size);
    let (row, column) = (me / xrange * xrange, me % xrange);
    let rows = (row, 1, xrange.min(size - row));
    let columns = (column, xrange, (size - column + xrange - 1) / xrange);
    // SAFETY: the caller's pointers are valid, as the specification demands.
    unsafe {
        // Make both teams in any case. If the PE's row has no room, the other PEs of its column still wait for it.
        let made =
            [(rows, x), (columns, y)].map(|(set, axis)| split_strided(parent, set, axis.0, axis.1, axis.2));
        if made == [0, 0] {
            return 0;
        }
        for team in [x.2, y.2] {
            destroy(team.read());
            team.write(Team::INVALID);
        }
        -1
    }
}

/// Ends a team. Does nothing for a predefined team or SHMEM_TEAM_INVALID.
pub fn destroy(team: Team) {
    let Some(index) = team.0.checked_sub(FIRST) else { return };
    // Drop the state after the lock is released, because dropping its channel may take time.
    let _state = states().get_mut(index).and_then(Option::take);
}

/// Returns the address at which this PE can load and store a symmetric object of another PE. That PE is PE
/// `pe` of the team, and the object is at `address` there. Returns null if loads and stores cannot reach that
/// PE's memory.
pub fn ptr(team: Team, address: *const c_void, pe: c_int) -> *mut c_void {
    match (set(team), u32::try_from(pe)) {
        (Some(set), Ok(pe)) if pe < set.size => setup::ptr(address, set.pe(pe) as c_int),
        _ => std::ptr::null_mut(),
    }
}
