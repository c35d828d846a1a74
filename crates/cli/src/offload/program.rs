//! Checks whether a library can be preloaded into a program, before the program is started.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The number of bytes to read from the beginning of a program's file, in order to find its interpreter.
const HEAD: usize = 4096;

/// Returns the file that the system would start for `program`, or `None` if there is none.
pub fn find(program: &Path) -> Option<PathBuf> {
    let executable = |path: &Path| {
        path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    };
    if program.as_os_str().as_encoded_bytes().contains(&b'/') {
        return executable(program).then(|| program.to_owned());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|path| executable(path))
}

/// Returns why the system would not preload a library into the program at `path`. Returns `None` if it would, or if
/// that is unknown.
pub fn obstacle(path: &Path) -> Option<String> {
    obstacle_within(path, 4)
}

fn obstacle_within(path: &Path, depth: u32) -> Option<String> {
    let shown = path.display();
    let metadata = path.metadata().ok()?;
    let privileged = metadata.mode() & 0o4000 != 0 && metadata.uid() != rustix::process::geteuid().as_raw();
    if privileged {
        return Some(format!(
            "{shown} runs as another user (setuid), so the system drops the preloaded library; run it without the setuid bit"
        ));
    }
    let mut head = Vec::new();
    File::open(path).ok()?.take(HEAD as u64).read_to_end(&mut head).ok()?;
    if let Some(rest) = head.strip_prefix(b"#!") {
        let line = rest.split(|&byte| byte == b'\n').next()?;
        let text = std::str::from_utf8(line).ok()?;
        let mut words = text.split_whitespace();
        let interpreter = Path::new(words.next()?);
        if depth == 0 {
            return None;
        }
        if interpreter.file_name().is_some_and(|name| name == "env") {
            return obstacle_within(&find(Path::new(words.next()?))?, depth - 1);
        }
        return obstacle_within(interpreter, depth - 1);
    }
    match kind(&head)? {
        Kind::Dynamic => None,
        Kind::Static => Some(format!(
            "{shown} is statically linked, so no library can be preloaded into it; use a dynamically linked build"
        )),
        Kind::Other => Some(format!(
            "{shown} is not a 64-bit program of this machine, so no library can be preloaded into it; use a 64-bit build"
        )),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Dynamic,
    Static,
    Other,
}

/// Returns how a program is linked. `head` is the beginning of the program's file. Returns `None` if the file
/// is not ELF, or if its program headers lie beyond `head`.
fn kind(head: &[u8]) -> Option<Kind> {
    const PT_INTERP: u32 = 3;
    let rest = head.strip_prefix(b"\x7fELF")?;
    // Examine only 64-bit little-endian files (EI_CLASS 2, EI_DATA 1), because the offsets below apply only
    // to such files.
    if rest.get(..2)? != [2, 1] {
        return Some(Kind::Other);
    }
    let number = |at: usize, len: usize| {
        let mut bytes = [0; 8];
        bytes[..len].copy_from_slice(head.get(at..at.checked_add(len)?)?);
        Some(u64::from_le_bytes(bytes))
    };
    let (start, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    for index in 0..count {
        let at = usize::try_from(start.checked_add(index * size)?).ok()?;
        if number(at, 4)? == u64::from(PT_INTERP) {
            return Some(Kind::Dynamic);
        }
    }
    Some(Kind::Static)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_told_apart() {
        let shell = find(Path::new("sh")).unwrap();
        assert_eq!(obstacle(&shell), None);
        assert_eq!(find(Path::new("no-such-program-anywhere")), None);
        let directory = tempfile::tempdir().unwrap();
        let mut bytes = std::fs::read(shell).unwrap();
        let mut check = |change: &mut dyn FnMut(&mut Vec<u8>), expected: Option<&str>| {
            change(&mut bytes);
            let path = directory.path().join("program");
            std::fs::write(&path, &bytes).unwrap();
            let found = obstacle(&path);
            assert!(
                match expected {
                    Some(text) => found.as_ref().is_some_and(|found| found.contains(text)),
                    None => found.is_none(),
                },
                "{found:?}"
            );
        };
        // Without program headers, the program has no interpreter. So it counts as statically linked.
        check(&mut |bytes| bytes[56..58].fill(0), Some("statically linked"));
        check(&mut |bytes| bytes[4] = 1, Some("not a 64-bit program"));
        check(&mut |bytes| bytes.truncate(20), Some("not a 64-bit program"));
        check(&mut |bytes| bytes[4] = 2, None);
        check(&mut |bytes| *bytes = b"#!/bin/sh\necho".to_vec(), None);
        check(&mut |bytes| *bytes = b"#!/usr/bin/env sh\n".to_vec(), None);
        check(&mut |bytes| *bytes = b"#!\n".to_vec(), None);
    }
}
