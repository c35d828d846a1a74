//! `inlane nvme read` and `inlane nvme write`: copies between a namespace and a file.

use super::connect::{Connect, stop_on_signal};
use anyhow::Context;
use clap::Args;
use inlane_core::units;
use inlane_nvme::initiator::{Session, check_range, read_range, write_range};
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The number of commands in flight.
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
                let mut file = File::create(&self.file).with_context(|| format!("cannot create {path}"))?;
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
        let mut input: Box<dyn io::Read> = match self.file.as_path() == Path::new("-") {
            true => Box::new(io::stdin().lock()),
            false => {
                let opened = File::open(&self.file);
                Box::new(opened.with_context(|| format!("cannot open {}", self.file.display()))?)
            }
        };
        let options = self.connect.session(DEPTH)?;
        let mut session = Session::open(&options)?;
        let started = Instant::now();
        let written = write_range(&mut session, self.offset, self.length, &mut input, &stop)?;
        report("wrote", written, self.offset, started);
        session.close();
        Ok(())
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
