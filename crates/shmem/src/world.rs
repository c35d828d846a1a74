//! The `World` of this process. All functions of this library communicate through it. `shmem_init` creates
//! it. `shmem_finalize` or the exit handler ends it.

use crate::{statics, threads};
use inlane_pgas::error::{Error, Result};
use inlane_pgas::launch::{self, End, Membership, Session, leftovers};
use inlane_pgas::transport::Transport;
use inlane_pgas::transport::select::AnyTransport;
use inlane_pgas::variables;
use inlane_pgas::world::World;
use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

struct Process {
    /// The ID of the process that called shmem_init. A forked child has another ID, so it does not act as a
    /// PE.
    id: u32,
    world: World<AnyTransport>,
    /// The reason why this job uses its transport, as text for the user.
    reason: String,
}

// Never dropped, because peers may still read the memory when this process ends.
static PROCESS: OnceLock<Process> = OnceLock::new();
static JOB: OnceLock<Arc<Membership>> = OnceLock::new();
static FINISHED: AtomicBool = AtomicBool::new(false);
/// True once this process has called shmem_global_exit and therefore ends by `exit`. The thread that ends the
/// process for the launcher then does nothing.
static EXITING: AtomicBool = AtomicBool::new(false);
/// The thread that runs [`watch`]. `None` before it starts, and once another thread waits for it.
static WATCH: Mutex<Option<JoinHandle<()>>> = Mutex::new(None);
/// True once the thread in [`WATCH`] is ending this process.
static ENDING: AtomicBool = AtomicBool::new(false);
/// How long a process that has lost a PE waits until it is asked to end.
const END_LIMIT: Duration = Duration::from_millis(100);
/// The longest time that a process waits at its end for the flush of its output streams.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);

/// Returns the world. Ends the process if shmem_init was not called.
#[inline(always)]
pub fn world() -> &'static World<AnyTransport> {
    match PROCESS.get() {
        Some(process) => &process.world,
        None => not_started(),
    }
}

/// Prints a line to standard error with one system call, so that lines of several PEs do not mix.
pub fn print(what: &str) {
    use std::io::Write;
    let line = format!("inlane shmem: {what}\n");
    // Ignore the error, because an error of standard error cannot be reported.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

#[cold]
fn not_started() -> ! {
    let function = called_function().unwrap_or("an OpenSHMEM function".into());
    print(&format!("{function} was called before shmem_init; call shmem_init first"));
    std::process::exit(2)
}

/// Returns the name of the library's function that the program has called.
fn called_function() -> Option<String> {
    let mut addresses = [std::ptr::null_mut(); 32];
    // SAFETY: the call writes at most as many addresses as the array has.
    let count = unsafe { libc::backtrace(addresses.as_mut_ptr(), addresses.len() as c_int) };
    let name = |address: &*mut c_void| {
        let mut found = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: the call fills `found`. The name of a symbol is a static string.
        unsafe {
            // An address is that after a call. If the call never returns, it may belong to the next function.
            let call = address.wrapping_byte_sub(1);
            let name =
                (libc::dladdr(call, found.as_mut_ptr()) != 0).then(|| found.assume_init().dli_sname)?;
            (!name.is_null()).then(|| CStr::from_ptr(name).to_string_lossy().into_owned())
        }
    };
    let mut names = addresses[..count.max(0) as usize].iter().rev().filter_map(name);
    names.find(|name| name.trim_start_matches('p').starts_with("shmem_"))
}

/// Returns the value in `result`. If `result` is an error, prints the error and ends the job.
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
    match JOB.get() {
        Some(job) => {
            if matches!(error, Error::LinkLost { .. } | Error::Unreachable { .. }) {
                // If the other PE has ended the job, this process is asked to end, too. Nothing has failed then.
                std::thread::sleep(END_LIMIT);
            }
            if matches!(error, Error::LauncherLost) || ENDING.load(Ordering::Acquire) {
                wait_for_watch();
            }
            let function = called_function().map_or(String::new(), |name| format!(" in {name}"));
            print(&format!("PE {}{function}: {error}", job.me()));
            match error {
                // The lost PE ended first, so report its number to the launcher. The launcher's message then
                // names that PE as the cause.
                Error::LinkLost { peer, .. } | Error::Unreachable { peer, .. } => job.report_lost(*peer),
                _ => job.end_all(1),
            }
            job.clean_up(None);
        }
        None => print(&error.to_string()),
    }
    // End without running exit handlers, because they would call the library again. SAFETY: the call ends the
    // process and runs no other code of it.
    unsafe { libc::_exit(1) }
}

/// Waits until the watching thread has ended this process. It may be ending other processes of the job and removing files, so
/// this process must not end before. Returns only if the watching thread has left the end to the caller.
fn wait_for_watch() {
    let thread = WATCH.lock().unwrap_or_else(PoisonError::into_inner).take();
    let _ = thread.map(JoinHandle::join);
}

/// Prints what is invalid and why, and ends the job.
#[cold]
pub fn invalid(what: String, why: &str) -> ! {
    fail(&Error::Invalid { what: what.into(), why: why.into() })
}

