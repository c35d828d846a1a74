//! Judges and predicts stored sessions again: `cargo run -p inlane-mix --example replay -- [--verdicts] DOCUMENT...`
//!
//! Each DOCUMENT is a result of `inlane mix --json`. Verdicts and predictions depend on its observations only, so a change of
//! the method can be compared with earlier sessions. Such a comparison proves little if the change followed from these sessions.
//!
//! Prints the prediction of each load of each mix, and the median errors over the loads that lost at least 10 %: of all mixes,
//! and with each pair of loads left out.

use inlane_core::load::{Resource, Use, UseSource};
use inlane_mix::observation::{Loaded, Measured, Observation};
use inlane_mix::predict::{predict, residuals};
use inlane_mix::solo::SoloRuns;
use inlane_mix::{text, verdict};
use serde_json::Value;

/// A load that keeps more than this share of its rate alone is not degraded.
const DEGRADED: f64 = 0.9;

/// The errors of a load in a mix.
struct Flow {
    mix: String,
    degraded: bool,
    errors: [f64; 3],
}

fn main() {
    let mut flows = Vec::new();
    let mut verdicts = false;
    for argument in std::env::args().skip(1) {
        if argument == "--verdicts" {
            verdicts = true;
            continue;
        }
        let text = std::fs::read_to_string(&argument).expect("a document");
        let document: Value = serde_json::from_str(&text).expect("JSON");
        for row in document["results"].as_array().expect("results") {
            let measured = measured(row);
            println!("{argument}");
            flows.extend(predictions(&measured));
            if verdicts {
                for verdict in verdict::judge(&measured).verdicts {
                    println!("  {}", text::sentence(&measured, &verdict));
                    text::lines(&measured, &verdict).iter().for_each(|line| println!("      {line}"));
                }
            }
        }
    }
    let mut mixes: Vec<String> = flows.iter().map(|flow| flow.mix.clone()).collect();
    mixes.sort();
    mixes.dedup();
    show("all", flows.iter());
    for mix in &mixes {
        show(&format!("without {mix}"), flows.iter().filter(|flow| flow.mix != *mix));
    }
}

fn predictions(measured: &Measured) -> Vec<Flow> {
    let prediction = predict(&SoloRuns::of(measured)).expect("a prediction");
    let residuals = residuals(&prediction, measured);
    let mut flows = Vec::new();
    for mix in &prediction.mixes {
        let names: Vec<&str> = mix.rates.iter().map(|of| measured.loads[of.load].name.as_str()).collect();
        for of in &mix.rates {
            let Some(residual) = residuals.iter().find(|it| it.phase == mix.phase && it.load == of.load)
            else {
                continue;
            };
            let unit = if of.alone > 1e7 { 1e9 } else { 1.0 };
            println!(
                "  {:28} {:10} alone {:8.2}, predicted {:8.2}, measured {:8.2} ({}), error {:+6.1} %, {}",
                names.join(" + "),
                measured.loads[of.load].name,
                of.alone / unit,
                of.rate / unit,
                residual.measured.median / unit,
                residual.measured.count,
                residual.predicted * 100.0,
                of.limit.as_ref().map_or("-".into(), text::bottleneck),
            );
            flows.push(Flow {
                mix: names.join(" + "),
                degraded: residual.measured.median <= DEGRADED * of.alone,
                errors: [residual.predicted, residual.alone, residual.equal_split],
            });
        }
    }
    flows
}

fn show<'a>(title: &str, flows: impl Iterator<Item = &'a Flow>) {
    let flows: Vec<&Flow> = flows.filter(|flow| flow.degraded).collect();
    let median = |of: usize| {
        let mut errors: Vec<f64> = flows.iter().map(|flow| flow.errors[of].abs()).collect();
        errors.sort_by(f64::total_cmp);
        errors.get(errors.len() / 2).map_or(f64::NAN, |error| error * 100.0)
    };
    println!(
        "{title}: {} loads lost at least 10 %; median error {:.1} %, no interference {:.1} %, equal split {:.1} %",
        flows.len(),
        median(0),
        median(1),
        median(2),
    );
}

