//! Writes rows of results as CSV, one line per row.

use crate::write::Error;
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeSet, HashMap, HashSet};

/// Renders rows as CSV (RFC 4180) with a header. Each value in a row's JSON becomes a column. The column's
/// name joins the value's keys with dots (`tx.packets_per_second`). The columns of the row's parameters come
/// first. A list becomes one column, with `; ` between its texts.
///
/// # Errors
/// If a row cannot be expressed as JSON.
pub fn csv<T: Serialize>(rows: &[T]) -> Result<String, Error> {
    let rows = rows.iter().map(serde_json::to_value).collect::<Result<Vec<_>, _>>()?;
    let (columns, lines) = columns(&rows);
    let mut out = record(columns.iter().map(String::as_str));
    for line in &lines {
        out.push_str(&record(line.iter().map(String::as_str)));
    }
    Ok(out)
}

/// Returns the columns of a table of rows, and the text of each row in each column.
pub(crate) fn columns(rows: &[Value]) -> (Vec<String>, Vec<Vec<String>>) {
    let mut columns: Vec<String> = Vec::new();
    let mut known = HashSet::new();
    let mut lines: Vec<HashMap<String, String>> = Vec::new();
    for row in rows {
        let mut line = Vec::new();
        flatten(String::new(), row, &mut line);
        columns.extend(
            line.iter().map(|(column, _)| column).filter(|column| known.insert((*column).clone())).cloned(),
        );
        lines.push(line.into_iter().collect());
    }
    // A value may be an object in some rows and null in others. Remove the column of such a value, because
    // the fields of the object have their own columns.
    let names: BTreeSet<&str> = known.iter().map(String::as_str).collect();
    columns.retain(|column| {
        let prefix = format!("{column}.");
        !names.range(prefix.as_str()..).next().is_some_and(|name| name.starts_with(&prefix))
    });
    columns.sort_by_key(|column| !column.starts_with("parameters."));
    let texts = |line: &HashMap<String, String>| {
        columns.iter().map(|column| line.get(column).cloned().unwrap_or_default()).collect()
    };
    let lines = lines.iter().map(texts).collect();
    (columns, lines)
}

fn flatten(name: String, value: &Value, line: &mut Vec<(String, String)>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            // A histogram has no use in one field of a table.
            for (key, value) in fields.iter().filter(|(key, _)| *key != "histogram") {
                let name = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
                flatten(name, value, line);
            }
        }
        Value::Array(values) => {
            let texts: Vec<String> = values.iter().map(text).collect();
            line.push((name, texts.join("; ")));
        }
        value => line.push((name, text(value))),
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Object(fields) if fields.is_empty() => String::new(),
        value => value.to_string(),
    }
}

fn record<'a>(fields: impl Iterator<Item = &'a str>) -> String {
    let quoted = fields.map(|field| match field.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field.to_string(),
    });
    let mut line = quoted.collect::<Vec<_>>().join(",");
    line.push_str("\r\n");
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_become_columns_named_by_their_keys() {
        let rows = [
            json!({"parameters": {"burst": 16}, "tx": {"packets": 5, "rate": 1.5}, "ports": ["a", "b"], "latency": null}),
            json!({"parameters": {"burst": 32}, "tx": {"packets": 6, "rate": null}, "ports": [], "latency": {"p50_ns": 7}}),
        ];
        assert_eq!(
            csv(&rows).unwrap(),
            "parameters.burst,ports,tx.packets,tx.rate,latency.p50_ns\r\n16,a; b,5,1.5,\r\n32,,6,,7\r\n"
        );
    }

    #[test]
    fn separators_and_quotes_are_quoted() {
        assert_eq!(csv(&[json!({"a": "x,\"y\""})]).unwrap(), "a\r\n\"x,\"\"y\"\"\"\r\n");
    }
}
