//! An engine that its caller runs step by step. The caller supplies the time. Frames go to and come from
//! memory instead of a port.
//!
//! Tests, the fuzzer and packetdrill use this engine. Its time is virtual, so a run does not depend on the
//! machine's load.

use crate::error::Result;
use crate::host::Threads;
pub use crate::host::step::HeldResources;
use crate::settings::Settings;
use inlane_core::port::{Counters, Tx};
use inlane_core::{Packet, Pool};
use inlane_ports::null::NullSpec;
use inlane_wire::ethernet::Mac;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};

/// The most frames that are kept until [`Stepped::sent`] is called. Later frames are dropped.
const MOST_FRAMES: usize = 65536;

/// The number of packet buffers. A real port needs more buffers. Here, a sent packet frees its buffer at
/// once.
const BUFFERS: usize = 1024;

/// The frames that the engine has sent and the caller has not taken, the oldest first.
type Frames = Arc<Mutex<VecDeque<Vec<u8>>>>;

/// An engine that its caller runs step by step. All times are in nanoseconds and must not decrease from call
/// to call.
pub struct Stepped {
    threads: Threads,
    sent: Frames,
}

impl Stepped {
    /// Creates an engine with `settings` and opens its control socket. The port in `settings` is not used.
    ///
    /// # Errors
    /// If a setting is wrong, or the control socket cannot be created.
    pub fn open(settings: Settings) -> Result<Self> {
        let mut threads =
            Threads::open_on(Settings { port: NullSpec::default().into(), ..settings }, BUFFERS, None)?;
        let sent = Frames::default();
        for engine in threads.engines_mut() {
            let pool = engine.network_mut().pool.clone();
            engine.network_mut().set_tx(Box::new(Recorder {
                pool,
                sent: sent.clone(),
                counters: Counters::default(),
            }));
        }
        Ok(Self { threads, sent })
    }

    /// Hands a frame to the engine, as if its port had received the frame. An engine with several threads gets
    /// the frame on queue 0.
    pub fn receive(&mut self, now: u64, frame: &[u8]) {
        self.receive_on(0, now, frame);
    }

    /// Hands a frame to the engine, as if queue `queue` of its port had received the frame.
    ///
    /// # Panics
    /// If `queue` is not below [`Stepped::threads`].
    pub fn receive_on(&mut self, queue: usize, now: u64, frame: &[u8]) {
        self.threads.engines_mut()[queue].on_frame(now, frame);
    }

    /// Records a neighbour's MAC address, so that the engine need not ask for it.
    pub fn set_neighbour(&mut self, now: u64, address: IpAddr, mac: Mac) {
        for engine in self.threads.engines_mut() {
            engine.network_mut().learn(now, address, mac, true);
        }
    }

    /// Runs one round of the loop of each engine thread, without sleeping. Returns true if the next round may
    /// have work, and false if the engine waits for a timer or an event.
    ///
    /// # Errors
    /// If the system call for epoll fails.
    pub fn step(&mut self, now: u64) -> Result<bool> {
        let mut worked = false;
        for engine in self.threads.engines_mut() {
            worked |= engine.round(now)?;
        }
        Ok(worked)
    }

    /// Runs at most `most` rounds, until the engine has nothing to do before its next timer or event. Returns
    /// true if the engine is idle, and false if `most` rounds were not enough.
    ///
    /// # Errors
    /// The same as [`Stepped::step`].
    pub fn settle(&mut self, now: u64, most: usize) -> Result<bool> {
        for _ in 0..most {
            if !self.step(now)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Removes and returns the oldest frame that the engine has sent.
    pub fn sent(&mut self) -> Option<Vec<u8>> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// Returns the time at which the next timer may be due, or `None` if the engine waits for no timer.
    pub fn deadline(&self) -> Option<u64> {
        self.threads.engines().iter().filter_map(|engine| engine.deadline()).min()
    }

    /// Returns a descriptor that is readable while thread 0 of the engine has unprocessed events of programs.
    pub fn events(&self) -> BorrowedFd<'_> {
        self.threads.engines()[0].events()
    }

    /// Returns the number of the engine's threads.
    pub fn threads(&self) -> usize {
        self.threads.engines().len()
    }

    /// Returns the threads of the engine.
    #[cfg(test)]
    pub(crate) fn parts(&self) -> &Threads {
        &self.threads
    }

    /// As [`Stepped::parts`], for changes.
    #[cfg(test)]
    pub(crate) fn parts_mut(&mut self) -> &mut Threads {
        &mut self.threads
    }

    /// Returns what the engine holds now, in all its threads.
    pub fn held(&self) -> HeldResources {
        let mut held = HeldResources::default();
        for engine in self.threads.engines() {
            held.add(&engine.held());
        }
        held
    }
}

/// A transmit queue that copies the frames to a list.
struct Recorder {
    pool: Arc<dyn Pool>,
    sent: Frames,
    counters: Counters,
}

// SAFETY: `send` frees every packet to its pool exactly once, and reports all packets as sent.
unsafe impl Tx for Recorder {
    unsafe fn send(&mut self, packets: &[Packet]) -> inlane_core::Result<usize> {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        for packet in packets {
            // SAFETY: the caller of `send` owns the packet, and no other thread writes to it.
            let bytes = unsafe { packet.bytes() };
            self.counters.packets += 1;
            self.counters.bytes += bytes.len() as u64;
            if sent.len() < MOST_FRAMES {
                sent.push_back(bytes.to_vec());
            }
        }
        // SAFETY: the packets are of this pool. The caller of `send` guarantees not to use them any more.
        unsafe { self.pool.free(packets) };
        Ok(packets.len())
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
