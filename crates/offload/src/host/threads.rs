//! An engine as its user sees it: opens the port and the control socket, and starts and ends the threads.

use super::closer::Closer;
use super::control::Control;
use super::link::{Link, check_interface};
use super::memory::allocate_ring;
use super::peer::PeerMemory;
use super::shared::Shared;
use super::socket::Stack;
use super::{Engine, random_bytes};
use crate::error::{Error, Result};
use crate::field;
use crate::settings::{Settings, Transport};
use crate::stack::StackConfig;
use crate::stack::card::message::Hello;
use crate::stack::network::BUFFERS;
use crate::trace::{Nobody, Recorder};
use inlane_core::clock::Clock;
use inlane_tcp::Secrets;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// An engine with all its threads.
pub struct Threads {
    engines: Vec<Engine>,
    /// True if a thread has panicked. Its part of the engine must not be used any more.
    panicked: bool,
    /// Records messages, if the engine is traced.
    recorder: Option<Arc<Recorder>>,
}

impl Threads {
    /// Opens the port and the control socket.
    ///
    /// # Errors
    /// If a setting is wrong, the port cannot be opened, or another engine uses the control socket.
    pub fn open(settings: Settings) -> Result<Self> {
        check_interface(&settings)?;
        Self::open_on(settings, BUFFERS, None)
    }

    /// Opens an engine whose messages are recorded. It has one thread, whatever the settings say.
    ///
    /// # Errors
    /// As for [`Threads::open`].
    pub fn open_traced(settings: Settings, recorder: Arc<Recorder>) -> Result<Self> {
        check_interface(&settings)?;
        Self::open_on(Settings { threads: 1, ..settings }, BUFFERS, Some(recorder))
    }

    /// Opens a port of any kind, and the control socket. [`Threads::open`] refuses ports that do not carry
    /// frames of a network, so tests call this function. `buffers` is the number of packet buffers of each
    /// queue.
    pub(crate) fn open_on(
        settings: Settings,
        buffers: usize,
        recorder: Option<Arc<Recorder>>,
    ) -> Result<Self> {
        settings.check()?;
        let clock = Clock::new();
        let control = Control::open(&settings)?;
        let links = Link::open(&settings, &clock, buffers, recorder.as_ref())?;
        let shared = match settings.threads {
            1 => None,
            threads => Some(Arc::new(Shared::new(threads.into())?)),
        };
        let number = u64::from_ne_bytes(random_bytes()?);
        // All threads need the same secrets, because the answer to a SYN cookie may arrive on another queue.
        let secrets = Secrets::new(random_bytes()?);
        let others: Vec<Control> = (1..settings.threads).map(|_| control.share()).collect();
        let controls = std::iter::once(control).chain(others);
        let closer = Closer::new(settings.threads.into());
        let mut engines: Vec<Engine> = Vec::new();
        for ((thread, link), control) in links.into_iter().enumerate().zip(controls) {
            let mut slots = engines.first().map(|first| first.slots.share()).unwrap_or_default();
            if settings.stores()
                && let Some(channel) = link.0.peer_channel()
            {
                slots.peer = Some(PeerMemory::new(channel, u64::from_ne_bytes(random_bytes()?)));
            }
            let config = StackConfig {
                thread,
                owners: shared.as_ref().map(|shared| shared.owners.clone()),
                buffer: settings.buffer,
                allocate: allocate_ring,
                secrets: secrets.clone(),
                seed: u64::from_ne_bytes(random_bytes()?),
                rdma: settings.transport != Transport::Tcp,
            };
            let (link, network) = link;
            let mut stack = Stack::new(clock.now_ns(), config, network);
            if let Some(pairs) = &mut stack.queue_pairs {
                pairs.stores = slots.peer.is_some();
            }
            if settings.card {
                stack.use_card(clock.now_ns(), &hello(&settings));
            }
            let mut engine = Engine::assemble(&settings, &clock, link, stack, control, closer.clone())?;
            (engine.number, engine.slots) = (number, slots);
            engine.join(shared.clone())?;
            if thread == 0 {
                engine.watch_interface()?;
            }
            engines.push(engine);
        }
        Ok(Self { engines, panicked: false, recorder })
    }

