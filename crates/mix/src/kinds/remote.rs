//! Loads on a namespace of an NVMe target.

use super::{KindInfo, MOST_THREADS, THREADS, Work};
use crate::settings::key;
use inlane_core::Error;
use inlane_core::load::Load;
use inlane_nvme::bench::{Bench, Pattern, Workload};
use inlane_nvme::initiator::{
    Address, ConnectOptions, HostIdentity, QueueOptions, SessionOptions, resolve_subsystem,
};
use std::time::Duration;

/// The most commands that a thread may have in flight.
const MOST_IN_FLIGHT: usize = 4094;
/// How long a session tries to reconnect before the load fails. A longer silence would make the phases worthless.
const RECONNECT: Duration = Duration::from_secs(2);
/// The keep-alive timeout of the connections.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Reads and writes of an NVMe/TCP target's namespace.
pub(super) const NVME: KindInfo = KindInfo {
    name: "nvme",
    about: "reads and writes a namespace of an NVMe/TCP target, as 'inlane nvme bench' does",
    own_keys: &[
        key("target", "the address of the target: HOST:PORT"),
        key("subsystem", "the NQN of the subsystem; default: the only one of the target"),
        key("namespace", "the number of the namespace; default: the first"),
        key(
            "operation",
            "randread, read, randwrite, write, randrw or rw; all but the reads overwrite data; default: randread",
        ),
        key("size", "the bytes of an operation; default: 4K"),
        key("depth", "the operations that each thread keeps in flight; default: 32"),
        key("queues", "the connections of each thread; default: 1"),
        THREADS,
    ],
    read: |settings| {
        let target = settings.required("target", "give its address, for example target=10.0.0.2:4420")?;
        let target = settings.parsed("target", |_| target.parse::<Address>())?.expect("the key was given");
        let namespace = settings.count("namespace", 0xffff_fffe)?.map(|number| number as u32);
        Ok(Work::Remote(Box::new(Remote {
            target,
            subsystem: settings.text("subsystem").map(String::from),
            namespace,
            pattern: settings.of("operation")?.unwrap_or(Pattern::RandRead),
            size: settings.size("size")?.unwrap_or(4096),
            depth: settings.count("depth", MOST_IN_FLIGHT)?.unwrap_or(32),
            queues: settings.count("queues", MOST_THREADS)?.unwrap_or(1) as u16,
        })))
    },
};

/// What a load on a namespace does.
#[derive(Clone, Debug)]
pub struct Remote {
    target: Address,
    subsystem: Option<String>,
    namespace: Option<u32>,
    pattern: Pattern,
    /// The bytes of an operation.
    pub size: usize,
    /// The operations that each thread keeps in flight.
    pub depth: usize,
    queues: u16,
}

impl Remote {
    pub(super) fn open(&self, threads: usize, cores: &[usize]) -> Result<Box<dyn Load>, Error> {
        let open = || -> inlane_nvme::Result<Bench> {
            let host = HostIdentity::this_machine();
            let queue = QueueOptions { entries: self.depth as u32 + 1, ..QueueOptions::default() };
            let subsystem = match &self.subsystem {
                Some(name) => name.clone(),
                None => resolve_subsystem(&self.target, &host, &queue)?,
            };
            let options = SessionOptions {
                paths: vec![self.target.clone()],
                connect: ConnectOptions { subsystem, host, queue, keep_alive: KEEP_ALIVE },
                nsid: self.namespace,
                io_queues: self.queues,
                reconnect: RECONNECT,
            };
            let workload = Workload {
                pattern: self.pattern,
                block_bytes: self.size as u64,
                depth: self.depth as u32,
                jobs: threads as u32,
                read_percent: 50,
                cores: cores.to_vec(),
                once: false,
                offset: 0,
                size: None,
                verify: false,
                seed: 1,
            };
            Bench::open(&workload, &options)
        };
        let bench = open().map_err(|error| {
            let class = error.class();
            Error::other(error, class)
        })?;
        Ok(Box::new(bench))
    }
}
