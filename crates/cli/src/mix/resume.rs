//! Reads the observations of an earlier session, to continue it.

use crate::fields::flag;
use inlane_core::Error;
use inlane_mix::observation::{Loaded, Observation, Phase};
use inlane_mix::result::PlanResult;
use inlane_mix::{Plan, Scenario};
use inlane_result::Host;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::path::Path;

/// The session of a result document.
pub(super) struct Earlier {
    /// The name of the document.
    file: String,
    /// The names of its loads: those of the user, and then those of the session's own.
    loads: Vec<String>,
    observations: Vec<Observation>,
}

impl Earlier {
    /// Reads a result document.
    ///
    /// # Errors
    /// If the file cannot be read, is no such document, or its session had other loads, settings or another machine.
    pub fn read(file: &Path, scenario: &Scenario, plan: &Plan) -> anyhow::Result<Self> {
        let file = file.display().to_string();
        let text = crate::text_file::read(&file, "result", "a file that 'inlane mix --json' has written")?;
        let wrong = |why: &str| refused(&file, why);
        let document: Value = serde_json::from_str(&text).map_err(|error| {
            wrong(match error.is_eof() && !text.trim().is_empty() {
                true => "it is cut off, so it cannot be continued; begin a new session",
                false => "it is not JSON; name a result of 'inlane mix --json'",
            })
        })?;
        let host = Host::this();
        let row = match document["results"].as_array().map(Vec::as_slice) {
            Some([row]) if document["command"]["name"] == "mix" => row,
            Some([_, _, ..]) => {
                return Err(wrong("it is the result of a sweep; name the result of one session").into());
            }
            _ => return Err(wrong("it is no result of 'inlane mix'; name one").into()),
        };
        if document["host"]["cpu"] != host.cpu.as_str() || document["host"]["cores"] != host.cores {
            return Err(wrong("it is the result of another machine; begin a new session").into());
        }
        let settings: Vec<_> = scenario.loads.iter().map(|load| load.settings.clone()).collect();
        if row["scenario"] != serde_json::to_value(settings)? {
            return Err(
                wrong("its loads have other settings; give the same ones, or begin a new session").into()
            );
        }
        let read = |key: &str| wrong(&format!("its {key} cannot be read; it may be damaged"));
        let earlier: PlanResult = part(row, "plan").ok_or_else(|| read("plan"))?;
        let now = PlanResult::from(plan);
        let phases = |plan: PlanResult| (plan.duration_ns, plan.settle_ns, plan.throttled_share, plan.ladder);
        if phases(earlier) != phases(now) {
            let why =
                "its phases were measured or settled for another time; give the same, or begin a new session";
            return Err(wrong(why).into());
        }
        let observations = part(row, "observations").ok_or_else(|| read("observations"))?;
        let names = |key: &str| row[key].as_array().into_iter().flatten().map(|load| load["name"].as_str());
        let loads: Option<Vec<&str>> = names("loads").chain(names("antagonists")).collect();
        let loads = loads.ok_or_else(|| read("loads"))?.into_iter().map(str::to_owned).collect();
        Ok(Self { loads, observations, file })
    }

    /// Returns the observations. `loads` and `phases` are those of the session that continues this one.
    ///
    /// # Errors
    /// If the observations are of other loads or phases.
    pub fn observations(&self, loads: &[Loaded], phases: &[Phase]) -> Result<Vec<Observation>, Error> {
        // A session that was interrupted before its first observation, or failed, has nothing to keep.
        if !self.observations.is_empty() && !self.loads.iter().eq(loads.iter().map(|load| &load.name)) {
            let why = "inlane's own loads in its session were others; begin a new session";
            return Err(refused(&self.file, why));
        }
        let mut blocks = 0;
        for observation in &self.observations {
            let rates = observation.loads.iter();
            let mut rates = rates.flat_map(|rate| [rate.operations_per_second, rate.bytes_per_second]);
            let fits = phases.contains(&observation.phase)
                && observation.block <= blocks
                && observation.loads.len() == loads.len()
                && rates.all(|rate| rate >= 0.0);
            if !fits {
                let why = "its observations are not those of such a session; it may be damaged";
                return Err(refused(&self.file, why));
            }
            blocks = blocks.max(observation.block + 1);
        }
        Ok(self.observations.clone())
    }
}

fn refused(file: &str, why: &str) -> Error {
    Error::invalid(flag("resume").with(file), why)
}

fn part<T: DeserializeOwned>(row: &Value, key: &str) -> Option<T> {
    serde_json::from_value(row[key].clone()).ok()
}
