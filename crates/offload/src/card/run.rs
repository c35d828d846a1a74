//! A card with its ports: receives from both, serves connections, sends, and sleeps.

use super::{CardCounters, CardStack};
use crate::error::Result;
use crate::host::interface::WatchedInterface;
use crate::host::link::{Link, check_interface};
use crate::host::{pin, random_bytes};
use crate::settings::{Settings, Transport};
use crate::stack::card::BEAT_NS;
use crate::stack::network::BUFFERS;
use crate::trace::{Nobody, Observer, Recorder};
use inlane_core::clock::Clock;
use inlane_core::packet::Packet;
use inlane_ports::spec::PortSpec;
use inlane_ports::wrap::fault::Faults;
use inlane_tcp::Secrets;
use inlane_wire::ethernet::Mac;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The most frames that one round receives from each port.
const BURST: usize = 64;
/// The length of a sleep in nanoseconds, if a port cannot wake the thread.
const POLLED_SLEEP_NS: u64 = 50_000;

/// The settings of a card.
#[derive(Clone, Debug)]
pub struct CardSettings {
    /// The port to the network.
    pub port: PortSpec,
    /// The port to the engine.
    pub engine: PortSpec,
    /// The largest IP packet on the network, in bytes. `None` chooses it by the port.
    pub mtu: Option<u16>,
    /// The MAC address on the network; `None` takes that of the port's interface.
    pub mac: Option<Mac>,
    /// The core to which the card's thread is pinned.
    pub core: Option<usize>,
    /// The time for which the card continues to poll after its last work, before it sleeps.
    pub spin: Duration,
    /// Faults to inject into packets received from the network.
    pub faults: Faults,
}

impl CardSettings {
    /// Returns the settings with which one of the ports is opened.
    pub(crate) fn of_port(&self, port: &PortSpec, mtu: Option<u16>, faults: Faults) -> Settings {
        Settings {
            port: port.clone(),
            threads: 1,
            cores: self.core.into_iter().collect(),
            addresses: Vec::new(),
            gateways: Vec::new(),
            loopback: false,
            socket: std::path::PathBuf::new(),
            mode: 0,
            group: None,
            rules: String::new(),
            mtu,
            mac: self.mac,
            buffer: 4096,
            sockets_per_program: 1,
            transport: Transport::Tcp,
            card: false,
            spin: self.spin,
            faults,
        }
    }
}

/// A card.
pub struct Card {
    settings: CardSettings,
    clock: Clock,
    /// The port to the network.
    link: Link,
    /// The port to the engine.
    engine: Link,
    /// The kernel's interface of the port to the network, if it has one.
    interface: Option<WatchedInterface>,
    stack: CardStack,
    /// Records messages, if the card is traced.
    recorder: Option<Arc<Recorder>>,
}

impl Card {
    /// Opens both ports.
    ///
    /// # Errors
    /// If a setting is wrong or a port cannot be opened.
    pub fn open(settings: CardSettings) -> Result<Self> {
        Self::open_on(settings, None)
    }

    /// Opens a card whose messages are recorded.
    ///
    /// # Errors
    /// As for [`Card::open`].
    pub fn open_traced(settings: CardSettings, recorder: Arc<Recorder>) -> Result<Self> {
        Self::open_on(settings, Some(recorder))
    }

    fn open_on(settings: CardSettings, recorder: Option<Arc<Recorder>>) -> Result<Self> {
        let wire = settings.of_port(&settings.port, settings.mtu, settings.faults);
        check_interface(&wire)?;
        let clock = Clock::new();
        let (link, network) = Link::open(&wire, &clock, BUFFERS, recorder.as_ref())?.swap_remove(0);
        let near = settings.of_port(&settings.engine, None, Faults::default());
        let (engine, to_engine) = Link::open(&near, &clock, BUFFERS, recorder.as_ref())?.swap_remove(0);
        let interface = WatchedInterface::of(&settings.port)?;
        let seed = u64::from_ne_bytes(random_bytes()?);
        let secrets = Secrets::new(random_bytes()?);
        let stack = CardStack::new(clock.now_ns(), network, to_engine, secrets, seed);
        Ok(Self { settings, clock, link, engine, interface, stack, recorder })
    }

    /// Returns the MAC address on the network, and the drivers and modes of both ports, for messages.
    pub fn links(&self) -> (String, String, String) {
        let path = |link: &Link| link.info().path.clone();
        (self.stack.stack.network.mac().to_string(), path(&self.link), path(&self.engine))
    }

    /// Returns what the card has counted.
    pub fn counters(&self) -> CardCounters {
        self.stack.counters
    }

    /// Runs the card until `stop` is set.
    ///
    /// # Errors
    /// If a port fails, or the interface of the network is removed.
    pub fn run(&mut self, stop: &AtomicBool) -> Result<()> {
        match self.recorder.clone() {
            None => self.run_observed(stop, &Nobody),
            Some(recorder) => self.run_observed(stop, &recorder),
        }
    }

