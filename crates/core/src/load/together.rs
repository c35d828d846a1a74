//! Prepares and runs several loads, and starts the threads of a load.

use super::{Load, LoadError, Meter, Running};
use std::any::Any;
use std::io;
use std::sync::{Arc, mpsc};
use std::thread::{Builder, Scope, ScopedJoinHandle};
use std::time::Duration;

/// Prepares loads, when all of them are open. If one of them asks for it, calls `drop_privileges` before. Returns the
/// outcome of each load, in the order of `loads`.
///
/// # Errors
/// The error of `drop_privileges`. The process must then end, because it may still have privileges.
pub fn prepare<E>(
    loads: &mut [&mut dyn Load],
    drop_privileges: impl FnOnce() -> Result<(), E>,
) -> Result<Vec<Result<(), LoadError>>, E> {
    if loads.iter().any(|load| load.drops_privileges()) {
        drop_privileges()?;
    }
    Ok(loads.iter_mut().map(|load| load.prepare()).collect())
}

/// Runs prepared loads, each on a thread of its own, until all loads and their threads have ended. Returns the outcome of
/// each load, in the order of `loads`. Stops none of them: `watch` does that.
///
/// Calls `watch` on the calling thread whenever a load has ended, and otherwise after the time that the previous call
/// returned. Its argument tells for each load whether it has ended.
pub fn run_together(
    loads: &mut [&mut dyn Load],
    run: &Running,
    mut watch: impl FnMut(&[bool]) -> Duration,
) -> Vec<Result<(), LoadError>> {
    let mut outcomes: Vec<Option<Result<(), LoadError>>> = loads.iter().map(|_| None).collect();
    std::thread::scope(|scope| {
        let (ends, ended) = mpsc::channel();
        let mut threads = Vec::new();
        for (index, load) in loads.iter_mut().enumerate() {
            let ends = ends.clone();
            let thread = Builder::new().name(format!("load-{index}")).spawn_scoped(scope, move || {
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| load.run(run)));
                let _ = ends.send((index, outcome.unwrap_or_else(|panic| Err(panic_error(&*panic)))));
            });
            match thread {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    // The other loads would wait for this one at the start line.
                    run.stop();
                    outcomes[index] = Some(Err(error.into()));
                }
            }
        }
        loop {
            let ends: Vec<bool> = outcomes.iter().map(Option::is_some).collect();
            if ends.iter().all(|ended| *ended) {
                break;
            }
            if let Ok((index, outcome)) = ended.recv_timeout(watch(&ends)) {
                outcomes[index] = Some(outcome);
            }
        }
        // A scope does not wait until its threads have ended, only until their closures have returned. So join the threads.
        for thread in threads {
            thread.join().expect("a thread of a load catches panics");
        }
    });
    outcomes.into_iter().flatten().collect()
}

/// Starts a thread of a load: gives it a name, binds it to `core` if there is one, and makes it the writer of `meter`.
/// Linux shows the first 15 bytes of the name. If the kernel refuses the core, logs a warning.
///
/// # Errors
/// If the system does not start the thread.
pub fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: String,
    core: Option<usize>,
    meter: &Arc<Meter>,
    body: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    let meter = meter.clone();
    Builder::new().name(name).spawn_scoped(scope, move || {
        let _attached = meter.attach();
        bind(core);
        body()
    })
}

/// Binds the calling thread to `core` if there is one. If the kernel refuses, logs a warning.
pub fn bind(core: Option<usize>) {
    if let Some(core) = core
        && let Err(error) = crate::cores::bind(&[core])
    {
        tracing::warn!("cannot bind a thread to core {core}: {error}");
    }
}

fn panic_error(panic: &(dyn Any + Send)) -> LoadError {
    let message = panic.downcast_ref::<&str>().copied();
    let message = message.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("a thread of the load panicked: {}", message.unwrap_or("(no message)")).into()
}