    /// Returns the link's MAC address, and the driver and mode of the port, for messages.
    pub fn link(&self) -> (String, String) {
        let first = &self.engines[0];
        (first.stack.network.mac().to_string(), first.link.info().path.clone())
    }

    /// Runs all threads of the engine until `stop` is set. The calling thread is thread 0.
    ///
    /// # Errors
    /// If the port fails, or a thread panics. The other threads are then ended too.
    pub fn run(&mut self, stop: &Arc<AtomicBool>) -> Result<()> {
        let (first, others) = self.engines.split_first_mut().expect("an engine has a thread");
        let shared = first.shared.clone();
        let ending = || Ending { stop: stop.clone(), shared: shared.clone() };
        std::thread::scope(|scope| {
            let mut running = Vec::new();
            let mut outcome = Ok(());
            for engine in others {
                let (thread, ending) = (engine.stack.thread, ending());
                let run = move || {
                    let ending = ending;
                    engine.run(&ending.stop, &Nobody)
                };
                let name = format!("inlane-engine-{thread}");
                match std::thread::Builder::new().name(name).spawn_scoped(scope, run) {
                    Ok(handle) => running.push((thread, handle)),
                    Err(error) => {
                        outcome = Err(Error::os("cannot start a thread of the engine")(
                            inlane_core::error::NotStarted::of(error),
                        ));
                        break;
                    }
                }
            }
            let ending = ending();
            outcome = outcome.and_then(|()| match &self.recorder {
                None => first.run(&ending.stop, &Nobody),
                Some(recorder) => first.run(&ending.stop, recorder),
            });
            drop(ending);
            for (thread, handle) in running {
                let ended = handle.join().unwrap_or_else(|_| {
                    self.panicked = true;
                    Err(Error::Panicked { thread })
                });
                outcome = outcome.and(ended);
            }
            outcome
        })
    }

    /// Returns the number of connections whose data RDMA has carried. Call it when the threads have ended.
    pub fn rdma_connections(&self) -> u64 {
        let counters = self.engines.iter().filter_map(|engine| engine.stack.rdma_counters());
        counters.map(|counters| counters.connections).sum()
    }

    /// Ends the engine: resets every connection and stops the port. The control socket's file is removed.
    pub fn close(mut self) {
        if !self.panicked {
            self.engines.iter_mut().for_each(Engine::close);
        }
        self.engines[0].link.stop_port();
    }

    /// Returns the threads, for callers that run them step by step.
    pub(crate) fn engines(&self) -> &[Engine] {
        &self.engines
    }

    /// As [`Threads::engines`], for changes.
    pub(crate) fn engines_mut(&mut self) -> &mut [Engine] {
        &mut self.engines
    }

    #[cfg(test)]
    pub(super) fn into_first(mut self) -> Engine {
        self.engines.swap_remove(0)
    }
}

/// Returns what the engine says about itself to its card.
fn hello(settings: &Settings) -> Hello {
    Hello {
        addresses: settings.addresses.clone(),
        gateways: settings.gateways.clone(),
        loopback: settings.loopback,
        buffer: settings.buffer as u32,
    }
}

/// A guard that ends all threads of the engine when it is dropped. An engine must not continue with only some
/// of its threads.
struct Ending {
    stop: Arc<AtomicBool>,
    shared: Option<Arc<Shared>>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for inbox in self.shared.iter().flat_map(|shared| &shared.inboxes) {
            inbox.wake();
        }
    }
}

/// Pins the calling thread to the core `cores[thread]`, if `cores` has that entry.
///
/// # Errors
/// If the process may not use the core.
pub(crate) fn pin(cores: &[usize], thread: usize) -> Result<()> {
    let Some(&core) = cores.get(thread) else { return Ok(()) };
    inlane_core::cores::bind(&[core]).map_err(|_| {
        let why = "this process may not use the core; choose another".to_owned();
        Error::Setting { what: field::CORES.with(core).into(), why }
    })
}

#[cfg(test)]
mod tests;
