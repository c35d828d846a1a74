//! Runs `inlane offload trace` and checks its result. The times of a busy machine mean nothing, so only their structure is checked.

use std::process::Command;

/// Builds the preloaded library. Cargo puts it beside the command, where `inlane offload run` finds it.
fn build_library() {
    let built =
        Command::new(env!("CARGO")).args(["build", "--quiet", "--package", "inlane-preload"]).status();
    assert!(built.unwrap().success());
}

#[test]
fn the_stages_of_each_mode_add_up_to_the_whole() {
    build_library();
    let arguments = ["offload", "trace", "--messages", "200", "--json", "-"];
    let output = Command::new(env!("CARGO_BIN_EXE_inlane")).args(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    if cfg!(not(feature = "dpdk")) {
        assert!(!output.status.success(), "memif ports need DPDK's part of the program");
        return;
    }
    assert!(output.status.success(), "{errors}");
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let schema =
        std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/schema/stages.json")).unwrap();
    let schema = jsonschema::validator_for(&serde_json::from_slice(&schema).unwrap()).unwrap();
    assert!(schema.is_valid(&document), "{document}");
    let result = &document["results"][0];
    let number = |value: &serde_json::Value| value.as_f64().unwrap_or_else(|| panic!("{value} in {result}"));
    let modes = result["modes"].as_array().unwrap();
    let sleeping = &result["prediction"]["measured"];
    assert_eq!(modes.iter().map(|mode| &mode["mode"]).collect::<Vec<_>>(), ["kernel", "tcp", "rdma", "card"]);
    for mode in modes.iter().chain([sleeping]) {
        assert_eq!(mode["messages"], 200);
        let stages = mode["stages"].as_array().unwrap();
        // The kernel takes four of the times; engines all but the beginning of a frame that does not fit in place.
        let least = match mode["mode"].as_str().unwrap() {
            "kernel" => 1,
            "card" => 21,
            _ => 9,
        };
        assert!(stages.len() >= least, "{mode}");
        let of_card = |stage: &serde_json::Value| stage["stage"].as_str().unwrap().contains("_card_");
        let of_cards = stages.iter().filter(|stage| of_card(stage)).count();
        assert_eq!(of_cards, if mode["mode"] == "card" { 12 } else { 0 }, "{mode}");
        // The floors of threads that poll.
        let has_floors = mode["mode"] == "card";
        for floor in stages.iter().map(|stage| &stage["floor"]) {
            assert_eq!(floor.is_object(), has_floors, "{mode}");
            assert!(!has_floors || number(&floor["median_ns"]) <= number(&floor["p99_ns"]), "{mode}");
        }
        let passages = mode["passages"].as_array().unwrap();
        let links: Vec<_> = passages.iter().map(|passage| passage["link"].as_str().unwrap()).collect();
        let expected: &[&str] = match mode["mode"].as_str().unwrap() {
            "kernel" => &[],
            "card" => &["to_card", "network", "from_card"],
            _ => &["network"],
        };
        assert_eq!(links, expected, "{mode}");
        assert!(passages.iter().all(|passage| passage["floor"].is_object() == has_floors), "{mode}");
        let means: f64 = stages.iter().map(|stage| number(&stage["mean_ns"])).sum();
        let whole = number(&mode["traced"]["mean_ns"]);
        assert!(
            (means / whole - 1.0).abs() < 0.05,
            "the means of the stages add up to {means} of {whole}: {mode}"
        );
        assert!(stages.iter().all(|stage| number(&stage["median_ns"]) <= number(&stage["p99_ns"])), "{mode}");
        let [sum, traced, whole] =
            [&mode["sum_ns"], &mode["traced"]["median_ns"], &mode["whole"]["median_ns"]].map(number);
        assert!((sum / traced - 1.0 - number(&mode["residual"])).abs() < 1e-6, "{mode}");
        assert!((traced / whole - 1.0 - number(&mode["overhead"])).abs() < 1e-6, "{mode}");
    }
    let prediction = &result["prediction"];
    let [kept, wake_ups, predicted] =
        ["kept_ns", "wake_ups_ns", "predicted_ns"].map(|name| number(&prediction[name]));
    assert!(kept > 0.0 && wake_ups > 0.0 && (kept + wake_ups - predicted).abs() < 1.0, "{prediction}");
    assert_eq!(sleeping["spin_ns"], 0);
    assert_eq!(result["published"]["engine_ns"].as_f64().unwrap().round(), 533e3);
}
