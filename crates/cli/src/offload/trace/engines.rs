//! The two engines of `inlane offload trace`, and their cards: threads of this process. The engines, or the cards, are joined by a memif
//! port, and an engine and its card by a twin of an NTB.

use anyhow::anyhow;
use inlane_offload::trace::Recorder;
use inlane_offload::{Card, CardSettings, Settings, Threads, Transport, parse_port};
use inlane_offload_protocol::rules::Prefix;
use inlane_ports::spec::{Kind, PortSpec};
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
    /// True if each engine has a card.
    pub cards: bool,
    pub spin: Duration,
    /// The core of each engine.
    pub cores: Option<[usize; 2]>,
    /// The core of each card.
    pub card_cores: Option<[usize; 2]>,
    /// The recorder of each engine, then of each card. Empty if nothing is recorded.
    pub recorders: &'a [Arc<Recorder>],
    /// The folder for sockets.
    pub folder: &'a Path,
}

/// Two running engines, and their cards. Dropping the value ends them.
pub struct Engines {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<anyhow::Result<Ended>>>,
}

/// An engine or a card that has ended, and whether what the plan asks for has carried its connections: TCP, RDMA, or the card.
struct Ended {
    part: Part,
    carried: bool,
}

enum Part {
    Engine(Threads),
    Card(Box<Card>),
}

impl Part {
    fn close(self) {
        match self {
            Self::Engine(engine) => engine.close(),
            Self::Card(card) => card.close(),
        }
    }
}

/// Returns the control socket of an engine.
pub fn socket(folder: &Path, engine: usize) -> PathBuf {
    folder.join(format!("engine{engine}"))
}

impl Engines {
    /// Starts the engines and cards, and waits until they can be used.
    ///
    /// # Errors
    /// If an engine or a card cannot be opened.
    pub fn start(plan: &Plan<'_>) -> anyhow::Result<Self> {
        let mut engines = Self { stop: Arc::default(), threads: Vec::new() };
        let (ready, readiness) = channel();
        for side in 0..2 {
            let settings = settings(plan, side)?;
            let recorder = plan.recorders.get(side).cloned();
            engines.spawn(format!("inlane-engine-{side}"), &ready, move |stop, ready| {
                run_engine(settings, recorder, stop, ready)
            })?;
        }
        for side in 0..if plan.cards { 2 } else { 0 } {
            let settings = card_settings(plan, side)?;
            let recorder = plan.recorders.get(2 + side).cloned();
            engines.spawn(format!("inlane-card-{side}"), &ready, move |stop, ready| {
                run_card(settings, recorder, stop, ready)
            })?;
        }
        drop(ready);
        let threads = engines.threads.len();
        match readiness.iter().take(threads).count() == threads {
            true => Ok(engines),
            false => Err(engines.end().err().unwrap_or_else(|| anyhow!("an engine has ended"))),
        }
    }

    /// Starts a thread of an engine or a card.
    fn spawn(
        &mut self,
        name: String,
        ready: &Sender<()>,
        run: impl FnOnce(&Arc<AtomicBool>, &Sender<()>) -> anyhow::Result<Ended> + Send + 'static,
    ) -> anyhow::Result<()> {
        let (stop, ready) = (self.stop.clone(), ready.clone());
        self.threads.push(std::thread::Builder::new().name(name).spawn(move || run(&stop, &ready))?);
        Ok(())
    }

    /// Ends the engines and cards. Returns true if what the plan asks for has carried connections at both sides.
    ///
    /// # Errors
    /// If an engine or a card has failed.
    pub fn end(mut self) -> anyhow::Result<bool> {
        self.stop.store(true, Ordering::Relaxed);
        let joined = |thread: JoinHandle<_>| thread.join().map_err(|_| anyhow!("an engine has panicked"))?;
        let ended: Vec<_> = self.threads.drain(..).map(joined).collect();
        // All have ended, and are closed at the same time, so none warns that its peer is gone.
        std::thread::scope(|scope| {
            ended.into_iter().try_fold(true, |all, ended| {
                let Ended { part, carried } = ended?;
                scope.spawn(|| part.close());
                Ok(all && carried)
            })
        })
    }
}

impl Drop for Engines {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Returns the memif port of one side: between the engines, or between their cards.
pub fn network(folder: &Path, side: usize) -> anyhow::Result<PortSpec> {
    let (kind, role) = (Kind::Memif.properties().name, ["server", "client"][side]);
    Ok(parse_port(&format!("{kind}:{},role={role}", folder.join("link").display()))?)
}

/// Returns the port between an engine and its card. The card's role is server.
pub fn to_card(folder: &Path, side: usize, role: &str) -> anyhow::Result<PortSpec> {
    let (kind, socket) = (Kind::Ntb.properties().name, folder.join(format!("card{side}")));
    Ok(parse_port(&format!("{kind}:{},role={role}", socket.display()))?)
}

fn mac(side: usize) -> Option<Mac> {
    Some(Mac([2, 0, 0, 0, 0, side as u8 + 1]))
}

fn card_settings(plan: &Plan<'_>, side: usize) -> anyhow::Result<CardSettings> {
    Ok(CardSettings {
        port: network(plan.folder, side)?,
        engine: to_card(plan.folder, side, "server")?,
        mtu: None,
        mac: mac(side),
        core: plan.card_cores.map(|cores| cores[side]),
        spin: plan.spin,
        faults: Faults::default(),
    })
}

fn settings(plan: &Plan<'_>, engine: usize) -> anyhow::Result<Settings> {
    Ok(Settings {
        port: if plan.cards {
            to_card(plan.folder, engine, "client")?
        } else {
            network(plan.folder, engine)?
        },
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
        mac: mac(engine),
        buffer: 1 << 20,
        sockets_per_program: 64,
        transport: plan.transport,
        card: plan.cards,
        spin: plan.spin,
        faults: Faults::default(),
    })
}

/// Runs an engine until `stop` is set.
fn run_engine(
    settings: Settings,
    recorder: Option<Arc<Recorder>>,
    stop: &Arc<AtomicBool>,
    ready: &Sender<()>,
) -> anyhow::Result<Ended> {
    let transport = settings.transport;
    let mut engine = match recorder {
        Some(recorder) => Threads::open_traced(settings, recorder)?,
        None => Threads::open(settings)?,
    };
    let _ = ready.send(());
    let outcome = engine.run(stop);
    let carried = transport == Transport::Tcp || engine.rdma_connections() > 0;
    if let Err(error) = outcome {
        engine.close();
        return Err(error.into());
    }
    Ok(Ended { part: Part::Engine(engine), carried })
}

/// Runs a card until `stop` is set.
fn run_card(
    settings: CardSettings,
    recorder: Option<Arc<Recorder>>,
    stop: &AtomicBool,
    ready: &Sender<()>,
) -> anyhow::Result<Ended> {
    let mut card = match recorder {
        Some(recorder) => Card::open_traced(settings, recorder)?,
        None => Card::open(settings)?,
    };
    let _ = ready.send(());
    let outcome = card.run(stop);
    let counters = card.counters();
    if let Err(error) = outcome {
        card.close();
        return Err(error.into());
    }
    Ok(Ended { part: Part::Card(Box::new(card)), carried: counters.opened + counters.accepted > 0 })
}
