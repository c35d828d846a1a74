//! Reads the text files that name hosts and secrets.

use crate::{Error, Result};
use inlane_core::setting::Field;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use zeroize::Zeroizing;

/// The largest accepted file, in bytes.
const MAX_BYTES: u64 = 16 << 20;

/// Returns the error for an invalid line of a file.
pub(crate) fn invalid_line(field: Field, path: &Path, line: usize, why: impl Into<String>) -> Error {
    Error::invalid(format!("{}, line {line}", field.with(path.display())), why)
}

/// Reads a whole text file. `field` is the setting that names the file. `check` examines the open file before the
/// read. Returns at once for a FIFO without a writer. Dropping the returned text erases it from memory.
///
/// # Errors
/// If the file cannot be read, is not a regular file, is larger than 16 MiB, or is not UTF-8 text. Also if
/// `check` returns a reason to refuse the file.
pub(crate) fn read(
    field: Field,
    path: &Path,
    check: impl FnOnce(&File) -> std::io::Result<Result<(), String>>,
) -> Result<Zeroizing<String>> {
    let name = field.with(path.display()).to_string();
    let invalid = |why: String| Error::invalid(name.clone(), why);
    let os = |source| {
        let what = format!("{name}: it cannot be read");
        Error::with_remedy(what, source, "name a text file that you may read")
    };
    // O_NONBLOCK: opening a FIFO would otherwise wait for a writer.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(os)?;
    let metadata = file.metadata().map_err(os)?;
    let kind = metadata.file_type();
    if kind.is_dir() {
        return Err(invalid("it is a directory; name a file in it".into()));
    }
    if !kind.is_file() {
        let kind = if kind.is_fifo() { "a pipe (FIFO)" } else { "not a regular file" };
        let why = format!("it is {kind}, which cannot be read again; write the lines to a regular file");
        return Err(invalid(why));
    }
    check(&file).map_err(os)?.map_err(invalid)?;
    // Reserve one byte more than the file has. Otherwise the text could grow and move to other memory. Its
    // secrets would then remain in the freed memory.
    let bytes = metadata.len().min(MAX_BYTES) as usize;
    let mut text = Zeroizing::new(String::with_capacity(bytes + 1));
    match file.take(MAX_BYTES + 1).read_to_string(&mut text) {
        Err(error) if error.kind() == ErrorKind::InvalidData => {
            Err(invalid("it is not UTF-8 text; write it with a text editor, as UTF-8 or ASCII".into()))
        }
        Err(error) => Err(os(error)),
        Ok(bytes) if bytes as u64 > MAX_BYTES => {
            Err(invalid(format!("it is larger than {} MiB; name a smaller file", MAX_BYTES >> 20)))
        }
        Ok(_) => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::{HOSTS_FILE, SECRETS_FILE};
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;

    fn refusal(path: &Path) -> String {
        let error = read(SECRETS_FILE, path, |_| Ok(Ok(()))).unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
        error.to_string()
    }

    #[test]
    fn pipes_and_devices_are_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fifo");
        let name = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: the call reads a string that ends with a zero byte.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let message = refusal(&path);
        assert!(
            message.ends_with(
                "it is a pipe (FIFO), which cannot be read again; write the lines to a regular file"
            )
        );
        assert!(refusal(Path::new("/dev/zero")).contains("not a regular file"));
        assert!(refusal(folder.path()).contains("directory"));
    }

    #[test]
    fn files_that_are_not_text_or_too_large_are_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [b'a', 0xFF]).unwrap();
        assert!(refusal(file.path()).contains("not UTF-8 text; write"));
        std::fs::write(file.path(), "ä\n").unwrap();
        assert_eq!(*read(HOSTS_FILE, file.path(), |_| Ok(Ok(()))).unwrap(), "ä\n");
        file.as_file().set_len(0).unwrap();
        file.as_file().set_len(MAX_BYTES + 1).unwrap();
        assert!(refusal(file.path()).contains("larger than 16 MiB"));
        file.as_file().set_len(MAX_BYTES).unwrap();
        assert_eq!(read(HOSTS_FILE, file.path(), |_| Ok(Ok(()))).unwrap().len() as u64, MAX_BYTES);
    }
}
