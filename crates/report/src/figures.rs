//! The measured figures in stored rows, and what tells rows of a document apart. The tables here name the keys of each
//! command's rows; comparisons and pages use them. A test checks that the published schemas have these keys.

use inlane_core::stats::Summary;
use inlane_result::{Cell, Document, Quantity};
use serde_json::Value;

/// A measured figure of a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// The name, such as `rate` or `p99`.
    pub name: String,
    /// The figure. With repeats, their median.
    pub quantity: Quantity,
    /// The figure of each repeat, in their order. Empty if it was measured once.
    pub repeats: Vec<f64>,
    /// The least and the greatest repeat, or the ends of the median's interval.
    pub range: Range,
    /// True for rates, false for times.
    pub higher_is_better: bool,
}

/// A row of a stored document: a measurement with its figures.
#[derive(Clone, Debug)]
pub struct Measured<'a> {
    /// What tells the row apart from others of its document, such as burst and size.
    pub identity: Vec<Cell>,
    /// The ports or endpoints of the row.
    pub ends: Vec<String>,
    /// The figures. The first is the one that the row is about.
    pub figures: Vec<Figure>,
    /// Why the row has no figures.
    pub error: Option<&'a str>,
    /// Lost, duplicated, reordered and altered packets, or altered bytes, as far as they were checked.
    pub wrong: u64,
    /// The row.
    pub row: &'a Value,
}

/// The least and the greatest repeat, or the ends of an interval.
pub type Range = Option<(f64, f64)>;

/// A table of figures: the name, the unit, and the places in the row, of which the first present one counts.
type Table = &'static [(&'static str, fn(f64) -> Quantity, &'static [&'static str])];

const FORWARD: Table = &[
    ("rate", Quantity::packets_per_second, &["/repeats/packets_per_second", "/tx/packets_per_second"]),
    ("p50", Quantity::Time, &["/repeats/p50_ns", "/latency/p50_ns", "/stages/total/p50_ns"]),
    ("p99", Quantity::Time, &["/repeats/p99_ns", "/latency/p99_ns", "/stages/total/p99_ns"]),
];
const TRANSFERS: Table = &[
    ("rate", Quantity::ByteRate, &["/bytes_per_second"]),
    ("p50", Quantity::Time, &["/repeated_latency_ns", "/latency_ns"]),
    ("p99", Quantity::Time, &["/latency_percentiles/p99_ns"]),
];
const WINDOWS: Table = &[
    ("rate", Quantity::ByteRate, &["/bytes_per_second"]),
    ("operations", Quantity::PerSecond, &["/operations_per_second"]),
    ("latency", Quantity::Time, &["/latency_ns"]),
    ("p99", Quantity::Time, &["/latency_percentiles/p99_ns"]),
];
const DRIVES: Table = &[
    ("IOPS", Quantity::PerSecond, &["/repeats/operations_per_second", "/operations_per_second"]),
    ("p50", Quantity::Time, &["/repeats/p50_ns", "/latency/p50_ns"]),
    ("p99", Quantity::Time, &["/repeats/p99_ns", "/latency/p99_ns"]),
];
const STREAM: Table = &[("rate", Quantity::ByteRate, &["/bytes_per_second"])];
const LOAD: Table = &[
    ("alone", Quantity::ByteRate, &["/alone/bytes_per_second"]),
    ("together", Quantity::ByteRate, &["/together/bytes_per_second"]),
];
const LOAD_OF_OPERATIONS: Table = &[
    ("alone", Quantity::PerSecond, &["/alone/operations_per_second"]),
    ("together", Quantity::PerSecond, &["/together/operations_per_second"]),
];

/// The keys that tell rows apart, by the command that wrote them. The keys of `forward`'s parameters differ from run to run.
const COPY_KEYS: &[&str] =
    &["path/name", "completion", "both_directions", "store_end", "in_flight", "size_bytes"];
const WINDOW_KEYS: &[&str] = &["operation", "path/name", "completion", "size_bytes"];
const DRIVE_KEYS: &[&str] = &["rw", "operation", "block_bytes", "iodepth", "jobs", "read_percent"];

/// The keys of a verification that count what was wrong: packets, then bytes.
const WRONG: [&str; 5] =
    ["lost_packets", "duplicated_packets", "reordered_packets", "altered_packets", "altered_bytes"];

/// Returns the rows of a document that have figures. A session of `mix` and a case of `model` give a row for each load or
/// flow. Empty for a document without measurements, such as that of `topo`.
pub fn measured(document: &Document<Value>) -> Vec<Measured<'_>> {
    document.results.iter().flat_map(|row| rows_of(&document.command.name, row)).collect()
}

