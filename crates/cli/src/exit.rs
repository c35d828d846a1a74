//! Maps errors to exit statuses.

use crate::misuse;
use crate::settings::{Origin, Settings};
use clap::CommandFactory;
use clap::error::{ContextKind, ErrorKind};
use inlane_core::error::{Class, NotStarted, with_causes};
use inlane_core::secret::without_secret;
use std::borrow::Cow;
use std::error::Error;
use std::ffi::OsString;
use std::process::ExitCode;

/// The machine lacks something that the command needs. This error ends the command with status 3.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NotReady(pub String);

impl NotReady {
    fn class(&self) -> Class {
        Class::Environment
    }
}

/// Prints the error to standard error. Returns the exit status for the error's class.
///
/// If the settings file or an environment variable has set a flag that the error names, or the port that failed, a
/// second line names the file or variable.
pub fn report(error: &anyhow::Error, settings: &Settings) -> u8 {
    let text = with_causes(error.as_ref());
    let refusal = error.chain().find_map(Refusal::of);
    // An error that only repeats the system's text lacks advice. Others give advice themselves.
    let advice = refusal.as_ref().filter(|refusal| text.ends_with(&refusal.text));
    let advice = advice.map(|refusal| format!("; {}", refusal.advice)).unwrap_or_default();
    crate::print_to_stderr(format_args!("inlane: {}{advice}", without_secrets(&text, &settings.arguments)));
    let port = error.chain().find_map(failed_port);
    for origin in &settings.origins {
        let is_port = |value: &String| port.is_some_and(|port| without_secret(value) == port);
        if crate::fields::was_shown(&origin.flag) || origin.values.iter().any(is_port) {
            name_origin(origin);
        }
    }
    match error.chain().find_map(class) {
        Some(Class::Usage) => 2,
        Some(Class::Environment) => 3,
        Some(Class::Failed) | None => match refusal {
            Some(Refusal { is_limit: true, .. }) => 3,
            _ => 1,
        },
    }
}

fn name_origin(Origin { flag, place, .. }: &Origin) {
    crate::print_to_stderr(format_args!("inlane: {flag} was set by {place}"));
}

/// Calls a method of an error, if the error is of one of the given types. Returns `None` for other types.
macro_rules! of_types {
    ($cause:expr, $method:ident, $($error:ty),*) => {
        None$(.or_else(|| $cause.downcast_ref::<$error>().and_then(|error| error.$method().into())))*
    };
}

/// Returns the class of an error, if it is of one of inlane's types.
fn class(cause: &(dyn Error + 'static)) -> Option<Class> {
    of_types!(
        cause,
        class,
        NotReady,
        inlane_core::Error,
        inlane_forward::Error,
        inlane_pci::Error,
        inlane_ntb::error::Error,
        inlane_model::Error,
        inlane_nvme::Error,
        inlane_pgas::error::Error,
        inlane_offload::Error,
        inlane_report::Error
    )
}

/// Returns the name of the port that failed.
fn failed_port<'a>(cause: &'a (dyn Error + 'static)) -> Option<&'a str> {
    of_types!(cause, port, inlane_core::Error, inlane_forward::Error, inlane_offload::Error)
}

/// An operation that the system refused because a resource is exhausted.
struct Refusal {
    /// The system's text.
    text: String,
    /// What to do.
    advice: &'static str,
    /// True if a limit is reached. False if a disk is full, which smaller or other outputs avoid.
    is_limit: bool,
}

impl Refusal {
    fn of(cause: &(dyn Error + 'static)) -> Option<Self> {
        let error: &std::io::Error = cause.downcast_ref()?;
        let advice = if error.get_ref().is_some_and(|inner| inner.is::<NotStarted>()) {
            "raise the limit of processes and threads that 'ulimit -u' shows"
        } else {
            match error.raw_os_error()? {
                libc::EMFILE => "raise the limit of open files: ulimit -n 65536",
                libc::ENFILE => {
                    "end programs that have many open files, or raise the limit: sysctl fs.file-max"
                }
                libc::ENOMEM => {
                    "end other programs, give smaller sizes, or raise the limit that 'ulimit -v' shows"
                }
                libc::ENOSPC => "free some space, or write elsewhere",
                _ => return None,
            }
        };
        let is_limit = error.raw_os_error() != Some(libc::ENOSPC);
        Some(Self { text: error.to_string(), advice, is_limit })
    }
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

/// Prints the requested help, or the reason why the command line is invalid. Returns the exit status. If the settings
/// file or a variable has set the invalid flag, the message names the file or variable.
pub fn unparsed(error: &clap::Error, settings: &Settings) -> u8 {
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
    let text = misuse::without_equals(error, &crate::Cli::command(), settings);
    let text = text.unwrap_or_else(|| misuse::message(error));
    let text = without_secrets(&text, &settings.arguments);
    crate::print_to_stderr(format_args!("inlane: {}", text.trim_end()));
    let flag = error.get(ContextKind::InvalidArg).map(ToString::to_string).unwrap_or_default();
    let flag = flag.split([' ', '=']).next().unwrap_or_default();
    settings.origins.iter().filter(|origin| origin.flag == flag).for_each(name_origin);
    2
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
        let refusal = |errno: i32| Refusal::of(&std::io::Error::from_raw_os_error(errno));
        let files = refusal(libc::EMFILE).unwrap();
        assert!(files.is_limit && files.advice.contains("ulimit -n"));
        assert!(!refusal(libc::ENOSPC).unwrap().is_limit);
        // EAGAIN reports a limit only if a thread or process was to be started.
        assert!(refusal(libc::ENOENT).is_none() && refusal(libc::EAGAIN).is_none());
        let thread = NotStarted::of(std::io::Error::from_raw_os_error(libc::EAGAIN));
        assert!(Refusal::of(&thread).unwrap().advice.contains("ulimit -u"));
    }

    #[test]
    fn the_class_of_an_error_decides_its_status() {
        let status = |error: anyhow::Error| report(&error.context("outer"), &Settings::default());
        let os = |errno| inlane_core::Error::Os {
            what: "cannot open x".into(),
            source: std::io::Error::from_raw_os_error(errno),
        };
        assert_eq!(status(NotReady("x".into()).into()), 3);
        assert_eq!(status(inlane_core::Error::invalid("x", "y").into()), 2);
        assert_eq!(status(inlane_forward::Error::Core(os(libc::EMFILE)).into()), 3);
        assert_eq!(status(os(libc::EIO).into()), 1);
        assert_eq!(status(anyhow::anyhow!("x (os error 24)")), 1);
    }

    #[test]
    fn a_failed_port_is_found_in_the_errors_of_the_libraries() {
        let port = || inlane_core::Error::port_failed("null", "x");
        assert_eq!(failed_port(&port()), Some("null"));
        assert_eq!(failed_port(&inlane_forward::Error::Core(port())), Some("null"));
        assert_eq!(failed_port(&inlane_offload::Error::Ports(port().into())), Some("null"));
    }

    #[test]
    fn the_secret_of_an_argument_is_not_repeated() {
        let arguments = ["--tx=memif:/a,secret=b", "memif:/a,secret=c"].map(OsString::from);
        let text = "--between memif:/a,secret=c: twice; memif:/a,secret=b";
        let shown = "--between memif:/a,secret=***: twice; memif:/a,secret=***";
        assert_eq!(without_secrets(text, &arguments), shown);
    }
}
