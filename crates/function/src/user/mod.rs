//! Packet functions of the user. The command line names a `.cu` file. It is compiled when it first runs on
//! the CPU.
//!
//! # Privileges
//!
//! The code runs with all rights of the process. [`UserFunction::read`] runs nothing. [`UserFunction::load`]
//! runs the compiler (`CXX`) and loads the result, so callers drop privileges before that.

mod compiler;
mod crash;

use crate::abi::{ABI, CounterPlace, FunctionEntry};
use crate::report::StateCounter;
use crate::source::FunctionSource;
use crate::{Error, Result};
use inlane_core::error::Cause;
use inlane_core::names::{did_you_mean, similar};
use inlane_process::code_cache::CodeCache;
use libloading::Library;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// A user's function: its source, and its CPU code if it has been compiled.
pub(crate) struct UserFunction {
    /// The name of the function's C++ struct in the source.
    pub symbol: String,
    /// The file's path as the user wrote it, for messages.
    file: String,
    text: String,
    /// The names of the members that the source declares as counters.
    pub counters: Vec<String>,
    code: Mutex<Option<LoadedCode>>,
}

/// A loaded shared object, and the address of the packet function's entry in it.
struct LoadedCode {
    entry: *const FunctionEntry,
    counters: Vec<StateCounter>,
    _library: Library,
}

// SAFETY: the entry is a constant in the library. The library stays loaded while this value lives.
unsafe impl Send for LoadedCode {}

/// Splits `FILE.cu[:NAME[:PARAMETERS]]` into its three parts. Returns `None` if `text` names no source file.
pub(crate) fn split(text: &str) -> Option<(&str, &str, &str)> {
    let end = [".cu:", ".cpp:", ".cc:"]
        .iter()
        .filter_map(|ending| text.find(ending).map(|at| at + ending.len() - 1))
        .min()
        .or_else(|| {
            [".cu", ".cpp", ".cc"].iter().any(|ending| text.ends_with(ending)).then_some(text.len())
        })?;
    let (path, rest) = text.split_at(end);
    let (name, parameters) =
        rest.strip_prefix(':').unwrap_or("").split_once(':').unwrap_or((&rest[rest.len().min(1)..], ""));
    Some((path, name, parameters))
}

