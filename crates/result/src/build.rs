//! The build of the running program, by which results of different builds are told apart.

use schemars::JsonSchema;
use serde::Serialize;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

/// The build of the program that made a document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Build {
    /// The build ID that the linker computed from the program's content, in hexadecimal. Null if the program has none.
    pub id: Option<String>,
    /// False for a build without optimisation, whose figures say little about speed.
    pub optimised: bool,
}

impl Build {
    /// Describes the running program. Reads its file once, and at the first call, because a process that dropped its
    /// privileges may not read it any more.
    pub fn this() -> Self {
        static BUILD: OnceLock<Build> = OnceLock::new();
        let read = || Self {
            id: File::open("/proc/self/exe").ok().and_then(|program| build_id(&program)),
            optimised: !cfg!(debug_assertions),
        };
        BUILD.get_or_init(read).clone()
    }
}

/// The largest table of program headers and the largest notes that are read.
const MOST_BYTES: u64 = 1 << 16;
/// The type of program headers for notes.
const PT_NOTE: u64 = 4;
/// The type of GNU's note with the build ID.
const NT_GNU_BUILD_ID: u64 = 3;

/// Returns the build ID of a 64-bit ELF file in little-endian byte order.
fn build_id(program: &File) -> Option<String> {
    let read = |at: u64, length: u64| {
        let mut bytes = vec![0; Some(length).filter(|length| *length <= MOST_BYTES)? as usize];
        program.read_exact_at(&mut bytes, at).ok()?;
        Some(bytes)
    };
    let header = read(0, 64)?;
    if !header.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (start, size, count) = (number(&header, 32, 8)?, number(&header, 54, 2)?, number(&header, 56, 2)?);
    let table = read(start, size * count)?;
    let headers = table.chunks_exact((size as usize).max(1));
    let mut notes = headers.filter(|header| number(header, 0, 4) == Some(PT_NOTE));
    notes.find_map(|header| id_in(&read(number(header, 8, 8)?, number(header, 32, 8)?)?))
}

/// Returns the build ID among notes. Each note has the lengths of its name and content, a type, the name and the content.
fn id_in(notes: &[u8]) -> Option<String> {
    let (mut at, padded) = (0usize, |length: usize| length.next_multiple_of(4));
    loop {
        let (name, content) = (number(notes, at, 4)? as usize, number(notes, at + 4, 4)? as usize);
        let (kind, begin) = (number(notes, at + 8, 4)?, at + 12 + padded(name));
        if kind == NT_GNU_BUILD_ID && notes.get(at + 12..at + 12 + name)? == b"GNU\0" {
            let bytes = notes.get(begin..begin + content)?;
            return Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect());
        }
        at = begin + padded(content);
    }
}

fn number(bytes: &[u8], at: usize, length: usize) -> Option<u64> {
    Some(bytes.get(at..at + length)?.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_is_found_among_other_notes() {
        let note = |name: &[u8], kind: u32, content: &[u8]| {
            let lengths = [name.len() as u32, content.len() as u32, kind].map(u32::to_le_bytes).concat();
            let fill = |bytes: &[u8]| vec![0; bytes.len().next_multiple_of(4) - bytes.len()];
            [&lengths, name, &fill(name), content, &fill(content)].concat()
        };
        let notes =
            [note(b"stapsdt\0", 3, &[1; 5]), note(b"GNU\0", 1, &[2; 4]), note(b"GNU\0", 3, &[0xab, 9])];
        assert_eq!(id_in(&notes.concat()), Some("ab09".into()));
        assert_eq!(id_in(&notes[..2].concat()), None);
        assert_eq!(id_in(&note(b"GNU\0", 3, &[7; 8])[..18]), None, "a cut note has no ID");
    }

    #[test]
    fn this_program_has_one_id() {
        assert_eq!(Build::this(), Build::this());
        assert!(!Build::this().optimised || !cfg!(debug_assertions));
    }
}
