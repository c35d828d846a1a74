//! Shows on standard error, if it is a terminal, what a session does.

use inlane_core::units;
use inlane_mix::observation::{Loaded, Phase};
use inlane_mix::session::Progress;
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// The progress line of a session.
pub(super) struct Live {
    terminal: bool,
    limit: Duration,
}

impl Live {
    /// Creates the display of a session with a time limit.
    pub(super) fn new(limit: Duration) -> Self {
        Self { terminal: std::io::stderr().is_terminal(), limit }
    }

    /// Shows the phase that begins, and the rates of the last one.
    pub(super) fn show(&mut self, progress: &Progress<'_>) {
        if self.terminal {
            let _ = write!(std::io::stderr(), "\r{}\x1b[K", self.line(progress));
        }
    }

    /// Clears the line.
    pub(super) fn end(&self) {
        if self.terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }

    fn line(&self, progress: &Progress<'_>) -> String {
        let block = match progress.block {
            Some(block) => format!("block {}", block + 1),
            None => "first look".into(),
        };
        let rates = progress.last.into_iter().flat_map(|last| {
            let running =
                progress.loads.iter().zip(&last.loads).filter(|(_, rate)| rate.operations_per_second > 0.0);
            running.map(|(load, rate)| {
                let rate = match rate.bytes_per_second > 0.0 {
                    true => units::bytes_per_second(rate.bytes_per_second),
                    false => super::show::operations(rate.operations_per_second),
                };
                format!("  {} {rate}", load.name)
            })
        });
        format!(
            "{:.0} of {:.0} s  {block}, phase {} of {}: {}{}",
            progress.elapsed.as_secs_f64(),
            self.limit.as_secs_f64(),
            progress.index.min(progress.phases - 1) + 1,
            progress.phases,
            phase_name(&progress.phase, progress.loads),
            rates.collect::<String>()
        )
    }
}

/// Returns a few words for a phase.
fn phase_name(phase: &Phase, loads: &[Loaded]) -> String {
    let name = |load: usize| &loads[load].name;
    match *phase {
        Phase::Alone { load } => format!("{} alone", name(load)),
        Phase::ThrottledAlone { load, share } => {
            format!("{} alone, slowed to {:.0} %", name(load), share * 100.0)
        }
        Phase::Pair { one, other } => format!("{} and {}", name(one), name(other)),
        Phase::Together => "all together".into(),
        Phase::Throttled { load, share } => format!("{} slowed to {:.0} %", name(load), share * 100.0),
        Phase::Beside { load, antagonist, share } => {
            format!("{} beside {} at {:.0} %", name(load), name(antagonist), share * 100.0)
        }
        Phase::TogetherBeside { antagonist, share } => {
            format!("all beside {} at {:.0} %", name(antagonist), share * 100.0)
        }
    }
}