impl UserFunction {
    /// Reads the file and finds the function `name`. An empty name stands for the file's only function.
    pub fn read(path: &Path, name: &str) -> Result<Self> {
        let wrong = |why: String| Error::File { path: path.into(), why };
        let text = std::fs::read_to_string(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::InvalidData => wrong("is not text in UTF-8; name a C++ source file".into()),
            _ => Error::Environment {
                what: format!("packet function {}", path.display()),
                why: format!("cannot be read: {error}; name a file that you may read"),
                source: Some(error.into()),
            },
        })?;
        if text.contains('\0') {
            return Err(wrong("contains a zero byte, so it is not C++ source; name a .cu file".into()));
        }
        let found = registered(&text);
        let list = found.join(", ");
        let symbol = match (name.replace('-', "_"), found.as_slice()) {
            (_, []) => {
                return Err(wrong(
                    "registers no function; end the file with INLANE_FUNCTION(name of the struct)".into(),
                ));
            }
            (symbol, [only]) if symbol.is_empty() => only.clone(),
            (symbol, _) if symbol.is_empty() => {
                return Err(wrong(format!(
                    "registers several functions ({list}); name one as {}:NAME",
                    path.display()
                )));
            }
            (symbol, found) if found.contains(&symbol) => symbol,
            (symbol, found) => {
                let near = similar(&symbol, found.iter().map(String::as_str));
                return Err(wrong(format!(
                    "has no function '{symbol}'; {}choose one of {list}",
                    did_you_mean(&near)
                )));
            }
        };
        let counters = counters_of(&text, &symbol);
        Ok(Self { symbol, file: path.display().to_string(), text, counters, code: Mutex::new(None) })
    }

    /// Returns the function's source.
    pub fn source(&self) -> FunctionSource<'_> {
        FunctionSource { file: &self.file, text: &self.text, symbol: &self.symbol, layout: String::new }
    }

    /// Returns the function's code for this CPU. The first call compiles the code or loads it from the cache.
    pub fn load(&self) -> Result<*const FunctionEntry> {
        let mut code = self.code.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(loaded) = &*code {
            return Ok(loaded.entry);
        }
        let failed = |why: String| Error::File { path: self.file.clone().into(), why };
        let compiler = compiler::Compiler::find()?;
        let unit = self.source().unit();
        let library = library(&compiler.key(&unit), |to| compiler.compile(&self.file, &unit, to))?;
        let symbol = format!("inlane_function_{}\0", self.symbol);
        // SAFETY: INLANE_FUNCTION defines this symbol with the type inlane_entry. The version is checked
        // before any other field is used.
        let entry = unsafe { library.get::<*const FunctionEntry>(symbol.as_bytes()).map(|symbol| *symbol) }
            .map_err(|error| {
            failed(format!("compiled, but its function is missing from the result: {error}"))
        })?;
        // SAFETY: the entry is loaded, and the version is its first field in every version.
        let abi = unsafe { (*entry).info.abi };
        if abi != ABI {
            return Err(failed(format!(
                "compiled against version {abi} of inlane.h, but this build needs {ABI}; include this build's header"
            )));
        }
        crash::explain(&self.file);
        let counters = self.counters.iter().filter_map(|name| {
            let symbol = format!("inlane_counter_{}_{name}\0", self.symbol);
            // SAFETY: INLANE_COUNTER defines this symbol with the type inlane_counter, whose layout the compiler checked. If
            // the preprocessor removed the macro, there is no such symbol and no such counter.
            let place =
                unsafe { library.get::<*const CounterPlace>(symbol.as_bytes()).map(|symbol| **symbol) };
            place.ok().map(|place| StateCounter { name: name.clone(), place })
        });
        *code = Some(LoadedCode { entry, counters: counters.collect(), _library: library });
        Ok(entry)
    }

    /// Returns the counters of the code that was loaded. Empty before.
    pub fn loaded_counters(&self) -> Vec<StateCounter> {
        let code = self.code.lock().unwrap_or_else(PoisonError::into_inner);
        code.as_ref().map(|loaded| loaded.counters.clone()).unwrap_or_default()
    }
}

/// Loads the shared object for `key` from the cache. If it is missing there, `compile` writes it first. Uses
/// a temporary directory if there is no cache.
fn library(key: &[u8], compile: impl FnOnce(&Path) -> Result<()>) -> Result<Library> {
    let failed = |path: &Path, error: Cause| Error::Environment {
        what: format!("compiled packet function {}", path.display()),
        why: format!("{error}; set INLANE_CACHE to a directory of your own on a file system without noexec"),
        source: Some(error),
    };
    let open = |path: &Path| {
        // SAFETY: the object holds the user's own code, so it is trusted. Only the user can write to the
        // object.
        unsafe { Library::new(path) }.map_err(|error| failed(path, error.into()))
    };
    let cache = CodeCache::open("functions").unwrap_or_else(|error| {
        static WARNED: std::sync::Once = std::sync::Once::new();
        // Root gives up its privileges before it compiles, and then cannot use its own cache. It need not act on that.
        let gave_up = error.kind() == std::io::ErrorKind::PermissionDenied && is_cache_of_root();
        WARNED.call_once(|| {
            if gave_up {
                return tracing::debug!("compiled packet functions are not cached: {error}");
            }
            tracing::warn!(
                "compiled packet functions are not cached: {error}; set INLANE_CACHE to a directory that the run's user may write"
            );
        });
        None
    });
    let cache = match cache {
        Some(cache) => cache,
        None => CodeCache::temporary().map_err(|error| failed(&std::env::temp_dir(), error.into()))?,
    };
    if let Some(path) = cache.find(key) {
        return open(&path);
    }
    let entry = cache.insert(key);
    compile(entry.path())?;
    let path = entry.commit().map_err(|error| failed(cache.directory(), error.into()))?;
    // Load the object before this function returns. After the return, a temporary cache removes its files,
    // but a loaded object no longer needs its file.
    open(&path)
}

/// Returns true if the cache lies in the home directory of root, and this process no longer runs as root.
fn is_cache_of_root() -> bool {
    // SAFETY: geteuid only reads a number and cannot fail.
    let own = unsafe { libc::geteuid() };
    let home = std::env::var_os("HOME").and_then(|home| std::fs::metadata(home).ok());
    own != 0 && std::env::var_os("INLANE_CACHE").is_none() && home.is_some_and(|home| home.uid() == 0)
}

