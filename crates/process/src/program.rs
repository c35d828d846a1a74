//! Programs that this process starts.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Explains why starting `program` failed and what to do, as text for an error message. Returns `None` if
/// `program` exists and is executable. If `program` has no slash, a file in the working directory does not
/// count, because the system then searches only PATH.
pub fn why_not_started(program: &Path) -> Option<String> {
    let shown = program.display();
    let is_name = program.components().count() == 1;
    Some(match program.metadata() {
        Ok(found) if found.is_dir() => "it is a directory; name a program in it".into(),
        Ok(found) if is_name && found.is_file() => {
            format!("no directory of PATH has it; give its path: ./{shown}")
        }
        Ok(found) if found.permissions().mode() & 0o111 == 0 => {
            format!("it is not executable; allow that: chmod +x {shown}")
        }
        Ok(_) => return None,
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            "no permission to look at it; name a program that you may execute".into()
        }
        Err(_) => "there is no such executable program; name another one".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_says_what_to_do() {
        let why = |path: &str| why_not_started(Path::new(path)).unwrap_or_default();
        assert!(why("/").contains("it is a directory"));
        assert!(why("/etc/passwd").contains("chmod +x"));
        assert!(why("/missing/program").contains("no such executable program"));
        assert_eq!(why_not_started(&std::env::current_exe().unwrap()), None);
    }
}
