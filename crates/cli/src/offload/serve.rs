//! `inlane offload serve`: runs the engine.

use super::run::read_rules;
use super::status::totals;
use super::{successor, usual_spin};
use crate::fields::flag;
use crate::values::{core_list, count, power_of_two, socket_address};
use clap::Args;
use inlane_core::units;
use inlane_offload::Settings;
use inlane_offload::Threads;
use inlane_offload::client::{fetch, fetch_within};
use inlane_offload::status::EngineStatus;
use inlane_offload_protocol::DEFAULT_SOCKET;
use inlane_offload_protocol::rules::Prefix;
use inlane_ports::wrap::fault::Faults;
use inlane_process::limits::allow_descriptors;
use inlane_process::privileges::{drop_privileges_to, group_named};
use inlane_wire::Mac;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Runs an engine until it is interrupted
///
/// The engine has its own IP addresses on the port. Programs that 'inlane offload run' starts use these
/// addresses.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inlane offload serve --port af_xdp:veth0 --address 10.0.0.1/24
  inlane offload serve --port af_packet:eth1 --address 10.0.0.1/24 --address fd00::1/64 \\
      --gateway 10.0.0.254

  # four threads, each with a queue of the card
  inlane offload serve --port af_xdp:eth1 --threads 4 --address 10.0.0.1/24

  # connections within this machine, too
  inlane offload serve --port af_xdp:veth0 --address 10.0.0.1/24 --loopback")]
pub struct Serve {
    /// Port to the network: af_xdp:IFACE, af_packet:IFACE, tap:NAME, memif:SOCKET, ntb:SOCKET|ADDRESS, pci:ADDRESS
    #[arg(long, value_name = "PORT")]
    port: String,
    /// Number of threads that run sockets, 1 to 64. Each has a queue of the port, so the port must spread flows
    /// over as many queues (RSS)
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count::<u16>(1, 64))]
    threads: u16,
    /// Pin one thread to each of these cores, for example 2,4-7. Excludes --threads [default: not pinned]
    #[arg(long, value_name = "LIST", conflicts_with = "threads", value_parser = |text: &str| core_list(text).map(Cores))]
    cores: Option<Cores>,
    /// IP address of the engine, with the prefix length of its network. Repeat the flag for more addresses
    #[arg(long, value_name = "ADDRESS/LENGTH", required = true, value_parser = parse_address)]
    address: Vec<Prefix>,
    /// Router for destinations outside the networks of --address. Repeat the flag to give one for IPv4 and one for IPv6
    #[arg(long, value_name = "ADDRESS", value_parser = parse_gateway)]
    gateway: Vec<IpAddr>,
    /// Also run connections to 127.0.0.0/8 and ::1 between programs of this engine
    #[arg(long)]
    loopback: bool,
    /// Path of the control socket, through which programs reach the engine
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    /// Permissions of the control socket, in octal. They decide who may open connections with the engine's
    /// addresses: 666 is everyone, 600 only the user who runs the engine [default: 666, with --socket-group 660]
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    socket_mode: Option<u32>,
    /// Group of the control socket. Without --socket-mode, only the engine's user and this group may use the engine
    #[arg(long, value_name = "GROUP")]
    socket_group: Option<String>,
    /// TOML file with rules that keep sockets of all programs with the kernel, in the form of 'inlane offload run --rules'.
    /// What a rule names as the program is what the program says of itself
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// Largest IP packet on the port, 1280 to 65535 [default: 1500; on memif and ntb, 9000 for TCP segments]
    #[arg(long, value_name = "BYTES", value_parser = count::<u16>(1280, 65535))]
    mtu: Option<u16>,
    /// MAC address of the engine [default: that of the interface]
    #[arg(long, value_name = "MAC")]
    mac: Option<Mac>,
    /// Size of the send buffer and of the receive buffer of each connection, a power of two from 4K to 1G
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = power_of_two(4096, 1 << 30))]
    buffer: u64,
    /// The most sockets of one process, 1 to 1048576
    #[arg(long, value_name = "N", default_value_t = 65536, value_parser = count::<usize>(1, 1 << 20))]
    sockets: usize,
    /// What carries the data of connections to other engines. rdma sends RoCEv2 packets (UDP port 4791) that the peer's engine
    /// places at once, in any order. It needs this setting on both engines; otherwise TCP carries the data. Over memif, an engine
    /// stores data directly into the memory of a peer of the same user; rdma-packets always sends packets
    #[arg(long, value_enum, default_value_t = Transport::Tcp)]
    transport: Transport,
    /// The port leads to a card, on which 'inlane offload card' runs. The card runs TCP for the engine, and passes all other
    /// packets
    #[arg(long)]
    card: bool,
    /// Poll for this long after the last work, then sleep [default: 50us with four or more cores, else 0s]
    #[arg(long, value_name = "TIME", value_parser = units::parse_time)]
    spin: Option<Duration>,
    /// Run as this user once the port and the control socket are open. Without it the user stays the same. The
    /// engine gives up its capabilities in both cases
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Serve the engine's counters for Prometheus at http://ADDRESS:PORT/metrics
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = socket_address(9400))]
    metrics: Option<SocketAddr>,
    /// Faults to inject into received frames, joined by commas: drop=P:N (N in a row), duplicate=P, corrupt=P,
    /// reorder=P:N (N later frames overtake the frame), delay=P:TIME, seed=N. P is a probability such as 1%
    #[arg(long, value_name = "LIST", default_value = "", hide_default_value = true, value_parser = Faults::parse)]
    faults: Faults,
}

