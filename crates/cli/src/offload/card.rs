//! `inlane offload card`: runs TCP for an engine on another machine or in another process.

use super::{successor, usual_spin};
use crate::values::count;
use clap::Args;
use inlane_core::units;
use inlane_offload::{Card as Engine, CardSettings, parse_port};
use inlane_ports::wrap::fault::Faults;
use inlane_process::privileges::drop_privileges_to;
use inlane_wire::Mac;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Runs TCP for an engine on another machine, until it is interrupted
///
/// The card has the network, and a port that leads to the engine. Start the engine with
/// 'inlane offload serve --card'. It keeps the programs, and tells the card its addresses.
#[derive(Args)]
#[command(after_help = "\
Examples:
  # the card: eth1 leads to the network, the twin of a bridge to the engine
  inlane offload card --port af_xdp:eth1 --engine ntb:/run/inlane/card,role=server

  # the engine
  inlane offload serve --card --port ntb:/run/inlane/card --address 10.0.0.1/24")]
pub struct Card {
    /// Port to the network, as of 'inlane offload serve'
    #[arg(long, value_name = "PORT")]
    port: String,
    /// Port to the engine, which must not lose frames: ntb:SOCKET, ntb:ADDRESS, memif:SOCKET
    #[arg(long, value_name = "PORT")]
    engine: String,
    /// Largest IP packet on the network, 1280 to 65535 [default: 1500; on memif, 9000 for TCP segments]
    #[arg(long, value_name = "BYTES", value_parser = count::<u16>(1280, 65535))]
    mtu: Option<u16>,
    /// MAC address on the network [default: that of the interface]
    #[arg(long, value_name = "MAC")]
    mac: Option<Mac>,
    /// Pin the card's thread to this core [default: not pinned]
    #[arg(long, value_name = "N")]
    core: Option<usize>,
    /// Poll for this long after the last work, then sleep [default: 50us with four or more cores, else 0s]
    #[arg(long, value_name = "TIME", value_parser = units::parse_time)]
    spin: Option<Duration>,
    /// Run as this user once the ports are open. Without it the user stays the same. The card gives up its
    /// capabilities in both cases
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Faults to inject into frames received from the network, joined by commas: drop=P:N (N in a row), duplicate=P, corrupt=P,
    /// reorder=P:N (N later frames overtake the frame), delay=P:TIME, seed=N. P is a probability such as 1%
    #[arg(long, value_name = "LIST", default_value = "", hide_default_value = true, value_parser = Faults::parse)]
    faults: Faults,
}

impl Card {
    /// Runs the card.
    ///
    /// # Errors
    /// If a setting is wrong or a port cannot be opened.
    pub fn run(self) -> anyhow::Result<()> {
        let settings = CardSettings {
            port: parse_port(&self.port)?,
            engine: parse_port(&self.engine)?,
            mtu: self.mtu,
            mac: self.mac,
            core: self.core,
            spin: self.spin.unwrap_or_else(usual_spin),
            faults: self.faults,
        };
        let successor = successor(self.user.as_deref())?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = stop.clone();
        crate::signal::on_signal(move |signal, before| match before {
            0 => {
                stopping.store(true, Ordering::Relaxed);
                crate::devices::stop_waiting();
            }
            _ => crate::signal::end_by(signal),
        })?;
        let mut card = Engine::open(settings)?;
        drop_privileges_to(successor)?;
        let (mac, network, engine) = card.links();
        crate::print_to_stderr(format_args!(
            "inlane: card ready: network {network}, MAC address {mac}, engine {engine}"
        ));
        crate::systemd::notify("READY=1");
        let outcome = card.run(&stop);
        crate::systemd::notify("STOPPING=1");
        let counters = card.counters();
        card.close();
        crate::print(|out| {
            writeln!(
                out,
                "{} sessions, {} connections opened, {} accepted, {} frames passed, {} dropped, {} sessions broken",
                counters.sessions,
                counters.opened,
                counters.accepted,
                counters.passed,
                counters.dropped,
                counters.broken
            )
        })?;
        Ok(outcome?)
    }
}
