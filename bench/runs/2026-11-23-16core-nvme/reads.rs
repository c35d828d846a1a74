//! The program that `turns.py` runs: a target with 1 GiB of memory, or the bench. Both use the functions of
//! the library. To build the program, copy it to `crates/nvme/examples`.
//!
//!     reads target ADDRESS THREADS
//!     reads bench ADDRESS PATTERN BLOCK_BYTES DEPTH JOBS none|both SECONDS

use inlane_nvme::bench::Workload;
use inlane_nvme::initiator::{
    Address, ConnectOptions, HostIdentity, QueueOptions, SessionOptions, resolve_subsystem,
};
use inlane_nvme::pdu::Digests;
use inlane_nvme::target::subsystem::Limits;
use inlane_nvme::target::{Config, Hosts, Target};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["target", address, threads] => {
            let _target = Target::start(Config {
                listen: vec![address.parse()?],
                namespaces: vec!["memory:1G".parse()?],
                nqn: None,
                hosts: Hosts::Any,
                cores: Vec::new(),
                threads: threads.parse()?,
                spin: Duration::ZERO,
                limits: Limits::default(),
            })?;
            loop {
                std::thread::park();
            }
        }
        ["bench", address, pattern, bytes, depth, jobs, digests, seconds] => {
            let depth: u32 = depth.parse()?;
            let both = digests == "both";
            let queue = QueueOptions {
                digests: Digests { header: both, data: both },
                entries: depth + 1,
                ..QueueOptions::default()
            };
            let (host, address) = (HostIdentity::this_machine(), address.parse::<Address>()?);
            let subsystem = resolve_subsystem(&address, &host, &queue)?;
            let options = SessionOptions {
                paths: vec![address],
                connect: ConnectOptions { subsystem, host, queue, keep_alive: Duration::ZERO },
                nsid: None,
                reconnect: Duration::ZERO,
            };
            let workload = Workload {
                pattern: pattern.parse()?,
                block_bytes: bytes.parse()?,
                depth,
                jobs: jobs.parse()?,
                read_percent: 50,
                duration: Some(Duration::from_secs_f64(seconds.parse()?)),
                offset: 0,
                size: None,
                verify: false,
                seed: 1,
            };
            let rows = inlane_nvme::bench::run(&workload, &options, &AtomicBool::new(false), |_, _| {})?;
            let row = &rows[0];
            println!(
                "{{\"operations_per_second\": {}, \"operations\": {}, \"cpu_share\": {}, \"run_ns\": {}, \"p99_ns\": {}}}",
                row.operations_per_second,
                row.operations,
                row.cpu_share,
                row.run_ns,
                row.latency.as_ref().map_or(0.0, |latency| latency.p99_ns as f64)
            );
            Ok(())
        }
        _ => Err("see the comment at the start of the program".into()),
    }
}
