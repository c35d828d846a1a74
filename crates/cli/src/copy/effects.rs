//! Refuses flags of `inlane copy` that have no effect for the endpoints and paths of the run.

use super::{Copy, Figures};
use crate::settings::Origin;
use inlane_copy::tuning::SmTuning;
use inlane_copy::{Endpoint, Path, PathChoice, PathOptions};
use inlane_core::Error;

impl Copy {
    /// Checks that each flag of the command line has an effect on at least one of the pairs of endpoints. A
    /// flag with its default value is always accepted. So are the flags in `origins`: a settings file or an
    /// environment variable has set them for all runs.
    ///
    /// # Errors
    /// Names the first flag without an effect, and what that flag needs.
    pub(super) fn check_effects(
        &self,
        pairs: &[(&Endpoint, &Endpoint)],
        origins: &[Origin],
    ) -> Result<(), Error> {
        let on_command_line = |flag: &str| !origins.iter().any(|origin| origin.flag == flag);
        let endpoints = || pairs.iter().flat_map(|(from, to)| [*from, *to]);
        let bar = endpoints().any(|endpoint| matches!(endpoint, Endpoint::Bar(_)));
        let cpu = bar || pairs.contains(&(&Endpoint::Host, &Endpoint::Host));
        let gpus = |path| {
            let between = |(from, to): &(&Endpoint, &Endpoint)| {
                let gpu = |endpoint: &Endpoint| matches!(endpoint, Endpoint::Gpu(_));
                // Flags of the staged paths have an effect only between two GPUs. Flags of path sm have an
                // effect wherever path sm may be taken.
                (path == Path::Sm || (gpu(from) && gpu(to))) && self.may_take(path, from, to)
            };
            pairs.iter().any(between)
        };
        let (sms, usual) = (self.sms(), SmTuning::default());
        let (staged, staged_sm, sm) = (gpus(Path::Staged), gpus(Path::StagedSm), gpus(Path::Sm));
        const BAR: &str = "a BAR as endpoint, such as pci:0000:b5:00.0/bar2";
        const CPU: &str = "a BAR as endpoint, or host memory at both ends";
        const STAGED: &str = "path staged between two GPUs";
        const STAGED_SM: &str = "path staged-sm between two GPUs";
        const SM: &str = "path sm between a GPU and host memory";
        let flags = [
            ("--access", self.access.is_some(), cpu, CPU),
            ("--allow-bar-read", self.allow_bar_read, bar, BAR),
            ("--allow-bar-write", self.allow_bar_write, bar, BAR),
            ("--allow-device", !self.allow_device.is_empty(), bar, BAR),
            ("--chunk", self.chunk.is_some(), staged, STAGED),
            ("--slots", self.slots.is_some(), staged, STAGED),
            ("--streams", self.streams.is_some(), staged, STAGED),
            ("--sm-channels", sms.channels != usual.channels, staged_sm, STAGED_SM),
            ("--sm-threads", sms.threads != usual.threads, staged_sm, STAGED_SM),
            ("--sm-chunk", sms.chunk != usual.chunk, staged_sm, STAGED_SM),
            ("--sm-slots", sms.slots != usual.slots, staged_sm, STAGED_SM),
            ("--sm-turns", sms.turns != usual.turns, staged_sm, STAGED_SM),
            ("--sm-lines", sms.lines != usual.lines, staged_sm, STAGED_SM),
            ("--sm-launch", self.sm_launch, staged_sm, STAGED_SM),
            ("--sm-blocks", self.sm_blocks != PathOptions::default().blocks, sm, SM),
        ];
        let refused =
            |(flag, given, effect, _): &(&str, bool, bool, &str)| *given && !effect && on_command_line(flag);
        if let Some((flag, _, _, needs)) = flags.into_iter().find(refused) {
            return Err(Error::invalid(flag, format!("it needs {needs}; leave it out")));
        }
        if self.in_flight.is_some() && self.measure == Figures::Latency && on_command_line("--in-flight") {
            let why = "it needs --measure stream or all, because --measure latency has one transfer in flight; \
                       leave it out";
            return Err(Error::invalid("--in-flight", why));
        }
        Ok(())
    }

    /// Returns true if the flags allow this path between two endpoints.
    fn may_take(&self, path: Path, from: &Endpoint, to: &Endpoint) -> bool {
        let chosen = |choice: PathChoice| match choice {
            PathChoice::Require(only) => only == path,
            // If the preferred path is unavailable, the run takes another one.
            PathChoice::Prefer(preferred) => preferred == path || !self.without.contains(&path),
            PathChoice::Auto => !self.without.contains(&path),
        };
        Path::candidates(from, to).contains(&path) && self.choices().into_iter().any(chosen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        copy: Copy,
    }

    /// Returns the error message for a command line with these flags, or an empty text if the flags are
    /// accepted.
    fn refusal(from: &str, to: &str, flags: &str) -> String {
        let line = ["copy", "--from", from, "--to", to].into_iter().chain(flags.split_whitespace());
        let copy = Command::parse_from(line).copy;
        let (from, to) = (from.parse().unwrap(), to.parse().unwrap());
        copy.check_effects(&[(&from, &to)], &[]).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn a_flag_that_changes_nothing_is_refused() {
        let bar = "pci:0000:00:04.0/bar2@0+4K";
        for (from, to, flags, refused) in [
            ("twin:0", "twin:1", "--sm-slots 4", "--sm-slots"),
            ("twin:0", "twin:1", "--allow-device 0000:00:1f.0", "--allow-device"),
            ("twin:0", "twin:1", "--access 4", "--access"),
            ("host", "gpu:0", "--allow-bar-read", "--allow-bar-read"),
            ("host", "gpu:0", "--chunk 1M", "--chunk"),
            ("host", "gpu:0", "--require dma --sm-blocks 4", "--sm-blocks"),
            ("gpu:0", "gpu:1", "--require staged --sm-launch", "--sm-launch"),
            ("gpu:0", "gpu:1", "--without staged --streams 4", "--streams"),
            ("gpu:0", bar, "--slots 16", "--slots"),
            ("host", "host", "--measure latency --in-flight 4", "--in-flight"),
        ] {
            let text = refusal(from, to, flags);
            assert!(text.starts_with(&format!("{refused}: it needs ")), "{flags}: {text}");
            assert!(text.ends_with("; leave it out"), "{text}");
        }
        for (from, to, flags) in [
            ("host", "host", "--access 4 --in-flight 4"),
            ("host", bar, "--access 4 --allow-bar-read --allow-bar-write --allow-device 0000:00:04.0"),
            ("host", "gpu:0", "--sm-blocks 4"),
            ("gpu:0", "gpu:1", "--chunk 1M --slots 16 --streams 4 --sm-launch --sm-slots 4"),
            ("gpu:0", "gpu:0", "--path staged --chunk 1M"),
            ("twin:0", "twin:1", "--sm-slots 8"),
        ] {
            assert_eq!(refusal(from, to, flags), "", "{flags}");
        }
    }
}
