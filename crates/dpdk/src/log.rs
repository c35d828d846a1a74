//! DPDK's log. Its messages become `tracing` events with target `dpdk`. Error messages contain the last
//! warnings, because drivers often give a reason only in the log.

use std::collections::VecDeque;
use std::sync::Mutex;

/// The number of warnings from DPDK's log that are kept in memory, to be shown in error messages.
const RECENT: usize = 16;

/// DPDK's last messages of level warning or worse.
struct RecentWarnings {
    /// Oldest first.
    messages: VecDeque<String>,
    /// The number of warnings so far. It includes warnings that `messages` no longer holds.
    count: u64,
}

static RECENT_WARNINGS: Mutex<RecentWarnings> =
    Mutex::new(RecentWarnings { messages: VecDeque::new(), count: 0 });

/// A position in DPDK's log. Take it before a call that may fail. If the call fails, [`LogPosition::explain`]
/// adds the call's warnings to the error message.
pub(crate) struct LogPosition(u64);

impl LogPosition {
    /// Returns the position of the log's current end.
    pub(crate) fn new() -> Self {
        LogPosition(lock().count)
    }

    /// Returns the warnings that DPDK has logged since this position, separated by semicolons. If there were
    /// too many to keep, returns only the newest ones.
    fn warnings(&self) -> String {
        let recent = lock();
        let new = (recent.count - self.0).min(recent.messages.len() as u64) as usize;
        let messages: Vec<&str> = recent.messages.iter().rev().take(new).rev().map(String::as_str).collect();
        messages.join("; ")
    }

    /// Appends the warnings that DPDK has logged since this position to `text`.
    pub(crate) fn explain(&self, text: impl Into<String>) -> String {
        let (mut text, warnings) = (text.into(), self.warnings());
        if !warnings.is_empty() {
            text += &format!(" (DPDK: {warnings})");
        }
        text
    }
}

fn lock() -> std::sync::MutexGuard<'static, RecentWarnings> {
    // Ignore a panic of a thread that held the lock. At most one message is lost.
    RECENT_WARNINGS.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Receives a message of DPDK's log, on any thread.
///
/// # Safety
/// `text` points to `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn inlane_dpdk_log(level: u32, text: *const u8, length: usize) {
    // SAFETY: the caller promises what this call requires.
    let bytes = unsafe { std::slice::from_raw_parts(text, length) };
    let text = String::from_utf8_lossy(bytes);
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        // Log DPDK's warnings and errors only at level debug, because inlane's error messages contain the
        // last ones. Log critical messages as errors, because DPDK may end the process right after one. Log
        // all else at level trace. DPDK's levels are RTE_LOG_EMERG 1, ALERT 2, CRIT 3, ERR 4, WARNING 5,
        // NOTICE 6, INFO 7, DEBUG 8.
        match level {
            0..=3 => tracing::error!(target: "dpdk", "DPDK: {line}"),
            4 => tracing::debug!(target: "dpdk", severity = "error", "{line}"),
            5 => tracing::debug!(target: "dpdk", severity = "warning", "{line}"),
            _ => tracing::trace!(target: "dpdk", "{line}"),
        }
        if level <= 5 {
            let mut recent = lock();
            if recent.messages.len() == RECENT {
                recent.messages.pop_front();
            }
            recent.messages.push_back(line.to_owned());
            recent.count += 1;
        }
    }
}

#[cfg(test)]
#[path = "../../core/tests/events/mod.rs"]
mod events;

#[cfg(test)]
mod tests {
    use super::events::Events;
    use super::*;
    use tracing::Level;

    #[test]
    fn only_critical_messages_are_errors() {
        let events = Events::default();
        tracing::subscriber::with_default(events.clone(), || {
            for (level, text) in
                [(3, "PANIC in f():\nno fd\n"), (4, "no queue\n"), (5, "slow\n"), (6, "up\n")]
            {
                // SAFETY: the pointer and the length are those of `text`.
                unsafe { inlane_dpdk_log(level, text.as_ptr(), text.len()) };
            }
        });
        let events = events.take();
        let seen: Vec<(Level, &str)> = events.iter().map(|(level, text)| (*level, text.as_str())).collect();
        let expected = [
            (Level::ERROR, "DPDK: PANIC in f():"),
            (Level::ERROR, "DPDK: no fd"),
            (Level::DEBUG, "no queue"),
            (Level::DEBUG, "slow"),
            (Level::TRACE, "up"),
        ];
        assert_eq!(seen, expected);
    }
}
