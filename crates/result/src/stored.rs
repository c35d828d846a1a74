//! Reads result documents that an earlier command wrote. The rows stay JSON, because their types belong to the crates that
//! measured them. A file can come from anywhere, so each error names the place in the document.

use crate::{Build, Command, Document, Host, SCHEMA_VERSION};
use serde_json::Value;

/// The oldest version of documents that can be read. Its rows lack keys, such as the kind of a limit, that comparisons
/// and pages can do without.
const OLDEST_READ: u32 = 4;

/// A value of a stored document, and its place in it.
#[derive(Clone, Debug)]
pub struct Stored<'a> {
    value: &'a Value,
    place: String,
}

/// Parses a result document.
///
/// # Errors
/// The place in the document and what was found there, if `text` is not JSON or not a document that this version reads.
pub fn read(text: &str) -> Result<Document<Value>, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| format!("it is not JSON: {error}"))?;
    if value.get("schema_version").is_none() {
        return Err("it is not a result of inlane, because it has no schema_version".into());
    }
    document(&Stored { value: &without_controls(value), place: String::new() })
}

/// Replaces the characters in texts that would change how a terminal or a page shows the text around them: control
/// characters, and those that turn the direction of writing.
fn without_controls(value: Value) -> Value {
    let turns =
        |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let plain = |text: String| text.replace(|c: char| c.is_control() || turns(c), "\u{fffd}");
    match value {
        Value::String(text) => Value::String(plain(text)),
        Value::Array(values) => values.into_iter().map(without_controls).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(key, value)| (plain(key), without_controls(value))).collect()
        }
        other => other,
    }
}

fn document(root: &Stored<'_>) -> Result<Document<Value>, String> {
    let version = root.get("schema_version")?.whole()?;
    if !(OLDEST_READ.into()..=SCHEMA_VERSION.into()).contains(&version) {
        return Err(format!(
            "schema_version is {version}, and this version of inlane reads {OLDEST_READ} to {SCHEMA_VERSION}"
        ));
    }
    let (command, host) = (root.get("command")?, root.get("host")?);
    // Documents of earlier builds lack the build.
    let build = command.optional("build").map(|build| {
        let id = build.optional("id").map(|id| id.text()).transpose()?;
        Ok::<_, String>(Build { id, optimised: build.get("optimised")?.truth()? })
    });
    Ok(Document {
        schema_version: SCHEMA_VERSION,
        command: Command {
            name: command.get("name")?.text()?,
            arguments: command.get("arguments")?.texts()?,
            version: command.get("version")?.text()?,
            build: build.transpose()?.unwrap_or(Build { id: None, optimised: true }),
        },
        started_at: root.get("started_at")?.text()?,
        duration_ns: root.get("duration_ns")?.whole()?,
        host: Host {
            cpu: host.get("cpu")?.text()?,
            cores: host.get("cores")?.whole()? as usize,
            memory_bytes: host.get("memory_bytes")?.whole()?,
            kernel: host.get("kernel")?.text()?,
        },
        devices: root.get("devices")?.texts()?,
        twin: root.get("twin")?.truth()?,
        results: root.get("results")?.objects()?,
        notes: root.get("notes")?.texts()?,
    })
}

