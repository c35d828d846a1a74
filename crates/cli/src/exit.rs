//! Maps errors to exit statuses.

use crate::misuse;
use clap::CommandFactory;
use clap::error::{ContextKind, ErrorKind};
use inlane_core::error::{Class, Error};
use inlane_core::port::spec::without_secret;
use std::borrow::Cow;
use std::ffi::OsString;
use std::process::ExitCode;

/// The machine lacks something that the command needs. This error ends the command with status 3.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NotReady(pub String);

/// Returns the error and its causes in one line, the outermost error first. Shows each text only once: an
/// error often contains the text of its cause, or a cause begins with the text of its error.
pub fn text(error: &anyhow::Error) -> String {
    let texts = error.chain().map(ToString::to_string);
    let whole = texts.reduce(|text, cause| match text.contains(&cause) {
        true => text,
        false if cause.starts_with(&format!("{text}: ")) => cause,
        false => format!("{text}: {cause}"),
    });
    whole.unwrap_or_default()
}

/// Prints the error to standard error. Returns the exit status for the error's class.
///
/// `origins` lists the flags that a settings file or an environment variable has set. `arguments` is the
/// command line, including these flags. If the message names such a flag, or the port in its value, a second
/// line names the file or variable that has set the flag.
pub fn report(error: &anyhow::Error, arguments: &[OsString], origins: &[(String, String)]) -> u8 {
    let text = text(error);
    let names_port_of = |flag: &str| {
        let values =
            arguments.iter().filter_map(|argument| argument.to_str()?.strip_prefix(flag)?.strip_prefix('='));
        values.into_iter().any(|value| text.starts_with(&format!("port {}: ", without_secret(value))))
    };
    let advice = advice(&text).map(|advice| format!("; {advice}")).unwrap_or_default();
    crate::print_to_stderr(format_args!("inlane: {}{advice}", without_secrets(&text, arguments)));
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
        Some(Class::Failed) | None if exhausted(&text).is_some() => 3,
        Some(Class::Failed) | None => 1,
    }
}

/// The errors of the system that report an exhausted limit, each with what to do.
const LIMITS: [(i32, &str); 4] = [
    (libc::EMFILE, "raise the limit of open files: ulimit -n 65536"),
    (libc::ENFILE, "end programs that have many open files, or raise the limit: sysctl fs.file-max"),
    (libc::ENOMEM, "end other programs, give smaller sizes, or raise the limit that 'ulimit -v' shows"),
    (libc::EAGAIN, "raise the limit of processes and threads that 'ulimit -u' shows"),
];

/// Returns the advice of [`LIMITS`] for a text that reports an exhausted limit. An error of the system ends with its
/// number.
fn exhausted(text: &str) -> Option<&'static str> {
    // EAGAIN reports a limit only if a thread or process was to be started. Signals are handled by a thread.
    let starts = ["start", "Ctrl-C", "SIGINT"].iter().any(|word| text.contains(word));
    let is_limit = |errno| text.contains(&format!("(os error {errno})")) && (errno != libc::EAGAIN || starts);
    LIMITS.iter().find(|(errno, _)| is_limit(*errno)).map(|(_, advice)| *advice)
}

/// Returns what to do about an error that only repeats the text of the system. Returns `None` for other errors,
/// which give advice themselves after a semicolon.
fn advice(text: &str) -> Option<&'static str> {
    let ends_with = |errno: i32| text.ends_with(&format!("(os error {errno})"));
    if let Some(advice) = exhausted(text) {
        let names_no_limit = advice.starts_with("raise") && !text.contains("limit");
        let repeats_the_system = LIMITS.iter().any(|(errno, _)| ends_with(*errno));
        return (repeats_the_system || names_no_limit).then_some(advice);
    }
    ends_with(libc::ENOSPC).then_some("free some space, or write elsewhere")
}

