//! `inlane completion` and `inlane man`. Both are generated from the definitions that parse the command line.

use crate::Cli;
use crate::exit::NotReady;
use crate::fields::flag;
use clap::CommandFactory;
use std::path::{Path, PathBuf};

const COMPLETION_EXAMPLES: &str = "\
Examples:
  source <(inlane completion bash)                                  in this shell only
  inlane completion zsh > ~/.zfunc/_inlane                          in every zsh, if ~/.zfunc is
                                                                    in its fpath
  inlane completion fish > ~/.config/fish/completions/inlane.fish   in every fish";

/// Prints the script that completes inlane's commands and flags in a shell
#[derive(clap::Args)]
#[command(after_help = COMPLETION_EXAMPLES)]
pub struct CompletionArgs {
    /// Print the script for this shell
    shell: clap_complete::Shell,
}

const MAN_EXAMPLES: &str = "\
Examples:
  inlane man | man -l -                               show the manual page of inlane
  inlane man ntb run | man -l -                       show the manual page of one command
  inlane man --directory ~/.local/share/man/man1      install all pages for man(1)";

/// Prints the manual page of inlane or of one command
#[derive(clap::Args)]
#[command(after_help = MAN_EXAMPLES)]
pub struct ManArgs {
    /// Print the page of this command, for example: forward, or ntb run
    command: Vec<String>,
    /// Write all pages to this directory instead
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    directory: Option<PathBuf>,
}

/// Prints the completion script.
///
/// # Errors
/// If standard output cannot be written.
pub fn completion(args: &CompletionArgs) -> anyhow::Result<()> {
    // Write the script to memory first, because clap_complete ends the process if its writer fails.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "inlane", &mut script);
    crate::print(|out| out.write_all(&script))
}

/// Prints or writes manual pages.
///
/// # Errors
/// If the command is unknown, or the pages cannot be written.
pub fn man(args: &ManArgs) -> anyhow::Result<()> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    if let Some(directory) = &args.directory {
        if directory.exists() && !directory.is_dir() {
            let what = flag("directory").with(directory.display());
            return Err(inlane_core::Error::invalid(what, "it is a file; name a directory").into());
        }
        return write_all(command, directory).map_err(|error| {
            let directory = directory.display();
            NotReady(format!("cannot write manual pages to {directory}: {error}; name another directory"))
                .into()
        });
    }
    let mut page = &command;
    for name in &args.command {
        page = page.find_subcommand(name).ok_or_else(|| {
            let parent = page.get_bin_name().unwrap_or("inlane");
            let why = format!("there is no such command; run '{parent} --help' for a list");
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
