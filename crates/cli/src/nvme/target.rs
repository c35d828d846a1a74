//! `inlane nvme target`: serves namespaces over NVMe/TCP until a signal arrives.

use super::connect::parse_nqn;
use super::secret::{GroupName, HashName};
use crate::fields::flag;
use crate::output::Output;
use crate::signal;
use crate::values::{core_list, count, socket_address, time_above_zero};
use anyhow::Context;
use clap::Args;
use inlane_core::units;
use inlane_nvme::namespace::{Specification, Storage};
use inlane_nvme::target::subsystem::Limits;
use inlane_nvme::target::{Config, Hosts, TargetResult};
use inlane_process::privileges::{Dropped, Successor, drop_privileges_to};
use inlane_result::Document;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Namespaces, with options after commas:
  memory:SIZE          memory; its contents are lost when the target ends
  file:PATH            a file; size=SIZE creates it if it does not exist
  block:PATH           a block device, which must not be mounted
  options: ro (read-only), lba=512|4096 (block size), direct=on|off (bypass the page cache of a
  file or device; by default on where the file system supports it)

Examples:
  # serve 1 GiB of memory and a file, on all addresses
  inlane nvme target --listen 0.0.0.0:4420 --namespace memory:1G --namespace file:disk,size=10G

  # use it from a Linux host
  nvme connect-all --transport tcp --traddr 192.0.2.1 --trsvcid 4420

  # serve a device read-only to two hosts, with worker threads on cores 2 and 3
  inlane nvme target --listen 192.0.2.1:4420 --namespace block:/dev/nvme0n1,ro --cores 2,3 \\
      --host nqn.2014-08.org.nvmexpress:uuid:1 --host nqn.2014-08.org.nvmexpress:uuid:2

  # let only hosts connect that prove their identity (DH-HMAC-CHAP)
  (umask 077; inlane nvme gen-dhchap-key --host-nqn nqn.2026-11.org.example:a >secrets)
  inlane nvme target --listen 192.0.2.1:4420 --namespace memory:1G --secrets-file secrets

The connection is not encrypted, because TLS is not supported. Without --secrets-file, hosts are
not authenticated. Listen only on networks that you trust.

SIGINT or SIGTERM completes the commands in progress, makes all data durable, prints the counters
and ends the target. A second signal ends it at once, without counters.";

/// The numbers of cores.
#[derive(Clone)]
struct Cores(Vec<usize>);