/// A figure with repeats that lie far from the others.
#[derive(Clone, Debug, PartialEq)]
pub struct Outlying {
    /// What tells the row apart from others.
    pub identity: Vec<Cell>,
    /// The figure's name.
    pub figure: String,
    /// The outlier that is farthest from the median.
    pub outlier: Quantity,
    /// The median.
    pub median: Quantity,
}

/// Returns the figures of rows of a command that have outliers.
pub fn outliers(command: &str, rows: &[Value]) -> Vec<Outlying> {
    let measured = rows.iter().flat_map(|row| rows_of(command, row));
    measured
        .flat_map(|row| {
            let identity = row.identity;
            row.figures.into_iter().filter_map(move |figure| {
                let summary = Summary::of(&figure.repeats)?;
                let distance = |value: &f64| (value - summary.median).abs();
                let outliers = summary.outliers().into_iter();
                let farthest = outliers.max_by(|a, b| distance(a).total_cmp(&distance(b)))?;
                Some(Outlying {
                    identity: identity.clone(),
                    figure: figure.name,
                    outlier: figure.quantity.with_number(farthest),
                    median: figure.quantity.with_number(summary.median),
                })
            })
        })
        .collect()
}

fn rows_of<'a>(command: &str, row: &'a Value) -> Vec<Measured<'a>> {
    let one =
        |table: Table, identity: Vec<Cell>, ends: Vec<String>| vec![of(row, row, table, identity, ends)];
    match command {
        "forward" => {
            let parameters = row.get("parameters").and_then(Value::as_object).into_iter().flatten();
            let identity = parameters.filter_map(|(key, value)| cell(key, value)).collect();
            one(FORWARD, identity, texts(row.get("ports")))
        }
        "copy" if row.get("bytes_per_second").is_some() => {
            one(TRANSFERS, keys(row, COPY_KEYS), [text(row, "from"), text(row, "to")].concat())
        }
        "ntb bench" => {
            let mut rows = one(WINDOWS, keys(row, WINDOW_KEYS), Vec::new());
            // The three figures come from the same times. The latency says most; without it, the rate does.
            let figures = &mut rows[0].figures;
            let derived = |figures: &[Figure], by: &str| figures.iter().any(|figure| figure.name == by);
            if derived(figures, "latency") {
                figures.retain(|figure| figure.name != "rate");
            }
            if derived(figures, "latency") || derived(figures, "rate") {
                figures.retain(|figure| figure.name != "operations");
            }
            rows
        }
        "nvme bench" => one(DRIVES, keys(row, DRIVE_KEYS), Vec::new()),
        "nvme read" | "nvme write" => one(STREAM, Vec::new(), Vec::new()),
        "mix" => {
            let title = keys(row, &["title"]);
            let swept = row.get("swept").and_then(Value::as_object).into_iter().flatten();
            let session: Vec<Cell> =
                title.into_iter().chain(swept.filter_map(|(key, value)| cell(key, value))).collect();
            parts(row, "loads", "load", &session, |load| {
                let moves = load.pointer("/alone/bytes_per_second/median").and_then(Value::as_f64);
                if moves.is_some_and(|bytes| bytes > 0.0) { LOAD } else { LOAD_OF_OPERATIONS }
            })
        }
        "model" => parts(row, "flows", "flow", &keys(row, &["model", "case"]), |_| STREAM),
        _ => Vec::new(),
    }
}

/// Returns a row for each named part of a row.
fn parts<'a>(
    row: &'a Value,
    list: &str,
    what: &str,
    session: &[Cell],
    table: impl Fn(&Value) -> Table,
) -> Vec<Measured<'a>> {
    let all = row.get(list).and_then(Value::as_array).into_iter().flatten();
    all.map(|part| {
        let name = Cell::new(what, part.get("name").and_then(Value::as_str));
        of(part, row, table(part), session.iter().cloned().chain([name]).collect(), Vec::new())
    })
    .collect()
}

fn of<'a>(
    part: &'a Value,
    row: &'a Value,
    table: Table,
    identity: Vec<Cell>,
    ends: Vec<String>,
) -> Measured<'a> {
    let figure = |(name, unit, places): &(&str, fn(f64) -> Quantity, &[&str])| {
        let found = places.iter().filter_map(|place| part.pointer(place)).find(|found| !found.is_null())?;
        let (median, repeats, range) = summary(found)?;
        // A port that sends nothing has no rate that could be compared.
        let higher_is_better = !matches!(unit(median), Quantity::Time(_));
        (median > 0.0).then(|| Figure {
            name: (*name).into(),
            quantity: unit(median),
            repeats,
            range,
            higher_is_better,
        })
    };
    let checked = |key| row.get("verification").and_then(|checked| checked.get(key)).and_then(Value::as_u64);
    let error = row.get("error").and_then(Value::as_str);
    let figures = if error.is_some() { Vec::new() } else { table.iter().filter_map(figure).collect() };
    Measured { identity, ends, figures, error, wrong: WRONG.into_iter().filter_map(checked).sum(), row }
}

