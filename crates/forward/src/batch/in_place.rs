//! Receives packets without copying them. The program gets the places of the packets in the memory of the run's pool, and holds their
//! buffers until it drops the batch.

use super::receiver::{ReceiveSettings, ports};
use super::{Run, Shared};
use crate::config::Config;
use crate::control::Control;
use crate::error::Result;
use crate::experiment::Measurement;
use inlane_core::port::Counters;
use inlane_core::{Packet, Pool, Port, PortInfo, Region, Rx, Tx};
use inlane_ports::spec::{OwnPort, PortSpec, Properties, Role};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The packets of a [`PacketsInPlace`].
type Packets = Arc<Vec<Packet>>;

/// Receives the packets of a port in place, after a packet function if there is one. With a pool in the memory of a GPU
/// ([`Memory::Pool`](crate::gpu::Memory::Pool)), the packets stay there.
///
/// The pool has buffers for four batches, unless the configuration says how many. A program that keeps more receives nothing until it drops
/// some.
pub struct InPlaceReceiver {
    run: Run<Waiting>,
    settings: ReceiveSettings,
}

/// What [`InPlaceReceiver::next_within`] returns.
pub enum NextPackets {
    /// The next packets.
    Packets(PacketsInPlace),
    /// No packet came in that time.
    None,
    /// There are no further packets.
    End,
}

/// Packets that lie where the port has received them. Nobody changes them until this value is dropped.
pub struct PacketsInPlace {
    /// For each packet, where it begins in the memory of [`PacketsInPlace::memory`], in bytes.
    pub offsets: Vec<u64>,
    /// The length of each packet in bytes.
    pub lengths: Vec<u32>,
    packets: Packets,
    shared: Arc<Shared<Waiting>>,
    pool: Arc<dyn Pool>,
    number: u64,
}

/// The packets that the run has received, and those that the program holds.
#[derive(Default)]
struct Waiting {
    packets: Vec<Packet>,
    /// The packets of each [`PacketsInPlace`], by its number.
    held: HashMap<u64, Packets>,
    /// An emptied list, whose memory the next packets use.
    spare: Vec<Packet>,
    next: u64,
    /// The pool of all these packets, once the run has begun.
    pool: Option<Arc<dyn Pool>>,
    /// The run receives nothing more. All packets were freed, and stay as they are, because nobody allocates buffers any more.
    over: bool,
}

impl Waiting {
    /// Takes the packets that were received, and remembers them as held.
    fn take(&mut self) -> Option<(Packets, Arc<dyn Pool>, u64)> {
        let pool = self.pool.clone().filter(|_| !self.packets.is_empty())?;
        let spare = std::mem::take(&mut self.spare);
        let packets = Arc::new(std::mem::replace(&mut self.packets, spare));
        self.next += 1;
        if !self.over {
            self.held.insert(self.next, Arc::clone(&packets));
        }
        Some((packets, pool, self.next))
    }

    /// Frees all packets at the end of the run.
    fn end(&mut self) {
        let Some(pool) = self.pool.as_ref().filter(|_| !self.over) else { return };
        for packets in self.held.values().map(|held| held.as_slice()).chain([self.packets.as_slice()]) {
            // SAFETY: the packets are from this pool. `send` or `take` put each of them here once, and after `over` nobody frees them.
            unsafe { pool.free(packets) };
        }
        self.held.clear();
        self.over = true;
    }
}

impl InPlaceReceiver {
    /// Starts to receive. `config` says from which port, and which packet function processes the packets where.
    ///
    /// # Errors
    /// As for [`BatchReceiver::start`](super::BatchReceiver::start).
    pub fn start(mut config: Config, settings: ReceiveSettings) -> Result<Self> {
        if config.buffers == 0 {
            config.buffers = config.buffers().max(4 * settings.frames + 1024);
        }
        let (_, tx) = ports(&mut config, settings)?;
        let shared = Arc::<Shared<Waiting>>::default();
        tx.push(port(Arc::clone(&shared), settings.frames));
        // A batch that the program holds must not be reused, so only this pipeline may have the pool.
        config.pipelines = 1;
        Ok(Self { run: Run::start(config, shared)?, settings })
    }

    /// Returns the next packets. Waits at most `most` for the first of them.
    ///
    /// # Errors
    /// Why the run could not start or failed, once, after the packets before the failure.
    pub fn next_within(&mut self, most: Duration) -> Result<NextPackets> {
        let (first, ended) = self.run.wait(most, |state| (!state.batch.packets.is_empty()).then_some(()));
        if first.is_none() {
            if !ended {
                return Ok(NextPackets::None);
            }
            self.run.conclude()?;
            return Ok(NextPackets::End);
        }
        let frames = self.settings.frames;
        self.run.wait(self.settings.wait, |state| (state.batch.packets.len() >= frames).then_some(()));
        let shared = Arc::clone(&self.run.shared);
        let Some((packets, pool, number)) = shared.lock().batch.take() else { return Ok(NextPackets::None) };
        let start = pool.region().address();
        Ok(NextPackets::Packets(PacketsInPlace {
            offsets: packets.iter().map(|packet| packet.address - start).collect(),
            lengths: packets.iter().map(|packet| packet.length).collect(),
            packets,
            shared,
            pool,
            number,
        }))
    }