impl<'a> Stored<'a> {
    fn get(&self, key: &str) -> Result<Stored<'a>, String> {
        let place = format!("{}/{key}", self.place);
        let value = self.object()?.get(key).ok_or_else(|| format!("{place} is missing"))?;
        Ok(Stored { value, place })
    }

    /// Returns a value that may be missing or null.
    fn optional(&self, key: &str) -> Option<Stored<'a>> {
        self.get(key).ok().filter(|found| !found.value.is_null())
    }

    fn object(&self) -> Result<&'a serde_json::Map<String, Value>, String> {
        self.value.as_object().ok_or_else(|| self.instead_of("an object"))
    }

    fn text(&self) -> Result<String, String> {
        self.value.as_str().map(String::from).ok_or_else(|| self.instead_of("a text"))
    }

    fn whole(&self) -> Result<u64, String> {
        self.value.as_u64().ok_or_else(|| self.instead_of("a whole number"))
    }

    fn truth(&self) -> Result<bool, String> {
        self.value.as_bool().ok_or_else(|| self.instead_of("true or false"))
    }

    fn list(&self) -> Result<Vec<Stored<'a>>, String> {
        let list = self.value.as_array().ok_or_else(|| self.instead_of("a list"))?;
        let at = |(index, value)| Stored { value, place: format!("{}/{index}", self.place) };
        Ok(list.iter().enumerate().map(at).collect())
    }

    fn texts(&self) -> Result<Vec<String>, String> {
        self.list()?.iter().map(Stored::text).collect()
    }

    fn objects(&self) -> Result<Vec<Value>, String> {
        self.list()?.iter().map(|row| row.object().map(|_| row.value.clone())).collect()
    }

    /// Says what was expected at this place and what is there. A found text is shortened.
    fn instead_of(&self, expected: &str) -> String {
        let found = match self.value {
            Value::Object(_) => "an object".into(),
            Value::Array(_) => "a list".into(),
            Value::String(text) => {
                let shown: String = text.chars().take(40).collect();
                let dots = if shown.len() < text.len() { "..." } else { "" };
                format!("the text {shown:?}{dots}")
            }
            other => other.to_string(),
        };
        let place = if self.place.is_empty() { "the document" } else { &self.place };
        format!("{place} is {found} instead of {expected}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn written() -> Value {
        let mut document = Document::new("copy");
        document.results = vec![json!({"size_bytes": 4096})];
        serde_json::to_value(&document).unwrap()
    }

    #[test]
    fn a_written_document_is_read_as_it_was() {
        let written = written();
        let read = read(&written.to_string()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), written);
        let mut older = written.clone();
        older["schema_version"] = json!(OLDEST_READ);
        older["command"].as_object_mut().unwrap().remove("build");
        assert_eq!(super::read(&older.to_string()).unwrap().results.len(), 1);
    }

    #[test]
    fn each_wrong_value_is_named_by_its_place() {
        for (place, value, why) in [
            ("/schema_version", json!(3), "schema_version is 3, and this version of inlane reads 4 to 5"),
            ("/schema_version", json!(6), "schema_version is 6, and this version of inlane reads 4 to 5"),
            ("/command/arguments", json!(["a", 7]), "/command/arguments/1 is 7 instead of a text"),
            ("/host", json!("x".repeat(100)), "/host is the text \"xxxxxxxxxx"),
            ("/duration_ns", json!(-1), "/duration_ns is -1 instead of a whole number"),
            ("/results", json!([{}, 1]), "/results/1 is 1 instead of an object"),
            ("/twin", Value::Null, "/twin is null instead of true or false"),
            ("/command/build", json!({"id": 5}), "/command/build/id is 5 instead of a text"),
        ] {
            let mut document = written();
            *document.pointer_mut(place).unwrap() = value;
            let error = read(&document.to_string()).unwrap_err();
            assert!(error.starts_with(why), "{error}");
        }
        let mut document = written();
        document["host"].as_object_mut().unwrap().remove("cpu");
        assert_eq!(read(&document.to_string()).unwrap_err(), "/host/cpu is missing");
    }

    #[test]
    fn texts_cannot_change_what_is_around_them() {
        let mut document = written();
        document["results"][0] = json!({"na\u{1b}me": ["red \u{1b}[31m", "one\ntwo", "\u{202e}turned"]});
        let read = read(&document.to_string()).unwrap();
        let expected = json!({"na\u{fffd}me": ["red \u{fffd}[31m", "one\u{fffd}two", "\u{fffd}turned"]});
        assert_eq!(read.results[0], expected);
    }

    #[test]
    fn other_files_are_refused() {
        assert!(read("rx 5 packets").unwrap_err().starts_with("it is not JSON: expected value at line 1"));
        assert!(read(&"[".repeat(100_000)).unwrap_err().contains("recursion limit"));
        for foreign in ["{}", "[1]", "null", r#"{"fio version": "fio-3.33"}"#] {
            assert!(read(foreign).unwrap_err().contains("no schema_version"), "{foreign}");
        }
    }
}