/// Serves memory, files and block devices to NVMe/TCP hosts
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Target {
    /// Listen on this address. Repeat the flag for more addresses: hosts can then use several paths. Port 0
    /// chooses a free port
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:4420", value_parser = socket_address(4420))]
    listen: Vec<SocketAddr>,
    /// Serve this as a namespace: memory:SIZE, file:PATH or block:PATH. Repeat the flag for more namespaces
    #[arg(long = "namespace", value_name = "NAMESPACE", required = true)]
    namespaces: Vec<Specification>,
    /// NVMe qualified name (NQN) of the subsystem [default: nqn.2026-11.inlane:HOSTNAME:PORT]
    #[arg(long, value_name = "NQN", value_parser = parse_nqn)]
    nqn: Option<String>,
    /// Let this host connect. Repeat the flag for more hosts [default: every host]
    #[arg(long = "host", value_name = "NQN", value_parser = parse_nqn)]
    hosts: Vec<String>,
    /// Let the hosts in this file connect: one NQN per line. The file is read again when it changes
    #[arg(long, value_name = "FILE")]
    hosts_file: Option<PathBuf>,
    /// Let the hosts in this file connect after they have proved their identity (DH-HMAC-CHAP). A line has the
    /// NQN of a host, its secret and, to prove the target's identity too, the target's secret. Only the file's
    /// owner may have access. The file is read again when it changes. Excludes --host and --hosts-file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["hosts", "hosts_file"])]
    secrets_file: Option<PathBuf>,
    /// Hash function of the authentication
    #[arg(long, value_enum, value_name = "HASH", default_value_t = HashName::Sha256, requires = "secrets_file", conflicts_with_all = ["hosts", "hosts_file"])]
    dhchap_hash: HashName,
    /// Diffie-Hellman group of the authentication, which hosts must support. A group stops eavesdroppers from
    /// testing guesses of a secret. Random secrets cannot be guessed and need only null, which is faster
    #[arg(long, value_enum, value_name = "GROUP", default_value_t = GroupName::Null, requires = "secrets_file", conflicts_with_all = ["hosts", "hosts_file"])]
    dhchap_dhgroup: GroupName,
    /// Pin one worker thread to each of these cores, for example 2,4-7. Excludes --threads [default: not
    /// pinned]
    #[arg(long, value_name = "LIST", conflicts_with = "threads", value_parser = |text: &str| core_list(text).map(Cores))]
    cores: Option<Cores>,
    /// Number of worker threads, 1 to 1024 [default: one per core that this process may use]
    #[arg(long, value_name = "N", value_parser = count::<u16>(1, 1024))]
    threads: Option<u16>,
    /// Let each worker thread poll for this long before it sleeps. This saves the time of wake-ups, and
    /// keeps the cores of busy threads at full load
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = units::parse_time)]
    spin: Duration,
    /// Keep root's privileges. By default, a target that was started as root continues as the user who called sudo or
    /// nobody, or as the owner of its file of hosts or secrets, and without capabilities
    #[arg(long)]
    keep_privileges: bool,
    /// End after this time [default: run until a signal arrives]
    #[arg(long, value_name = "TIME", value_parser = time_above_zero)]
    duration: Option<Duration>,
    /// Write the counters as JSON to a file, or to standard output for -
    #[arg(long, value_name = "FILE|-")]
    json: Option<String>,
    /// Serve the counters for Prometheus at http://ADDRESS:PORT/metrics
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = socket_address(9400))]
    metrics: Option<SocketAddr>,
}

impl Target {
    /// Serves until a signal arrives or the time is over.
    ///
    /// # Errors
    /// If the target cannot start, a thread fails, or data cannot be made durable at the end.
    pub fn run(self) -> anyhow::Result<()> {
        let output = Output::open(self.json.as_deref(), None, None)?;
        for (index, address) in self.listen.iter().enumerate() {
            if address.port() != 0 && self.listen[..index].contains(address) {
                let what = flag("listen").with(address).to_string();
                return Err(inlane_core::Error::invalid(what, "it is given twice; give it once").into());
            }
        }
        let successor = successor(self.secrets_file.as_deref().or(self.hosts_file.as_deref()));
        let listed: BTreeSet<String> = self.hosts.into_iter().collect();
        let hosts = match (self.secrets_file, self.hosts_file) {
            (Some(file), _) => {
                Hosts::Secrets { file, hash: self.dhchap_hash.into(), group: self.dhchap_dhgroup.into() }
            }
            (None, Some(path)) => Hosts::File(path, listed),
            (None, None) if listed.is_empty() => Hosts::Any,
            (None, None) => Hosts::Listed(listed),
        };
        let threads = std::thread::available_parallelism().map_or(1, Into::into);
        let config = Config {
            listen: self.listen,
            namespaces: self.namespaces,
            nqn: self.nqn,
            hosts,
            cores: self.cores.map(|cores| cores.0).unwrap_or_default(),
            threads: self.threads.map_or(threads, Into::into),
            spin: self.spin,
            limits: Limits::default(),
        };
        let (stop, stopped) = mpsc::channel();
        signal::on_signal(move |signal, before| {
            let _ = stop.send(());
            if before > 0 {
                signal::end_by(signal);
            }
        })
        .context("cannot watch for Ctrl-C")?;
        let newest = Arc::<Mutex<Option<TargetResult>>>::default();
        if let Some(address) = self.metrics {
            let shown = newest.clone();
            let page = move || {
                let newest = shown.lock().unwrap_or_else(PoisonError::into_inner);
                newest
                    .as_ref()
                    .map(crate::metrics::target_page)
                    .ok_or_else(|| "the target is starting".to_owned())
            };
            crate::metrics::serve(address, page)?;
        }
        let target = inlane_nvme::target::Target::start(config)?;
        if !self.keep_privileges {
            drop_privileges(successor)?;
        }
        announce(&target);
        crate::systemd::notify("READY=1");
        let end = self.duration.map(|duration| Instant::now() + duration);
        while !target.has_failed() {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                break;
            }
            if self.metrics.is_some() {
                *newest.lock().unwrap_or_else(PoisonError::into_inner) = Some(target.result());
            }
            let pause = Duration::from_millis(500).min(left.unwrap_or(Duration::MAX));
            if stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                break;
            }
        }
        crate::systemd::notify("STOPPING=1");
        let ended = target.stop()?;
        let mut document = Document::new("nvme target");
        document.results = vec![ended];
        let text = |out: &mut dyn std::io::Write, document: &Document<TargetResult>| {
            out.write_all(inlane_report::text(document).as_bytes())
        };
        output.write(&mut document, text, |_| None)
    }
}

