//! SIGINT and SIGTERM: what a command does then.

use inlane_forward::control::Control;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::Arc;

/// Has signals acted upon, on a thread of its own, until the process ends: with each goes how many came before it.
///
/// # Errors
/// When the handlers cannot be installed.
pub fn on_signal(mut act: impl FnMut(i32, u32) + Send + 'static) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    std::thread::Builder::new().name("inlane-signals".into()).spawn(move || {
        signals.forever().zip(0..).for_each(|(signal, before)| act(signal, before));
    })?;
    Ok(())
}

/// Ends a run of packets in order: the first signal lets what is in flight go out, a second does not wait for it, a third ends
/// the process where it stands, be it before a file that never opens.
///
/// # Errors
/// As [`on_signal`].
pub fn stop_on_signal(control: &Arc<Control>) -> std::io::Result<()> {
    let control = control.clone();
    on_signal(move |signal, before| match before {
        0 => {
            control.stop();
            inlane_dpdk::stop_waiting();
        }
        1 => control.abort(),
        _ => end_by(signal),
    })
}

/// Ends the process as `signal` does, and leaves no empty file behind.
pub fn end_by(signal: i32) {
    inlane_report::remove_fresh();
    let _ = signal_hook::low_level::emulate_default_handler(signal);
}
