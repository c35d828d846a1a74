//! The threads of opened loads: started at one instant, observed, and stopped.

use crate::observation::Loaded;
use crate::open::Opened;
use crate::signals::SignalReader;
use inlane_core::Error;
use inlane_core::clock::Clock;
use inlane_core::error::NotStarted;
use inlane_core::load::{Load, Pace, Running, Sampler};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long loads may take to complete what is in flight after they are stopped.
const LONGEST_STOP: Duration = Duration::from_secs(10);
/// How often a wait looks for an interruption.
const LOOK: Duration = Duration::from_millis(20);

/// Loads that run.
pub(crate) struct RunningLoads {
    pub loaded: Vec<Loaded>,
    pub paces: Vec<Arc<Pace>>,
    pub sampler: Sampler,
    pub signals: SignalReader,
    running: Arc<Running>,
    messages: Receiver<Message>,
    ended: Vec<bool>,
    /// The loads that have ended. They are dropped only when all have, because freeing memory of a GPU waits for the
    /// kernels of other loads.
    kept: Vec<Box<dyn Load>>,
}

/// What the threads of a session report.
enum Message {
    /// All threads of all loads have started, or the start was cancelled.
    Started,
    Ended(End, Box<dyn Load>),
}

/// The end of a load.
#[derive(Debug)]
pub(crate) struct End {
    pub load: usize,
    /// Its error. `None` if it was stopped, or its source has ended.
    pub error: Option<String>,
}

/// Why a wait ended early.
#[derive(Debug)]
pub(crate) enum Woken {
    /// The user interrupted the session.
    Interrupted,
    /// A load ended on its own.
    Ended(End),
}

impl RunningLoads {
    /// Starts the threads of all loads, which wait at the start line. The loads are parked.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(opened: Vec<Opened>) -> Result<Self, Error> {
        let running = Arc::new(Running::new(opened.iter().map(|one| one.load.threads()).sum()));
        let meters: Vec<_> = opened.iter().map(|one| one.load.meters()).collect();
        let paces: Vec<_> = opened.iter().map(|one| one.load.pace()).collect();
        paces.iter().for_each(|pace| pace.set(0.0));
        let loaded = opened.iter().map(|one| one.loaded.clone()).collect();
        let (sender, messages) = channel();
        let ended = vec![false; opened.len()];
        for (index, one) in opened.into_iter().enumerate() {
            let (shared, sender) = (running.clone(), sender.clone());
            let mut load = one.load;
            let work = move || {
                let result = catch_unwind(AssertUnwindSafe(|| load.run(&shared)));
                let error = match result {
                    Ok(result) => result.err().map(|error| error.to_string()),
                    Err(_) => Some("it panicked".into()),
                };
                // Nobody receives the message if the session has given up waiting.
                let _ = sender.send(Message::Ended(End { load: index, error }, load));
            };
            spawn(&one.loaded.name, work).inspect_err(|_| running.stop())?;
        }
        let shared = running.clone();
        let report = move || {
            shared.start.wait();
            let _ = sender.send(Message::Started);
        };
        spawn("start", report).inspect_err(|_| running.stop())?;
        let sampler = Sampler::new(&Clock::new(), meters);
        Ok(Self {
            loaded,
            paces,
            sampler,
            signals: SignalReader::new(),
            running,
            messages,
            ended,
            kept: Vec::new(),
        })
    }

    /// Blocks until all threads have started.
    ///
    /// # Errors
    /// If the user interrupts, or a load ends before the start.
    pub fn wait_for_start(&mut self, interrupted: &AtomicBool) -> Result<(), Woken> {
        while !self.receive(LOOK, interrupted)? {}
        Ok(())
    }

    /// Waits for `time`.
    ///
    /// # Errors
    /// If the user interrupts, or a load ends meanwhile.
    pub fn wait(&mut self, time: Duration, interrupted: &AtomicBool) -> Result<(), Woken> {
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            self.receive(left.min(LOOK), interrupted)?;
        }
    }

    /// Waits for a message, at most for `time`. Returns true if it is that of the start.
    fn receive(&mut self, time: Duration, interrupted: &AtomicBool) -> Result<bool, Woken> {
        if interrupted.load(Relaxed) {
            return Err(Woken::Interrupted);
        }
        match self.messages.recv_timeout(time) {
            Ok(Message::Ended(end, load)) => {
                self.kept.push(load);
                self.ended[end.load] = true;
                Err(Woken::Ended(end))
            }
            Ok(Message::Started) => Ok(true),
            Err(RecvTimeoutError::Timeout) => Ok(false),
            Err(RecvTimeoutError::Disconnected) => {
                std::thread::sleep(time);
                Ok(false)
            }
        }
    }

    /// Stops all loads and waits until they have ended. Returns the loads that failed while they stopped, with their
    /// errors.
    pub fn stop(mut self) -> Vec<(usize, String)> {
        self.paces.iter().for_each(|pace| pace.set(0.0));
        self.running.stop();
        let mut failed = Vec::new();
        let latest = Instant::now() + LONGEST_STOP;
        while self.ended.contains(&false) {
            match self.messages.recv_timeout(latest.saturating_duration_since(Instant::now())) {
                Ok(Message::Ended(End { load, error }, kept)) => {
                    self.kept.push(kept);
                    self.ended[load] = true;
                    failed.extend(error.map(|error| (load, error)));
                }
                Ok(Message::Started) => {}
                Err(_) => break,
            }
        }
        let hanging = self.ended.iter().enumerate().filter(|(_, ended)| !**ended).map(|(load, _)| {
            let seconds = LONGEST_STOP.as_secs();
            (load, format!("it did not stop within {seconds} s; its threads end with the process"))
        });
        failed.extend(hanging);
        failed
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let thread = std::thread::Builder::new().name(format!("mix-{name}")).spawn(work);
    thread.map(drop).map_err(|source| Error::Os {
        what: format!("cannot start a thread for {name}"),
        source: NotStarted::of(source),
    })
}