fn connect() -> Result<Process> {
    let statics = statics::find();
    let (address, length) = statics.unwrap_or((0, 0));
    let threads_before = threads::count();
    let session = Session::from_environment(length)?;
    let job = JOB.get_or_init(|| session.membership());
    if !job.is_alone() {
        start_watching(job)?;
        job.outlive_launcher();
    }
    let (reason, heap_bytes) = (session.reason().to_string(), session.heap_bytes());
    // SAFETY: `find` returned the span, which exists as long as the process. Programs call shmem_init before other
    // threads use static objects.
    let transport = unsafe { session.connect(heap_bytes, statics)? };
    threads::set_own(threads::count().saturating_sub(threads_before));
    let mut world = World::new(transport, address, length)?;
    world.fail_waits_if(threads::is_alone);
    if variables::is_set(variables::CHECK) {
        world.check_heap();
    }
    Ok(Process { id: std::process::id(), world, reason })
}

/// Waits until the launcher asks this process to end, or until the launcher has ended. Then ends this
/// process, unless it is already ending.
fn watch(job: &Membership) {
    let (pe, end) = (job.me(), job.wait_for_end());
    match end {
        End::Asked(_) if EXITING.load(Ordering::Acquire) => return,
        // A process manager started this job. In such a job, PE 0 has the hub or TCP server to which all PEs
        // are connected. PE 0 ends after all PEs have finished. So if this PE has finished, a closed
        // connection is no failure.
        End::FirstPeLost if FINISHED.load(Ordering::Acquire) => return,
        _ => ENDING.store(true, Ordering::Release),
    }
    let status = match end {
        End::Asked(status) => {
            job.leave();
            status
        }
        End::FirstPeLost => {
            print(&format!("PE {pe}: PE 0 has ended before the others; look for the cause at PE 0"));
            1
        }
        End::LauncherLost => {
            print(&format!("PE {pe}: its launcher has ended, so it ends too"));
            if let Ok(job) = std::env::var(leftovers::JOB) {
                leftovers::end_by_one(&job);
            }
            1
        }
    };
    // Flush the program's output streams. Another thread may hold a stream's lock forever, so wait only for a
    // limited time.
    let (sender, flushed) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        // SAFETY: null stands for all open streams.
        unsafe { libc::fflush(std::ptr::null_mut()) };
        let _ = sender.send(());
    });
    let _ = flushed.recv_timeout(FLUSH_LIMIT);
    job.clean_up(Some(end));
    // Do not run exit handlers, because they destroy objects that other threads of the program still use.
    // SAFETY: the call ends the process at once and runs no other code of it.
    unsafe { libc::_exit(status) }
}

/// Starts the thread that runs [`watch`]. The thread blocks all signals, because the program expects them in
/// its own threads.
fn start_watching(job: &'static Membership) -> Result<()> {
    // SAFETY: the sets are local variables, and the calls change only this thread's mask.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) =
            (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let thread = std::thread::Builder::new().name("shmem-watch".into()).spawn(move || watch(job));
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        let thread = thread.map_err(|source| Error::Os { what: "starting a thread".into(), source })?;
        *WATCH.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(())
    }
}

/// Returns the process that called shmem_init. Returns `None` in a forked child, because a forked child is
/// not a PE.
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
    describe();
    // Finalize at exit, because programs for OpenSHMEM before version 1.2 never finalize. If this PE exits
    // with an error, do not wait for the other PEs, because they may wait for this PE.
    extern "C" fn at_exit(status: c_int, _: *mut c_void) {
        if status == 0 {
            finish();
        }
    }
    // SAFETY: `at_exit` has the type that the C library calls at exit.
    unsafe { on_exit(at_exit, std::ptr::null_mut()) };
}

/// Prints what SHMEM_VERSION, SHMEM_INFO and SHMEM_DEBUG ask for.
fn describe() {
    let (me, pes) = (world().me(), world().pes());
    if me == 0 && variables::is_set(variables::VERSION) {
        print(concat!("inlane ", env!("CARGO_PKG_VERSION"), ", OpenSHMEM 1.5"));
    }
    if me == 0 && variables::is_set(variables::INFO) {
        print(&format!("environment variables, with defaults in brackets:\n{}", launch::help()));
    }
    if variables::is_set(variables::DEBUG) {
        let (_, bytes) = world().transport().symmetric();
        print(&format!(
            "PE {me} of {pes}, process {}: {}; {} of symmetric memory{}",
            std::process::id(),
            path(),
            inlane_core::units::bytes(bytes as u64),
            if world().transport().shares_processors() { "; more PEs than processors" } else { "" },
        ));
    }
}

/// Returns a text about this PE's puts and gets to the other PEs: their path, and why it was chosen.
fn path() -> String {
    let reason = PROCESS.get().map_or("", |process| &process.reason);
    format!("{}, because {reason}", world().transport().path())
}

/// Waits for all PEs and leaves the job. Does nothing in a second call or in a forked child.
pub fn finish() {
    let Some(process) = own_process() else { return };
    if !FINISHED.swap(true, Ordering::AcqRel) {
        check(process.world.leave());
        JOB.get().into_iter().for_each(|job| job.finish());
    }
}

/// Ends all processes of the job with `status`.
pub fn exit_all(status: c_int) {
    EXITING.store(true, Ordering::Release);
    if let Some(job) = JOB.get().filter(|_| own_process().is_some()) {
        job.end_all(status);
        job.leave();
    }
    FINISHED.store(true, Ordering::Release);
    std::process::exit(status)
}
