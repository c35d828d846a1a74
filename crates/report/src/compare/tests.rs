use super::*;
use serde_json::json;

/// Returns a document of `forward` with one row for each burst, whose rates are the repeats.
fn document(rows: &[(u32, &[f64])]) -> Document<Value> {
    let mut document = Document::new("forward");
    document.host.cpu = "a processor".into();
    let row = |(burst, rates): &(u32, &[f64])| {
        let rate = inlane_core::stats::Summary::of(rates);
        json!({"parameters": {"burst": burst}, "ports": ["null:64", "null"], "repeats": {"packets_per_second": rate}})
    };
    document.results = rows.iter().map(row).collect();
    document
}

fn side(name: &str, documents: Vec<Document<Value>>) -> Side {
    Side { name: name.into(), documents }
}

fn compared(before: Document<Value>, after: Document<Value>, across: &[Condition]) -> Vec<Comparison> {
    compare(&[side("a", vec![before]), side("b", vec![after])], across)
}

const FIVE: &[f64] = &[100.0, 101.0, 99.0, 100.5, 99.5];
const NINETY: &[f64] = &[90.0, 91.0, 89.0, 90.5, 89.5];

#[test]
fn each_row_gets_a_verdict() {
    let before = document(&[(16, FIVE), (32, FIVE), (64, FIVE), (128, FIVE), (256, FIVE)]);
    let after = document(&[
        (512, FIVE),
        (128, &[100.0]),
        (64, NINETY),
        (32, &[101.0, 99.0, 100.0, 98.0]),
        (16, &[110.0, 111.0, 109.0, 112.0]),
    ]);
    let rows = compared(before, after, &[]);
    let verdicts: Vec<_> = rows.iter().map(|row| (row.parameters["burst"].as_str(), row.verdict)).collect();
    use Verdict::*;
    let expected = [
        ("16", Faster),
        ("32", NoDifference),
        ("64", Slower),
        ("128", TooFew),
        ("256", Missing),
        ("512", Added),
    ];
    assert_eq!(verdicts, expected);
    assert!((rows[2].change.unwrap() + 0.1).abs() < 0.002 && rows[2].high.unwrap() < 0.0);
    assert_eq!(
        summary(&rows),
        "Of 3 figures: 1 slower, 1 faster, 1 without a shown difference. 1 missing. 1 without a counterpart. 1 not judged: too few repeats."
    );
    let failed = |share| failures(&rows, share).iter().map(|row| row.verdict).collect::<Vec<_>>();
    assert_eq!(failed(0.05), [Slower, TooFew, Missing]);
    assert_eq!(failed(0.2), [TooFew, Missing], "10 % are fewer than 20 %");
}

#[test]
fn a_shown_change_below_one_percent_does_not_matter() {
    let rows = compared(
        document(&[(1, FIVE)]),
        document(&[(1, &FIVE.iter().map(|rate| rate * 1.03).collect::<Vec<_>>())]),
        &[],
    );
    assert_eq!(rows[0].verdict, Verdict::Faster);
    let steady = [100.0, 100.01, 99.99, 100.0, 100.02];
    let slightly: Vec<f64> = steady.iter().map(|rate| rate * 0.995).collect();
    let rows = compared(document(&[(1, &steady)]), document(&[(1, &slightly)]), &[]);
    assert!(rows[0].high.unwrap() < 0.0);
    assert_eq!(rows[0].verdict, Verdict::NoDifference);
}

#[test]
fn other_conditions_are_not_comparable_unless_they_are_asked_for() {
    let (before, mut after) = (document(&[(16, FIVE)]), document(&[(16, NINETY)]));
    after.host.cpu = "another processor".into();
    after.results[0]["ports"] = json!(["gen:64", "check"]);
    let rows = compared(before.clone(), after.clone(), &[]);
    assert_eq!(rows[0].verdict, Verdict::NotComparable);
    let why = "processor: a processor / another processor; ports: null:64 -> null / gen:64 -> check";
    assert_eq!(rows[0].why.as_deref(), Some(why));
    assert!(rows[0].change.is_some(), "the change is shown all the same");
    assert_eq!(failures(&rows, 0.05).len(), 1);
    let rows = compared(before.clone(), after.clone(), &[Condition::Ports]);
    assert_eq!(rows[0].why.as_deref(), Some("processor: a processor / another processor"));
    let rows = compared(before, after, &[Condition::Ports, Condition::Machine]);
    assert_eq!(rows[0].verdict, Verdict::Slower);
}