/// Returns the median, the repeats and the range of a measured quantity, or of a plain number.
fn summary(found: &Value) -> Option<(f64, Vec<f64>, Range)> {
    if let Some(number) = found.as_f64() {
        return Some((number, Vec::new(), None));
    }
    let number = |key: &str| found.get(key).and_then(Value::as_f64);
    let values = found.get("values").and_then(Value::as_array).into_iter().flatten();
    let range = number("min").zip(number("max")).or(number("low").zip(number("high")));
    Some((number("median")?, values.filter_map(Value::as_f64).collect(), range))
}

fn keys(row: &Value, keys: &[&str]) -> Vec<Cell> {
    keys.iter().filter_map(|key| cell(key, row.pointer(&format!("/{key}"))?)).collect()
}

/// Returns a parameter as a cell. `None` if it is null, false or empty.
fn cell(key: &str, value: &Value) -> Option<Cell> {
    let name = |name: &str| name.trim_end_matches("/name").replace('_', " ");
    match value {
        Value::Number(number) => {
            let (key, quantity) = Quantity::of_key(key, number.as_f64()?);
            Some(Cell::new(name(key), quantity))
        }
        Value::String(text) if !text.is_empty() => Some(Cell::new(name(key), text)),
        Value::Bool(true) => Some(Cell::new(name(key), "yes")),
        _ => None,
    }
}

fn text(row: &Value, key: &str) -> Vec<String> {
    row.get(key).and_then(Value::as_str).map(String::from).into_iter().collect()
}

