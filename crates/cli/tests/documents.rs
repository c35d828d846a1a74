//! Runs every command that README.md and docs/ show, so that no page shows a command that fails.
//!
//! A command is a line of a ```` ```console ```` block that starts with `$ `. A comment `# needs ...` behind
//! a command names what the machine may lack. An `inlane` command with this comment may also end with status
//! 3. Any other command with this comment is not run. If a page tells the reader to save a file ("Save this
//! as `NAME`:" and a code block), the test saves the file first.
//!
//! If a command of a block ends with `&`, the block is run as one shell script in a network namespace of its
//! own, so that the ports of the examples are free.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The time limit of a command.
const TIMEOUT: Duration = Duration::from_secs(120);

struct Shown {
    page: String,
    line: usize,
    block: usize,
    text: String,
    needs: Option<String>,
}

impl Shown {
    fn skip(&self, why: &str) {
        eprintln!("SKIPPED {}:{} {}: {why}", self.page, self.line, self.text);
    }
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

fn read(page: &Path) -> (Vec<Shown>, Vec<(String, String)>) {
    let text = std::fs::read_to_string(page).unwrap();
    let (mut commands, mut files) = (Vec::new(), Vec::new());
    let (mut block, mut saved) = (None, None::<(String, String)>);
    let mut blocks = 0;
    for (at, line) in text.lines().enumerate() {
        if let Some(kind) = line.strip_prefix("```") {
            let closes = block.is_some();
            block = (!closes).then(|| kind.to_string());
            blocks += 1;
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
                let Some(command) = line.strip_prefix("$ ") else { continue };
                let (command, comment) = command.split_once(" #").unwrap_or((command, ""));
                let needs = comment.trim().strip_prefix("needs ").map(str::to_string);
                let page = page.file_name().unwrap().to_string_lossy().into_owned();
                let text = command.trim().to_string();
                commands.push(Shown { page, line: at + 1, block: blocks, text, needs });
            }
            _ => {}
        }
    }
    (commands, files)
}

/// Returns the first words of a command line that runs a program in new network and PID namespaces. Without
/// root, the program also gets a new user namespace. Returns `None` if the system does not allow this.
fn isolated() -> Option<Vec<&'static str>> {
    let plain = ["unshare", "--net", "--pid", "--fork", "--kill-child"];
    let user = ["unshare", "--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child"];
    let works = |line: &[&str]| {
        let script = "ip link set lo up";
        let output = Command::new(line[0]).args(&line[1..]).args(["sh", "-c", script]).output();
        output.is_ok_and(|output| output.status.success())
    };
    [plain.to_vec(), user.to_vec()].into_iter().find(|line| works(line))
}

/// Returns a script that runs the commands of a block. A background command (`&`) may need time until it is
/// ready. The script therefore repeats the command after it until it succeeds, for about a minute.
fn script(commands: &[&Shown]) -> String {
    let mut script = String::from("ip link set lo up; pids=; trap 'kill $pids; wait' EXIT\n");
    let mut may_be_early = false;
    for Shown { text, .. } in commands {
        if text.ends_with('&') {
            script += &format!("{text} pids=\"$pids $!\"\n");
            may_be_early = true;
        } else if std::mem::take(&mut may_be_early) {
            script +=
                &format!("n=0; until {text}; do n=$((n+1)); [ $n -lt 300 ] || exit 1; sleep 0.2; done\n");
        } else {
            script += &format!("{text} || exit 1\n");
        }
    }
    // Check that each background command (`&`) still runs, because a background command that ended by itself
    // has failed.
    script + "for pid in $pids; do kill -0 $pid || exit 1; done\n"
}

/// Runs a shell script with `inlane` in PATH. `before` is a program that starts the shell, such as unshare,
/// and its arguments. It may be empty. Returns the script's exit status and its output.
fn run(before: &[&str], line: &str, folder: &Path) -> (Option<i32>, String) {
    let binary = Path::new(env!("CARGO_BIN_EXE_inlane")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap());
    let log = folder.join("output.log");
    let output = std::fs::File::create(&log).unwrap();
    let words = [before, &["sh", "-c", line]].concat();
    let mut child = Command::new(words[0])
        .args(&words[1..])
        .current_dir(folder)
        .env("PATH", path)
        .env("XDG_CACHE_HOME", folder.join("cache"))
        // Sessions of mixes measure some 30 phases at least.
        .env("INLANE_MIX_DURATION", "60ms")
        .env("INLANE_MIX_SETTLE", "20ms")
        // To zero the usual 256 MiB at each end takes longer than to measure.
        .env("INLANE_COPY_ROTATE", "1M")
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
    let isolated = isolated();
    for page in pages() {
        let (commands, files) = read(&page);
        for (name, content) in files {
            std::fs::write(folder.path().join(name), content).unwrap();
        }
        for block in commands.chunk_by(|one, other| one.block == other.block) {
            let (left_out, block): (Vec<&Shown>, Vec<&Shown>) =
                block.iter().partition(|shown| shown.needs.is_some() && !shown.text.starts_with("inlane "));
            left_out.iter().for_each(|shown| shown.skip(shown.needs.as_deref().unwrap_or_default()));
            if block.iter().any(|shown| shown.text.ends_with('&')) {
                let Some(before) = &isolated else {
                    block.iter().for_each(|shown| shown.skip("network namespaces are not allowed"));
                    continue;
                };
                let (status, output) = run(before, &script(&block), folder.path());
                ran += block.len();
                if status != Some(0) {
                    let Shown { page, line, .. } = block[0];
                    failed.push(format!("{page}:{line}: the block: status {status:?}\n{output}"));
                }
                continue;
            }
            for shown in block {
                let Shown { page, line, text, needs, .. } = shown;
                let (status, output) = run(&[], &format!("exec {text}"), folder.path());
                ran += 1;
                match (status, needs) {
                    (Some(0), _) => {}
                    (Some(3), Some(needs)) => shown.skip(&format!("needs {needs}")),
                    (status, _) => failed.push(format!(
                        "{page}:{line}: {text}\n  status {status:?} (none: still running after {TIMEOUT:?})\n{output}"
                    )),
                }
            }
        }
    }
    assert!(ran > 20, "only {ran} commands found: has the form of the blocks changed?");
    assert!(failed.is_empty(), "{} of {ran} commands failed:\n{}", failed.len(), failed.join("\n"));
}
