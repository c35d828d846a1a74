//! Tests of `inlane compare` with results that the command itself wrote.

use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output};

fn inlane(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_inlane"))
        .args(arguments)
        .current_dir(folder)
        .env("XDG_CACHE_HOME", folder.join("cache"))
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Measures once, and writes the result with its rates multiplied by each factor to `NAME.json`.
fn results(folder: &Path, names: &[(&str, f64)]) {
    let flags = [
        "forward",
        "--rx",
        "null",
        "--tx",
        "null",
        "--duration",
        "20ms",
        "--repeats",
        "4",
        "--json",
        "run.json",
    ];
    let output = inlane(folder, &flags);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let written: Value = serde_json::from_slice(&std::fs::read(folder.join("run.json")).unwrap()).unwrap();
    assert!(
        written["command"]["build"]["id"].as_str().is_some_and(|id| id.len() >= 16),
        "{}",
        written["command"]
    );
    let rates = &written["results"][0]["repeats"]["packets_per_second"];
    assert_eq!(rates["values"].as_array().unwrap().len(), 4);
    for (name, factor) in names {
        let mut result = written.clone();
        let rate = &mut result["results"][0]["repeats"]["packets_per_second"];
        let values = [1e7, 1.01e7, 0.99e7, 1.02e7].map(|value| value * factor);
        *rate =
            json!({"median": values[0], "min": values[2], "max": values[3], "repeats": 4, "values": values});
        std::fs::write(folder.join(format!("{name}.json")), result.to_string()).unwrap();
    }
}

#[test]
fn a_slower_result_fails_the_test_of_speed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    results(folder, &[("before", 1.0), ("after", 0.9), ("same", 1.001)]);
    let output = inlane(
        folder,
        &[
            "compare",
            "before.json",
            "after.json",
            "--fail-on",
            "5%",
            "--json",
            "c.json",
            "--csv",
            "c.csv",
            "--markdown",
            "c.md",
        ],
    );
    assert_eq!(output.status.code(), Some(1));
    let shown = text(&output.stdout);
    assert!(shown.starts_with("Of 1 figure: 1 slower, 0 faster.\n"), "{shown}");
    assert!(shown.contains("inlane forward --rx null --tx null --duration 20ms --repeats 4"), "{shown}");
    assert!(text(&output.stderr).contains("--fail-on 5%: "), "{}", text(&output.stderr));
    let written: Value = serde_json::from_slice(&std::fs::read(folder.join("c.json")).unwrap()).unwrap();
    assert_eq!(written["results"][0]["verdict"], "slower");
    assert!((written["results"][0]["change"].as_f64().unwrap() + 0.1).abs() < 0.02);
    assert!(text(&std::fs::read(folder.join("c.csv")).unwrap()).contains("verdict"));
    let markdown = text(&std::fs::read(folder.join("c.md")).unwrap());
    assert!(
        markdown.lines().any(|line| line.starts_with("|--")) && markdown.contains("slower"),
        "{markdown}"
    );
    let schema: Value = serde_json::from_slice(&inlane(folder, &["schema", "comparison"]).stdout).unwrap();
    assert!(jsonschema::is_valid(&schema, &written));
    for (other, share, status) in [("after", "20%", 0), ("same", "5%", 0), ("same", "0%", 0)] {
        let other = format!("{other}.json");
        let output = inlane(folder, &["compare", "before.json", &other, "--fail-on", share]);
        assert_eq!(output.status.code(), Some(status), "{other} {share}: {}", text(&output.stderr));
    }
}

#[test]
fn the_test_of_speed_says_that_repeats_are_missing() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let few = ["--duration", "10ms", "--repeats", "2", "--json"];
    for file in ["before.json", "after.json"] {
        let arguments = ["forward", "--rx", "null", "--tx", "null"].iter().chain(&few).chain([&file]);
        assert!(inlane(folder, &arguments.copied().collect::<Vec<_>>()).status.success());
    }
    let output = inlane(folder, &["compare", "before.json", "after.json", "--fail-on", "5%"]);
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains(": too few repeats"), "{said}");
}

