//! Handles SIGINT, SIGTERM and SIGHUP. After the first signal, a run ends in order. Further signals end it
//! sooner.

use inlane_core::error::NotStarted;
use inlane_forward::control::Control;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::Arc;

/// Starts a thread that calls `act` for each SIGINT, SIGTERM and SIGHUP until the process ends. `act`
/// receives the signal and the number of earlier signals.
///
/// SIGHUP is included so that a run shuts down cleanly when its terminal closes. A process started by nohup
/// still ignores SIGHUP.
///
/// # Errors
/// If the handlers cannot be installed.
pub fn on_signal(mut act: impl FnMut(i32, u32) + Send + 'static) -> std::io::Result<()> {
    let mut handled = vec![SIGINT, SIGTERM];
    if !is_ignored(SIGHUP) {
        handled.push(SIGHUP);
    }
    let mut signals = Signals::new(handled)?;
    let thread = std::thread::Builder::new().name("inlane-signals".into()).spawn(move || {
        signals.forever().zip(0..).for_each(|(signal, before)| act(signal, before));
    });
    thread.map(drop).map_err(NotStarted::of)
}

/// Returns true if this process ignores `signal`. For example, a process under nohup ignores SIGHUP.
fn is_ignored(signal: i32) -> bool {
    // SAFETY: all-zero bytes are a valid sigaction. The call only reads the current action into `action`.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut action) == 0 && action.sa_sigaction == libc::SIG_IGN
    }
}

/// Installs the signal handling of a packet run. At the first signal, the run receives no more packets and
/// sends the packets in flight. At the second signal, it gives up the packets in flight. At the third signal,
/// the process ends at once, even if a write to a file or pipe blocks.
///
/// # Errors
/// As for [`on_signal`].
pub fn stop_on_signal(control: &Arc<Control>) -> std::io::Result<()> {
    let control = control.clone();
    on_signal(move |signal, before| match before {
        0 => {
            control.stop();
            crate::devices::stop_waiting();
        }
        1 => control.abort(),
        _ => end_by(signal),
    })
}

/// Removes output files that are still empty. Then ends the process in the way in which `signal` ends a
/// process by default.
pub fn end_by(signal: i32) {
    inlane_report::remove_fresh();
    let _ = signal_hook::low_level::emulate_default_handler(signal);
}
