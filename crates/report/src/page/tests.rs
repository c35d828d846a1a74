use super::*;
use serde_json::json;

fn stored(command: &str, rows: Value) -> Stored {
    let mut document = Document::new(command);
    document.results = rows.as_array().unwrap().clone();
    Stored { file: "run.json".into(), command: "inlane run".into(), document }
}

fn measured_row(burst: u32, rate: f64) -> Value {
    let bins = json!([{"up_to_ns": 1024.0, "count": 90}, {"up_to_ns": 16384.0, "count": 10}]);
    json!({
        "parameters": {"burst": burst},
        "ports": ["gen:64", "check"],
        "path": {"hops": [["inlane generator", "io on cpu", "inlane checker"]]},
        "tx": {"packets_per_second": rate},
        "ceiling": {"packets_per_second": 2.0 * rate},
        "latency": {"p50_ns": 1000.0, "p99_ns": 16000.0, "histogram": bins},
        "limit": {"resource": "processors"},
    })
}

#[test]
fn the_verdict_comes_first_and_the_data_is_embedded() {
    let result = stored("forward", json!([measured_row(64, 1e6)]));
    let drawn = page(std::slice::from_ref(&result));
    let verdict = "Forward, gen:64 to check: rate 1.00 Mpps, p50 1.0 us, p99 16.0 us; limited by: processors";
    assert!(drawn.find(verdict).unwrap() < drawn.find("<h1>").unwrap() + 200, "{drawn}");
    for part in ["inlane generator", "50 % of the ceiling", "<svg", "inlane run", "p99.9", "10 us"] {
        assert!(drawn.contains(part), "{part} is missing in {drawn}");
    }
    let data = drawn.split("base64,").nth(1).unwrap().split('"').next().unwrap();
    let data = base64::engine::general_purpose::STANDARD.decode(data).unwrap();
    assert_eq!(
        serde_json::from_slice::<Value>(&data).unwrap(),
        serde_json::to_value(&result.document).unwrap()
    );
}

#[test]
fn rows_that_differ_are_bars_named_by_what_differs() {
    let drawn = page(&[stored("forward", json!([measured_row(16, 1e6), measured_row(64, 4e6)]))]);
    assert!(drawn.contains("rate from 1.00 Mpps to 4.00 Mpps; best: burst 64"), "{drawn}");
    assert_eq!(drawn.matches("class=\"bar\"").count(), 2);
    // Half of the ceiling of 8 Mpps.
    assert!(drawn.contains("style=\"width:12.50%\"") && drawn.contains("style=\"width:50.00%\""), "{drawn}");
}

#[test]
fn a_result_without_figures_is_a_table() {
    let nodes =
        json!([{"node": 0, "memory_bytes": 4096, "cpus": "0-1", "bars": [{"index": 0}], "none": null}]);
    let drawn = page(&[stored("topo", json!([{"nodes": nodes}]))]);
    assert!(
        drawn.contains("<h3>Nodes</h3>") && drawn.contains(">memory</th>") && drawn.contains(">4 KiB</td>"),
        "{drawn}"
    );
    assert!(!drawn.contains(">bars<") && !drawn.contains(">none<"), "{drawn}");
}

#[test]
fn rows_about_different_figures_are_drawn_apart() {
    let row = |operation: &str, key: &str| json!({"operation": operation, "size_bytes": 8, key: {"median": 5e3, "min": 4e3, "max": 6e3}});
    let rows = [
        row("get", "latency_ns"),
        row("put", "bytes_per_second"),
        row("doorbell", "latency_ns"),
        row("copy", "bytes_per_second"),
    ];
    let drawn = page(&[stored("ntb bench", json!(rows))]);
    assert!(drawn.contains("Ntb bench: latency from 5.0 us to 5.0 us; best: get"), "{drawn}");
    for title in ["<h3>Latency</h3>", "<h3>Rate</h3>"] {
        assert!(drawn.contains(title), "{title}");
    }
    assert_eq!(drawn.matches("class=\"bar\"").count(), 4);
}

