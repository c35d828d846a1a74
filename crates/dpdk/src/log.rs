//! DPDK's log: its messages become `tracing` events (target `dpdk`), and the last warnings are kept, because drivers often
//! say why something failed only there.

use std::collections::VecDeque;
use std::sync::Mutex;

const KEPT: usize = 16;

struct Kept {
    /// Messages of level warning or worse, oldest first.
    recent: VecDeque<String>,
    /// How many there were in all.
    count: u64,
}

static KEPT_MESSAGES: Mutex<Kept> = Mutex::new(Kept { recent: VecDeque::new(), count: 0 });

/// Remembers where the log stands, to show what was said since.
pub(crate) struct Mark(u64);

impl Mark {
    /// Now.
    pub(crate) fn new() -> Self {
        Mark(lock().count)
    }

    /// What DPDK complained of since, in one line; empty if nothing.
    pub(crate) fn since(&self) -> String {
        let kept = lock();
        let new = (kept.count - self.0).min(kept.recent.len() as u64) as usize;
        let messages: Vec<&str> = kept.recent.iter().rev().take(new).rev().map(String::as_str).collect();
        messages.join("; ")
    }

    /// `text`, and behind it what DPDK complained of since.
    pub(crate) fn explain(&self, text: impl Into<String>) -> String {
        let (mut text, said) = (text.into(), self.since());
        if !said.is_empty() {
            text += &format!(" (DPDK says: {said})");
        }
        text
    }
}

fn lock() -> std::sync::MutexGuard<'static, Kept> {
    // A panic while it was held can only have lost a message.
    KEPT_MESSAGES.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Called by DPDK's log stream, on any thread.
///
/// # Safety
/// `text` points to `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn inlane_dpdk_log(level: u32, text: *const u8, length: usize) {
    // SAFETY: as the caller says.
    let bytes = unsafe { std::slice::from_raw_parts(text, length) };
    let text = String::from_utf8_lossy(bytes);
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        // RTE_LOG_EMERG 1, ALERT 2, CRIT 3, ERR 4, WARNING 5, NOTICE 6, INFO 7, DEBUG 8.
        match level {
            0..=4 => tracing::debug!(target: "dpdk", severity = "error", "{line}"),
            5 => tracing::debug!(target: "dpdk", severity = "warning", "{line}"),
            _ => tracing::trace!(target: "dpdk", "{line}"),
        }
        if level <= 5 {
            let mut kept = lock();
            if kept.recent.len() == KEPT {
                kept.recent.pop_front();
            }
            kept.recent.push_back(line.to_owned());
            kept.count += 1;
        }
    }
}
