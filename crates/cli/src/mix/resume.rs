//! Reads the observations of an earlier session, to continue it.

use crate::fields::flag;
use inlane_core::Error;
use inlane_mix::observation::Observation;
use inlane_mix::result::PlanResult;
use inlane_mix::{Plan, Scenario};
use inlane_result::Host;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::path::Path;

/// Returns the observations of the session in a result document.
///
/// # Errors
/// If the file cannot be read, is no such document, or its session had other loads, settings or another machine.
pub(super) fn observations(
    file: &Path,
    scenario: &Scenario,
    plan: &Plan,
) -> anyhow::Result<Vec<Observation>> {
    let name = file.display().to_string();
    let text = crate::text_file::read(&name, "result", "a file that 'inlane mix --json' has written")?;
    let wrong = |why: &str| Error::invalid(flag("resume").with(&name), why);
    let document: Value = serde_json::from_str(&text)
        .map_err(|_| wrong("it is not JSON; name a result of 'inlane mix --json'"))?;
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
    let loads: Vec<_> = scenario.loads.iter().map(|load| load.settings.clone()).collect();
    if row["scenario"] != serde_json::to_value(loads)? {
        return Err(wrong("its loads have other settings; give the same ones, or begin a new session").into());
    }
    let read = |key: &str| wrong(&format!("its {key} cannot be read; it may be cut off"));
    let earlier: PlanResult = part(row, "plan").ok_or_else(|| read("plan"))?;
    let now = PlanResult::from(plan);
    if (earlier.duration_ns, earlier.throttled_share, &earlier.ladder)
        != (now.duration_ns, now.throttled_share, &now.ladder)
    {
        return Err(wrong("its phases had another duration; give the same, or begin a new session").into());
    }
    let observations: Vec<Observation> = part(row, "observations").ok_or_else(|| read("observations"))?;
    let loads =
        row["loads"].as_array().map_or(0, Vec::len) + row["antagonists"].as_array().map_or(0, Vec::len);
    if observations.iter().any(|observation| observation.loads.len() != loads) {
        return Err(read("observations").into());
    }
    Ok(observations)
}

fn part<T: DeserializeOwned>(row: &Value, key: &str) -> Option<T> {
    serde_json::from_value(row[key].clone()).ok()
}
