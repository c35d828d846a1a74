//! Contexts (OpenSHMEM 1.5, section 9.5). A context uses the PE numbers of its team. All contexts of a PE
//! share one stream of operations. So a fence of one context orders the operations of all contexts, and a
//! quiet of one context completes them.

use crate::rma;
use crate::teams::{self, Team};
use crate::world::{check, invalid, world};
use inlane_pgas::transport::Transport;
use inlane_pgas::world::Set;
use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

/// A handle, C's `shmem_ctx_t`: a small number for the default context and for SHMEM_CTX_INVALID, and
/// otherwise the address of the context's state.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct Context(usize);

impl Context {
    const INVALID: Context = Context(0);
    const DEFAULT: Context = Context(1);
}

/// The accepted options: SHMEM_CTX_SERIALIZED, SHMEM_CTX_PRIVATE and SHMEM_CTX_NOSTORE. They have no effect,
/// because all threads may use any context.
const OPTIONS: i64 = 0b111;

struct ContextState {
    team: Team,
    set: Set,
}

/// The states of ended contexts. They are reused and never freed. So an operation with the handle of an ended
/// context still reads valid memory.
static FREE: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Returns the state of a context other than the default one. `None` for SHMEM_CTX_INVALID.
#[inline]
fn state(context: Context) -> Option<&'static ContextState> {
    // SAFETY: a handle above the default one is the address of a state, and states live until the process
    // ends.
    (context.0 > Context::DEFAULT.0).then(|| unsafe { &*(context.0 as *const ContextState) })
}

/// Converts a PE's number in the context's team to its number in the job. Ends the job if the context is
/// SHMEM_CTX_INVALID, or if no PE of the team has this number.
#[inline]
pub fn pe(context: Context, number: c_int) -> u32 {
    if context == Context::DEFAULT {
        return number as u32;
    }
    match state(context) {
        Some(state) if (number as u32) < state.set.size => state.set.pe(number as u32),
        Some(state) => invalid(
            format!("PE {number} of a context"),
            &format!("its team has PEs 0 to {}; give one of them", state.set.size - 1),
        ),
        None => invalid(
            "an operation on SHMEM_CTX_INVALID".into(),
            "there is no such context; check the result of shmem_ctx_create",
        ),
    }
}

/// Makes a context of a team and stores its handle in `context`. Returns 0. If an argument is invalid,
/// stores SHMEM_CTX_INVALID and returns -1.
pub unsafe fn create(team: Team, options: i64, context: *mut Context) -> c_int {
    // SAFETY: the caller's pointer is valid, as the specification demands.
    unsafe { context.write(Context::INVALID) };
    let (Some(set), 0) = (teams::set(team), options & !OPTIONS) else { return -1 };
    let made = ContextState { team, set };
    let address = match FREE.lock().unwrap_or_else(PoisonError::into_inner).pop() {
        Some(address) => {
            // SAFETY: the state's context has ended, so the program does not use the state.
            unsafe { (address as *mut ContextState).write(made) };
            address
        }
        None => Box::into_raw(Box::new(made)) as usize,
    };
    // SAFETY: the caller's pointer is valid, as the specification demands.
    unsafe { context.write(Context(address)) };
    0
}

/// Blocks until the context's operations are complete, and destroys the context. Does nothing for the default
/// context or SHMEM_CTX_INVALID.
pub fn destroy(context: Context) {
    if context.0 > Context::DEFAULT.0 {
        // Do not call the world's quiet: the program does not poll.
        check(world().transport().quiet());
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        if !free.contains(&context.0) {
            free.push(context.0);
        }
    }
}

/// Stores the context's team. Returns 0, or -1 for SHMEM_CTX_INVALID.
pub unsafe fn get_team(context: Context, team: *mut Team) -> c_int {
    let found = match context {
        Context::DEFAULT => Team::WORLD,
        _ => state(context).map_or(Team::INVALID, |state| state.team),
    };
    // SAFETY: the caller's pointer is valid, as the specification demands.
    unsafe { team.write(found) };
    if found == Team::INVALID { -1 } else { 0 }
}

/// C's `shmem_ctx_session_config_t`.
#[repr(C)]
pub struct SessionConfig {
    _total_ops: usize,
}

/// Accepts the program's hints about the context's next operations. The hints have no effect.
pub fn start_session(_context: Context, _options: i64, _config: *const SessionConfig, _mask: i64) {}

/// Ends the effect of the hints given to [`start_session`]. Does nothing, because the hints have no effect.
pub fn stop_session(_context: Context) {}

/// Orders the context's operations. Does nothing for SHMEM_CTX_INVALID.
pub fn fence(context: Context) {
    if context != Context::INVALID {
        rma::fence();
    }
}

/// Completes the context's operations. Does nothing for SHMEM_CTX_INVALID.
pub fn quiet(context: Context) {
    if context != Context::INVALID {
        rma::quiet();
    }
}
