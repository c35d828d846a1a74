//! Receivers: the functions `inlane_receiver_*`.

use crate::batch::Batch;
use crate::result::row;
use crate::settings::{GivenSettings, Settings};
use crate::status::{Failure, Status, status_of, text, value_of};
use inlane_forward::batch::{BatchReceiver, FrameBatch};
use inlane_forward::config::{Config, Route};
use inlane_forward::control::Control;
use inlane_ports::spec::PortSpec;
use std::ffi::{CString, c_char, c_int};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// `struct inlane_receiver`.
pub struct Receiver {
    /// Stops the run. It is outside the lock, so that stopping never waits.
    control: Arc<Control>,
    state: Mutex<State>,
}

struct State {
    receiver: BatchReceiver,
    /// The batch that the program has.
    batch: FrameBatch,
    result: Option<CString>,
}

impl Receiver {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts to receive: see the header.
///
/// # Safety
/// The arguments are null or valid, as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inlane_receiver_open(
    receiver: *mut *mut Receiver,
    port: *const c_char,
    settings: *const GivenSettings,
) -> c_int {
    status_of(|| {
        if receiver.is_null() {
            return Err(Failure::usage("receiver", "it is NULL; give a place for the receiver"));
        }
        // SAFETY: the program passes a place for a pointer.
        unsafe { receiver.write(ptr::null_mut()) };
        // SAFETY: the program passes a C string and settings, as the header says.
        let (port, settings) = unsafe { (text(port, "port")?, Settings::copy(settings)?) };
        let mut config = Config::new(Route::OneWay { rx: PortSpec::parse(port)?, tx: Vec::new() });
        settings.apply(&mut config);
        let started = BatchReceiver::start(config, settings.batches())?;
        let state = State { receiver: started, batch: FrameBatch::default(), result: None };
        let made = Receiver { control: state.receiver.control(), state: Mutex::new(state) };
        // SAFETY: as above.
        unsafe { receiver.write(Box::into_raw(Box::new(made))) };
        Ok(Status::Ok)
    })
}

/// Stores the next frames in `batch`: see the header.
///
/// # Safety
/// The arguments are null or valid, as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inlane_receiver_next(
    receiver: *mut Receiver,
    most_ns: u64,
    batch: *mut Batch,
) -> c_int {
    status_of(|| {
        if batch.is_null() {
            return Err(Failure::usage("batch", "it is NULL; give a place for the batch"));
        }
        // SAFETY: the program passes a place for a batch.
        unsafe { batch.write(Batch::of(&FrameBatch::default())) };
        // SAFETY: the program passes null or a receiver that is open.
        let receiver = unsafe { receiver.as_ref() }.ok_or_else(not_open)?;
        let state = &mut *receiver.lock();
        let next = state.receiver.next_within(Duration::from_nanos(most_ns));
        if state.result.is_none() {
            state.result = state.receiver.measurement().and_then(row);
        }
        let Some(next) = next? else { return Ok(Status::End) };
        if next.is_empty() {
            return Ok(Status::Timeout);
        }
        state.batch = next;
        // SAFETY: as above.
        unsafe { batch.write(Batch::of(&state.batch)) };
        Ok(Status::Ok)
    })
}

/// Stops receiving from the port: see the header.
///
/// # Safety
/// The argument is null or a receiver that is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inlane_receiver_stop(receiver: *const Receiver) {
    // SAFETY: as the caller promises.
    if let Some(receiver) = unsafe { receiver.as_ref() } {
        receiver.control.stop();
    }
}

/// Returns what the run has measured: see the header.
///
/// # Safety
/// The argument is null or a receiver that is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inlane_receiver_result(receiver: *mut Receiver) -> *const c_char {
    value_of(ptr::null(), || {
        // SAFETY: as the caller promises.
        let receiver = unsafe { receiver.as_ref() };
        // The text stays where it is, because nothing replaces a result.
        receiver.and_then(|it| it.lock().result.as_ref().map(|text| text.as_ptr())).unwrap_or(ptr::null())
    })
}

/// Ends the run and frees the receiver: see the header.
///
/// # Safety
/// The argument is null or a receiver that is open. Nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inlane_receiver_close(receiver: *mut Receiver) {
    value_of((), || {
        if !receiver.is_null() {
            // SAFETY: `inlane_receiver_open` made it, and nobody uses it any more.
            drop(unsafe { Box::from_raw(receiver) });
        }
    });
}

fn not_open() -> Failure {
    Failure::usage("receiver", "it is NULL; open it with inlane_receiver_open")
}
