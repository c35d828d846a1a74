//! `inlane nvme bench`: measures a namespace with fio's workloads.

mod figure;

use super::connect::{Connect, Stop};
use crate::fields::flag;
use crate::output::Output;
use crate::values::{count, time_above_zero};
use anyhow::bail;
use clap::{Args, ValueEnum};
use inlane_core::units;
use inlane_nvme::bench::{BenchCounts, IoResult, Pattern, Series, SeriesEvent, Workload};
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
  inlane nvme bench 10.0.0.2 --bs 4K,128K --iodepth 1,8,64 --repeats 5 --duration 2s --svg figure.svg
                                          every combination, five times in turns
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
    /// Bytes per operation; a multiple of the namespace's block size. One size, a list 4K,128K, or a range 4K..128K, each size four times
    /// the previous one (4K..128K,x2: two times)
    #[arg(long, value_name = "SIZES", default_value = "4K", value_parser = parse_blocks)]
    bs: Blocks,
    /// Operations that each job keeps in flight, 1 to 4094. Give several to measure each
    #[arg(long, value_name = "N,...", default_value = "32", value_delimiter = ',', value_parser = count::<u32>(1, 4094))]
    iodepth: Vec<u32>,
    /// Number of jobs, 1 to 256. Each job is a thread with --queues connections of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count::<u32>(1, 256))]
    numjobs: u32,
    /// Share of reads in rw and randrw, 0 to 100 percent [default: 50]
    #[arg(long, value_name = "PERCENT", value_parser = count::<u32>(0, 100))]
    rwmixread: Option<u32>,
    /// How long to run, above zero [default: 10s; with --size, once through the range]
    #[arg(long, value_name = "TIME", value_parser = time_above_zero)]
    duration: Option<Duration>,
    /// Repeats of each measurement, 1 to 1000. With several sizes or depths, they are measured in turns
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count::<u32>(1, 1000))]
    repeats: u32,
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
    /// Draw the rates and latencies to an SVG file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// The values of `--bs`.
#[derive(Clone, Debug)]
struct Blocks(Vec<u64>);

fn parse_blocks(text: &str) -> inlane_core::Result<Blocks> {
    let blocks = crate::sizes::parse(text, 1 << 30)?;
    match blocks.iter().find(|bytes| **bytes < 512) {
        None => Ok(Blocks(blocks)),
        Some(bytes) => Err(inlane_core::Error::invalid(
            format!("'{}'", units::bytes(*bytes)),
            "give 512 or more, for example 4K",
        )),
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
        let output = Output::open(self.json.as_deref(), self.csv.as_deref(), self.svg.as_deref())?;
        let stop = Stop::on_signal()?;
        let duration = match (self.duration, self.size) {
            (None, None) => Some(Duration::from_secs(10)),
            (duration, _) => duration,
        };
        let deepest = self.iodepth.iter().copied().max().unwrap_or(1);
        let series = Series {
            workload: Workload {
                pattern: self.rw,
                block_bytes: 0,
                depth: deepest,
                jobs: self.numjobs,
                read_percent: self.rwmixread.unwrap_or(50),
                cores: Vec::new(),
                once: duration.is_none(),
                offset: self.offset,
                size: self.size,
                verify: self.verify.is_some(),
                seed: self.seed,
            },
            block_bytes: self.bs.0.clone(),
            depths: self.iodepth.clone(),
            repeats: self.repeats,
            duration,
        };
        let options = self.connect.session(deepest)?;
        let mut live = Live::new();
        let mut document = Document::<IoResult>::new("nvme bench");
        let (rows, failure) = series.measure(
            &options,
            || stop.begin(),
            |event| match event {
                SeriesEvent::Running(workload, elapsed, counts) => {
                    live.show(workload.block_bytes, elapsed, counts);
                }
                SeriesEvent::Ended(number, total, workload, rows) => {
                    live.end();
                    let words = brief(workload, rows);
                    crate::print_to_stderr(format_args!("[{number}/{total}] {words}"));
                }
            },
        );
        live.end();
        if rows.is_empty()
            && let Some(error) = failure
        {
            return Err(error.into());
        }
        document.results = rows;
        let error = document.results.iter().find_map(|row| row.error.clone());
        output.write(
            &mut document,
            |out, document| out.write_all(inlane_report::text(document).as_bytes()),
            figure::svg,
        )?;
        match error {
            Some(error) => bail!("{error}"),
            None => failure.map_or(Ok(()), |error| Err(error.into())),
        }
    }
}

/// Summarises a run for a line of progress.
fn brief(workload: &Workload, rows: &[IoResult]) -> String {
    let row = |row: &IoResult| {
        let p50 = row.latency.as_ref().map(|latency| format!(", p50 {}", units::nanoseconds(latency.p50_ns)));
        let found = format!("{:.0} IOPS{}", row.operations_per_second, p50.unwrap_or_default());
        format!("{} {}", row.operation, row.error.as_ref().map_or(found, ToString::to_string))
    };
    let rows: Vec<String> = rows.iter().map(row).collect();
    format!("bs {}, iodepth {}: {}", units::bytes(workload.block_bytes), workload.depth, rows.join("; "))
}

/// The progress display. It updates one line on standard error, if standard error is a terminal.
struct Live {
    terminal: bool,
    last: (Duration, BenchCounts),
}

impl Live {
    fn new() -> Self {
        Self { terminal: std::io::stderr().is_terminal(), last: Default::default() }
    }

    fn show(&mut self, block_bytes: u64, elapsed: Duration, counts: &dyn Fn() -> BenchCounts) {
        if elapsed < self.last.0 {
            // The next run of the series has begun.
            self.last = Default::default();
        }
        let since = elapsed.saturating_sub(self.last.0);
        if !self.terminal || since < Duration::from_millis(500) {
            return;
        }
        let progress = counts();
        let _ = write!(std::io::stderr(), "\r{}   \x1b[K", self.line(block_bytes, elapsed, progress));
        self.last = (elapsed, progress);
    }

    fn line(&self, block_bytes: u64, elapsed: Duration, progress: BenchCounts) -> String {
        if progress.checking {
            return format!("{:>5.0} s  reading the written blocks back", elapsed.as_secs_f64());
        }
        let (then, before) = self.last;
        let seconds = elapsed.saturating_sub(then).as_secs_f64().max(1e-9);
        let rate = |now: u64, before: u64| {
            let operations = now.saturating_sub(before) as f64 / seconds;
            let bytes = units::bytes_per_second(operations * block_bytes as f64);
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
        let mut live = Live { terminal: false, last: Default::default() };
        live.last = (Duration::from_secs(1), BenchCounts { reads: 1000, ..BenchCounts::default() });
        let progress = BenchCounts { reads: 3000, writes: 500, checking: false };
        let line = live.line(4096, Duration::from_secs(3), progress);
        assert_eq!(line, "    3 s  read 1000 IOPS, 4.10 MB/s  write 250 IOPS, 1.02 MB/s");
    }
}
