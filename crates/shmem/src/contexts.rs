//! Contexts (OpenSHMEM 1.5, section 9.5). A context uses the PE numbers of its team. Over UCX, a fence or quiet orders or
//! completes the operations of one context. Over windows, it does so for all contexts of the PE.

use crate::teams::{self, Team};
use crate::world::{check, invalid, world};
use inlane_pgas::transport::Transport;
use inlane_pgas::transport::select::AnyTransport;
use inlane_pgas::world::{self, Set};
use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A handle, C's `shmem_ctx_t`: a small number for the default context and for SHMEM_CTX_INVALID, and
/// otherwise the address of the context's state.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct Context(usize);

impl Context {
    const INVALID: Context = Context(0);
    const DEFAULT: Context = Context(1);
}

/// The accepted options: SHMEM_CTX_SERIALIZED, SHMEM_CTX_PRIVATE and SHMEM_CTX_NOSTORE. They have no effect: the lock of
/// a context that only one thread uses is free, except while the service thread progresses it.
const OPTIONS: i64 = 0b111;

struct ContextState {
    team: Team,
    set: Set,
    /// `None` if operations of the context are operations of the default context.
    own: Option<world::Context<AnyTransport>>,
}

impl ContextState {
    fn context(&'static self) -> &'static world::Context<AnyTransport> {
        match &self.own {
            Some(own) => own,
            None => world(),
        }
    }
}

/// A PE, and the context of the operation on its memory.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Remote {
    pub context: &'static world::Context<AnyTransport>,
    /// The PE's number in the job.
    pub pe: u32,
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

/// Returns a PE, for an operation of the default context. The operation fails if there is no such PE.
#[inline(always)]
pub fn default(number: c_int) -> Remote {
    Remote { context: world(), pe: crate::setup::pe(number) }
}

/// Returns the PE with a number in the context's team. Ends the job if the context is SHMEM_CTX_INVALID, or if no PE of
/// the team has this number.
#[inline]
pub fn remote(context: Context, number: c_int) -> Remote {
    if context == Context::DEFAULT {
        return default(number);
    }
    match state(context) {
        Some(state) if (number as u32) < state.set.size => {
            Remote { context: state.context(), pe: state.set.pe(number as u32) }
        }
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
    let address = match lock(&FREE).pop() {
        Some(address) => {
            let state = address as *mut ContextState;
            // SAFETY: the state's context has ended, so the program does not use these fields.
            unsafe { ((*state).team, (*state).set) = (team, set) };
            address
        }
        None => Box::into_raw(Box::new(ContextState { team, set, own: world().context() })) as usize,
    };
    // SAFETY: the caller's pointer is valid, as the specification demands.
    unsafe { context.write(Context(address)) };
    0
}

/// Blocks until the context's operations are complete, and destroys the context. Does nothing for the default
/// context or SHMEM_CTX_INVALID.
pub fn destroy(context: Context) {
    if let Some(state) = state(context) {
        // Do not call the context's quiet: the program does not poll.
        check(state.context().transport().quiet());
        let mut free = lock(&FREE);
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
    with(context, |context| check(context.fence()));
}

/// Completes the context's operations. Does nothing for SHMEM_CTX_INVALID.
pub fn quiet(context: Context) {
    with(context, |context| check(context.quiet()));
}

fn with(context: Context, call: impl FnOnce(&world::Context<AnyTransport>)) {
    match state(context) {
        Some(state) => call(state.context()),
        None if context == Context::DEFAULT => call(world()),
        None => {}
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