/// Returns the names that the source passes to INLANE_FUNCTION, ignoring comments.
fn registered(source: &str) -> Vec<String> {
    arguments(source, "INLANE_FUNCTION")
        .into_iter()
        .filter_map(|mut names| names.pop().filter(|_| names.is_empty()))
        .collect()
}

/// Returns the members of the function `symbol` that the source passes to INLANE_COUNTER, ignoring comments.
fn counters_of(source: &str, symbol: &str) -> Vec<String> {
    let calls = arguments(source, "INLANE_COUNTER").into_iter();
    let mut members: Vec<String> = calls
        .filter_map(|names| match <[String; 2]>::try_from(names) {
            Ok([function, member]) if function == symbol => Some(member),
            _ => None,
        })
        .collect();
    members.dedup();
    members
}

/// Returns the arguments of each use of the macro `name`, ignoring comments. Leaves out uses whose arguments are not all
/// names of C++.
fn arguments(source: &str, name: &str) -> Vec<Vec<String>> {
    let code = without_comments(source);
    let is_name =
        |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    code.match_indices(name)
        .filter_map(|(at, word)| {
            let (inside, _) = code[at + word.len()..].trim_start().strip_prefix('(')?.split_once(')')?;
            let names: Vec<&str> = inside.split(',').map(str::trim).collect();
            names.iter().all(|text| is_name(text)).then(|| names.into_iter().map(str::to_owned).collect())
        })
        .collect()
}

/// Replaces each comment by a space.
fn without_comments(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("//").into_iter().chain(rest.find("/*")).min() {
        code.push_str(&rest[..at]);
        let end = if rest[at..].starts_with("//") {
            rest[at..].find('\n')
        } else {
            rest[at..].find("*/").map(|end| end + 2)
        };
        rest = end.map_or("", |end| &rest[at + end..]);
        code.push(' ');
    }
    code + rest
}

/// Converts parameters such as `1,0x20,3` to the first bytes of a function's state: 64-bit numbers in native
/// byte order.
pub(crate) fn parameters(text: &str) -> Result<Vec<u8>, String> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    let mut image = Vec::new();
    for text in text.split(',') {
        let value = number(text).ok_or_else(|| {
            format!("'{text}' is not a number; give parameters as whole numbers, for example 4789,0x10")
        })?;
        image.extend(value.to_ne_bytes());
    }
    Ok(image)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_name_and_parameters_are_split() {
        assert_eq!(split("a/my.cu:name"), Some(("a/my.cu", "name", "")));
        assert_eq!(split("my.cu:name:1,2"), Some(("my.cu", "name", "1,2")));
        assert_eq!(split("my.cu"), Some(("my.cu", "", "")));
        assert_eq!(split("my.cu:"), Some(("my.cu", "", "")));
        assert_eq!(split("drop-rule:udp:53"), None);
        assert_eq!(split("macswap"), None);
    }

    #[test]
    fn registrations_in_comments_are_ignored() {
        let source = "// INLANE_FUNCTION(no)\n/* INLANE_FUNCTION(neither) */ INLANE_FUNCTION( a_1 )\nINLANE_FUNCTION(b)";
        assert_eq!(registered(source), ["a_1", "b"]);
        assert!(registered("#define INLANE_FUNCTIONS(x)\n/* INLANE_FUNCTION(open").is_empty());
        assert!(registered("INLANE_FUNCTION() INLANE_FUNCTION(a, b) INLANE_FUNCTION(a b)").is_empty());
    }

    #[test]
    fn counters_belong_to_a_function() {
        let source = "INLANE_COUNTER(a, x)\nINLANE_COUNTER( b ,\n y )\nINLANE_COUNTER(a, z) // INLANE_COUNTER(a, no)\nINLANE_COUNTER(a)";
        assert_eq!(counters_of(source, "a"), ["x", "z"]);
        assert_eq!(counters_of(source, "b"), ["y"]);
    }

    #[test]
    fn parameters_become_numbers() {
        assert_eq!(parameters("1,0x10").unwrap(), [1u64.to_ne_bytes(), 16u64.to_ne_bytes()].concat());
        assert!(parameters("1,,2").is_err() && parameters("x").is_err());
    }
}
