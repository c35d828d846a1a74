//! The two engines of `inlane offload trace`: threads of this process, joined by a memif port.

use anyhow::anyhow;
use inlane_offload::trace::Recorder;
use inlane_offload::{Settings, Threads, Transport};
use inlane_offload_protocol::rules::Prefix;
use inlane_ports::spec::Kind;
use inlane_ports::wrap::fault::Faults;
use inlane_wire::Mac;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// The addresses of the engines: the sender's, then the receiver's.
pub const ADDRESSES: [[u8; 4]; 2] = [[10, 79, 0, 1], [10, 79, 0, 2]];

/// How to run the engines.
pub struct Plan<'a> {
    pub transport: Transport,
    pub spin: Duration,
    /// The core of each engine.
    pub cores: Option<[usize; 2]>,
    /// The recorder of each engine.
    pub recorders: Option<[Arc<Recorder>; 2]>,
    /// The folder for sockets.
    pub folder: &'a Path,
}

/// Two running engines. Dropping the value ends them.
pub struct Engines {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<anyhow::Result<bool>>>,
}

/// Returns the control socket of an engine.
pub fn socket(folder: &Path, engine: usize) -> PathBuf {
    folder.join(format!("engine{engine}"))
}

impl Engines {
    /// Starts the engines, and waits until they can be used.
    ///
    /// # Errors
    /// If an engine cannot be opened.
    pub fn start(plan: &Plan<'_>) -> anyhow::Result<Self> {
        let mut engines = Self { stop: Arc::default(), threads: Vec::new() };
        let (ready, readiness) = channel();
        for engine in 0..2 {
            let settings = settings(plan, engine)?;
            let recorder = plan.recorders.as_ref().map(|recorders| recorders[engine].clone());
            let (stop, ready) = (engines.stop.clone(), ready.clone());
            let name = format!("inlane-engine-{engine}");
            let run = move || run(settings, recorder, &stop, &ready);
            engines.threads.push(std::thread::Builder::new().name(name).spawn(run)?);
        }
        drop(ready);
        match readiness.iter().take(2).count() {
            2 => Ok(engines),
            _ => Err(engines.end().err().unwrap_or_else(|| anyhow!("an engine has ended"))),
        }
    }

    /// Ends the engines. Returns true if RDMA has carried connections of both.
    ///
    /// # Errors
    /// If an engine has failed.
    pub fn end(mut self) -> anyhow::Result<bool> {
        self.stop.store(true, Ordering::Relaxed);
        let joined = |thread: JoinHandle<_>| thread.join().map_err(|_| anyhow!("an engine has panicked"))?;
        self.threads.drain(..).map(joined).try_fold(true, |all, carried| Ok(all && carried?))
    }
}

impl Drop for Engines {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

fn settings(plan: &Plan<'_>, engine: usize) -> anyhow::Result<Settings> {
    let (kind, role) = (Kind::Memif.properties().name, ["server", "client"][engine]);
    let port = format!("{kind}:{},role={role}", plan.folder.join("link").display());
    Ok(Settings {
        port: inlane_offload::parse_port(&port)?,
        threads: 1,
        cores: plan.cores.map(|cores| vec![cores[engine]]).unwrap_or_default(),
        addresses: vec![Prefix { address: ADDRESSES[engine].into(), length: 24 }],
        gateways: Vec::new(),
        loopback: false,
        socket: socket(plan.folder, engine),
        mode: 0o600,
        group: None,
        rules: String::new(),
        mtu: None,
        mac: Some(Mac([2, 0, 0, 0, 0, engine as u8 + 1])),
        buffer: 1 << 20,
        sockets_per_program: 64,
        transport: plan.transport,
        card: false,
        spin: plan.spin,
        faults: Faults::default(),
    })
}

fn run(
    settings: Settings,
    recorder: Option<Arc<Recorder>>,
    stop: &Arc<AtomicBool>,
    ready: &Sender<()>,
) -> anyhow::Result<bool> {
    let mut engine = match recorder {
        Some(recorder) => Threads::open_traced(settings, recorder)?,
        None => Threads::open(settings)?,
    };
    let _ = ready.send(());
    let outcome = engine.run(stop);
    let carried = engine.rdma_connections() > 0;
    engine.close();
    Ok(outcome.map(|()| carried)?)
}
