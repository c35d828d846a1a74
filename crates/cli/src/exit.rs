//! Maps errors to exit statuses.

use clap::error::ContextKind;
use inlane_core::error::{Class, Error};
use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::ExitCode;

/// The explanation of exit statuses that `--help` shows.
pub const STATUSES: &str = "\
Exit status: 0 done; 1 the run failed; 2 wrong usage or settings; 3 the machine is not ready
(run 'inlane doctor' to see how to fix it).";

/// The machine lacks something that the command needs. This error ends the command with status 3.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NotReady(pub String);

/// Returns the error and its causes in one line. Leaves out a cause whose text is already in the line.
pub fn text(error: &anyhow::Error) -> String {
    let texts = error.chain().map(ToString::to_string);
    let whole = texts.reduce(|text, cause| match text.contains(&cause) {
        true => text,
        false => format!("{text}: {cause}"),
    });
    whole.unwrap_or_default()
}

/// Prints the error to standard error. Returns the exit status for the error's class.
///
/// `origins` lists the flags that were set by a settings file or an environment variable. `arguments` is the
/// command line, into which these flags were inserted. If the message names such a flag, or the port that is
/// the flag's value, a second line says which file or variable set the flag.
pub fn report(error: &anyhow::Error, arguments: &[OsString], origins: &[(String, String)]) -> u8 {
    let text = text(error);
    let names_port_of = |flag: &str| {
        let values =
            arguments.iter().filter_map(|argument| argument.to_str()?.strip_prefix(flag)?.strip_prefix('='));
        values.into_iter().any(|value| text.starts_with(&format!("port {value}: ")))
    };
    crate::print_to_stderr(format_args!("inlane: {text}"));
    for (flag, place) in origins.iter().filter(|(flag, _)| names(&text, flag) || names_port_of(flag)) {
        crate::print_to_stderr(format_args!("inlane: {flag} was set by {place}"));
    }
    let class = error.chain().find_map(|cause| {
        if cause.is::<NotReady>() {
            return Some(Class::Environment);
        }
        let core = || cause.downcast_ref::<Error>().map(Error::class);
        let forward = || cause.downcast_ref::<inlane_forward::Error>().map(inlane_forward::Error::class);
        let pci = || cause.downcast_ref::<inlane_pci::Error>().map(inlane_pci::Error::class);
        let ntb = || cause.downcast_ref::<inlane_ntb::error::Error>().map(inlane_ntb::error::Error::class);
        let nvme = || cause.downcast_ref::<inlane_nvme::Error>().map(inlane_nvme::Error::class);
        let pgas = || cause.downcast_ref::<inlane_pgas::error::Error>().map(inlane_pgas::error::Error::class);
        let offload = || cause.downcast_ref::<inlane_offload::Error>().map(inlane_offload::Error::class);
        let report = || cause.downcast_ref::<inlane_report::Error>().map(inlane_report::Error::class);
        core()
            .or_else(forward)
            .or_else(pci)
            .or_else(ntb)
            .or_else(nvme)
            .or_else(pgas)
            .or_else(offload)
            .or_else(report)
    });
    match class {
        Some(Class::Usage) => 2,
        Some(Class::Environment) => 3,
        Some(Class::Failed) | None => 1,
    }
}

/// Prints the requested help, or why the command line could not be parsed. Returns the exit status. `origins`
/// lists the flags that a settings file or a variable set, so that the message can name the file or variable.
pub fn unparsed(error: &clap::Error, origins: &[(String, String)]) -> u8 {
    if !error.use_stderr() {
        return match error.print() {
            Err(failure) if failure.kind() != std::io::ErrorKind::BrokenPipe => {
                crate::print_to_stderr(format_args!("inlane: cannot write standard output: {failure}"));
                1
            }
            _ => 0,
        };
    }
    let coloured = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let text = if coloured { error.render().ansi().to_string() } else { error.render().to_string() };
    match refused_value(error) {
        Some(why) => crate::print_to_stderr(format_args!("inlane: {}", why.trim_end())),
        None => crate::print_to_stderr(in_plain_words(&text).trim_end()),
    }
    let flag = error.get(ContextKind::InvalidArg).map(ToString::to_string).unwrap_or_default();
    let flag = flag.split([' ', '=']).next().unwrap_or_default();
    for (_, place) in origins.iter().filter(|(name, _)| name == flag) {
        crate::print_to_stderr(format_args!("inlane: {flag} was set by {place}"));
    }
    2
}

/// Returns true if the text contains the flag, and not only as the start of a longer flag.
fn names(text: &str, flag: &str) -> bool {
    text.match_indices(flag).any(|(at, _)| {
        let next = text[at + flag.len()..].chars().next();
        !next.is_some_and(|next| next.is_alphanumeric() || next == '-')
    })
}

