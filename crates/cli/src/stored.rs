//! Reads results that earlier commands wrote, for `inlane compare` and `inlane report`.

use crate::text_file;
use inlane_core::Error;
use inlane_result::{Document, stored};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Reads a result, or all results of a folder in the order of their names.
///
/// # Errors
/// As for [`named`].
pub fn documents(path: &Path) -> anyhow::Result<Vec<Document<Value>>> {
    Ok(named(path)?.into_iter().map(|(_, document)| document).collect())
}

/// Reads a result, or all results of a folder, and returns each with the name of its file.
///
/// # Errors
/// If a file cannot be read or is no result. If a folder has no file whose name ends in `.json`.
pub fn named(path: &Path) -> anyhow::Result<Vec<(String, Document<Value>)>> {
    let one = |file: &Path| Ok((file.display().to_string(), document(file)?));
    if !path.is_dir() {
        return Ok(vec![one(path)?]);
    }
    let missing = |error: std::io::Error| {
        Error::device_environment(format!("folder {}", path.display()), format!("cannot be read: {error}"))
    };
    let entries = std::fs::read_dir(path).map_err(missing)?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|file| file.extension().is_some_and(|extension| extension == "json"))
        .collect();
    files.sort();
    if files.is_empty() {
        let why =
            "it has no file whose name ends in .json; name files that --json wrote, or a folder of them";
        return Err(Error::invalid(format!("folder {}", path.display()), why).into());
    }
    files.iter().map(|file| one(file)).collect()
}

fn document(file: &Path) -> anyhow::Result<Document<Value>> {
    let shown = file.display().to_string();
    let text = text_file::read(&shown, "result", "a file that --json wrote")?;
    stored::read(&text).map_err(|why| {
        Error::invalid(format!("result {shown}"), format!("{why}; name a file that --json wrote")).into()
    })
}

/// Returns the command line that made a document, as a shell reads it.
pub fn command(document: &Document<Value>) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=:,./@%+".contains(c);
    let quoted = |argument: &String| match !argument.is_empty() && argument.chars().all(plain) {
        true => argument.clone(),
        false => format!("'{}'", argument.replace('\'', "'\\''")),
    };
    let words = document.command.arguments.iter().map(quoted);
    ["inlane".to_string()].into_iter().chain(words).collect::<Vec<_>>().join(" ")
}

/// Describes the build and the date of a document in a few words.
pub fn build(document: &Document<Value>) -> String {
    let command = &document.command;
    let id = command.build.id.iter().map(|id| format!("build {}", id.chars().take(12).collect::<String>()));
    let date = document.started_at.split('T').next().unwrap_or_default();
    let parts = [format!("inlane {}", command.version)].into_iter().chain(id).chain([date.to_string()]);
    parts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_can_be_pasted_into_a_shell() {
        let mut document = Document::<Value>::new("copy");
        document.command.arguments =
            ["copy", "--from", "twin:0", "a b", "it's", "", "$(x)"].map(String::from).into();
        assert_eq!(command(&document), "inlane copy --from twin:0 'a b' 'it'\\''s' '' '$(x)'");
    }
}
