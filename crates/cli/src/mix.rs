//! `inlane mix`: runs several loads alone and together, and shows who takes what from whom.

mod figure;
mod live;
mod resume;
mod show;

use crate::fields::flag;
use crate::output::Output;
use crate::signal;
use crate::values::{core_list, time_to_an_hour, time_within_an_hour};
use anyhow::Context;
use inlane_core::Error;
use inlane_core::error::with_causes;
use inlane_mix::kinds::{KINDS, OF_ALL};
use inlane_mix::observation::Cut;
use inlane_mix::result::MixResult;
use inlane_mix::scenario::LoadSpec;
use inlane_mix::text::Loads;
use inlane_mix::{Draft, Plan, Scenario, Session};
use inlane_result::Document;
use live::Live;
use resume::Earlier;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  # Two loads alone, together, and with each of them slowed
  inlane mix --load 'memory name=copies cores=0' --load 'memory name=reads operation=read cores=1'

  # Computing beside a load that keeps a rate, as JSON
  inlane mix --load 'cpu cores=1' --load 'memory rate=2GB/s cores=1' --json mix.json

  # A scenario in a file, with another value of one of its parameters
  inlane mix --scenario examples/mix/memory.toml --set cores=0

  # The same loads on one, two and four cores
  inlane mix --load 'memory name=copies' --load cpu --sweep copies.cores=0,0-1,0-3

Exit status: 0 done; 1 a load failed or the session was interrupted; 2 wrong usage or settings; 3 a device, file,
program, right or peer is missing or in use ('inlane doctor' checks devices and rights). Ctrl-C ends the session, and
inlane writes the results so far; a second one ends it at once.";

/// Measures loads alone and together, and shows what each takes from the others
///
/// Opens all loads once and then measures short phases in random order: each load alone, all together, all while one
/// of them is slowed, and each beside a load of inlane's own that takes part of one resource.
#[derive(clap::Args)]
#[command(after_help = after_help())]
pub struct Mix {
    /// A load: its kind and settings, such as 'memory operation=read cores=2 rate=5GB/s'. Repeatable
    #[arg(long, value_name = "LOAD", required_unless_present = "scenario")]
    load: Vec<String>,
    /// Read loads from this TOML file
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// Replace a parameter of the scenario or a setting of a load: cores=2 or dma.size=1M. Repeatable
    #[arg(long, value_name = "KEY=VALUE", value_parser = setting)]
    set: Vec<(String, String)>,
    /// The cores of the loads that name none, which take turns on them
    #[arg(long, value_name = "LIST", value_parser = |text: &str| core_list(text).map(Cores))]
    cores: Option<Cores>,

    /// Keep root's privileges. By default, a session that needed root for its ports continues as the user who
    /// called sudo, or nobody
    #[arg(long)]
    keep_privileges: bool,

    /// How long each phase is measured
    #[arg(long, default_value = "250ms", value_name = "TIME", value_parser = time_within_an_hour, help_heading = "Measurement")]
    duration: Duration,
    /// How long the rates of a phase may settle before it is measured
    #[arg(long, default_value = "100ms", value_name = "TIME", value_parser = time_to_an_hour, help_heading = "Measurement")]
    settle: Duration,
    /// End when the 95 % interval of every median is narrower than this fraction of the median: 2% or 0.02
    #[arg(long, default_value = "2%", value_name = "FRACTION", value_parser = fraction, help_heading = "Measurement")]
    precision: f64,
    /// End after this time in any case. The first block of phases is always completed
    #[arg(long, default_value = "60s", value_name = "TIME", value_parser = time_to_an_hour, help_heading = "Measurement")]
    limit: Duration,
    /// The seed of the random order of the phases
    #[arg(long, default_value_t = 1, value_name = "N", help_heading = "Measurement")]
    seed: u64,
    /// Measure one session for each value of a setting, such as dma.cores=0,0-1,0-3. Values with commas are
    /// separated by semicolons. Several sweeps give all combinations. Repeatable
    #[arg(long, value_name = "KEY=VALUE,...", value_parser = sweep, conflicts_with = "resume", help_heading = "Measurement")]
    sweep: Vec<Axis>,
    /// Continue the session of this result, which must have the same loads and settings on the same machine
    #[arg(long, value_name = "FILE", help_heading = "Measurement")]
    resume: Option<PathBuf>,