/// Removes secrets of ports from a text that repeats `arguments`.
fn without_secrets(text: &str, arguments: &[OsString]) -> String {
    let values = arguments.iter().filter_map(|argument| argument.to_str());
    let values = values.map(|text| {
        text.split_once('=').map_or(text, |(flag, value)| if flag.starts_with("--") { value } else { text })
    });
    values.fold(text.to_owned(), |text, value| match without_secret(value) {
        Cow::Owned(shown) => text.replace(value, &shown),
        Cow::Borrowed(_) => text,
    })
}

/// Prints the requested help, or the reason why the command line is invalid. Returns the exit status.
/// `origins` lists the flags that a settings file or a variable has set. The message names the file or
/// variable.
pub fn unparsed(error: &clap::Error, arguments: &[OsString], origins: &[(String, String)]) -> u8 {
    if !error.use_stderr() {
        return match error.print() {
            Err(failure) if failure.kind() != std::io::ErrorKind::BrokenPipe => {
                crate::print_to_stderr(format_args!(
                    "inlane: cannot write standard output: {failure}; choose another file or free some space"
                ));
                1
            }
            _ => 0,
        };
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // Print the command's help, which is the text of this error. Ignore a failure, such as a closed
        // standard error, because the status is 2 in any case.
        let _ = error.print();
        return 2;
    }
    let text = misuse::message(error, crate::Cli::command(), arguments);
    let text = without_secrets(&text, arguments);
    crate::print_to_stderr(format_args!("inlane: {}", text.trim_end()));
    let flag = error.get(ContextKind::InvalidArg).map(ToString::to_string).unwrap_or_default();
    let flag = flag.split([' ', '=']).next().unwrap_or_default();
    for (_, place) in origins.iter().filter(|(name, _)| name == flag) {
        crate::print_to_stderr(format_args!("inlane: {flag} was set by {place}"));
    }
    2
}

/// Returns true if the text contains the flag as a whole. For example, `--in` in `--in-flight` does not
/// count.
fn names(text: &str, flag: &str) -> bool {
    text.match_indices(flag).any(|(at, _)| {
        let next = text[at + flag.len()..].chars().next();
        !next.is_some_and(|next| next.is_alphanumeric() || next == '-')
    })
}

/// Converts `status` to the value that `main` returns. Call this after all outputs are written.
///
/// If a GPU was abandoned, ends the process here. The CUDA library's exit handlers would wait for a kernel
/// that never ends. The driver ends the kernel together with the process.
pub fn with(status: u8) -> ExitCode {
    if crate::devices::any_abandoned() {
        // SAFETY: `_exit` runs no code of this process.
        unsafe { libc::_exit(status.into()) };
    }
    ExitCode::from(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exhausted_system_has_advice() {
        let text = "making an eventfd: Too many open files (os error 24)";
        assert!(exhausted(text).is_some() && advice(text).is_some_and(|advice| advice.contains("ulimit -n")));
        assert_eq!(advice("x: No space left (os error 28)"), Some("free some space, or write elsewhere"));
        assert_eq!(advice("x: No space left (os error 28); write elsewhere"), None);
        let several =
            "no path is available: a: Too many open files (os error 24); remove one of these causes";
        assert!(advice(several).is_some_and(|advice| advice.contains("ulimit -n")));
        assert_eq!(exhausted("x: No such file or directory (os error 2)"), None);
        assert!(exhausted("cannot start a thread: not now (os error 11)").is_some());
        assert_eq!(exhausted("cannot read x: not now (os error 11)"), None);
    }

    #[test]
    fn the_secret_of_an_argument_is_not_repeated() {
        let arguments = ["--tx=memif:/a,secret=b", "memif:/a,secret=c"].map(OsString::from);
        let text = "--between memif:/a,secret=c: twice; memif:/a,secret=b";
        let shown = "--between memif:/a,secret=***: twice; memif:/a,secret=***";
        assert_eq!(without_secrets(text, &arguments), shown);
    }

    #[test]
    fn a_flag_is_found_as_a_whole_word() {
        assert!(names("--burst 0: give 1", "--burst") && names("give --burst", "--burst"));
        assert!(!names("--sm-slots 0", "--slots") && !names("--mover-from 1", "--mover"));
    }
}
