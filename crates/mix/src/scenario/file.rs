//! Reads scenarios from TOML. All values become texts, so that both ways to write a load have one parser.

use super::{Draft, Place, Setting, Written};
use inlane_core::Error;
use inlane_core::names::{did_you_mean, similar};
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

/// The keys of the file itself.
const KEYS: [&str; 3] = ["title", "parameters", "load"];

/// Adds the loads of a file to `draft`.
pub(super) fn read(draft: &mut Draft, name: &str, text: &str) -> Result<(), Error> {
    let line = |at: usize| text[..at.min(text.len())].matches('\n').count() + 1;
    let at = |start: usize| Place::File { file: name.into(), line: line(start) };
    let table = DeTable::parse(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        Error::invalid(at(start).to_string(), error.message().replace('\n', ", "))
    })?;
    for (key, value) in table.get_ref() {
        let wrong = |why: &str| Error::invalid(format!("{}: {}", at(key.span().start), key.get_ref()), why);
        match (key.get_ref().as_ref(), value.get_ref()) {
            ("title", DeValue::String(title)) => draft.title = title.to_string(),
            ("title", _) => return Err(wrong("give a text in quotes")),
            ("parameters", DeValue::Table(parameters)) => {
                for (key, value) in parameters {
                    let value = text_of(value).ok_or_else(|| not_a_value(&at, key))?;
                    draft.parameters.insert(key.get_ref().to_string(), value);
                }
            }
            ("parameters", _) => return Err(wrong("give a table: [parameters]")),
            ("load", DeValue::Array(loads)) => {
                for load in loads {
                    let DeValue::Table(entries) = load.get_ref() else {
                        return Err(wrong("begin each load with [[load]]"));
                    };
                    let settings = entries.iter().map(|(key, value)| {
                        let value = text_of(value).ok_or_else(|| not_a_value(&at, key))?;
                        Ok(Setting { key: key.get_ref().to_string(), value, place: at(key.span().start) })
                    });
                    let settings = settings.collect::<Result<Vec<_>, Error>>()?;
                    draft.loads.push(Written { place: at(load.span().start), settings });
                }
            }
            ("load", _) => return Err(wrong("begin each load with [[load]]")),
            (unknown, _) => {
                let near = did_you_mean(&similar(unknown, KEYS));
                return Err(wrong(&format!("there is no such key; {near}the keys are {}", KEYS.join(", "))));
            }
        }
    }
    Ok(())
}

fn not_a_value(at: &impl Fn(usize) -> Place, key: &Spanned<DeString<'_>>) -> Error {
    let what = format!("{}: {}", at(key.span().start), key.get_ref());
    Error::invalid(what, "give a text, a number or a list of them")
}

/// Returns a text, a number or a list of them as text. `None` for other values.
fn text_of(value: &Spanned<DeValue<'_>>) -> Option<String> {
    match value.get_ref() {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => Some(number.as_str().to_string()),
        DeValue::Float(number) => Some(number.as_str().to_string()),
        DeValue::Array(values) => {
            let texts = values.iter().map(text_of).collect::<Option<Vec<String>>>()?;
            Some(texts.join(","))
        }
        _ => None,
    }
}
