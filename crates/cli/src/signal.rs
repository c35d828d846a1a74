//! The reaction of a command to SIGINT, SIGTERM and SIGHUP.

use inlane_forward::control::Control;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::Arc;

/// Calls `act` for each signal, on a thread of its own, until the process ends. `act` receives the signal and the number of
/// signals before it.
///
/// SIGHUP is handled too, so that a run whose terminal closes ends in order. A process started by nohup keeps ignoring it.
///
/// # Errors
/// If the handlers cannot be installed.
pub fn on_signal(mut act: impl FnMut(i32, u32) + Send + 'static) -> std::io::Result<()> {
    let mut handled = vec![SIGINT, SIGTERM];
    if !is_ignored(SIGHUP) {
        handled.push(SIGHUP);
    }
    let mut signals = Signals::new(handled)?;
    std::thread::Builder::new().name("inlane-signals".into()).spawn(move || {
        signals.forever().zip(0..).for_each(|(signal, before)| act(signal, before));
    })?;
    Ok(())
}

/// Returns true if the process ignores a signal, as it does for SIGHUP under nohup.
fn is_ignored(signal: i32) -> bool {
    // SAFETY: an all-zero sigaction is valid, and the call writes to it only.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut action) == 0 && action.sa_sigaction == libc::SIG_IGN
    }
}

/// Ends a packet run by signals. The first signal stops receiving and sends the packets in flight. The second gives these up.
/// The third ends the process at once, which may be necessary if a file or pipe blocks.
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

/// Removes output files that are still empty, and ends the process as the signal would.
pub fn end_by(signal: i32) {
    inlane_report::remove_fresh();
    let _ = signal_hook::low_level::emulate_default_handler(signal);
}
