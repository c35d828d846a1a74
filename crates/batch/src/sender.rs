//! Senders: the functions `inlane_sender_*`.

use crate::batch::Batch;
use crate::result::row;
use crate::settings::{GivenSettings, Settings};
use crate::status::{Failure, Status, status_of, text, value_of};
use inlane_forward::batch::BatchSender;
use inlane_forward::config::Config;
use inlane_forward::control::Control;
use inlane_ports::spec::PortSpec;
use std::ffi::{CString, c_char, c_int};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// `struct inlane_sender`.
pub struct Sender {
    /// Ends the run. It is outside the lock, so that stopping never waits.
    control: Arc<Control>,
    state: Mutex<State>,
}

struct State {
    sender: BatchSender,
    result: Option<CString>,
}

impl Sender {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts to send: see the header.
///
/// # Safety
/// The arguments are null or valid, as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inlane_sender_open(
    sender: *mut *mut Sender,
    ports: *const *const c_char,
    port_count: usize,
    settings: *const GivenSettings,
) -> c_int {
    status_of(|| {
        if sender.is_null() {
            return Err(Failure::usage("sender", "it is NULL; give a place for the sender"));
        }
        // SAFETY: the program passes a place for a pointer.
        unsafe { sender.write(ptr::null_mut()) };
        if ports.is_null() && port_count > 0 {
            return Err(Failure::usage("ports", "they are NULL, but port_count is not 0"));
        }
        let names = match port_count {
            0 => &[][..],
            // SAFETY: the program passes that many pointers.
            count => unsafe { std::slice::from_raw_parts(ports, count) },
        };
        let mut tx = Vec::with_capacity(names.len());
        for name in names {
            // SAFETY: each of them is a C string.
            tx.push(PortSpec::parse(unsafe { text(*name, "port") }?)?);
        }
        // SAFETY: the settings are as the header says.
        let settings = unsafe { Settings::copy(settings) }?;
        let started = BatchSender::start(tx, |route| {
            let mut config = Config::new(route);
            settings.apply(&mut config);
            config
        })?;
        let control = started.control();
        let made = Sender { control, state: Mutex::new(State { sender: started, result: None }) };
        // SAFETY: as above.
        unsafe { sender.write(Box::into_raw(Box::new(made))) };
        Ok(Status::Ok)
    })
}

/// Gives copies of frames to the run: see the header.
///
/// # Safety
/// The arguments are null or valid, as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inlane_sender_send(sender: *mut Sender, batch: *const Batch, most_ns: u64) -> c_int {
    status_of(|| {
        // SAFETY: the program passes null or a sender that is open.
        let sender = unsafe { sender.as_ref() }.ok_or_else(not_open)?;
        // SAFETY: the program passes null or a batch.
        let batch = unsafe { batch.as_ref() }
            .ok_or_else(|| Failure::usage("batch", "it is NULL; give the frames to send"))?;
        // SAFETY: the pointers in the batch are valid, as the header says.
        let frames = unsafe { batch.copy() }?;
        let unsent = sender.lock().sender.send_within(frames, Duration::from_nanos(most_ns))?;
        Ok(if unsent.is_some() { Status::Timeout } else { Status::Ok })
    })
}

/// Waits until every frame was sent: see the header.
///
/// # Safety
/// The argument is null or a sender that is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inlane_sender_finish(sender: *mut Sender) -> c_int {
    status_of(|| {
        // SAFETY: the program passes null or a sender that is open.
        let sender = unsafe { sender.as_ref() }.ok_or_else(not_open)?;
        let state = &mut *sender.lock();
        let measurement = state.sender.finish()?;
        state.result = row(&measurement);
        Ok(Status::Ok)
    })
}

/// Ends the run without the frames that it has not sent yet: see the header.
///
/// # Safety
/// The argument is null or a sender that is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inlane_sender_stop(sender: *const Sender) {
    // SAFETY: as the caller promises.
    if let Some(sender) = unsafe { sender.as_ref() } {
        sender.control.stop();
    }
}

/// Returns what the run has measured: see the header.
///
/// # Safety
/// The argument is null or a sender that is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inlane_sender_result(sender: *mut Sender) -> *const c_char {
    value_of(ptr::null(), || {
        // SAFETY: as the caller promises.
        let sender = unsafe { sender.as_ref() };
        // The text stays where it is, because nothing replaces a result.
        sender.and_then(|it| it.lock().result.as_ref().map(|text| text.as_ptr())).unwrap_or(ptr::null())
    })
}

/// Ends the run and frees the sender: see the header.
///
/// # Safety
/// The argument is null or a sender that is open. Nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inlane_sender_close(sender: *mut Sender) {
    value_of((), || {
        if !sender.is_null() {
            // SAFETY: `inlane_sender_open` made it, and nobody uses it any more.
            drop(unsafe { Box::from_raw(sender) });
        }
    });
}

fn not_open() -> Failure {
    Failure::usage("sender", "it is NULL; open it with inlane_sender_open")
}