    /// Runs the card until `stop` is set. Calls `observer` at each point that a message passes.
    fn run_observed(&mut self, stop: &AtomicBool, observer: &impl Observer) -> Result<()> {
        let cores: Vec<usize> = self.settings.core.into_iter().collect();
        pin(&cores, 0)?;
        let pools = [self.stack.stack.network.pool.clone(), self.stack.to_engine.pool.clone()];
        let _owners = pools.each_ref().map(|pool| pool.own());
        let spin_ns = self.settings.spin.as_nanos() as u64;
        let mut last_work = self.clock.now_ns();
        let mut packets = [Packet::EMPTY; BURST];
        let mut next_check = 0;
        while !stop.load(Ordering::Relaxed) {
            let now = self.clock.now_ns();
            if now >= next_check {
                next_check = now + BEAT_NS;
                self.interface.as_ref().map(WatchedInterface::present_state).transpose()?;
            }
            let mut worked = self.receive(now, &mut packets, true)?;
            worked |= self.receive(now, &mut packets, false)?;
            observer.processed();
            worked |= self.stack.serve_all(now);
            observer.served();
            if worked {
                last_work = now;
            } else if now >= last_work + spin_ns {
                self.sleep(now);
            }
        }
        self.stack.end(self.clock.now_ns());
        Ok(())
    }

    /// Stops both ports.
    pub fn close(mut self) {
        self.stack.stack.network.free_packets();
        self.stack.to_engine.free_packets();
        self.link.stop_port();
        self.engine.stop_port();
    }

    /// Receives frames from the engine, or from the network. Returns true if there were any.
    fn receive(&mut self, now: u64, packets: &mut [Packet], from_engine: bool) -> Result<bool> {
        let (link, stack) = (if from_engine { &mut self.engine } else { &mut self.link }, &mut self.stack);
        let visited = link.rx.receive_in_place(packets.len(), &mut |address, len| {
            match from_engine {
                // SAFETY: the queue guarantees the memory of the frame during this call.
                true => unsafe { stack.on_engine_frame_in_place(now, address, len) },
                // SAFETY: as above.
                false => unsafe { stack.stack.on_frame_in_place(now, address, len) },
            }
        })?;
        if visited.is_some_and(|frames| frames > 0) {
            return Ok(true);
        }
        let count = link.rx.receive(packets)?;
        for packet in &packets[..count] {
            // SAFETY: the packet was received, is not freed before the loop has ended, and nobody else writes it.
            let bytes = unsafe { packet.bytes() };
            match from_engine {
                true => self.stack.on_engine_frame(now, bytes),
                false => self.stack.on_frame(now, bytes),
            }
        }
        if count > 0 {
            let network = if from_engine { &self.stack.to_engine } else { &self.stack.stack.network };
            // SAFETY: the packets are from a queue of this pool and not used afterwards.
            unsafe { network.pool.free(&packets[..count]) };
        }
        Ok(count > 0)
    }

    /// Sleeps until a port has frames or a timer is due.
    fn sleep(&mut self, now: u64) {
        if self.stack.stack.release_all_acknowledgments() {
            return;
        }
        let waits = self.stack.channel().is_waiting();
        let flushed = self.stack.stack.network.flush() & self.stack.to_engine.flush();
        let links = [&mut self.link, &mut self.engine];
        // Room at a port wakes nobody.
        let mut sleep = if waits || !flushed { POLLED_SLEEP_NS } else { BEAT_NS };
        if links.iter().any(|link| link.wait_descriptors().is_empty()) {
            sleep = sleep.min(POLLED_SLEEP_NS);
        }
        if self.stack.stack.network.has_timer() {
            sleep = sleep.min(50_000_000);
        }
        if let Some(next) = self.stack.stack.next_timer() {
            sleep = sleep.min(next.saturating_sub(now).max(1));
        }
        let [link, engine] = links;
        if link.rx.begin_sleep() && engine.rx.begin_sleep() {
            let descriptors = |link: &Link| link.wait_descriptors().to_vec();
            let descriptors = [descriptors(link), descriptors(engine)].concat();
            // SAFETY: the ports keep the descriptors open while they are started.
            let borrow =
                |&fd: &i32| PollFd::from_borrowed_fd(unsafe { BorrowedFd::borrow_raw(fd) }, PollFlags::IN);
            let mut fds: Vec<PollFd<'_>> = descriptors.iter().map(borrow).collect();
            let timeout =
                Timespec { tv_sec: (sleep / 1_000_000_000) as _, tv_nsec: (sleep % 1_000_000_000) as _ };
            // A signal ends the sleep early, like a frame.
            let _ = poll(&mut fds, Some(&timeout));
            let has_errors = !link.wait_descriptors().is_empty();
            if fds.first().filter(|_| has_errors).is_some_and(|fd| fd.revents().contains(PollFlags::ERR)) {
                link.clear_errors();
            }
        }
        link.rx.end_sleep();
        engine.rx.end_sleep();
    }
}