/// What carries the data of connections.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Transport {
    Tcp,
    Rdma,
    RdmaPackets,
}

impl From<Transport> for inlane_offload::Transport {
    fn from(transport: Transport) -> Self {
        match transport {
            Transport::Tcp => Self::Tcp,
            Transport::Rdma => Self::Rdma,
            Transport::RdmaPackets => Self::RdmaPackets,
        }
    }
}

/// How long an engine that was told to end may take to give its sums.
const LAST_ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// The numbers of cores.
#[derive(Clone)]
struct Cores(Vec<usize>);

fn parse_address(text: &str) -> Result<Prefix, String> {
    match text.contains('/') {
        true => Prefix::parse(text).ok_or_else(|| why_no_prefix(text)),
        false => Err("the prefix length is missing; give for example 10.0.0.1/24".to_owned()),
    }
}

/// Returns why a text is not an address with a prefix length, such as `10.0.0.1/24`.
fn why_no_prefix(text: &str) -> String {
    let (address, length) = text.split_once('/').unwrap_or((text, ""));
    match address.parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) => format!(
            "the prefix length '{length}' is not a number from 0 to 32; give for example {address}/24"
        ),
        Ok(IpAddr::V6(_)) => format!(
            "the prefix length '{length}' is not a number from 0 to 128; give for example {address}/64"
        ),
        Err(_) => format!("{address} is not an IP address; give for example 10.0.0.1/24 or fd00::1/64"),
    }
}

fn parse_gateway(text: &str) -> Result<IpAddr, &'static str> {
    text.parse().map_err(|_| "it is not an IP address; give for example 10.0.0.254 or fd00::ff")
}

fn parse_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|&mode| mode <= 0o777);
    mode.ok_or_else(|| "give an octal number from 0 to 777".to_owned())
}

impl Serve {
    /// Runs the engine.
    ///
    /// # Errors
    /// If a setting is wrong, the port cannot be opened, or another engine uses the control socket.
    pub fn run(self) -> anyhow::Result<()> {
        let pinned = self.cores.map(|cores| cores.0).unwrap_or_default();
        let threads = if pinned.is_empty() { self.threads } else { u16::try_from(pinned.len())? };
        let group = match &self.socket_group {
            Some(name) => Some(group_named(flag("socket-group").with(name), name)?),
            None => None,
        };
        let rules = self.rules.as_deref().map(read_rules).transpose()?.unwrap_or_default();
        let settings = Settings {
            threads,
            cores: pinned,
            port: inlane_offload::parse_port(&self.port)?,
            addresses: self.address,
            gateways: self.gateway,
            loopback: self.loopback,
            socket: self.socket.clone(),
            mode: self.socket_mode.unwrap_or(if group.is_some() { 0o660 } else { 0o666 }),
            group,
            rules,
            mtu: self.mtu,
            mac: self.mac,
            buffer: usize::try_from(self.buffer)?,
            sockets_per_program: self.sockets,
            transport: self.transport.into(),
            card: self.card,
            spin: self.spin.unwrap_or_else(usual_spin),
            faults: self.faults,
        };
        let successor = successor(self.user.as_deref())?;
        let stop = Arc::new(AtomicBool::new(false));
        let (stopping, last, asked) =
            (stop.clone(), Arc::<OnceLock<EngineStatus>>::default(), self.socket.clone());
        let state = last.clone();
        crate::signal::on_signal(move |signal, before| match before {
            0 => {
                // Only a running engine answers. Without an answer, the engine ends without its sums.
                if let Ok(status) = fetch_within(&asked, LAST_ANSWER_WITHIN) {
                    let _ = state.set(status);
                }
                stopping.store(true, Ordering::Relaxed);
                crate::devices::stop_waiting();
            }
            _ => crate::signal::end_by(signal),
        })?;
        // Each socket needs a descriptor. The engine can also run with the present limit.
        allow_descriptors(u64::MAX);
        if let Some((interface, shared)) = inlane_offload::shared_addresses(&settings) {
            for prefix in shared {
                crate::print_to_stderr(format_args!(
                    "inlane: warning: --address {prefix}: the kernel has this address on {interface}, too. Both answer for it, so connections to \
                     the kernel, such as SSH, may break; give the engine an address of its own"
                ));
            }
        }
        if let Some(address) = self.metrics {
            let socket = self.socket.clone();
            let page = move || match fetch(&socket) {
                Ok(status) => Ok(crate::metrics::engine_page(&status)),
                Err(error) => Err(error.to_string()),
            };
            crate::metrics::serve(address, page)?;
        }
        let mut engine = Threads::open(settings)?;
        drop_privileges_to(successor)?;
        let (mac, path) = engine.link();
        crate::print_to_stderr(format_args!(
            "inlane: engine ready: {path}, MAC address {mac}, control socket {}",
            self.socket.display()
        ));
        crate::systemd::notify("READY=1");
        let outcome = engine.run(&stop);
        crate::systemd::notify("STOPPING=1");
        engine.close();
        if let Some(status) = last.get() {
            crate::print(|out| totals(out, status))?;
        }
        Ok(outcome?)
    }
}
