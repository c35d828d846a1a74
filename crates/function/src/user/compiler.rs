//! The C++ compiler of this machine: found, and run on a user's function.

use crate::{Error, HEADERS, Result};
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

pub(super) struct Compiler {
    path: PathBuf,
    version: String,
}

impl Compiler {
    /// `CXX`, else the first of c++, g++ and clang++ that there is.
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
            what: "running one's own packet function on the CPU".into(),
            why: format!(
                "no C++ compiler (tried {}); install one with 'apt-get install g++', or name one in CXX",
                names.join(", ")
            ),
        })
    }

    /// What is compiled: the user's lines, under the user's file name.
    pub fn unit(&self, file: &str, source: &str) -> String {
        format!("#include <inlane.h>\n#line 1 \"{}\"\n{source}\n", crate::gpu_source::escaped(file))
    }

    /// All that the result depends on.
    pub fn key(&self, unit: &str) -> Vec<u8> {
        let mut key = Vec::new();
        let mut part = |text: &str| {
            key.extend((text.len() as u64).to_le_bytes());
            key.extend(text.as_bytes());
        };
        part(&self.path.to_string_lossy());
        part(&self.version);
        part(&processor());
        part(unit);
        FLAGS.iter().for_each(|flag| part(flag));
        HEADERS.iter().for_each(|(name, text)| {
            part(name);
            part(text);
        });
        key
    }

    /// Compiles into the shared object `to`; headers are written beside it meanwhile.
    pub fn compile(&self, file: &str, unit: &str, to: &Path) -> Result<()> {
        let failed = |error: std::io::Error| Error::Environment {
            what: format!("compiling {file} with {}", self.path.display()),
            why: error.to_string(),
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
        let mut input = child.stdin.take().expect("piped");
        // A compiler that gives up early closes its input; what it says matters, not that.
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

/// What `-march=native` means here: a cache may be shared by machines.
fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let of = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
    format!("{} {} {} {}", std::env::consts::ARCH, of("model name"), of("flags"), of("Features"))
}