fn measured(row: &Value) -> Measured {
    let read =
        |value: &Value| serde_json::from_value::<Vec<Observation>>(value.clone()).expect("observations");
    let array = |key: &str| row[key].as_array().expect("loads").clone();
    let (users, antagonists) = (array("loads"), array("antagonists"));
    let loads = users.iter().map(|load| loaded(load, None));
    let antagonists = antagonists.iter().map(|load| loaded(load, Some(&load["resource"])));
    Measured {
        users: users.len(),
        loads: loads.chain(antagonists).collect(),
        observations: read(&row["observations"]),
        ..Measured::default()
    }
}

fn loaded(load: &Value, antagonist_of: Option<&Value>) -> Loaded {
    let name = load["name"].as_str().expect("a name").to_owned();
    let threads = load["threads"].as_u64().expect("a number of threads") as usize;
    let uses = load["uses"].as_array().map(|uses| uses.iter().map(used).collect());
    Loaded {
        uses: uses.unwrap_or_else(|| of_antagonist(&name, &resource(antagonist_of.expect("uses")))),
        asked: load["asked_operations_per_second"].as_f64(),
        fed: load["fed"].as_bool().unwrap_or(false),
        in_flight: load["in_flight"].as_f64(),
        antagonist_of: antagonist_of.map(resource),
        cores: serde_json::from_value(load["cores"].clone()).expect("cores"),
        threads,
        name,
    }
}

fn used(of: &Value) -> Use {
    let source = match of["source"].as_str() {
        Some("counted") => UseSource::Counted,
        Some("fitted") => UseSource::Fitted,
        _ => UseSource::Computed,
    };
    Use { resource: resource(&of["resource"]), per_byte: of["units_per_byte"].as_f64(), source }
}

/// Returns what an antagonist takes. Documents of earlier versions do not tell.
fn of_antagonist(name: &str, of: &Resource) -> Vec<Use> {
    let used = |resource, per_byte| Use { resource, per_byte, source: UseSource::Computed };
    match of {
        Resource::HostMemory => vec![used(of.clone(), Some(3.0))],
        Resource::LinkToDevice(device) | Resource::LinkFromDevice(device) => {
            let mut uses = vec![
                used(of.clone(), Some(1.0)),
                used(Resource::HostMemory, Some(1.0)),
                used(Resource::DeviceMemory(device.clone()), Some(1.0)),
            ];
            if !name.ends_with("-by-sm") {
                uses.push(used(Resource::CopyEngine(device.clone()), Some(1.0)));
            }
            uses
        }
        Resource::Core(_) => {
            let list = name.trim_start_matches("cpu-on-").split(',');
            let cores: Vec<usize> = list.map(|core| core.parse().expect("a core")).collect();
            let seconds = 25e-6 / cores.len() as f64;
            cores.iter().map(|core| used(Resource::Core(*core), Some(seconds))).collect()
        }
        other => vec![used(other.clone(), None)],
    }
}

/// Reads a resource. In documents of earlier versions it is a text.
fn resource(of: &Value) -> Resource {
    let Some(text) = of.as_str() else { return serde_json::from_value(of.clone()).expect("a resource") };
    let within = |before: &str, after: &str| {
        Some(text.strip_prefix(before)?.strip_suffix(after)?.to_owned()).filter(|name| !name.is_empty())
    };
    match text {
        "host memory" => Resource::HostMemory,
        "the processors" => Resource::Processors,
        _ => within("core ", "")
            .and_then(|core| core.parse().ok())
            .map(Resource::Core)
            .or_else(|| within("the link from host memory to ", "").map(Resource::LinkToDevice))
            .or_else(|| within("the link from ", " to host memory").map(Resource::LinkFromDevice))
            .or_else(|| within("the memory of ", "").map(Resource::DeviceMemory))
            .or_else(|| within("the copy engine of ", "").map(Resource::CopyEngine))
            .or_else(|| within("port ", "").map(Resource::Port))
            .unwrap_or_else(|| Resource::Peer(text.to_owned())),
    }
}
