//! Finds the C++ compiler of this machine, and compiles a user's packet function with it.

use crate::{Error, HEADERS, Result};
use inlane_process::code_cache;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const FLAGS: [&str; 10] = [
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    "-Wall",
    "-Wextra",
];

/// A C++ compiler that was found on this machine and can be started.
pub(super) struct Compiler {
    path: PathBuf,
    version: String,
}

impl Compiler {
    /// Finds the compiler: the program named by `CXX`, else the first of c++, g++ and clang++ that runs.
    pub fn find() -> Result<Self> {
        let set = std::env::var_os("CXX").filter(|set| !set.is_empty());
        let candidates: Vec<PathBuf> = match set {
            Some(set) => vec![set.into()],
            None => ["c++", "g++", "clang++"].map(PathBuf::from).into(),
        };
        for path in &candidates {
            let Ok(output) = Command::new(path).arg("--version").stdin(Stdio::null()).output() else {
                continue;
            };
            if output.status.success() {
                let version = String::from_utf8_lossy(&output.stdout).into_owned();
                return Ok(Self { path: path.clone(), version });
            }
        }
        let names: Vec<String> = candidates.iter().map(|path| path.display().to_string()).collect();
        Err(Error::Environment {
            what: "compiling a user's packet function for the CPU".into(),
            why: format!(
                "no C++ compiler runs (tried {}); install one with 'apt-get install g++', or name it in CXX",
                names.join(", ")
            ),
            source: None,
        })
    }

    /// Returns the cache key of the compiled code: the compiler and its flags, the processor, the headers and
    /// the source.
    pub fn key(&self, unit: &str) -> Vec<u8> {
        let (path, processor) = (self.path.to_string_lossy(), processor());
        let headers = HEADERS.iter().flat_map(|(name, text)| [*name, *text]);
        let fixed = [&*path, &self.version, &processor, unit];
        code_cache::key(fixed.into_iter().chain(FLAGS).chain(headers))
    }

    /// Compiles `unit` into the shared object `to`. Puts inlane's headers into a temporary directory beside
    /// `to`.
    pub fn compile(&self, file: &str, unit: &str, to: &Path) -> Result<()> {
        let failed = |error: std::io::Error| Error::Environment {
            what: format!("compiling {file} with {}", self.path.display()),
            why: error.to_string(),
            source: Some(error.into()),
        };
        let headers = to.with_extension("include");
        std::fs::create_dir_all(&headers).map_err(failed)?;
        for (name, text) in HEADERS {
            std::fs::write(headers.join(name), text).map_err(failed)?;
        }
        let mut child = Command::new(&self.path)
            .args(FLAGS)
            .arg("-I")
            .arg(&headers)
            .arg("-o")
            .arg(to)
            .args(["-xc++", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let mut input = child.stdin.take().expect("stdin is piped");
        // If the compiler fails early, it closes its input, and this write fails. Ignore that, because the
        // compiler's own messages explain the failure.
        let _ = input.write_all(unit.as_bytes());
        drop(input);
        let output = child.wait_with_output().map_err(failed)?;
        let _ = std::fs::remove_dir_all(&headers);
        let messages = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
        if !output.status.success() {
            return Err(Error::Compile { path: file.into(), messages });
        }
        if !messages.is_empty() {
            tracing::warn!("{file}:\n{messages}");
        }
        Ok(())
    }
}

/// Describes the processor for which `-march=native` compiles. The cache key of compiled code contains this
/// text, because machines with different processors may share a cache directory.
fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
    format!("{} {} {} {}", std::env::consts::ARCH, line("model name"), line("flags"), line("Features"))
}
