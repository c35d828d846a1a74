//! Runs UCX's ucx_perftest, whose shared-memory put is compared with inlane's. Both programs stop the time
//! measurement when the puts are issued.

use super::{MeasuredOperation, Point, UcxPerftest};
use crate::error::{Error, Result};
use crate::field::UCX;
use inlane_core::cores::CoreSet;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

/// A server process of ucx_perftest. Dropping this value kills the process.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn command(ucx: &UcxPerftest, port: u16, processor: Option<usize>) -> Command {
    let mut command = Command::new(&ucx.program);
    command.args(["-p", &port.to_string()]);
    if !ucx.by_environment {
        command.env("UCX_TLS", "shm,self,tcp").env("UCX_NET_DEVICES", "lo");
    }
    command.env("UCX_LOG_LEVEL", "error").stderr(Stdio::null()).stdin(Stdio::null());
    if let Some(processor) = processor {
        let own = CoreSet::of(&[processor]);
        // SAFETY: between fork and exec, this closure only makes a system call, and allocates nothing.
        unsafe {
            command.pre_exec(move || {
                let _ = own.bind();
                Ok(())
            });
        }
    }
    command
}

/// Returns the bandwidth of the last line that ucx_perftest prints with `-f -v`, in bytes a second.
fn parse(output: &str) -> Option<f64> {
    let line = output.lines().rev().find(|line| line.split(',').count() >= 8)?;
    // The sixth column is the overall bandwidth in MB/s. ucx_perftest counts 2^20 bytes as 1 MB.
    let megabytes: f64 = line.split(',').nth(5)?.trim().parse().ok()?;
    Some(megabytes * 1048576.0)
}

/// Runs ucx_perftest's `ucp_put_bw` on the processors `pair`, with messages of `size` bytes, for about
/// `batch_us` microseconds. Returns the rate in bytes per second.
///
/// # Errors
/// [`Error::Os`] if ucx_perftest does not start, [`Error::Failed`] if it prints no result.
pub(super) fn ucx_put(ucx: &UcxPerftest, pair: &[usize], size: u64, batch_us: u64) -> Result<f64> {
    static RUNS: AtomicU16 = AtomicU16::new(0);
    let program = &ucx.program;
    let start =
        |command: &mut Command| command.spawn().map_err(|error| Error::starting(program.as_os_str(), error));
    // Choose the number of messages for a run of about `batch_us` microseconds. Assume 100 ns for each
    // message, plus its bytes at 10 GB/s.
    let each = (size as f64 / 10e9 + 100e-9) * 1e9;
    let count = (batch_us as f64 * 1e3 / each).max(10.0) as u64;
    let mut output = String::new();
    // Try up to three ports, because a server ends at once if its TCP port is in use. The ports are below
    // Linux's ephemeral ports, which outgoing connections use.
    for _ in 0..3 {
        let port =
            20_000 + (std::process::id() as u16 % 60) * 200 + RUNS.fetch_add(1, Ordering::Relaxed) % 200;
        let mut server = Server(start(command(ucx, port, pair.get(1).copied()).stdout(Stdio::null()))?);
        // The server needs some time before it listens. Start the client again after a pause until it
        // connects. Stop when the server has ended, because it serves only one client.
        for attempt in 0..60 {
            std::thread::sleep(Duration::from_millis(10 + attempt * 4));
            let mut client = command(ucx, port, pair.first().copied());
            client.args(["127.0.0.1", "-t", "ucp_put_bw", "-f", "-v", "-s", &size.to_string()]);
            client.args(["-n", &count.to_string(), "-w", &(count / 10 + 1).to_string()]);
            let result = client.output().map_err(|error| Error::starting(program.as_os_str(), error))?;
            output = String::from_utf8_lossy(&result.stdout).into_owned();
            if let Some(rate) = parse(&output) {
                return Ok(rate);
            }
            if matches!(server.0.try_wait(), Ok(Some(_))) {
                break;
            }
        }
    }
    let last = output.lines().last().map(|line| format!("; its last line: {line}")).unwrap_or_default();
    let what = format!("{} printed no bandwidth for {size} bytes", program.display());
    let why = format!("check that {UCX} is ucx_perftest{last}");
    Err(Error::Failed { what, why })
}

/// Converts the rates that ucx_perftest reported, in bytes per second of each repeat, to a `Point`.
/// `by_environment` is true if UCX's environment variables chose the transports.
pub(super) fn point(size: u64, rates: Vec<f64>, by_environment: bool) -> Point {
    Point {
        operation: MeasuredOperation::PeerPut,
        path: if by_environment { "ucx_perftest" } else { "ucx shm" }.into(),
        size_bytes: size,
        completion: "poll".into(),
        latency_ns: Vec::new(),
        samples_ns: Vec::new(),
        operations_per_second: rates.iter().map(|rate| rate / size as f64).collect(),
        bytes_per_second: rates,
        cpu_seconds_per_gigabyte: None,
        mover_cpu_seconds_per_gigabyte: None,
        busy: None,
        transferred_bytes: 0,
        verified_bytes: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn results_are_read() {
        let output = "+---+\n1000000,0.040,0.041,0.041,190.7,188.5,24700000,24700001\n";
        assert_eq!(parse(output), Some(188.5 * 1048576.0));
        assert_eq!(parse("nothing"), None);
    }
}
