//! `inlane nvme bench`: measures a namespace with fio's workloads.

use super::connect::{Connect, Stop};
use crate::fields::flag;
use crate::output::Output;
use crate::values::{count, time_above_zero};
use anyhow::bail;
use clap::{Args, ValueEnum};
use inlane_core::units;
use inlane_nvme::bench::{self, BenchCounts, IoResult, Pattern, Workload};
use inlane_result::Document;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

/// How blocks are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Verify {
    /// Offset, write number and CRC-32C in each block
    Crc32c,
}

/// Measures a namespace with fio's workloads
///
/// Workloads that write overwrite the namespace. Each job is a thread with its own connections and its own
/// part of the range.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inlane nvme bench 10.0.0.2 --rw randread --bs 4k --iodepth 32 --numjobs 4 --duration 10s
  inlane nvme bench 10.0.0.2 --rw randrw --rwmixread 70 --size 1G --verify crc32c --json result.json
                                          go through the first GiB once, and check what was written
  inlane nvme bench 10.0.0.2,10.0.1.2 --rw read --bs 128k
                                          two paths: if one fails, the other is used")]
pub struct Bench {
    #[command(flatten)]
    connect: Connect,
    /// Operations: read, write, rw, randread, randwrite or randrw. All but read and randread overwrite the
    /// namespace
    #[arg(long, value_name = "PATTERN", default_value = "randread")]
    rw: Pattern,
    /// Bytes per operation; a multiple of the namespace's block size
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = parse_block)]
    bs: u64,
    /// Operations that each job keeps in flight, 1 to 4094
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = count::<u32>(1, 4094))]
    iodepth: u32,
    /// Number of jobs, 1 to 256. Each job is a thread with --queues connections of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count::<u32>(1, 256))]
    numjobs: u32,
    /// Share of reads in rw and randrw, 0 to 100 percent [default: 50]
    #[arg(long, value_name = "PERCENT", value_parser = count::<u32>(0, 100))]
    rwmixread: Option<u32>,
    /// How long to run, above zero [default: 10s; with --size, once through the range]
    #[arg(long, value_name = "TIME", value_parser = time_above_zero)]
    duration: Option<Duration>,
    /// Start of the range in the namespace; a multiple of its block size
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = units::parse_size)]
    offset: u64,
    /// Length of the range [default: up to the end of the namespace]
    #[arg(long, alias = "length", value_name = "SIZE", value_parser = units::parse_size)]
    size: Option<u64>,
    /// Check the contents of blocks. Reads expect blocks that were written with --verify. Written blocks are
    /// read back at the end
    #[arg(long, value_enum, value_name = "METHOD")]
    verify: Option<Verify>,
    /// Seed of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count::<u64>(0, u64::MAX))]
    seed: u64,
    /// Write the result as JSON to a file, or to standard output for -
    #[arg(long, value_name = "FILE|-")]
    json: Option<String>,
    /// Write the result as CSV to a file, or to standard output for -, one line per row
    #[arg(long, value_name = "FILE|-")]
    csv: Option<PathBuf>,
}

fn parse_block(text: &str) -> inlane_core::Result<u64> {
    match units::parse_size(text)? {
        bytes if bytes >= 512 => Ok(bytes),
        _ => Err(inlane_core::Error::invalid(format!("'{text}'"), "give 512 or more, for example 4K")),
    }
}

impl Bench {
    /// Runs the workload on the namespace, and writes the result.
    ///
    /// # Errors
    /// If an option is invalid, the connection or a command fails, or a block has wrong contents.
    pub fn run(&self) -> anyhow::Result<()> {
        if self.rwmixread.is_some() && !(self.rw.reads() && self.rw.writes()) {
            let why = "it applies to --rw rw and --rw randrw only; leave it out";
            return Err(inlane_core::Error::invalid(flag("rwmixread"), why).into());
        }
        let output = Output::open(self.json.as_deref(), self.csv.as_deref(), None)?;
        let stop = Stop::on_signal()?;
        let duration = match (self.duration, self.size) {
            (None, None) => Some(Duration::from_secs(10)),
            (duration, _) => duration,
        };
        let workload = Workload {
            pattern: self.rw,
            block_bytes: self.bs,
            depth: self.iodepth,
            jobs: self.numjobs,
            read_percent: self.rwmixread.unwrap_or(50),
            cores: Vec::new(),
            once: duration.is_none(),
            offset: self.offset,
            size: self.size,
            verify: self.verify.is_some(),
            seed: self.seed,
        };
        let options = self.connect.session(self.iodepth)?;
        let mut opened = bench::Bench::open(&workload, &options)?;
        let mut live = Live::new(self.bs);
        let mut document = Document::<IoResult>::new("nvme bench");
        document.results = bench::measure(&mut opened, duration, stop.begin(), |elapsed, counts| {
            live.show(elapsed, counts);
        });
        live.end();
        let error = document.results.iter().find_map(|row| row.error.clone());
        output.write(
            &mut document,
            |out, document| out.write_all(inlane_report::text(document).as_bytes()),
            |_| None,
        )?;
        match error {
            Some(error) => bail!("{error}"),
            None => Ok(()),
        }
    }
}

/// The progress display. It updates one line on standard error, if standard error is a terminal.
struct Live {
    terminal: bool,
    block_bytes: u64,
    last: (Duration, BenchCounts),
}

impl Live {
    fn new(block_bytes: u64) -> Self {
        Self { terminal: std::io::stderr().is_terminal(), block_bytes, last: Default::default() }
    }

    fn show(&mut self, elapsed: Duration, counts: &dyn Fn() -> BenchCounts) {
        let since = elapsed.saturating_sub(self.last.0);
        if !self.terminal || since < Duration::from_millis(500) {
            return;
        }
        let progress = counts();
        let _ = write!(std::io::stderr(), "\r{}   \x1b[K", self.line(elapsed, progress));
        self.last = (elapsed, progress);
    }

    fn line(&self, elapsed: Duration, progress: BenchCounts) -> String {
        if progress.checking {
            return format!("{:>5.0} s  reading the written blocks back", elapsed.as_secs_f64());
        }
        let (then, before) = self.last;
        let seconds = elapsed.saturating_sub(then).as_secs_f64().max(1e-9);
        let rate = |now: u64, before: u64| {
            let operations = now.saturating_sub(before) as f64 / seconds;
            let bytes = units::bytes_per_second(operations * self.block_bytes as f64);
            format!("{operations:.0} IOPS, {bytes}")
        };
        format!(
            "{:>5.0} s  read {}  write {}",
            elapsed.as_secs_f64(),
            rate(progress.reads, before.reads),
            rate(progress.writes, before.writes),
        )
    }

    fn end(&self) {
        if self.terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_rates_since_the_last_one() {
        let mut live = Live { terminal: false, block_bytes: 4096, last: Default::default() };
        live.last = (Duration::from_secs(1), BenchCounts { reads: 1000, ..BenchCounts::default() });
        let progress = BenchCounts { reads: 3000, writes: 500, checking: false };
        let line = live.line(Duration::from_secs(3), progress);
        assert_eq!(line, "    3 s  read 1000 IOPS, 4.10 MB/s  write 250 IOPS, 1.02 MB/s");
    }
}
