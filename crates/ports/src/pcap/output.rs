//! The output of a capture: a file, a pipe, a device. Writing never blocks on a pipe.

use inlane_core::error::Class;
use inlane_core::setting::Subject;
use inlane_core::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags, fstat};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The most bytes that a pipe accepts without blocking once poll reports it writable (PIPE_BUF).
const PIPE_CHUNK: usize = 4096;

/// An opened output. Opening it changes nothing: [`Output::begin`] empties a file that existed before.
pub(super) struct Output {
    kind: Kind,
    /// The path of the file, if opening created it. The file is removed if nothing is written.
    created: Option<PathBuf>,
}

enum Kind {
    /// A regular file that was opened by its path.
    File(File),
    /// A pipe or device that does not block: writes fail with [`ErrorKind::WouldBlock`].
    NonBlocking(File),
    /// A named pipe that no process reads yet.
    AwaitsReader(PathBuf),
    /// Standard output to which a write may block, such as a terminal. It is polled before each write.
    Polled(File),
    /// Standard output, if it is a regular file. It may contain earlier bytes, so it is never truncated.
    Appended(File),
    /// For tests: a disk that is full after this many bytes.
    #[cfg(test)]
    Full(File, usize),
}

/// Makes the error for an output that failed. `name` is the port, or the setting that names the file.
pub(super) fn refused(name: &Subject, class: Class, why: String) -> Error {
    match name.field() {
        Some(_) => Error::Device { device: name.to_string(), why, class, source: None },
        None => Error::Port { port: name.to_string(), why, class, source: None },
    }
}

fn open_nonblocking(path: &Path, create: bool) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(create).truncate(false).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)
}

impl Output {
    /// Opens `path`, or standard output if `path` is `-`. Error messages call the output `name`.
    ///
    /// # Errors
    /// If the path can be neither opened nor created.
    pub(super) fn open(name: &Subject, path: &str) -> Result<Self> {
        if path == "-" {
            let duplicate = std::io::stdout().as_fd().try_clone_to_owned();
            let file: File = duplicate
                .map_err(|source| Error::Os { what: "cannot open standard output".into(), source })?
                .into();
            let kind = match file_type(&file) {
                FileType::RegularFile => Kind::Appended(file),
                // Other processes may share standard output, so do not make this descriptor non-blocking.
                // Open the pipe a second time.
                FileType::Fifo => match open_nonblocking(Path::new("/proc/self/fd/1"), false) {
                    Ok(file) => Kind::NonBlocking(file),
                    Err(_) => Kind::Polled(file),
                },
                _ => Kind::Polled(file),
            };
            return Ok(Self { kind, created: None });
        }
        let not_created = |error: std::io::Error| {
            if Path::new(path).is_dir() {
                return refused(name, Class::Usage, "it is a directory; name a file in it".into());
            }
            let remedy = "name a file in a directory that you may write to";
            let why = format!("cannot create {path}: {error}; {remedy}");
            refused(name, Class::Environment, why).caused_by(error)
        };
        if let Ok(file) = OpenOptions::new().write(true).create_new(true).open(path) {
            return Ok(Self { kind: Kind::File(file), created: Some(path.into()) });
        }
        let kind = match open_nonblocking(Path::new(path), true) {
            Ok(file) if file_type(&file) == FileType::RegularFile => Kind::File(file),
            Ok(file) => Kind::NonBlocking(file),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NXIO) => {
                Kind::AwaitsReader(path.into())
            }
            Err(error) => return Err(not_created(error)),
        };
        Ok(Self { kind, created: None })
    }

    /// Empties a regular file that was opened by its path. Before this call, dropping the output removes the
    /// file if the output created it. After this call, the file is kept, even if it is empty.
    pub(super) fn begin(&mut self) -> std::io::Result<()> {
        self.created = None;
        match &self.kind {
            Kind::File(file) => file.set_len(0),
            _ => Ok(()),
        }
    }

    /// Returns true if the output is a named pipe that no process has opened for reading.
    pub(super) fn awaits_reader(&self) -> bool {
        matches!(self.kind, Kind::AwaitsReader(_))
    }

    /// Writes as many bytes of `bytes` as the output accepts. Returns the number of written bytes.
    ///
    /// If the output is a pipe that is full or has no reader yet, fails with [`ErrorKind::WouldBlock`].
    pub(super) fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match &mut self.kind {
            Kind::File(file) | Kind::Appended(file) | Kind::NonBlocking(file) => file.write(bytes),
            Kind::Polled(file) => match is_writable(file, Duration::ZERO) {
                true => file.write(&bytes[..bytes.len().min(PIPE_CHUNK)]),
                false => Err(ErrorKind::WouldBlock.into()),
            },
            Kind::AwaitsReader(path) => match open_nonblocking(path, false) {
                Ok(file) => {
                    self.kind = Kind::NonBlocking(file);
                    self.write(bytes)
                }
                Err(error) if Errno::from_io_error(&error) == Some(Errno::NXIO) => {
                    Err(ErrorKind::WouldBlock.into())
                }
                Err(error) => Err(error),
            },
            #[cfg(test)]
            Kind::Full(_, 0) => Err(ErrorKind::StorageFull.into()),
            #[cfg(test)]
            Kind::Full(file, room) => {
                let count = file.write(&bytes[..bytes.len().min(*room)])?;
                *room -= count;
                Ok(count)
            }
        }
    }

    /// Blocks until the output can take bytes, for at most `timeout`.
    pub(super) fn wait(&self, timeout: Duration) {
        match &self.kind {
            Kind::NonBlocking(file) | Kind::Polled(file) => {
                is_writable(file, timeout);
            }
            Kind::AwaitsReader(_) => std::thread::sleep(timeout),
            _ => {}
        }
    }

    /// Cuts a regular file to `length` bytes. Has no effect on other outputs.
    pub(super) fn cut(&self, length: u64) {
        let file = match &self.kind {
            Kind::File(file) => file,
            #[cfg(test)]
            Kind::Full(file, _) => file,
            _ => return,
        };
        // Ignore an error. The file then ends with a partial record, and readers of the capture report it.
        let _ = file.set_len(length);
    }

    /// Simulates a disk that is full after `bytes` more bytes.
    #[cfg(test)]
    pub(super) fn fail_after(&mut self, bytes: usize) {
        let Kind::File(file) = &self.kind else { unreachable!("only files are made to fail") };
        self.kind = Kind::Full(file.try_clone().unwrap(), bytes);
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some(path) = &self.created {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn file_type(file: &File) -> FileType {
    fstat(file).map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode))
}

fn is_writable(file: &File, timeout: Duration) -> bool {
    let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
    // Treat an error of poll as ready, because the write that follows then returns the error.
    poll(&mut [PollFd::new(file, PollFlags::OUT)], Some(&timeout)).map_or(true, |ready| ready > 0)
}
