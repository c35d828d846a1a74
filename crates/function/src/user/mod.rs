//! Users' own functions: a `.cu` file, found on the command line, compiled for the CPU when first run there.
//!
//! It is the user's code, trusted as such: it runs in this process with this process's rights, so ports are opened and
//! privileges given up before.

mod compiler;
mod store;

use crate::abi::{ABI, FunctionEntry};
use crate::{Error, Result};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// A user's function, and its CPU code once that was needed.
pub(crate) struct UserFunction {
    pub symbol: String,
    /// The file as the user wrote it, for messages.
    pub file: String,
    pub source: String,
    code: Mutex<Option<Loaded>>,
}

struct Loaded {
    entry: *const FunctionEntry,
    _library: libloading::Library,
}

// SAFETY: the entry is a constant of the library, which is loaded for as long as this lives.
unsafe impl Send for Loaded {}

/// Splits `FILE.cu[:NAME[:PARAMETERS]]` into its three; `None` for what does not name a file.
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
    /// Reads the file; `name` may be empty when it registers one function only.
    pub fn read(path: &Path, name: &str) -> Result<Self> {
        let wrong = |why: String| Error::File { path: path.into(), why };
        let source =
            std::fs::read_to_string(path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
        if source.contains('\0') {
            return Err(wrong("it has a zero byte; it is no source".into()));
        }
        let found = registered(&source);
        let list = found.join(", ");
        let symbol = match (name.replace('-', "_"), found.as_slice()) {
            (_, []) => {
                return Err(wrong(
                    "it registers no function; end it with INLANE_FUNCTION(name of the struct)".into(),
                ));
            }
            (symbol, [only]) if symbol.is_empty() => only.clone(),
            (symbol, _) if symbol.is_empty() => {
                return Err(wrong(format!(
                    "it registers several functions ({list}); write {}:NAME",
                    path.display()
                )));
            }
            (symbol, found) if found.contains(&symbol) => symbol,
            (symbol, _) => return Err(wrong(format!("it registers no function '{symbol}', but {list}"))),
        };
        Ok(Self { symbol, file: path.display().to_string(), source, code: Mutex::new(None) })
    }

    /// Its code for this CPU, compiled now unless it was before.
    pub fn entry(&self) -> Result<*const FunctionEntry> {
        let mut code = self.code.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(loaded) = &*code {
            return Ok(loaded.entry);
        }
        let failed = |why: String| Error::File { path: self.file.clone().into(), why };
        let compiler = compiler::Compiler::find()?;
        let unit = compiler.unit(&self.file, &self.source);
        let library = store::library(&compiler.key(&unit), |to| compiler.compile(&self.file, &unit, to))?;
        let symbol = format!("inlane_function_{}\0", self.symbol);
        // SAFETY: a symbol of that name is an inlane_entry (INLANE_FUNCTION), whose version is checked before the rest is used.
        let entry = unsafe { library.get::<*const FunctionEntry>(symbol.as_bytes()).map(|symbol| *symbol) }
            .map_err(|error| failed(format!("compiled, yet its function is missing: {error}")))?;
        // SAFETY: as above; the first word is the version.
        let abi = unsafe { (*entry).info.abi };
        if abi != ABI {
            return Err(failed(format!("compiled against another inlane.h (version {abi}, here {ABI})")));
        }
        *code = Some(Loaded { entry, _library: library });
        Ok(entry)
    }
}

/// The names that the source gives to INLANE_FUNCTION, outside comments.
fn registered(source: &str) -> Vec<String> {
    let code = without_comments(source);
    code.match_indices("INLANE_FUNCTION")
        .filter_map(|(at, word)| {
            let rest = code[at + word.len()..].trim_start().strip_prefix('(')?.trim_start();
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            (end > 0 && rest[end..].trim_start().starts_with(')')).then(|| rest[..end].to_owned())
        })
        .collect()
}

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

/// `1,0x20,3` as the numbers that a state begins with.
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
            format!("'{text}' is no number; parameters of one's own functions are whole numbers: 4789,0x10")
        })?;
        image.extend(value.to_ne_bytes());
    }
    Ok(image)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_split() {
        assert_eq!(split("a/my.cu:name"), Some(("a/my.cu", "name", "")));
        assert_eq!(split("my.cu:name:1,2"), Some(("my.cu", "name", "1,2")));
        assert_eq!(split("my.cu"), Some(("my.cu", "", "")));
        assert_eq!(split("my.cu:"), Some(("my.cu", "", "")));
        assert_eq!(split("drop-rule:udp:53"), None);
        assert_eq!(split("macswap"), None);
    }

    #[test]
    fn registrations_are_found_outside_comments() {
        let source = "// INLANE_FUNCTION(no)\n/* INLANE_FUNCTION(neither) */ INLANE_FUNCTION( a_1 )\nINLANE_FUNCTION(b)";
        assert_eq!(registered(source), ["a_1", "b"]);
        assert!(registered("#define INLANE_FUNCTIONS(x)\n/* INLANE_FUNCTION(open").is_empty());
    }

    #[test]
    fn parameters_are_numbers() {
        assert_eq!(parameters("1,0x10").unwrap(), [1u64.to_ne_bytes(), 16u64.to_ne_bytes()].concat());
        assert!(parameters("1,,2").is_err() && parameters("x").is_err());
    }
}
