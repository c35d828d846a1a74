//! `inlane offload status`: shows the engine's state.

use crate::output::Output;
use clap::Args;
use inlane_core::units;
use inlane_offload::client::fetch;
use inlane_offload::status::{EngineStatus, SocketStatus};
use inlane_offload_protocol::DEFAULT_SOCKET;
use inlane_result::Document;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

/// Shows the engine's sockets, their rates and retransmissions, and the sockets that stayed with the kernel
#[derive(Args)]
#[command(after_help = "\
Examples:
  inlane offload status
  inlane offload status --watch 1s
  inlane offload status --json -")]
pub struct Status {
    /// Control socket of the engine
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    /// Show the state again and again at this interval, 100ms or more, until interrupted
    #[arg(long, value_name = "TIME", value_parser = parse_interval, conflicts_with = "json")]
    watch: Option<Duration>,
    /// Write the result as JSON to a file, or to standard output for -
    #[arg(long, value_name = "FILE|-")]
    json: Option<String>,
}

fn parse_interval(text: &str) -> inlane_core::Result<Duration> {
    match units::parse_time(text)? {
        time if time >= Duration::from_millis(100) => Ok(time),
        _ => Err(inlane_core::Error::invalid(format!("'{text}'"), "give 100ms or more")),
    }
}

impl Status {
    /// Shows the engine's state once. With `--watch`, shows the state repeatedly until interrupted.
    ///
    /// # Errors
    /// If no engine runs, or an output cannot be written.
    pub fn run(self) -> anyhow::Result<()> {
        loop {
            let output = Output::open(self.json.as_deref(), None, None)?;
            let mut document = Document::new("offload status");
            document.results = vec![fetch(&self.socket)?];
            output.write(&mut document, text, |_| None)?;
            let Some(time) = self.watch else { return Ok(()) };
            std::thread::sleep(time);
            crate::print(|out| writeln!(out))?;
        }
    }
}

/// Returns the share of `part` in `whole` as text.
fn share_of(part: u64, whole: u64) -> String {
    format!("{:.1} %", part.min(whole) as f64 / whole.max(1) as f64 * 100.0)
}

fn text(out: &mut dyn Write, document: &Document<EngineStatus>) -> io::Result<()> {
    for engine in &document.results {
        totals(out, engine)?;
        if let Some(name) = &engine.down_interface {
            writeln!(out, "the interface {name} of the port is down; set it up: ip link set {name} up")?;
        }
        // If the engine has only one thread, leave out the thread's line. It would repeat the lines above.
        for thread in engine.threads.iter().filter(|_| engine.threads.len() > 1) {
            writeln!(
                out,
                "thread {}: {:.1} % of a core, {} sockets, {} frames received, {} sent, {} passed on",
                thread.thread,
                thread.cpu_ns as f64 / engine.uptime_ns.max(1) as f64 * 100.0,
                thread.sockets,
                thread.received_packets,
                thread.sent_packets,
                thread.passed_packets
            )?;
        }
        if engine.closing_descriptors > 0 {
            writeln!(out, "{} descriptors of programs are being closed", engine.closing_descriptors)?;
        }
        if engine.sockets.is_empty() {
            writeln!(out, "no sockets")?;
        } else {
            let mut sockets: Document<SocketStatus> = Document::new("offload status");
            sockets.results = engine.sockets.clone();
            out.write_all(inlane_report::text(&sockets).as_bytes())?;
        }
        for socket in &engine.kernel {
            writeln!(
                out,
                "kernel: {}[{}] {}: {}",
                socket.program,
                socket.process,
                socket.remote.as_deref().or(socket.local.as_deref()).unwrap_or("?"),
                socket.reason
            )?;
        }
    }
    Ok(())
}

/// Writes what an engine is and what it has carried.
pub(super) fn totals(out: &mut dyn Write, engine: &EngineStatus) -> io::Result<()> {
    let counters = &engine.connections;
    let share = engine.cpu_ns as f64 / engine.uptime_ns.max(1) as f64 * 100.0;
    writeln!(
        out,
        "engine on {} ({}), MAC {}, {}",
        engine.port,
        engine.path,
        engine.mac,
        engine.addresses.join(", ")
    )?;
    writeln!(
        out,
        "up {:.0} s, {share:.1} % of a core; connections: {} opened, {} accepted, {} in TIME-WAIT; {} received, {} sent, {} retransmitted",
        engine.uptime_ns as f64 / 1e9,
        counters.connected,
        counters.accepted,
        counters.time_wait,
        units::bytes(counters.received_bytes),
        units::bytes(counters.sent_bytes),
        units::bytes(counters.retransmitted_bytes),
    )?;
    if counters.buffer_bytes + counters.ring_bytes > 0 {
        let share = |bytes| share_of(bytes, counters.received_bytes);
        writeln!(
            out,
            "received bytes: {} placed into buffers of programs, {} copied from receive rings, {} through socket pairs",
            share(counters.buffer_bytes),
            share(counters.ring_bytes),
            share(counters.pair_bytes),
        )?;
    }
    let link = &engine.link;
    writeln!(
        out,
        "link: {} frames received, {} sent, {} malformed, {} dropped",
        link.received_packets, link.sent_packets, link.malformed, link.dropped
    )?;
    if let Some(rdma) = &engine.rdma {
        writeln!(
            out,
            "RDMA: {} connections, {} returned to TCP; {} placed by packets and {} by stores, {} of all received bytes; {} packets refused",
            rdma.connections,
            rdma.returned,
            units::bytes(rdma.placed_bytes),
            units::bytes(rdma.stored_bytes),
            share_of(rdma.placed_bytes + rdma.stored_bytes, counters.received_bytes),
            rdma.refused(),
        )?;
    }
    let datagrams = &engine.datagrams.sockets;
    if datagrams.received + datagrams.sent + datagrams.dropped > 0 {
        writeln!(
            out,
            "datagrams: {} received, {} sent, {} dropped because a buffer was full",
            datagrams.received, datagrams.sent, datagrams.dropped
        )?;
    }
    Ok(())
}