    /// Write the result as JSON to a file, or to standard output for -
    #[arg(long, value_name = "FILE|-", help_heading = "Output")]
    json: Option<String>,
    /// Draw predicted and measured rates, the exchange of rates, and rates over time to an SVG file
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    svg: Option<PathBuf>,
}

#[derive(Clone, Debug)]
struct Cores(Vec<usize>);

/// A swept setting and its values.
#[derive(Clone, Debug, PartialEq)]
struct Axis {
    key: String,
    values: Vec<String>,
}

/// The most sessions of a sweep.
const MOST_SESSIONS: usize = 1000;

fn after_help() -> String {
    let mut help = String::from("Kinds of loads and their settings:\n");
    for kind in KINDS {
        help += &format!("  {:<8} {}\n", kind.name, kind.about);
        for key in kind.own_keys {
            help += &format!("    {:<11} {}\n", key.name, key.help);
        }
    }
    help += "  all kinds\n";
    for key in OF_ALL {
        help += &format!("    {:<11} {}\n", key.name, key.help);
    }
    help + "\n" + EXAMPLES
}

fn setting(text: &str) -> Result<(String, String), Error> {
    let why = "give KEY=VALUE, for example cores=2 or dma.size=1M";
    let (key, value) = text.split_once('=').ok_or_else(|| Error::invalid(format!("'{text}'"), why))?;
    Ok((key.trim().into(), value.trim().into()))
}

fn sweep(text: &str) -> Result<Axis, Error> {
    let (key, values) = setting(text)?;
    let separator = if values.contains(';') { ';' } else { ',' };
    let values: Vec<String> = values.split(separator).map(|value| value.trim().to_string()).collect();
    if values.iter().any(String::is_empty) {
        return Err(Error::invalid(
            format!("'{text}'"),
            "a value is empty; give for example dma.size=64K,1M",
        ));
    }
    Ok(Axis { key, values })
}

/// Parses `2%` and `0.02`.
fn fraction(text: &str) -> Result<f64, Error> {
    let (number, scale) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    let value = number.trim().parse::<f64>().ok().map(|number| number / scale);
    let value = value.filter(|value| *value > 0.0 && *value <= 1.0);
    value.ok_or_else(|| Error::invalid(format!("'{text}'"), "give a fraction above 0, such as 2% or 0.02"))
}

/// The swept settings with their values, and the session that they make.
type SweptSession = (Vec<(String, String)>, Scenario);

impl Mix {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// If the loads are wrong, a load fails, the session is interrupted, or the result cannot be written.
    pub fn run(&self) -> anyhow::Result<()> {
        let draft = self.draft()?;
        let sessions = self.sessions(&draft)?;
        self.check_privileges(&sessions)?;
        let plan = self.plan();
        let earlier = match &self.resume {
            Some(file) => Some(Earlier::read(file, &sessions[0].1, &plan)?),
            None => None,
        };
        let output = Output::open(self.json.as_deref(), None, self.svg.as_deref())?;
        let interrupted = Arc::new(AtomicBool::new(false));
        let flag = interrupted.clone();
        signal::on_signal(move |signal, before| match before {
            0 => flag.store(true, Relaxed),
            _ => signal::end_by(signal),
        })
        .context("cannot handle SIGINT and SIGTERM")?;
        let mut document = Document::new("mix");
        let mut failure = None;
        for (swept, scenario) in &sessions {
            if interrupted.load(Relaxed) {
                break;
            }
            scenario
                .warnings
                .iter()
                .for_each(|warning| crate::print_to_stderr(format_args!("inlane: warning: {warning}")));
            let mut row = match self.measure(scenario, &plan, earlier.as_ref(), &interrupted) {
                Ok(row) => row,
                Err(error) if sessions.len() > 1 => {
                    let row = MixResult::failed(scenario, &plan, with_causes(error.as_ref()));
                    failure.get_or_insert(error);
                    row
                }
                Err(error) => return Err(error),
            };
            row.swept = swept.iter().cloned().collect();
            failure = failure.or_else(|| cut_short(&row));
            document.results.push(row);
        }
        output.write(&mut document, |out, document| show::document(out, document), figure::svg)?;
        failure.map_or(Ok(()), Err)
    }