/// Returns the user as which a target that was started as root continues. It must be able to read the file of hosts or
/// secrets again.
fn successor(file: Option<&Path>) -> Successor {
    match file.and_then(|file| file.metadata().ok()) {
        None => Successor::Caller,
        Some(file) if file.uid() == 0 => Successor::Root,
        Some(file) => Successor::User(Dropped { user: file.uid(), group: file.gid() }),
    }
}

/// Gives up all privileges. Root of a user namespace may be unable to become another user. It then only gives up its
/// capabilities.
fn drop_privileges(successor: Successor) -> inlane_core::Result<()> {
    if let Err(error) = drop_privileges_to(successor) {
        drop_privileges_to(Successor::Root)?;
        tracing::warn!("{error}; the target continues as root without capabilities");
    }
    Ok(())
}

/// Prints to standard error what is served, and on which addresses.
fn announce(target: &inlane_nvme::target::Target) {
    let subsystem = target.subsystem();
    let addresses: Vec<_> = subsystem.listeners.iter().map(ToString::to_string).collect();
    crate::print_to_stderr(format_args!(
        "inlane: target {} listens on {} with {} threads",
        subsystem.nqn,
        addresses.join(", "),
        target.threads()
    ));
    let in_memory = subsystem.namespaces.iter().filter(|it| matches!(it.storage, Storage::Memory(_)));
    let (wanted, memory) = (in_memory.map(|it| it.bytes()).sum(), total_memory());
    if memory > 0 && wanted > memory {
        crate::print_to_stderr(format_args!(
            "inlane: warning: the namespaces in memory have {}, and this machine has {}; the kernel kills the target when \
             hosts have filled it",
            units::bytes(wanted),
            units::bytes(memory)
        ));
    }
    for namespace in &subsystem.namespaces {
        let (size, blocks) = (units::bytes(namespace.bytes()), namespace.block_bytes());
        let access = if namespace.read_only { "read-only" } else { "writable" };
        let cache = match &namespace.storage {
            Storage::File(file) if !file.is_direct() => ", through the page cache",
            _ => "",
        };
        crate::print_to_stderr(format_args!(
            "inlane: namespace {}: {}, {size}, blocks of {blocks} bytes, {access}{cache}",
            namespace.id, namespace.name
        ));
    }
}

/// Returns the bytes of the machine's memory and swap space.
fn total_memory() -> u64 {
    let found = rustix::system::sysinfo();
    (found.totalram as u64 + found.totalswap as u64) * u64::from(found.mem_unit)
}
