//! `inlane nvme read` and `inlane nvme write`: copies between a namespace and a file.

use super::connect::{Connect, stop_on_signal};
use anyhow::Context;
use clap::Args;
use inlane_core::units;
use inlane_nvme::Error;
use inlane_nvme::initiator::{Session, check_range, read_range, write_range};
use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The number of commands that a transfer keeps in flight.
const DEPTH: u32 = 16;

/// Copies a range of a namespace to a file
#[derive(Args)]
#[command(after_help = "\
Examples:
  inlane nvme read 10.0.0.2 drive.img     the whole drive
  inlane nvme read 10.0.0.2 --offset 1M --length 4K - | xxd
                                          a few blocks to standard output")]
pub struct Read {
    #[command(flatten)]
    connect: Connect,
    /// Start of the range in the namespace
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = units::parse_size)]
    offset: u64,
    /// Length of the range [default: up to the end of the namespace]
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    length: Option<u64>,
    /// File to write, or - for standard output
    #[arg(value_name = "FILE|-")]
    file: PathBuf,
}

/// Copies a file to a namespace and flushes it
#[derive(Args)]
#[command(after_help = "\
Examples:
  inlane nvme write 10.0.0.2 drive.img    from the start of the drive
  inlane nvme write 10.0.0.2 --offset 1M --length 4K - < block
                                          4 KiB of standard input")]
pub struct Write {
    #[command(flatten)]
    connect: Connect,
    /// Where to write in the namespace; a multiple of its block size
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = units::parse_size)]
    offset: u64,
    /// Bytes to write; a multiple of the block size [default: up to the end of the file]
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    length: Option<u64>,
    /// File to read, or - for standard input
    #[arg(value_name = "FILE|-")]
    file: PathBuf,
}

impl Read {
    /// Copies the range, and prints how much was copied.
    ///
    /// # Errors
    /// If the connection, a command or the file fails.
    pub fn run(&self) -> anyhow::Result<()> {
        let stop = stop_on_signal()?;
        let options = self.connect.session(DEPTH)?;
        let mut session = Session::open(&options)?;
        let rest = session.namespace().bytes().saturating_sub(self.offset);
        let length = self.length.unwrap_or(rest);
        check_range(&session, self.offset, length)?;
        let started = Instant::now();
        let path = self.file.display();
        match self.file.as_path() == Path::new("-") {
            true => {
                let mut out = io::stdout().lock();
                read_range(&mut session, self.offset, length, &mut out, &stop)?;
                out.flush().context("cannot write standard output")?;
            }
            false => {
                let mut file = File::create(&self.file).map_err(|source| match self.file.is_dir() {
                    true => Error::Invalid {
                        what: path.to_string(),
                        why: "it is a folder; name a file in it".into(),
                    },
                    false => Error::Os {
                        what: format!("cannot create {path}; name a file that you may write"),
                        source,
                    },
                })?;
                read_range(&mut session, self.offset, length, &mut file, &stop)
                    .with_context(|| format!("copying to {path}"))?;
                file.sync_all().with_context(|| format!("cannot write {path}"))?;
            }
        }
        report("read", length, self.offset, started);
        session.close();
        Ok(())
    }
}

impl Write {
    /// Copies the file, flushes the namespace, and prints how much was copied.
    ///
    /// # Errors
    /// If the connection, a command or the file fails.
    pub fn run(&self) -> anyhow::Result<()> {
        let stop = stop_on_signal()?;
        let (mut input, size) = self.open()?;
        let options = self.connect.session(DEPTH)?;
        let mut session = Session::open(&options)?;
        if let Some(size) = size {
            self.check_room(size, session.namespace().bytes())?;
        }
        let started = Instant::now();
        // If the length is given, `write_range` refuses an input that does not fit before it writes anything.
        let length = self.length.or(size);
        let written = write_range(&mut session, self.offset, length, &mut input, &stop)
            .with_context(|| format!("copying from {}", self.file.display()))?;
        report("wrote", written, self.offset, started);
        session.close();
        Ok(())
    }
}

impl Write {
    /// Opens the input. Returns it and, if it is a file or a block device, its size.
    fn open(&self) -> anyhow::Result<(Box<dyn io::Read>, Option<u64>)> {
        if self.file.as_path() == Path::new("-") {
            return Ok((Box::new(io::stdin().lock()), None));
        }
        let shown = self.file.display();
        let os = |source| Error::Os {
            what: format!("cannot open {shown}; name a file that you may read"),
            source,
        };
        let mut file = File::open(&self.file).map_err(os)?;
        let kind = file.metadata().map_err(os)?.file_type();
        if kind.is_dir() {
            let why = "it is a folder; name a file".into();
            return Err(Error::Invalid { what: shown.to_string(), why }.into());
        }
        if !kind.is_file() && !kind.is_block_device() {
            return Ok((Box::new(file), None));
        }
        let size = file.seek(io::SeekFrom::End(0)).map_err(os)?;
        file.rewind().map_err(os)?;
        // Files of /proc report the size 0 although they have contents, so the size 0 counts as unknown.
        let size = Some(size).filter(|size| *size > 0);
        if let (Some(size), Some(length)) =
            (size, self.length.filter(|length| size.is_some_and(|size| size < *length)))
        {
            let why = format!(
                "it has {}, less than --length {}; nothing was written; leave out --length",
                units::bytes(size),
                units::bytes(length)
            );
            return Err(Error::Invalid { what: shown.to_string(), why }.into());
        }
        Ok((Box::new(file), size))
    }

    /// Without `--length`, checks that a file of `size` bytes fits into the namespace.
    fn check_room(&self, size: u64, namespace: u64) -> anyhow::Result<()> {
        let room = namespace.saturating_sub(self.offset);
        if self.length.is_some() || size <= room || room == 0 {
            return Ok(());
        }
        let why = format!(
            "it has {}, and the namespace has {} from --offset {}; nothing was written; give --length {room} to copy its \
             beginning, or choose a larger namespace",
            units::bytes(size),
            units::bytes(room),
            units::bytes(self.offset)
        );
        Err(Error::Invalid { what: self.file.display().to_string(), why }.into())
    }
}

fn report(what: &str, bytes: u64, offset: u64, started: Instant) {
    let seconds = started.elapsed().as_secs_f64().max(1e-9);
    let rate = units::bytes_per_second(bytes as f64 / seconds);
    let bytes = units::bytes(bytes);
    crate::print_to_stderr(format_args!(
        "inlane: {what} {bytes} at offset {offset} in {seconds:.2} s ({rate})"
    ));
}
