//! From ports as users write them to open ports, and the pools that fill them.

use crate::config::Config;
use crate::error::Result;
use crate::ports::check::{Checker, reference};
use crate::ports::generate::Generator;
use inlane_core::clock::Clock;
use inlane_core::{Error, HeapPool, Pool, Port};
use inlane_dpdk::MbufPool;
use std::sync::Arc;

/// What DPDK carries.
const DPDK: [&str; 7] = ["null", "ring", "af_xdp", "af_packet", "tap", "memif", "pci"];

/// The kind of a port: what stands before its first colon or comma.
pub fn kind(name: &str) -> &str {
    name.split([':', ',']).next().unwrap_or_default()
}

/// True for ports that may stand on both sides of a run under one name; captures, generators and checkers are one each.
pub fn is_shared(name: &str) -> bool {
    DPDK.contains(&kind(name))
}

/// Opens every port.
///
/// # Errors
/// When one of them cannot be opened, or is of no kind that there is.
pub fn ports(names: &[String], config: &Config, clock: &Clock) -> Result<Vec<Box<dyn Port>>> {
    let mut generators = Vec::new();
    for name in names.iter().filter(|name| kind(name) == "gen") {
        let mut generator = Generator::open(name, clock)?;
        if config.rate.is_some() {
            generator.set_rate(config.rate);
        }
        generators.push(generator);
    }
    // A checker knows from the generator of this run what has to come.
    let mut checkers = Vec::new();
    for name in names.iter().filter(|name| kind(name) == "check") {
        checkers.push(Checker::open(name, clock, generators.first(), reference::find(&config.function)?)?);
    }
    let (mut generators, mut checkers) = (generators.into_iter(), checkers.into_iter());
    let mut ports: Vec<Box<dyn Port>> = Vec::new();
    for name in names {
        ports.push(match kind(name) {
            "gen" => Box::new(generators.next().expect("opened above")),
            "check" => Box::new(checkers.next().expect("opened above")),
            kind if DPDK.contains(&kind) => inlane_dpdk::open(name)?,
            kind => {
                let why =
                    format!("no port of kind '{kind}'; there are gen, check, pcap, {}", DPDK.join(", "));
                return Err(Error::port_usage(name, why).into());
            }
        });
    }
    Ok(ports)
}

/// A pool for each pipeline of each direction: of mbufs as soon as one port is DPDK's, which can send nothing else.
///
/// # Errors
/// When there is no memory for them.
pub fn pools(names: &[String], config: &Config, directions: usize) -> Result<Vec<Vec<Arc<dyn Pool>>>> {
    let mbufs = names.iter().any(|name| DPDK.contains(&kind(name)));
    let one = || -> Result<Arc<dyn Pool>> {
        Ok(match mbufs {
            true => MbufPool::new(config.buffers, config.room)?,
            false => Arc::new(HeapPool::new(config.buffers, config.room)?),
        })
    };
    (0..directions).map(|_| (0..config.pipelines).map(|_| one()).collect()).collect()
}
