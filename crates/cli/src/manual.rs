//! `inlane completion` and `inlane man`: both made from the definitions that parse the command line.

use crate::Cli;
use clap::CommandFactory;
use std::path::{Path, PathBuf};

const COMPLETION_EXAMPLES: &str = "\
Examples:
  source <(inlane completion bash)                                     for this shell
  inlane completion zsh > ~/.zfunc/_inlane                             for good (with ~/.zfunc in fpath)
  inlane completion fish > ~/.config/fish/completions/inlane.fish";

/// Prints the completion script of a shell
#[derive(clap::Args)]
#[command(after_help = COMPLETION_EXAMPLES)]
pub struct CompletionArgs {
    /// The shell
    shell: clap_complete::Shell,
}

const MAN_EXAMPLES: &str = "\
Examples:
  inlane man | man -l -                                 the manual of inlane
  inlane man ntb run | man -l -                         that of one command
  inlane man --directory ~/.local/share/man/man1        all of them, for man(1) to find";

/// Prints the manual page of inlane, or of one of its commands
#[derive(clap::Args)]
#[command(after_help = MAN_EXAMPLES)]
pub struct ManArgs {
    /// The command, and one of its own behind it
    command: Vec<String>,
    /// Write all pages into this directory instead
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    directory: Option<PathBuf>,
}

/// Prints the completion script.
///
/// # Errors
/// When stdout cannot be written.
pub fn completion(args: &CompletionArgs) -> anyhow::Result<()> {
    // Made in memory: clap_complete ends the process when its writer fails.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "inlane", &mut script);
    crate::print(|out| out.write_all(&script))
}

/// Prints or writes manual pages.
///
/// # Errors
/// For an unknown command, and when the pages cannot be written.
pub fn man(args: &ManArgs) -> anyhow::Result<()> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    if let Some(directory) = &args.directory {
        return write_all(command, directory).map_err(|error| {
            anyhow::anyhow!("cannot write manual pages to {}: {error}", directory.display())
        });
    }
    let mut page = &command;
    for name in &args.command {
        page = page.find_subcommand(name).ok_or_else(|| {
            let why = "there is no such command; 'inlane --help' lists them";
            inlane_core::Error::invalid(format!("man {}", args.command.join(" ")), why)
        })?;
    }
    let name = [&["inlane".into()], &args.command[..]].concat().join("-");
    crate::print(|out| clap_mangen::Man::new(page.clone().display_name(name)).render(out))
}

fn write_all(command: clap::Command, directory: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(directory)?;
    clap_mangen::generate_to(command, directory)
}
