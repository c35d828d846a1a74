//! The picture of a session: predicted and measured rates, who gains when another load is slowed, and rates over time.

use inlane_mix::observation::{LoadRate, Observation};
use inlane_mix::result::MixResult;
use inlane_report::{BarGroup, Panel, panels};
use inlane_result::Document;

/// Draws all sessions, one below the other. `None` if nothing was measured.
pub(super) fn svg(document: &Document<MixResult>) -> Option<String> {
    let all: Vec<Panel> = document.results.iter().flat_map(of_session).collect();
    panels(&all, &document.source())
}

fn of_session(row: &MixResult) -> Vec<Panel> {
    let swept: Vec<String> = row.swept.iter().map(|(key, value)| format!(", {key}={value}")).collect();
    let title = |text: &str| format!("{text}{}", swept.concat());
    // Rates of loads that move no bytes have another unit, so all rates are shown relative to the load alone.
    let alone = |name: &str| {
        let load = row.loads.iter().find(|load| load.name == name)?;
        Some(load.alone.as_ref()?.amount().median).filter(|rate| *rate > 0.0)
    };
    let groups = row.predictions.iter().map(|of| {
        let share = |rate: f64| alone(&of.load).map(|alone| rate / alone * 100.0);
        let bar = |rate: f64, interval: Option<(f64, f64)>| {
            let interval = interval.and_then(|(low, high)| Some((share(low)?, share(high)?)));
            share(rate).map(|rate| (rate, interval))
        };
        let measured =
            of.measured_per_second.and_then(|it| bar(it.median, (it.count > 1).then_some((it.low, it.high))));
        BarGroup {
            name: format!("{} in {}", of.load, of.mix.join(" + ")),
            bars: vec![
                bar(of.no_interference_per_second, None),
                bar(of.equal_split_per_second, None),
                bar(of.predicted_per_second, of.low_per_second.zip(of.high_per_second)),
                measured,
            ],
        }
    });
    let series = ["no interference", "equal split", "predicted", "measured"].map(String::from).to_vec();
    let names: Vec<String> = row.loads.iter().map(|load| load.name.clone()).collect();
    let cells = row.exchange.iter().map(|slowed| {
        let cell = |name: &String| {
            let gain = slowed.gains.iter().find(|gain| gain.load == *name)?;
            let rate = super::show::amount(&gain.gain_per_second, gain.operations);
            // Without a common unit, the colour shows the gain as a share of the load's own rate.
            let same = gain.operations == slowed.freed_operations;
            let share = if same { gain.per_freed? } else { gain.gain_per_second.median / alone(name)? };
            Some((share, rate))
        };
        names.iter().map(cell).collect()
    });
    let first = row.observations.iter().map(|observation| observation.at_ns).min().unwrap_or(0);
    let over_time = row.loads.iter().enumerate().map(|(index, load)| {
        let point = |observation: &Observation| {
            let rate = observation.loads.get(index).map(LoadRate::amount).filter(|rate| *rate > 0.0)?;
            Some(((observation.at_ns - first) as f64 / 1e9, rate / alone(&load.name)? * 100.0))
        };
        let counted = row.observations.iter().filter(|observation| observation.void.is_none());
        (load.name.clone(), counted.filter_map(point).collect())
    });
    let unit = || "% of the rate alone".to_string();
    vec![
        Panel::Bars {
            title: title("Predicted and measured rates"),
            y: unit(),
            series,
            groups: groups.collect(),
        },
        Panel::Matrix {
            title: title("Gained (columns) when another load was slowed (rows)"),
            rows: row.exchange.iter().map(|slowed| slowed.slowed.clone()).collect(),
            cells: cells.collect(),
            columns: names.clone(),
        },
        Panel::Points { title: title("Rates over time"), y: unit(), series: over_time.collect() },
    ]
}
