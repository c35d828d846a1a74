//! Runs every `inlane` command that README.md and docs/ show, so that no page shows a command that fails.
//!
//! A command is a line of a ```` ```console ```` block that starts with `$ `. After a line `# needs ...` the
//! command may also end with status 3, because the machine may lack what the command needs. If a page tells
//! the reader to save a file ("Save this as `NAME`:" and a code block), the test saves the file first.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The time limit of a command. The pages show short runs only.
const TIMEOUT: Duration = Duration::from_secs(120);

struct Shown {
    page: String,
    line: usize,
    text: String,
    needs: Option<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn pages() -> Vec<PathBuf> {
    let docs = std::fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut pages: Vec<_> = docs.filter(|path| path.extension().is_some_and(|kind| kind == "md")).collect();
    pages.push(root().join("README.md"));
    pages.sort();
    pages
}

/// Returns the commands of a page, and the files that the page tells the reader to save.
fn read(page: &Path) -> (Vec<Shown>, Vec<(String, String)>) {
    let text = std::fs::read_to_string(page).unwrap();
    let (mut commands, mut files) = (Vec::new(), Vec::new());
    let (mut block, mut saved) = (None, None::<(String, String)>);
    for (at, line) in text.lines().enumerate() {
        if let Some(kind) = line.strip_prefix("```") {
            let closes = block.is_some();
            block = (!closes).then(|| kind.to_string());
            if closes && let Some(file) = saved.take_if(|(_, content)| !content.is_empty()) {
                files.push(file);
            }
            continue;
        }
        match (&block, &mut saved) {
            (None, _) => {
                if let Some(name) =
                    line.strip_prefix("Save this as `").and_then(|rest| rest.split('`').next())
                {
                    saved = Some((name.to_string(), String::new()));
                }
            }
            (Some(_), Some((_, content))) => *content += &format!("{line}\n"),
            (Some(kind), None) if kind == "console" => {
                let Some(command) = line.strip_prefix("$ inlane ") else { continue };
                let (command, comment) = command.split_once(" #").unwrap_or((command, ""));
                let needs = comment.trim().strip_prefix("needs ").map(str::to_string);
                let page = page.file_name().unwrap().to_string_lossy().into_owned();
                commands.push(Shown { page, line: at + 1, text: command.trim().to_string(), needs });
            }
            _ => {}
        }
    }
    (commands, files)
}

/// Runs a shell command line with `inlane` in PATH. Returns its exit status and its output.
fn run(line: &str, folder: &Path) -> (Option<i32>, String) {
    let binary = Path::new(env!("CARGO_BIN_EXE_inlane")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap());
    let log = folder.join("output.log");
    let output = std::fs::File::create(&log).unwrap();
    let mut child = Command::new("sh")
        .args(["-c", &format!("exec inlane {line}")])
        .current_dir(folder)
        .env("PATH", path)
        .env("XDG_CACHE_HOME", folder.join("cache"))
        .stdin(Stdio::null())
        .stdout(output.try_clone().unwrap())
        .stderr(output)
        .spawn()
        .unwrap();
    let start = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status.code(),
            None if start.elapsed() > TIMEOUT => {
                child.kill().unwrap();
                child.wait().unwrap();
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    (status, String::from_utf8_lossy(&std::fs::read(log).unwrap()).into_owned())
}

#[test]
fn every_command_of_the_documentation_runs() {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(root().join("examples"), folder.path().join("examples")).unwrap();
    let (mut ran, mut failed) = (0, Vec::new());
    for page in pages() {
        let (commands, files) = read(&page);
        for (name, content) in files {
            std::fs::write(folder.path().join(name), content).unwrap();
        }
        for Shown { page, line, text, needs } in commands {
            let (status, output) = run(&text, folder.path());
            ran += 1;
            match (status, needs) {
                (Some(0), _) => {}
                (Some(3), Some(needs)) => eprintln!("SKIPPED {page}:{line} inlane {text}: needs {needs}"),
                (status, _) => failed.push(format!(
                    "{page}:{line}: inlane {text}\n  status {status:?} (none: still running after {TIMEOUT:?})\n{output}"
                )),
            }
        }
    }
    assert!(ran > 20, "only {ran} commands found: has the form of the blocks changed?");
    assert!(failed.is_empty(), "{} of {ran} commands failed:\n{}", failed.len(), failed.join("\n"));
}