    /// Stops receiving from the port. Packets that were received before still follow.
    pub fn stop(&self) {
        self.run.control.stop();
    }

    /// Returns the flags that end the run.
    pub fn control(&self) -> Arc<Control> {
        Arc::clone(&self.run.control)
    }

    /// Returns what the run has measured, once [`InPlaceReceiver::next_within`] has returned [`NextPackets::End`] or an error.
    pub fn measurement(&self) -> Option<&Measurement> {
        self.run.measurement.as_ref()
    }
}

impl PacketsInPlace {
    /// Returns the memory of the pool, in which the packets lie. Other packets of the pool lie there, too.
    pub fn memory(&self) -> Region {
        self.pool.region().clone()
    }
}

impl Drop for PacketsInPlace {
    fn drop(&mut self) {
        if self.shared.lock().batch.held.remove(&self.number).is_none() {
            return;
        }
        // SAFETY: the packets are from this pool. They were in `held` until now, so `Waiting::end` has not freed them, and can
        // no longer find them.
        unsafe { self.pool.free(&self.packets) };
        if let Some(mut packets) = Arc::get_mut(&mut self.packets).map(std::mem::take) {
            packets.clear();
            let mut state = self.shared.lock();
            // Keep the larger list. The other one is freed after the lock is released.
            if state.batch.spare.capacity() < packets.capacity() {
                std::mem::swap(&mut state.batch.spare, &mut packets);
            }
            drop(state);
        }
    }
}

/// Returns the specification of the port to which the run sends the packets.
fn port(shared: Arc<Shared<Waiting>>, most: usize) -> PortSpec {
    let name = "packets in place";
    let properties = Properties { role: Role::Send, moves_payload: false, ..Properties::PLAIN };
    let queue = Mutex::new(Some(PlaceTx { shared, most, counters: Counters::default() }));
    let open = move |_: &_| {
        let queue = queue.lock().expect("nothing panics while it holds the queue").take();
        let info = PortInfo {
            name: name.into(),
            path: "the program, in place".into(),
            touches_payload: false,
            max_queues: 1,
            spreads_flows: false,
            link_bits_per_second: None,
            twin: false,
        };
        Ok(Box::new(PlacePort { info, queue }) as Box<dyn Port>)
    };
    PortSpec::Own(OwnPort { name: name.into(), properties, open: Arc::new(open) })
}

struct PlacePort {
    info: PortInfo,
    queue: Option<PlaceTx>,
}

impl Port for PlacePort {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn configure(&mut self, _pools: &[Arc<dyn Pool>], _tx_queues: u16) -> inlane_core::Result<()> {
        Ok(())
    }

    fn take_rx(&mut self, _queue: u16) -> inlane_core::Result<Box<dyn Rx>> {
        Err(inlane_core::Error::port_failed(&self.info.name, "it only sends"))
    }

    fn take_tx(&mut self, _queue: u16, pool: Arc<dyn Pool>) -> inlane_core::Result<Box<dyn Tx>> {
        let Some(queue) = self.queue.take() else {
            return Err(inlane_core::Error::port_failed(&self.info.name, "a run has already used it"));
        };
        queue.shared.lock().batch.pool = Some(pool);
        Ok(Box::new(queue))
    }
}

/// Hands packets to the program.
struct PlaceTx {
    shared: Arc<Shared<Waiting>>,
    /// The most packets that wait for the program.
    most: usize,
    counters: Counters,
}

// SAFETY: `send` keeps as many packets as it returns. They are freed once: by a program that drops them, or at the end of the run.
unsafe impl Tx for PlaceTx {
    unsafe fn send(&mut self, packets: &[Packet]) -> inlane_core::Result<usize> {
        let mut state = self.shared.lock();
        let taken = match state.closed {
            true => {
                let pool = state.batch.pool.as_ref().expect("`take_tx` has set the pool");
                // SAFETY: the caller holds the packets, which are from this pool, and does not use them afterwards.
                unsafe { pool.free(packets) };
                packets.len()
            }
            false => {
                let taken = packets.len().min(self.most.saturating_sub(state.batch.packets.len()));
                state.batch.packets.extend_from_slice(&packets[..taken]);
                taken
            }
        };
        let waiting = state.batch.packets.len();
        drop(state);
        if taken > 0 && (waiting == taken || waiting == self.most) {
            self.shared.changed.notify_one();
        }
        self.counters.packets += taken as u64;
        self.counters.bytes += packets[..taken].iter().map(|packet| u64::from(packet.length)).sum::<u64>();
        Ok(taken)
    }

    fn finish(&mut self, _keep_waiting: &mut dyn FnMut() -> bool) -> inlane_core::Result<()> {
        self.shared.lock().batch.end();
        Ok(())
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
