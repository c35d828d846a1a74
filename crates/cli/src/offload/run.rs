//! `inlane offload run`: starts a program whose sockets the engine runs.

use super::program;
use crate::exit::NotReady;
use crate::fields::flag;
use anyhow::Context;
use clap::Args;
use inlane_core::Error;
use inlane_offload_protocol::{DEFAULT_SOCKET, REQUIRE_VARIABLE, RULES_VARIABLE, SOCKET_VARIABLE};
use inlane_process::program::why_not_started;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The preloaded library's file.
const LIBRARY: &str = "libinlane_preload.so";

/// Runs a program with its TCP and UDP sockets on the engine
///
/// This process becomes the program, so the exit status is that of the program. A socket that the engine does
/// not take stays with the kernel; 'inlane offload status' lists such sockets and the reasons.
#[derive(Args)]
#[command(after_help = "\
Rules (--rules FILE): a TOML file. The first rule whose conditions all hold decides. If no rule
holds, the engine takes a socket whose address its own addresses and routes reach.
  [[rule]]
  run_by = \"kernel\"          # or \"engine\"; every other key is an optional condition
  program = \"sshd\"           # last part of the program's path
  protocol = \"tcp\"           # or \"udp\"
  address = \"10.0.0.0/8\"     # local address if the program listens, else the remote one
  port = \"80-90\"             # port of that address, or a range
  use = \"listen\"             # or \"connect\"

Examples:
  inlane offload run curl http://10.0.0.2/
  inlane offload run --rules rules.toml nginx -g 'daemon off;'
  inlane offload run --require iperf3 -c 10.0.0.2")]
pub struct Run {
    /// Control socket of the engine
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    /// TOML file with rules that keep sockets with the kernel, by program, address and port; see Rules below
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// Fail instead of leaving a socket with the kernel. Rules may still leave sockets with the kernel
    #[arg(long)]
    require: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

impl Run {
    /// Starts the program.
    ///
    /// # Errors
    /// If the program or the library is missing. With `--require`, also if no engine runs, or if the library
    /// cannot be preloaded into the program.
    pub fn run(self) -> anyhow::Result<()> {
        let (name, arguments) = self.program.split_first().context("no program given")?;
        let shown = Path::new(name).display();
        let Some(path) = program::find(Path::new(name)) else {
            let why = why_not_started(Path::new(name)).unwrap_or_else(|| "name another program".into());
            let why = format!("cannot start '{shown}': {why}");
            return Err(NotReady(why).into());
        };
        let rules = self.rules.as_deref().map(read_rules).transpose()?;
        let library = library()?;
        let socket = std::path::absolute(&self.socket)?;
        if let Some(why) = program::obstacle(&path) {
            self.note(&why)?;
        }
        if let Err(error) = inlane_offload::client::fetch(&socket) {
            self.note(&error.to_string())?;
        }
        let mut preload = library.into_os_string();
        if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
            preload.push(":");
            preload.push(others);
        }
        let mut command = Command::new(name);
        command.args(arguments).env(SOCKET_VARIABLE, &socket).env("LD_PRELOAD", preload);
        match rules {
            Some(rules) => command.env(RULES_VARIABLE, rules),
            None => command.env_remove(RULES_VARIABLE),
        };
        // The library shows these texts in its messages.
        let texts = format!("--require\ninlane offload serve --socket {}", socket.display());
        match self.require {
            true => command.env(REQUIRE_VARIABLE, texts),
            false => command.env_remove(REQUIRE_VARIABLE),
        };
        let error = command.exec();
        Err(NotReady(format!("cannot start '{shown}': {error}; name an executable program")).into())
    }

    /// Prints a warning with the reason why sockets will not be offloaded. With `--require`, returns the
    /// reason as an error instead.
    fn note(&self, why: &str) -> anyhow::Result<()> {
        if self.require {
            return Err(NotReady(format!("--require: {why}")).into());
        }
        crate::print_to_stderr(format_args!("inlane: warning: sockets stay with the kernel: {why}"));
        Ok(())
    }
}

/// Reads rules from a TOML file.
///
/// # Errors
/// If the file cannot be read or a rule is wrong.
pub(super) fn read_rules(path: &Path) -> anyhow::Result<String> {
    let name = path.display().to_string();
    let wrong = |why: &str| anyhow::Error::from(Error::invalid(flag("rules").with(&name), why));
    let text = std::fs::read_to_string(path).map_err(|error| match error.kind() {
        ErrorKind::IsADirectory => wrong("it is a directory; name a TOML file in it"),
        ErrorKind::InvalidData => wrong("it is not text in UTF-8; give a TOML file"),
        _ => {
            let rules = flag("rules").with(&name);
            NotReady(format!("{rules}: cannot be read: {error}; name a file that you may read"))
        }
        .into(),
    })?;
    Ok(inlane_offload::rules::read(&name, &text)?)
}

/// Finds the preloaded library. Cargo puts it beside the command, and `make install` puts it in `../lib`.
fn library() -> anyhow::Result<PathBuf> {
    let command = std::env::current_exe().context("cannot find the command's own file")?;
    let directory = command.parent().context("the command's file has no directory")?;
    let places = [directory.join(LIBRARY), directory.join("../lib").join(LIBRARY)];
    let found = places.iter().find(|path| path.exists());
    let found = found.ok_or_else(|| {
        NotReady(format!(
            "{LIBRARY} is neither in {0} nor in {0}/../lib; build it with 'cargo build --release -p inlane-preload' or 'make install'",
            directory.display()
        ))
    })?;
    Ok(found.canonicalize()?)
}