    fn measure(
        &self,
        scenario: &Scenario,
        plan: &Plan,
        earlier: Option<&Earlier>,
        interrupted: &AtomicBool,
    ) -> anyhow::Result<MixResult> {
        let session = Session::open(scenario, self.keep_privileges)?;
        let earlier = match earlier {
            Some(earlier) => earlier.observations(&session.loads(), &session.phases(plan))?,
            None => Vec::new(),
        };
        let mut live = Live::new(plan.limit);
        let measured = session.measure(plan, earlier, interrupted, &mut |progress| live.show(&progress));
        live.end();
        Ok(MixResult::new(scenario, plan, measured?))
    }

    fn draft(&self) -> anyhow::Result<Draft> {
        let mut draft = Draft::default();
        if let Some(file) = &self.scenario {
            let name = file.display().to_string();
            let text = crate::text_file::read(&name, "scenario", "a TOML file that you may read")?;
            draft.add_file(&name, &text)?;
        }
        self.load.iter().try_for_each(|load| draft.add_load(load))?;
        self.set.iter().try_for_each(|(key, value)| draft.set(key, value))?;
        Ok(draft)
    }

    /// Refuses a sweep whose first session drops what the next one needs.
    fn check_privileges(&self, sessions: &[SweptSession]) -> Result<(), Error> {
        let needs = |of: &&LoadSpec| of.work.needs_privileges();
        let loads = || sessions.iter().flat_map(|(_, scenario)| &scenario.loads);
        match loads().find(needs) {
            Some(load) if sessions.len() > 1 && !self.keep_privileges => {
                let why = format!(
                    "each session opens the ports of load {} with privileges, and the first one would drop them; add --keep-privileges, or run one session at a time",
                    load.name
                );
                Err(Error::invalid(flag("sweep"), why))
            }
            _ => Ok(()),
        }
    }

    fn plan(&self) -> Plan {
        Plan {
            duration: self.duration,
            settle: self.settle,
            precision: self.precision,
            limit: self.limit,
            seed: self.seed,
            ..Plan::default()
        }
    }

    /// Returns the scenario of each session with the settings that a sweep gives it.
    fn sessions(&self, draft: &Draft) -> anyhow::Result<Vec<SweptSession>> {
        let cores = self.cores.as_ref().map_or(&[][..], |cores| &cores.0);
        let mut drafts = vec![(Vec::new(), draft.clone())];
        for Axis { key, values } in &self.sweep {
            if drafts.len() * values.len() > MOST_SESSIONS {
                let why = format!("it has more than {MOST_SESSIONS} combinations; give fewer values");
                return Err(Error::invalid(flag("sweep").with(key), why).into());
            }
            let mut next = Vec::new();
            for (swept, draft) in &drafts {
                for value in values {
                    let (mut swept, mut draft): (Vec<(String, String)>, Draft) =
                        (swept.clone(), draft.clone());
                    draft.set(key, value)?;
                    swept.push((key.clone(), value.clone()));
                    next.push((swept, draft));
                }
            }
            drafts = next;
        }
        drafts.into_iter().map(|(swept, draft)| Ok((swept, draft.scenario(cores)?))).collect()
    }
}

/// Returns the error of a session that ended before it was done. A time limit is no error.
fn cut_short(row: &MixResult) -> Option<anyhow::Error> {
    match row.cut.as_ref()? {
        Cut::Interrupted => {
            Some(anyhow::anyhow!("the session was interrupted; its result has what was measured before"))
        }
        Cut::LoadFailed { load, error } => {
            let name = row.name(*load);
            Some(anyhow::anyhow!("load {name} failed: {error}; the result has what was measured before"))
        }
        Cut::TimeLimit => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_a_sweep_may_contain_commas() {
        assert_eq!(sweep("a.size=4K,1M").unwrap().values, ["4K", "1M"]);
        assert_eq!(sweep("a.cores=0,1;0-3").unwrap().values, ["0,1", "0-3"]);
        assert!(sweep("a.size=4K,").is_err() && sweep("a").is_err());
    }

    #[test]
    fn fractions_may_be_percentages() {
        assert_eq!((fraction("2%").unwrap(), fraction("0.5").unwrap()), (0.02, 0.5));
        assert!(["0", "-1%", "200%", "x", ""].iter().all(|bad| fraction(bad).is_err()));
    }
}
