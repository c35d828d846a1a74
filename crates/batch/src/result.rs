//! What a run has measured, as C sees it.

use crate::status::{Failure, Status, c_text, status_of, text};
use inlane_forward::experiment::Measurement;
use serde_json::Value;
use std::ffi::{CString, c_char, c_int};

/// Returns the row of a measurement as JSON, if there is one.
pub fn row(measurement: &Measurement) -> Option<CString> {
    serde_json::to_string(measurement.results.first()?).ok().map(c_text)
}

/// Stores a number of a result in `value`: see the header.
///
/// # Safety
/// The arguments are null or valid, as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inlane_result_number(
    result: *const c_char,
    name: *const c_char,
    value: *mut f64,
) -> c_int {
    status_of(|| {
        // SAFETY: the program passes C strings.
        let (result, name) = unsafe { (text(result, "result")?, text(name, "name")?) };
        if value.is_null() {
            return Err(Failure::usage("value", "it is NULL; give a place for the number"));
        }
        let found = number(result, name)?;
        // SAFETY: the program passes a place for a number.
        unsafe { value.write(found) };
        Ok(Status::Ok)
    })
}

fn number(result: &str, name: &str) -> Result<f64, Failure> {
    let row: Value = serde_json::from_str(result).map_err(|error| Failure::usage("result", error))?;
    let mut place = &row;
    for key in name.split('.') {
        place = match place {
            Value::Object(map) => map.get(key),
            Value::Array(list) => key.parse().ok().and_then(|index: usize| list.get(index)),
            _ => None,
        }
        .ok_or_else(|| {
            Failure::usage(name, format!("the result has no {key} there; it has {}", keys(place)))
        })?;
    }
    place.as_f64().ok_or_else(|| match place {
        Value::Null => Failure::usage(name, "this value is not known for this run"),
        place => Failure::usage(name, format!("this is no number; it has {}", keys(place))),
    })
}

/// Lists the keys of a value.
fn keys(value: &Value) -> String {
    match value {
        Value::Object(map) => map.keys().cloned().collect::<Vec<_>>().join(", "),
        Value::Array(list) => format!("{} elements, from 0", list.len()),
        _ => "no parts".into(),
    }
}