#[test]
fn folders_are_repeats() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let names: Vec<String> = (0..8).map(|index| format!("run{index}")).collect();
    let factors = [1.0, 1.01, 0.99, 1.0, 0.8, 0.81, 0.79, 0.8];
    let named: Vec<(&str, f64)> = names.iter().map(String::as_str).zip(factors).collect();
    results(folder, &named);
    for (index, name) in names.iter().enumerate() {
        let side = if index < 4 { "old" } else { "new" };
        std::fs::create_dir_all(folder.join(side)).unwrap();
        std::fs::rename(folder.join(format!("{name}.json")), folder.join(side).join(format!("{name}.json")))
            .unwrap();
    }
    let output = inlane(folder, &["compare", "old", "new"]);
    let shown = text(&output.stdout);
    assert!(output.status.success() && shown.contains("slower") && shown.contains("4 results"), "{shown}");
    assert!(!shown.contains("those of one start"), "{shown}");
    std::fs::create_dir(folder.join("empty")).unwrap();
    let output = inlane(folder, &["compare", "old", "empty"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("folder empty: it has no file whose name ends in .json"));
}

#[test]
fn what_is_no_result_is_refused_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    results(folder, &[("good", 1.0)]);
    let good: Value = serde_json::from_slice(&std::fs::read(folder.join("good.json")).unwrap()).unwrap();
    let with = |place: &str, value: Value| {
        let mut document = good.clone();
        *document.pointer_mut(place).unwrap() = value;
        document.to_string()
    };
    for (content, status, why) in [
        (
            with("/host/cores", json!("two")),
            2,
            "result bad.json: /host/cores is the text \"two\" instead of a whole number",
        ),
        (
            with("/schema_version", json!(99)),
            2,
            "schema_version is 99, and this version of inlane reads 4 to 5",
        ),
        ("{\"fio version\": 3}".into(), 2, "it is not a result of inlane"),
        ("[".repeat(9999), 2, "recursion limit exceeded"),
        (String::new(), 2, "it is not JSON: EOF"),
        (with("/results", json!([])), 2, "has no measured figures"),
    ] {
        std::fs::write(folder.join("bad.json"), content).unwrap();
        let output = inlane(folder, &["compare", "good.json", "bad.json"]);
        assert_eq!(output.status.code(), Some(status), "{why}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(why), "{}", text(&output.stderr));
    }
    let output = inlane(folder, &["compare", "good.json", "none.json"]);
    assert_eq!(output.status.code(), Some(3));
    // Names cannot send sequences to the terminal.
    std::fs::write(folder.join("bad.json"), with("/results/0/ports/0", json!("\u{1b}[2Jnull"))).unwrap();
    let output = inlane(folder, &["compare", "good.json", "bad.json"]);
    let shown = text(&output.stdout);
    assert!(
        output.status.success() && shown.contains("not comparable: ports: ") && !shown.contains('\u{1b}'),
        "{shown}"
    );
}

#[test]
fn a_report_is_one_file_in_the_format_of_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    results(folder, &[("one", 1.0), ("two", 2.0)]);
    for (file, begins, contains) in [
        ("r.html", "<!DOCTYPE html>", "base64,"),
        ("r.md", "## one.json", "| 10.00 Mpps |"),
        ("r.csv", "parameters.", "two.json"),
    ] {
        let output = inlane(folder, &["report", "one.json", "two.json", "-o", file]);
        assert!(output.status.success() && output.stdout.is_empty(), "{}", text(&output.stderr));
        let page = text(&std::fs::read(folder.join(file)).unwrap());
        assert!(page.starts_with(begins) && page.contains(contains), "{page}");
    }
    for (arguments, status, why) in [
        (&["report", "one.json", "-o", "r.pdf"][..], 2, "let it end in .html, .md or .csv"),
        (&["report", "none.json", "-o", "r.html"], 3, "result none.json: cannot be read"),
        (&["report", "one.json"], 2, "--output"),
        (&["report", "one.json", "-o", "/nowhere/r.html"], 3, "cannot write /nowhere/r.html"),
    ] {
        let output = inlane(folder, arguments);
        assert_eq!(output.status.code(), Some(status), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains(why), "{}", text(&output.stderr));
    }
    assert!(
        inlane(folder, &["report", "--schema", "packets"]).status.success(),
        "the earlier form still works"
    );
}
