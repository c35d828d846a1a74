//! The process's world. `shmem_init` makes it. `shmem_finalize` or the exit handler ends it.

use crate::statics;
use inlane_ntb::device::Ntb;
use inlane_ntb::twin::{Hub, Twin};
use inlane_pgas::error::{Error, Result};
use inlane_pgas::launch::Session;
use inlane_pgas::transport::layout::Layout;
use inlane_pgas::transport::windows::Windows;
use inlane_pgas::world::World;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

struct Process {
    /// The PID of the process that called shmem_init. A forked child has another PID, so it does not act as a
    /// PE.
    id: u32,
    world: World<Windows>,
    twin: Arc<Twin>,
    _hub: Option<Hub>,
}

// Never dropped, because peers may still read the memory when this process ends.
static PROCESS: OnceLock<Process> = OnceLock::new();
static FINISHED: AtomicBool = AtomicBool::new(false);

/// Returns the world. Ends the process if shmem_init was not called.
#[inline(always)]
pub fn world() -> &'static World<Windows> {
    match PROCESS.get() {
        Some(process) => &process.world,
        None => not_started(),
    }
}

#[cold]
fn not_started() -> ! {
    eprintln!("inlane shmem: a function was called before shmem_init; call shmem_init first");
    std::process::exit(2)
}

/// Returns the value. For an error, prints it and ends the job.
#[inline(always)]
pub fn check<T>(result: Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => fail(&error),
    }
}

/// Prints the error and ends the job.
#[cold]
pub fn fail(error: &Error) -> ! {
    match PROCESS.get() {
        Some(process) => {
            eprintln!("inlane shmem: PE {}: {error}", process.world.me());
            match error {
                // Another PE ended first, so tell the launcher to look for the cause there.
                Error::LinkLost { peer, .. } => process.twin.report_lost(*peer),
                _ => process.twin.request_exit_all(1),
            }
        }
        None => eprintln!("inlane shmem: {error}"),
    }
    // Exit handlers would enter the library again, so end the process without running them.
    // SAFETY: the call ends the process at once and runs no other code of it.
    unsafe { libc::_exit(1) }
}

/// Prints that an argument is invalid, and ends the job.
#[cold]
pub fn invalid(what: String, why: &str) -> ! {
    fail(&Error::Invalid { what, why: why.into() })
}

fn connect() -> Result<Process> {
    let session = Session::from_environment()?;
    let (pes, heap) = (session.twin.ports(), session.heap_bytes);
    let (address, length) = statics::find().unwrap_or((0, 0));
    let overhead = Layout::overhead(pes);
    let bytes = overhead + World::<Windows>::symmetric_bytes(pes, length, heap);
    let inbound = session.twin.inbound().slice(0, bytes)?;
    if length > 0 {
        let place = inbound.slice(overhead + World::<Windows>::statics_offset(pes), length)?;
        // SAFETY: `find` returned the span, and the inbound memory is fresh and shared. Programs call
        // shmem_init before other threads use static objects.
        unsafe { statics::move_to(place.as_ptr(), address, length) }.map_err(|source| Error::Os {
            what: format!("making {length} bytes of static objects symmetric"),
            source,
        })?;
    }
    let Session { twin, settings, hub, .. } = session;
    let twin = Arc::new(twin);
    let windows = Windows::connect(twin.clone(), bytes, settings)?;
    Ok(Process { id: std::process::id(), world: World::new(windows, address, length)?, twin, _hub: hub })
}

/// Returns the process that called shmem_init. `None` in a forked child, which is not a PE and must not act
/// as one.
fn own_process() -> Option<&'static Process> {
    PROCESS.get().filter(|process| process.id == std::process::id())
}

unsafe extern "C" {
    /// Registers an exit handler that gets the exit status. It is glibc's variant of `atexit`.
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// Makes the world, and waits until all PEs have made theirs. Does nothing if the world exists already.
pub fn start() {
    if PROCESS.get().is_some() {
        return;
    }
    match connect() {
        Ok(process) => {
            let _ = PROCESS.set(process);
        }
        Err(error) => fail(&error),
    }
    check(world().barrier_all());
    // Runs at exit. Programs for versions of OpenSHMEM before 1.2 never finalize, so this handler does it. A
    // PE that exits with an error does not wait for the others, because they may be waiting for it.
    extern "C" fn at_exit(status: c_int, _: *mut c_void) {
        if status == 0 {
            finish();
        }
    }
    // SAFETY: `at_exit` has the type that the C library calls at exit.
    unsafe { on_exit(at_exit, std::ptr::null_mut()) };
}

/// Waits for all PEs and leaves the job. Does nothing in a second call or in a forked child.
pub fn finish() {
    let Some(process) = own_process() else { return };
    if !FINISHED.swap(true, Ordering::AcqRel) {
        check(process.world.leave());
        process.twin.report_finished();
    }
}

/// Ends all processes of the job with `status`.
pub fn exit_all(status: c_int) {
    if let Some(process) = own_process() {
        process.twin.request_exit_all(status);
    }
    FINISHED.store(true, Ordering::Release);
    std::process::exit(status)
}