#[test]
fn hostile_names_do_nothing() {
    let attack = "</title><script>alert(1)</script>\"'><img src=x onerror=alert(1)>";
    let mut row = measured_row(16, 1e6);
    row["ports"] = json!([attack, "x".repeat(10_000)]);
    row["path"]["hops"] = json!([[attack]]);
    row["parameters"] = json!({ attack: attack, "burst": 1 });
    row["limit"]["resource"] = json!(attack);
    let mut other = row.clone();
    other["error"] = json!(attack);
    other["parameters"]["burst"] = json!(2);
    let mut result = stored("forward", json!([row, other]));
    (result.file, result.command) = (attack.into(), attack.into());
    result.document.notes = vec![attack.into()];
    result.document.host.cpu = attack.into();
    let mix = stored(
        "mix",
        json!([{
            "title": attack, "verdicts": [{"sentence": attack}],
            "loads": [{"name": attack, "alone": {"bytes_per_second": {"median": 1.0}}}],
            "predictions": [{"load": attack, "predicted_per_second": 5.0}],
            "observations": [{"at_ns": 5, "loads": [{"bytes_per_second": 5.0}]}, {"at_ns": 1e9, "loads": [{"bytes_per_second": 9.0}]}],
        }]),
    );
    let topo = stored("topo", json!([{"devices": [{attack: attack}]}]));
    let results = [result, mix, topo];
    for drawn in [page(&results), page(&results[1..2])] {
        for active in ["<script", "<img", "onerror=alert(1)>\"", "'>"] {
            assert!(!drawn.contains(active), "{active}");
        }
        // Each tag is one that the page itself uses, so no text opened another one.
        let known = "!DOCTYPE html head meta title style body h1 h2 h3 p ul li a section div span svg rect line path table thead tbody tr th td dl dt dd";
        for tag in drawn.split('<').skip(1) {
            let name: String = tag
                .trim_start_matches('/')
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == '!')
                .collect();
            assert!(known.split(' ').any(|known| known == name), "<{name}");
        }
        assert!(drawn.contains("default-src 'none'"));
    }
    assert!(!page(&results).contains(&"x".repeat(400)), "a long name is cut");
    assert!(!markdown(&results).contains("<script"));
}

#[test]
fn results_of_any_shape_have_a_page() {
    for command in ["forward", "copy", "mix", "topo", "doctor", "x"] {
        for row in [
            json!({}),
            json!({"latency": {"p50_ns": "x", "histogram": [1, {"up_to_ns": -5.0}]}, "path": {"hops": 5}, "observations": [5]}),
        ] {
            assert!(page(&[stored(command, json!([row]))]).ends_with("</html>\n"));
        }
        assert!(page(&[stored(command, json!([]))]).contains("<h1>"));
    }
}

#[test]
fn a_thousand_rows_are_a_table_with_few_drawings() {
    let rows: Vec<Value> = (1..=1000).map(|burst| measured_row(burst, 1e6)).collect();
    let drawn = page(&[stored("forward", json!(rows))]);
    assert!(drawn.contains("40 of 1000 rows are drawn") && drawn.matches("<tr>").count() > 1000);
    assert_eq!(drawn.matches("<svg").count(), MOST_HISTOGRAMS);
}

#[test]
fn markdown_and_csv_have_the_figures() {
    let result = stored("forward", json!([measured_row(16, 1e6), measured_row(64, 4e6)]));
    let text = markdown(std::slice::from_ref(&result));
    assert!(
        text.starts_with("## run.json\n\nforward, gen:64 to check: rate") && text.contains("| 4.00 Mpps |"),
        "{text}"
    );
    let text = rows_as_csv(&[result]).unwrap();
    assert!(text.lines().next().unwrap().contains("parameters.file") && text.contains("run.json"), "{text}");
}