fn texts(list: Option<&Value>) -> Vec<String> {
    let all = list.and_then(Value::as_array).into_iter().flatten();
    all.filter_map(Value::as_str).map(String::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn document(command: &str, rows: Value) -> Document<Value> {
        let mut document = Document::new(command);
        document.results = rows.as_array().unwrap().clone();
        document
    }

    #[test]
    fn the_figures_of_repeats_come_before_those_of_one_run() {
        let repeats = json!({"median": 2e6, "min": 1e6, "max": 3e6, "repeats": 3, "values": [3e6, 1e6, 2e6]});
        let row = json!({
            "parameters": {"burst": 64, "size_bytes": 128, "method": "single"},
            "ports": ["gen:64", "check"],
            "tx": {"packets_per_second": 5e6},
            "repeats": {"packets_per_second": repeats, "p50_ns": null},
            "latency": {"p50_ns": 700.0},
            "verification": {"lost_packets": 2, "altered_packets": 1},
        });
        let document = document("forward", json!([row]));
        let [row] = &measured(&document)[..] else { panic!() };
        let cells = row.identity.iter().map(|cell| format!("{} {}", cell.name, cell.value));
        let identity: std::collections::BTreeSet<_> = cells.collect();
        assert_eq!(identity, ["burst 64", "size 128 B", "method single"].map(String::from).into());
        assert_eq!((row.wrong, row.ends.len()), (3, 2));
        assert_eq!(row.figures[0].quantity, Quantity::packets_per_second(2e6));
        assert_eq!(row.figures[0].repeats, [3e6, 1e6, 2e6]);
        assert_eq!((row.figures[1].name.as_str(), row.figures[1].higher_is_better), ("p50", false));
        assert_eq!(row.figures.len(), 2);
    }

    #[test]
    fn sessions_have_a_row_for_each_load() {
        let rate = |median: f64| json!({"median": median, "low": 1.0, "high": 9.0, "repeats": 4});
        let load = |name: &str, bytes: f64| {
            let alone = json!({"bytes_per_second": rate(bytes), "operations_per_second": rate(5.0)});
            json!({"name": name, "alone": alone, "together": null})
        };
        let document =
            document("mix", json!([{"title": "", "loads": [load("dma", 4.0), load("spin", 0.0)]}]));
        let rows = measured(&document);
        assert_eq!(rows[0].figures[0].quantity, Quantity::ByteRate(4.0));
        assert_eq!(rows[1].figures[0].quantity, Quantity::PerSecond(5.0));
        assert_eq!(rows[1].identity, [Cell::new("load", "spin")]);
        assert_eq!(rows[0].figures[0].range, Some((1.0, 9.0)));
    }

    #[test]
    fn outliers_name_the_row_and_the_value() {
        let rate = Summary::of(&[100.0, 99.0, 101.0, 100.0, 20.0]).unwrap();
        let steady = Summary::of(&[5.0, 5.0, 5.0, 5.0, 5.0]).unwrap();
        let row =
            json!({"parameters": {"burst": 64}, "repeats": {"packets_per_second": rate, "p50_ns": steady}});
        let [found] = &outliers("forward", &[row])[..] else { panic!() };
        assert_eq!((found.outlier.number(), found.median.number()), (20.0, 100.0));
        assert_eq!((found.figure.as_str(), found.identity.len()), ("rate", 1));
    }

    #[test]
    fn rows_of_any_shape_are_survived() {
        for command in ["forward", "copy", "ntb bench", "nvme bench", "mix", "model", "topo", ""] {
            for row in [
                json!({}),
                json!({"parameters": [1], "ports": {}, "bytes_per_second": [], "loads": [1, null, {"name": 5}]}),
                json!({"tx": {"packets_per_second": "fast"}, "error": "no memory", "flows": "x"}),
                json!({"repeats": {"packets_per_second": {"median": null}}, "verification": []}),
            ] {
                let document = document(command, json!([row]));
                assert!(measured(&document).iter().all(|row| row.figures.is_empty()));
            }
        }
    }

    /// Finds the property `key` of the object that `at` describes.
    fn property<'a>(schema: &'a Value, at: &'a Value, key: &str) -> Option<&'a Value> {
        if let Some(found) = at.get("properties").and_then(|properties| properties.get(key)) {
            return Some(found);
        }
        let reference = at.get("$ref").and_then(Value::as_str);
        let referred = reference.and_then(|place| schema.pointer(place.trim_start_matches('#')));
        let lists = ["anyOf", "oneOf", "allOf"].into_iter().filter_map(|list| at.get(list)?.as_array());
        let mut inner = referred.into_iter().chain(lists.flatten()).chain(at.get("items"));
        inner.find_map(|inner| property(schema, inner, key))
    }

    #[test]
    fn the_tables_name_keys_of_the_published_schemas() {
        let figures = |tables: &[Table]| -> Vec<&str> {
            tables.iter().copied().flatten().flat_map(|(_, _, places)| places.iter().copied()).collect()
        };
        let wrong = |keys: &[&'static str]| keys.iter().map(|key| format!("verification/{key}")).collect();
        for (document, part, places, more) in [
            (
                "packets",
                "",
                [figures(&[FORWARD]), vec!["parameters", "ports", "error"]].concat(),
                wrong(&WRONG[..4]),
            ),
            (
                "transfers",
                "",
                [&figures(&[TRANSFERS])[..], COPY_KEYS, &["from", "to"]].concat(),
                wrong(&WRONG[4..]),
            ),
            ("windows", "", [&figures(&[WINDOWS])[..], WINDOW_KEYS].concat(), Vec::new()),
            ("nvme-bench", "", [&figures(&[DRIVES])[..], DRIVE_KEYS].concat(), wrong(&WRONG[4..])),
            ("nvme-transfer", "", figures(&[STREAM]), Vec::new()),
            ("mix", "", vec!["title", "swept"], Vec::new()),
            ("mix", "loads", [figures(&[LOAD, LOAD_OF_OPERATIONS]), vec!["name"]].concat(), Vec::new()),
            ("model", "", vec!["model", "case"], Vec::new()),
            ("model", "flows", [figures(&[STREAM]), vec!["name"]].concat(), Vec::new()),
        ] {
            let file = format!("{}/../../docs/schema/{document}.json", env!("CARGO_MANIFEST_DIR"));
            let schema: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
            for place in places.into_iter().map(String::from).chain(more) {
                let place = format!("results/{part}/{}", place.trim_start_matches('/'));
                let mut keys = place.split('/').filter(|key| !key.is_empty());
                let found = keys.try_fold(&schema, |at, key| property(&schema, at, key));
                assert!(found.is_some(), "{document} has no {place}");
            }
        }
        let schema = json!({"properties": {"a": {"items": {"$ref": "#/$defs/A"}}}, "$defs": {"A": {"anyOf": [{"properties": {"b": {}}}]}}});
        let a = property(&schema, &schema, "a").unwrap();
        assert!(property(&schema, a, "b").is_some() && property(&schema, a, "c").is_none());
    }
}
