//! Refuses a run that would overwrite one of its inputs, or would write two outputs to the same file.

use super::args::Forward;
use crate::fields::flag;
use inlane_core::Error;
use inlane_core::setting::Field;
use inlane_forward::PacketFunction;
use inlane_forward::config::Route;
use inlane_ports::pcap::same_file;
use inlane_ports::spec::PortSpec;
use std::path::{Path, PathBuf};

/// Checks the files of a run before any file is opened. `settings` is the settings file.
///
/// # Errors
/// If an output is the same file as an input or as another output, even under another name or through a link.
pub(super) fn check(forward: &Forward, route: &Route, settings: Option<&Path>) -> Result<(), Error> {
    let capture = |port: &PortSpec| port.file().map(PathBuf::from);
    let (rx, tx): (Vec<&PortSpec>, Vec<&PortSpec>) = match route {
        Route::OneWay { rx, tx } => (vec![rx], tx.iter().collect()),
        Route::Between(one, other) => (Vec::new(), vec![one, other]),
    };
    let mut inputs: Vec<(Field, PathBuf)> =
        rx.into_iter().filter_map(capture).map(|file| (flag("rx"), file)).collect();
    // The run reads the source files of the user's functions.
    let functions =
        [("function", Some(&forward.function.function)), ("reference", forward.function.reference.as_ref())];
    inputs.extend(
        functions.into_iter().filter_map(|(name, function)| {
            Some((flag(name), PacketFunction::source_file(function?)?.into()))
        }),
    );
    inputs.extend(settings.map(|file| (flag("config"), file.into())));
    let output = &forward.output;
    let is_stdout = |path: &PathBuf| path.as_os_str() == "-";
    let to_stdout: Vec<Field> = tx
        .iter()
        .filter(|port| port.is_standard_stream())
        .map(|_| flag("tx"))
        .chain(forward.ports.capture.as_ref().filter(|file| is_stdout(file)).map(|_| flag("capture")))
        .chain(output.json.as_ref().filter(|file| *file == "-").map(|_| flag("json")))
        .chain(output.csv.as_ref().filter(|file| is_stdout(file)).map(|_| flag("csv")))
        .collect();
    if let [one, other, ..] = to_stdout[..] {
        let why = format!("it is the output of both {one} and {other}; name two files");
        return Err(Error::invalid("standard output", why));
    }
    let mut outputs: Vec<(Field, PathBuf)> =
        tx.into_iter().filter_map(capture).map(|file| (flag("tx"), file)).collect();
    outputs.extend(forward.ports.capture.clone().map(|file| (flag("capture"), file)));
    outputs.extend(output.json.as_ref().filter(|file| *file != "-").map(|file| (flag("json"), file.into())));
    outputs.extend(output.csv.clone().filter(|file| !is_stdout(file)).map(|file| (flag("csv"), file)));
    outputs.extend(output.svg.clone().map(|file| (flag("svg"), file)));
    for (index, (name, file)) in outputs.iter().enumerate() {
        for (other, input) in &inputs {
            if same_file(file, input) {
                let why =
                    format!("it is the input of {other}, which {name} would overwrite; name another file");
                return Err(Error::invalid(file.display().to_string(), why));
            }
        }
        for (other, earlier) in &outputs[..index] {
            if same_file(file, earlier) {
                let why = format!("it is the output of both {other} and {name}; name two files");
                return Err(Error::invalid(file.display().to_string(), why));
            }
        }
    }
    Ok(())
}
