//! Refuses a run that would overwrite one of its inputs, or write two outputs to one file.

use super::args::Forward;
use inlane_core::Error;
use inlane_forward::config::Route;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Checks the files of a run before any of them is opened.
///
/// # Errors
/// If an output is also an input or another output, under whatever name or link.
pub(super) fn check(forward: &Forward, route: &Route, arguments: &[OsString]) -> Result<(), Error> {
    let capture =
        |port: &String| port.strip_prefix("pcap:").and_then(|file| file.split(',').next()).map(PathBuf::from);
    let (rx, tx): (Vec<&String>, Vec<&String>) = match route {
        Route::OneWay { rx, tx } => (vec![rx], tx.iter().collect()),
        Route::Between(one, other) => (Vec::new(), vec![one, other]),
    };
    let mut inputs: Vec<(&str, PathBuf)> =
        rx.into_iter().filter_map(capture).map(|file| ("--rx", file)).collect();
    // FILE.cu:NAME
    let source = forward.function.function.rsplit_once(':').map(|(file, _)| file);
    inputs.extend(source.filter(|file| file.ends_with(".cu")).map(|file| ("--function", file.into())));
    inputs.extend(settings_file(arguments).map(|file| ("--config", file)));
    let output = &forward.output;
    let mut outputs: Vec<(&str, PathBuf)> =
        tx.into_iter().filter_map(capture).map(|file| ("--tx", file)).collect();
    outputs.extend(forward.ports.capture.clone().map(|file| ("--capture", file)));
    outputs.extend(output.json.as_ref().filter(|file| *file != "-").map(|file| ("--json", file.into())));
    outputs.extend(output.csv.clone().map(|file| ("--csv", file)));
    outputs.extend(output.svg.clone().map(|file| ("--svg", file)));
    for (index, (flag, file)) in outputs.iter().enumerate() {
        for (other, input) in &inputs {
            if same_file(file, input) {
                let why = format!("is the input of {other}, which {flag} would overwrite; name another file");
                return Err(Error::invalid(file.display().to_string(), why));
            }
        }
        for (other, earlier) in &outputs[..index] {
            if same_file(file, earlier) {
                let why = format!("is the output of {other} and of {flag}; name two files");
                return Err(Error::invalid(file.display().to_string(), why));
            }
        }
    }
    Ok(())
}

fn settings_file(arguments: &[OsString]) -> Option<PathBuf> {
    let texts: Vec<_> = arguments.iter().map(|argument| argument.to_string_lossy()).collect();
    let given = texts.iter().enumerate().find_map(|(index, text)| {
        text.strip_prefix("--config=").map(PathBuf::from).or_else(|| {
            (text == "--config").then(|| texts.get(index + 1).map(|file| file.as_ref().into())).flatten()
        })
    });
    given.or_else(|| std::env::var_os(crate::settings::CONFIG_VARIABLE).map(PathBuf::from))
}

/// True if both names lead to one file, through links too. Devices and pipes are never the same, because writing does not
/// change what is read from them.
fn same_file(one: &Path, other: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (std::fs::metadata(one), std::fs::metadata(other)) {
        (Ok(one), Ok(other)) => {
            one.is_file() && other.is_file() && (one.dev(), one.ino()) == (other.dev(), other.ino())
        }
        (Err(_), Err(_)) => {
            // Neither exists: compare the folders, and the names in them.
            let place = |path: &Path| {
                let parent =
                    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
                Some((std::fs::canonicalize(parent).ok()?, path.file_name()?.to_owned()))
            };
            place(one).is_some() && place(one) == place(other)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_the_same_file() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("file"), "x").unwrap();
        std::fs::hard_link(at("file"), at("hard")).unwrap();
        std::os::unix::fs::symlink(at("file"), at("soft")).unwrap();
        std::fs::write(at("other"), "x").unwrap();
        for name in ["file", "hard", "soft"] {
            assert!(same_file(&at("file"), &at(name)), "{name}");
        }
        assert!(!same_file(&at("file"), &at("other")));
        assert!(same_file(&at("new"), &folder.path().join(".").join("new")));
        assert!(!same_file(&at("new"), &at("newer")) && !same_file(&at("new"), &at("file")));
        assert!(
            !same_file(Path::new("/dev/null"), Path::new("/dev/null")),
            "a device is written to many times"
        );
    }
}
