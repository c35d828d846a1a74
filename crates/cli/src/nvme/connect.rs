//! The flags that the initiator's commands share. They choose the target, the namespace, the identity of the
//! host, and how to connect.

use crate::values::{count, time_above_zero};
use clap::{Args, ValueEnum};
use inlane_core::units;
use inlane_nvme::Result;
use inlane_nvme::initiator::{
    Address, ConnectOptions, HostIdentity, QueueOptions, SessionOptions, resolve_subsystem,
};
use inlane_nvme::wire::nqn;
use inlane_nvme::wire::pdu;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The digests that protect PDUs, the messages of NVMe/TCP.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Digests {
    /// No digests; TCP's checksum only
    None,
    /// CRC-32C of each header
    Header,
    /// CRC-32C of all data
    Data,
    /// Both
    Both,
}

impl From<Digests> for pdu::Digests {
    fn from(digests: Digests) -> Self {
        let header = matches!(digests, Digests::Header | Digests::Both);
        let data = matches!(digests, Digests::Data | Digests::Both);
        pdu::Digests { header, data }
    }
}

/// The flags about this host and its connections.
#[derive(Args)]
pub struct HostFlags {
    /// NQN of this host [default: that of /etc/nvme/hostnqn, or made from the machine's identifier]
    #[arg(long, value_name = "NQN", value_parser = parse_nqn)]
    host_nqn: Option<String>,
    /// Authenticate this host with the secret in its line of this file (DH-HMAC-CHAP). A line has the NQN of a
    /// host, its secret and, to authenticate the target too, the target's secret. Only the file's owner may
    /// have access
    #[arg(long, value_name = "FILE")]
    secrets_file: Option<PathBuf>,
    /// Protect headers, data or both by digests (CRC-32C)
    #[arg(long, value_enum, value_name = "WHICH", default_value_t = Digests::None)]
    digests: Digests,
    /// Time above zero within which the target must accept a connection, and answer a command or transfer more data.
    /// Each attempt to use a path that does not answer is given up after this time
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = time_above_zero)]
    timeout: Duration,
    /// Poll for this long before a thread sleeps to wait for the target. This saves the time of wake-ups, and
    /// keeps the threads' cores at full load
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = units::parse_time)]
    spin: Duration,
}

impl HostFlags {
    /// Returns the host's identity.
    pub fn identity(&self) -> Result<HostIdentity> {
        let mut host = HostIdentity::this_machine();
        if let Some(nqn) = &self.host_nqn {
            host = host.with_nqn(nqn)?;
        }
        match &self.secrets_file {
            Some(path) => host.with_secrets_file(path),
            None => Ok(host),
        }
    }

    /// Returns the options of a queue with up to `depth` commands in flight.
    pub fn queue(&self, depth: u32) -> QueueOptions {
        QueueOptions {
            digests: self.digests.into(),
            entries: depth + 1,
            timeout: self.timeout,
            spin: self.spin,
        }
    }
}

/// The addresses at which a subsystem can be reached. Each address is a path to the subsystem.
#[derive(Clone, Debug)]
struct Paths(Vec<Address>);

impl FromStr for Paths {
    type Err = inlane_nvme::Error;

    fn from_str(text: &str) -> Result<Self> {
        text.split(',').map(str::parse).collect::<Result<_>>().map(Self)
    }
}

/// The flags that name a namespace of a target, and how to connect to the target.
#[derive(Args)]
pub struct Connect {
    /// Address of the target: HOST:PORT, port 4420 by default. Several addresses of one subsystem, joined by
    /// commas, are paths to it: if one fails, the next is used
    #[arg(value_name = "ADDRESS[,ADDRESS...]")]
    addresses: Paths,
    /// NQN of the subsystem [default: the only one that the target offers]
    #[arg(long, value_name = "NQN")]
    subsystem: Option<String>,
    /// Identifier of the namespace [default: the first]
    #[arg(long, alias = "nsid", value_name = "ID", value_parser = count::<u32>(1, 0xFFFF_FFFE))]
    namespace: Option<u32>,
    #[command(flatten)]
    host: HostFlags,
    /// Time after which either side gives up a silent peer; 0 turns the check off
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = units::parse_time)]
    keep_alive: Duration,
    /// I/O queues, 1 to 128. Each is a TCP connection, and commands take turns. A target may serve each queue
    /// on another core
    #[arg(long, alias = "nr-io-queues", value_name = "N", default_value_t = 1, value_parser = count::<u16>(1, 128))]
    queues: u16,
    /// How long to try to reconnect after a path has failed; 0 fails at once
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::parse_time)]
    reconnect: Duration,
}

impl Connect {
    /// Returns the options of sessions with up to `depth` commands in flight. Asks the target for its
    /// subsystem if none is given.
    ///
    /// # Errors
    /// If the flags are invalid, or the target cannot be asked.
    pub fn session(&self, depth: u32) -> Result<SessionOptions> {
        let host = self.host.identity()?;
        let queue = self.host.queue(depth);
        let subsystem = match &self.subsystem {
            Some(nqn) => nqn.clone(),
            None => self.resolve(&host, &queue)?,
        };
        Ok(SessionOptions {
            paths: self.addresses.0.clone(),
            connect: ConnectOptions { subsystem, host, queue, keep_alive: self.keep_alive },
            nsid: self.namespace,
            io_queues: self.queues,
            reconnect: self.reconnect,
        })
    }

    /// Asks the target for the NQN of its subsystem. Tries the target's addresses in order until one answers.
    /// If an address fails, prints a warning. If the last one fails, returns its error.
    fn resolve(&self, host: &HostIdentity, queue: &QueueOptions) -> Result<String> {
        let (last, others) = self.addresses.0.split_last().expect("clap requires an address");
        for address in others {
            match resolve_subsystem(address, host, queue) {
                Ok(subsystem) => return Ok(subsystem),
                Err(error) => crate::print_to_stderr(format_args!("inlane: warning: {error}")),
            }
        }
        resolve_subsystem(last, host, queue)
    }
}

/// Parses the NQN of a host or a subsystem.
pub fn parse_nqn(text: &str) -> inlane_core::Result<String> {
    let invalid = |error: nqn::InvalidNqn| inlane_core::Error::invalid(format!("NQN '{text}'"), error.why);
    nqn::check(text).map(|()| text.into()).map_err(invalid)
}

/// What SIGINT, SIGTERM and SIGHUP do. While a command connects, the first of them ends the process. After
/// [`Stop::begin`], the first one asks the command to stop, and the second one ends the process.
pub struct Stop {
    requested: Arc<AtomicBool>,
    begun: Arc<AtomicBool>,
}

impl Stop {
    /// Installs the handlers.
    ///
    /// # Errors
    /// If the handlers cannot be installed.
    pub fn on_signal() -> std::io::Result<Self> {
        let stop = Self { requested: Arc::default(), begun: Arc::default() };
        let (requested, begun) = (stop.requested.clone(), stop.begun.clone());
        crate::signal::on_signal(move |signal, _| {
            if !begun.load(Ordering::SeqCst) || requested.swap(true, Ordering::SeqCst) {
                crate::signal::end_by(signal);
            }
        })?;
        Ok(stop)
    }

    /// Lets the command stop in order from now on. Returns the flag that a signal sets.
    pub fn begin(&self) -> &Arc<AtomicBool> {
        self.begun.store(true, Ordering::SeqCst);
        &self.requested
    }
}