#[test]
fn builds_without_optimisation_and_models_are_told_apart() {
    let change = |change: fn(&mut Document<Value>)| {
        let mut after = document(&[(16, FIVE)]);
        change(&mut after);
        compared(document(&[(16, FIVE)]), after, &[]).remove(0)
    };
    let why = |change_of| change(change_of).why.unwrap_or_default();
    assert_eq!(why(|after| after.twin = true), "figures: measured / of a model");
    assert!(why(|after| after.command.build.optimised ^= true).starts_with("build: "));
    assert_eq!(why(|after| after.devices = vec!["gpu:0".into()]), "devices: none / gpu:0");
    let kernel = change(|after| after.host.kernel = "9.9".into());
    assert_eq!((kernel.verdict, kernel.differences.len()), (Verdict::NoDifference, 1));
    assert_eq!(change(|after| after.host.memory_bytes += 4096).differences.len(), 0);
}

#[test]
fn the_only_rows_of_two_documents_are_compared_with_their_differences() {
    let rows = compared(document(&[(16, FIVE)]), document(&[(32, NINETY)]), &[]);
    assert_eq!(rows[0].verdict, Verdict::Slower);
    assert_eq!(rows[0].differences[0].to_string(), "burst: 16 / 32");
}

#[test]
fn a_setting_of_all_rows_does_not_tell_them_apart() {
    let with = |work: &str, rates: &[f64]| {
        let mut document = document(&[(16, rates), (32, rates)]);
        document.results.iter_mut().for_each(|row| row["parameters"]["method"] = json!(work));
        document
    };
    let rows = compared(with("single", FIVE), with("split", NINETY), &[]);
    assert_eq!(rows.iter().map(|row| row.verdict).collect::<Vec<_>>(), [Verdict::Slower; 2]);
    assert_eq!(rows[0].differences[0].to_string(), "method: single / split");
}

#[test]
fn several_documents_of_a_side_are_repeats() {
    let of = |rates: [f64; 4]| {
        rates.iter().map(|rate| document(&[(16, &[*rate, rate + 0.5, rate - 0.5])])).collect::<Vec<_>>()
    };
    let sides = [side("a", of([100.0, 101.0, 99.0, 98.0])), side("b", of([80.0, 81.0, 82.0, 79.0]))];
    let [row] = &compare(&sides, &[])[..] else { panic!() };
    assert_eq!(row.before.as_ref().unwrap().values, [100.0, 101.0, 99.0, 98.0]);
    assert_eq!(row.verdict, Verdict::Slower);
}

#[test]
fn failed_and_wrong_runs_are_never_a_success() {
    let mut after = document(&[(16, FIVE)]);
    after.results[0]["error"] = json!("no memory");
    let rows = compared(document(&[(16, FIVE)]), after, &[]);
    assert_eq!((rows[0].verdict, rows[0].why.as_deref()), (Verdict::Failed, Some("no memory")));
    let mut after = document(&[(16, FIVE)]);
    after.results[0]["verification"] = json!({"lost_packets": 7});
    let rows = compared(document(&[(16, FIVE)]), after, &[]);
    assert_eq!((rows[0].verdict, rows[1].verdict), (Verdict::Wrong, Verdict::NoDifference));
    assert_eq!(failures(&rows, 0.05).len(), 1);
}

#[test]
fn times_are_slower_when_they_grow() {
    let of = |times: &[f64]| {
        let mut document = document(&[(16, FIVE)]);
        document.results[0]["repeats"]["p99_ns"] =
            serde_json::to_value(inlane_core::stats::Summary::of(times)).unwrap();
        document
    };
    let rows = compared(of(NINETY), of(FIVE), &[]);
    assert_eq!((rows[0].verdict, rows[1].verdict), (Verdict::NoDifference, Verdict::Slower));
    assert!((rows[1].loss() - 0.11).abs() < 0.01);
    assert_eq!(rows[1].unit.as_deref(), Some("ns"));
}