/// If clap refused the value of a flag, returns the message in the form of inlane's own messages. Returns
/// `None` for other errors.
fn refused_value(error: &clap::Error) -> Option<String> {
    if error.kind() != clap::error::ErrorKind::ValueValidation {
        return None;
    }
    let argument = error.get(ContextKind::InvalidArg)?.to_string();
    let flag = argument.split([' ', '=', '[']).next().filter(|flag| flag.starts_with('-'))?;
    let value = error.get(ContextKind::InvalidValue)?.to_string();
    let why = std::error::Error::source(error)?.to_string();
    Some(in_plain_words(&without_repeats(flag, &value, &why)))
}

/// Joins a flag, its refused value and the reason to a message. The reason may begin with the flag or the
/// value; the message names each once. Flag `--sizes`, value `8` and reason `'8': give 16 B to 1 GiB` become
/// `--sizes 8: give 16 B to 1 GiB`.
fn without_repeats(flag: &str, value: &str, why: &str) -> String {
    let given = format!("{flag} {value}");
    let quoted = format!("'{value}'");
    if why.starts_with(&format!("{given}: ")) {
        return why.into();
    }
    match why.split_once(&quoted) {
        // Reasons such as "'8': give 16 B to 1 GiB" or "path 'nvlink': choose bar".
        Some((kind, rest)) if rest.starts_with(": ") && !kind.contains(':') => format!("{given}{rest}"),
        // Reasons such as "'x' is not a size" or "endpoint: 'x' is not a PCI BAR".
        Some((kind, rest)) if kind.is_empty() || kind.ends_with(": ") => format!("{flag}: {quoted}{rest}"),
        Some(_) => format!("{flag}: {why}"),
        // The reason quotes only a part of the value: "endpoint: 'y' is not the address of a PCI device".
        None => match why.split_once(": '") {
            Some((kind, rest)) if kind.chars().all(char::is_alphabetic) => format!("{given}: '{rest}"),
            _ => format!("{given}: {why}"),
        },
    }
}

/// Rewords messages of Rust's number parser and of clap, which use terms of the language Rust.
pub fn in_plain_words(text: &str) -> String {
    let text = text
        .replace("invalid digit found in string", "it is not a whole number")
        .replace("cannot parse integer from empty string", "it is not a whole number")
        .replace("number too large to fit in target type", "it is too large");
    let Some((before, after)) = text.split_once(" is not in ") else { return text };
    let (range, rest) = after.split_once('\n').unwrap_or((after, ""));
    match (before.rsplit_once(": "), range.split_once("..=")) {
        (Some((before, _)), Some((least, most))) => format!("{before}: give {least} to {most}\n{rest}"),
        _ => text,
    }
}

/// Returns what `main` returns to end the process with a status. Call this after all outputs are written.
///
/// If a GPU was abandoned, ends the process here, because the CUDA library's exit handlers would wait for a
/// kernel that never ends. The driver ends the kernel with the process.
pub fn with(status: u8) -> ExitCode {
    if crate::devices::any_abandoned() {
        // SAFETY: _exit runs no code of this process.
        unsafe { libc::_exit(status.into()) };
    }
    ExitCode::from(status)
}

#[cfg(test)]
mod tests {
    use super::{in_plain_words, names, without_repeats};

    #[test]
    fn a_refused_value_is_named_once() {
        for (flag, value, why, text) in [
            ("--on", "fpga", "--on fpga: write cpu", "--on fpga: write cpu"),
            ("--path", "foo", "path 'foo': choose bar", "--path foo: choose bar"),
            ("--to", "pci:x", "endpoint: 'pci:x' is not a BAR", "--to: 'pci:x' is not a BAR"),
            ("--rate", "x", "'x' is not a rate: write 10G", "--rate: 'x' is not a rate: write 10G"),
            ("--to", "pci:x/bar0", "endpoint: 'x' is no address", "--to pci:x/bar0: 'x' is no address"),
            ("--load", "0", "give percentages", "--load 0: give percentages"),
            ("--sizes", "4K,z", "'z' is not a size", "--sizes 4K,z: 'z' is not a size"),
        ] {
            assert_eq!(without_repeats(flag, value, why), text);
        }
        assert_eq!(
            in_plain_words(&without_repeats("--pes", "0", "0 is not in 1..=64")).trim(),
            "--pes 0: give 1 to 64"
        );
    }

    #[test]
    fn a_flag_is_found_as_a_whole_word() {
        assert!(names("--burst 0: give 1", "--burst") && names("give --burst", "--burst"));
        assert!(!names("--sm-slots 0", "--slots") && !names("--mover-from 1", "--mover"));
    }

    #[test]
    fn the_phrases_of_parsers_are_replaced() {
        let error = "error: invalid value '0' for '--pes <N>': 0 is not in 1..=64\n\nFor more information";
        let plain = "error: invalid value '0' for '--pes <N>': give 1 to 64\n\nFor more information";
        assert_eq!(in_plain_words(error), plain);
        assert_eq!(in_plain_words("'x': invalid digit found in string"), "'x': it is not a whole number");
    }
}
