//! SIGINT and SIGTERM end a run in order: the first lets what is in flight go out, a second does not wait for it.

use inlane_forward::control::Control;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::Arc;

/// Watches for signals on a thread of its own until the process ends.
///
/// # Errors
/// When the handlers cannot be installed.
pub fn stop_on_signal(control: &Arc<Control>) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let control = control.clone();
    std::thread::Builder::new().name("inlane-signals".into()).spawn(move || {
        for count in signals.forever().zip(0u32..).map(|(_, count)| count) {
            match count {
                0 => {
                    control.stop();
                    inlane_dpdk::wait_no_more();
                }
                _ => control.abort(),
            }
        }
    })?;
    Ok(())
}
