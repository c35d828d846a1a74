//! Tests `inlane model` as a command: its documents, files that are not models, and that a model is never
//! overwritten.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn inlane(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_inlane")).arg("model").args(arguments).output().unwrap()
}

fn document(arguments: &[&str]) -> Value {
    let output = inlane(&[arguments, &["--json", "-"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema/model.json");
    let schema = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    jsonschema::validate(&schema, &document).unwrap();
    document
}

#[test]
fn the_documents_match_the_schema() {
    let document = document(&["--published"]);
    let rows = document["results"].as_array().unwrap();
    assert!(rows.len() > 40);
    for row in rows {
        assert!(row["published"]["status"].is_string() && row["published"]["model"].is_number(), "{row}");
    }
    let paced =
        self::document(&[concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/model/gpu-server.toml")]);
    let flows = &paced["results"][1]["flows"];
    assert_eq!(flows[0]["bytes_per_second"], 35.4e9);
    assert_eq!(flows[0]["limit"]["name"], "gpu.down");
    assert_eq!(flows[1]["limit"]["kind"], "demand");
}

#[test]
fn a_model_is_not_overwritten_and_other_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.toml");
    let name = file.to_str().unwrap();
    let text = "[flow.a]\nrate = \"1 GB/s\"\n";
    std::fs::write(&file, text).unwrap();
    for (arguments, status, expected) in [
        (&[name, "--json", name][..], 2, "it is the model itself"),
        (&[folder.path().to_str().unwrap()], 2, "it is a directory"),
        (&["/bin/sh"], 2, "it is not text in UTF-8"),
        (&[name, "--published"], 2, "leave out --published"),
        (&[], 2, "<FILE>"),
    ] {
        let output = inlane(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {error}");
        assert!(error.contains(expected) && !output.stderr.is_empty(), "{arguments:?}: {error}");
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    assert!(inlane(&[name]).status.success());
}
