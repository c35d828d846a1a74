//! The peer to compare with: UCX's shared-memory put as ucx_perftest measures it, issued against issued.

use super::{Operation, Point};
use crate::error::{Error, Result};
use crate::launch::processors;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// What ends with this value.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn command(program: &Path, port: u16, processor: Option<usize>) -> Command {
    let mut command = Command::new(program);
    command.args(["-p", &port.to_string()]).env("UCX_TLS", "shm,self,tcp").env("UCX_NET_DEVICES", "lo");
    command.env("UCX_LOG_LEVEL", "error").stderr(Stdio::null()).stdin(Stdio::null());
    if let Some(processor) = processor {
        // SAFETY: a system call on a local, between fork and exec.
        unsafe {
            command.pre_exec(move || {
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                libc::CPU_SET(processor, &mut set);
                libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
                Ok(())
            });
        }
    }
    command
}

/// The bandwidth in the last line that ucx_perftest prints with `-f -v`, in bytes a second.
fn parse(output: &str) -> Option<f64> {
    let line = output.lines().rev().find(|line| line.split(',').count() >= 8)?;
    // iterations, three latencies, average and overall MB/s, average and overall messages a second.
    let megabytes: f64 = line.split(',').nth(5)?.trim().parse().ok()?;
    Some(megabytes * 1048576.0)
}

/// ucx_perftest's `ucp_put_bw` of `size` bytes, `repeats` times, on the first two processors.
///
/// # Errors
/// [`Error::Os`] when it does not start, [`Error::Invalid`] when it prints no result.
pub fn ucx_put(program: &Path, size: u64, batch: Duration, repeats: u32) -> Result<Point> {
    let start = |command: &mut Command| {
        command.spawn().map_err(|error| Error::os(format!("starting {}", program.display()), error))
    };
    let processors = processors();
    // About the batch's time at 10 GB/s and 100 ns a message.
    let each = (size as f64 / 10e9 + 100e-9) * 1e9;
    let count = (batch.as_nanos() as f64 / each).clamp(10.0, 1e7) as u64;
    let mut rates = Vec::new();
    for repeat in 0..repeats {
        let port = 20_000 + (std::process::id() as u16 % 20_000) + repeat as u16;
        let server = Server(start(command(program, port, processors.get(1).copied()).stdout(Stdio::null()))?);
        let mut output = String::new();
        // The server needs a moment to listen, the longer the busier the machine.
        for attempt in 0..40 {
            std::thread::sleep(Duration::from_millis(25 + attempt * 5));
            let mut client = command(program, port, processors.first().copied());
            client.args(["127.0.0.1", "-t", "ucp_put_bw", "-f", "-v", "-s", &size.to_string()]);
            client.args(["-n", &count.to_string(), "-w", &(count / 10 + 1).to_string()]);
            let result = client
                .output()
                .map_err(|error| Error::os(format!("starting {}", program.display()), error))?;
            output = String::from_utf8_lossy(&result.stdout).into_owned();
            if parse(&output).is_some() {
                break;
            }
        }
        drop(server);
        let rate = parse(&output).ok_or_else(|| {
            Error::invalid(
                format!("{}", program.display()),
                format!("no result for {size} bytes in: {output}"),
            )
        })?;
        rates.push(rate);
    }
    Ok(Point {
        operation: Operation::PeerPut,
        path: "ucx shm".into(),
        size_bytes: size,
        completion: "poll".into(),
        latency_ns: Vec::new(),
        operations_per_second: rates.iter().map(|rate| rate / size as f64).collect(),
        bytes_per_second: rates,
        cpu_seconds_per_gigabyte: None,
        mover_cpu_seconds_per_gigabyte: None,
        verified_bytes: 0,
    })
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
