//! The link of an NTB port: a thread that connects to the peer, and connects again after the link went down.

use super::connection::{Connection, DOORBELL, used};
use crate::memif::clear_eventfd;
use inlane_ntb::device::{Event, Link, Ntb};
use inlane_ntb::fault::Faults;
use inlane_ntb::handshake::protocol::ConnectionEpochs;
use inlane_ntb::handshake::{self, Offer};
use inlane_ntb::twin::Twin;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long one attempt of a handshake takes at most. A request to stop is noticed at most this late.
const HANDSHAKE: Duration = Duration::from_secs(1);
/// The pause after a failed attempt to connect, and after the peer broke the protocol.
const RETRY: Duration = Duration::from_millis(20);
/// The longest time between two looks at the state of the link. Changes of the state also cause events.
const LOOK: Duration = Duration::from_millis(100);

/// Where the bridge comes from.
pub(super) enum Source {
    /// It exists as long as the port.
    Own(Arc<dyn Ntb>),
    /// It is that of a twin's server at this path, which may end and start again.
    Joined(PathBuf),
}

/// What the link's thread and the queues share.
pub(super) struct Shared {
    /// The port's name, as the user wrote it.
    name: String,
    /// The number of changes of `current`.
    change: AtomicU64,
    current: Mutex<Current>,
    connected: Condvar,
    stop: AtomicBool,
    /// Wakes the link's thread.
    wake: OwnedFd,
    /// Wakes the receive queue when the link comes up.
    news: OwnedFd,
    /// An epoll instance that is readable when `news` or the bridge's doorbell is. The doorbell's descriptor changes when the
    /// port joins another bridge, and the port's wait descriptor must not.
    doorbells: OwnedFd,
}

struct Current {
    connection: Option<Arc<Connection>>,
    /// Why the last attempt to connect failed.
    failure: Option<String>,
}

impl Shared {
    /// Creates the state of a port whose link is down.
    ///
    /// # Errors
    /// Why the system refuses.
    pub(super) fn new(name: &str) -> Result<Self, String> {
        let failed = |error| format!("cannot create a descriptor for events: {error}");
        let event = || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(failed);
        let (wake, news) = (event()?, event()?);
        let doorbells = epoll::create(CreateFlags::CLOEXEC).map_err(failed)?;
        epoll::add(&doorbells, &news, EventData::new_u64(0), EventFlags::IN).map_err(failed)?;
        Ok(Self {
            name: name.to_owned(),
            change: AtomicU64::new(0),
            current: Mutex::new(Current { connection: None, failure: None }),
            connected: Condvar::new(),
            stop: AtomicBool::new(false),
            wake,
            news,
            doorbells,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of times that the link has gone up or down.
    #[inline]
    pub(super) fn change(&self) -> u64 {
        self.change.load(Ordering::Acquire)
    }

    /// Returns the number of changes and the connection, if the link is up.
    #[cold]
    pub(super) fn current(&self) -> (u64, Option<Arc<Connection>>) {
        let current = self.lock();
        (self.change(), current.connection.clone())
    }

    /// Blocks until the link is up, at most for `limit`.
    ///
    /// # Errors
    /// Why the last attempt to connect failed.
    pub(super) fn await_link(&self, limit: Duration) -> Result<(), String> {
        let until = Instant::now() + limit;
        let mut current = self.lock();
        while current.connection.is_none() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(current.failure.clone().unwrap_or_default());
            }
            current = self.connected.wait_timeout(current, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// Returns the descriptor that is readable when the receive queue must look for frames.
    pub(super) fn doorbells(&self) -> BorrowedFd<'_> {
        self.doorbells.as_fd()
    }

    /// Makes the link's thread look at the connection now.
    pub(super) fn wake_link(&self) {
        // If the counter is full, a wake-up is pending.
        let _ = write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Makes the wait descriptor unreadable, as far as changes of the link are concerned.
    pub(super) fn clear_news(&self) {
        clear_eventfd(self.news.as_fd());
    }

    /// Ends the link's thread soon.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake_link();
    }

    fn stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn set(&self, connection: Option<Arc<Connection>>) {
        let mut current = self.lock();
        current.connection = connection;
        current.failure = None;
        self.change.fetch_add(1, Ordering::Release);
        self.connected.notify_all();
        // A sleeping receive queue must announce its sleep to the new peer.
        let _ = write(&self.news, &1u64.to_ne_bytes());
    }

    /// Runs the link's thread until [`Shared::stop`] is called.
    pub(super) fn run(&self, source: &Source) {
        while !self.stopping() {
            match source {
                Source::Own(ntb) => self.serve(ntb, None),
                Source::Joined(path) => match Twin::join(path, &Faults::default()) {
                    Ok(Some(twin)) => {
                        let twin = Arc::new(twin);
                        let ntb: Arc<dyn Ntb> = twin.clone();
                        self.serve(&ntb, Some(&twin));
                    }
                    Ok(None) => self.retry("no server listens at the socket".into()),
                    Err(error) => self.retry(error.to_string()),
                },
            }
        }
    }

    /// Connects over a bridge, again and again, until the bridge ends or the thread must stop.
    fn serve(&self, ntb: &Arc<dyn Ntb>, twin: Option<&Twin>) {
        ntb.link_enable(true);
        let goes_on = || !self.stopping() && !twin.is_some_and(Twin::has_ended);
        // The receive queue may still read the last frames of this connection.
        let mut former: Option<Arc<Connection>> = None;
        while goes_on() {
            match self.connect(ntb, former.as_deref()) {
                Ok(Some((connection, link, epochs))) => {
                    let why = self.carry(&**ntb, twin, &connection, link, epochs);
                    former = Some(connection);
                    self.wait_for(&[self.wake.as_fd()], RETRY);
                    // A port that stops at the same time as its peer has nothing to warn of.
                    if let Some(why) = why.filter(|_| !self.stopping()) {
                        tracing::warn!(
                            "port {}: {why}; frames are dropped until the peer is back",
                            self.name
                        );
                    }
                }
                Ok(None) => self.wait(&**ntb, twin),
                Err(why) => self.retry(why),
            }
        }
        ntb.link_enable(false);
    }

    /// Waits before the next attempt to connect.
    fn retry(&self, why: String) {
        self.lock().failure = Some(why);
        self.wait_for(&[self.wake.as_fd()], RETRY);
    }

    /// Connects to the peer, and closes the former connection. Returns `None` if the peer has not opened its port.
    ///
    /// # Errors
    /// Why the attempt failed.
    fn connect(
        &self,
        ntb: &Arc<dyn Ntb>,
        former: Option<&Connection>,
    ) -> Result<Option<(Arc<Connection>, Link, ConnectionEpochs)>, String> {
        let peer = 1 - ntb.port();
        let link = ntb.link(peer);
        if !link.up {
            self.lock().failure = Some("the peer has not opened its port".into());
            return Ok(None);
        }
        let text = |error: inlane_ntb::error::Error| error.to_string();
        let inbound = used(ntb.inbound())?;
        let offer = Offer { inbound: &inbound, epoch: handshake::fresh_epoch(), timeout: HANDSHAKE };
        let epochs = handshake::connect(&**ntb, peer, &offer, &Faults::default()).map_err(text)?;
        let window = ntb.peer_window(peer, 0).map_err(text)?;
        let connection = Connection::new(ntb.clone(), peer, epochs.tag(), inbound, window)?;
        former.inspect(|former| former.close());
        connection.greet();
        let until = Instant::now() + HANDSHAKE;
        while !connection.is_greeted()? {
            if Instant::now() > until {
                return Err("the peer does not carry frames; check that it opens a port on the bridge".into());
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(Some((Arc::new(connection), link, epochs)))
    }

    /// Lets the queues use a connection until the link goes down, the peer restarts or breaks the protocol, or the thread must
    /// stop. Returns why the connection has ended, unless the thread must stop.
    fn carry(
        &self,
        ntb: &dyn Ntb,
        twin: Option<&Twin>,
        connection: &Arc<Connection>,
        link: Link,
        epochs: ConnectionEpochs,
    ) -> Option<String> {
        let doorbell = ntb.event(Event::Doorbell(0)).ok()?;
        clear_eventfd(doorbell);
        ntb.doorbell_clear(DOORBELL);
        // If that fails, received frames wake no thread, and threads look for frames now and then.
        let _ = epoll::add(&self.doorbells, doorbell, EventData::new_u64(1), EventFlags::IN);
        let peer = 1 - ntb.port();
        self.set(Some(connection.clone()));
        let why = loop {
            if self.stopping() {
                break None;
            }
            if let Some(violation) = connection.broken() {
                break Some(format!("the peer broke the protocol: {violation}; update or replace it"));
            }
            if ntb.link(peer) != link || twin.is_some_and(Twin::has_ended) {
                break Some("the link is down".into());
            }
            if handshake::epoch_in_row(ntb, peer) != epochs.theirs {
                break Some("the peer connects again".into());
            }
            self.wait(ntb, twin);
        };
        let _ = epoll::delete(&self.doorbells, doorbell);
        self.set(None);
        why
    }

    /// Waits for an event of the bridge, or until it is time to look at its state.
    fn wait(&self, ntb: &dyn Ntb, twin: Option<&Twin>) {
        let events = [ntb.event(Event::Link).ok(), ntb.event(Event::Doorbell(1)).ok()];
        let mut descriptors = vec![self.wake.as_fd()];
        descriptors.extend(events.into_iter().flatten());
        let clear = descriptors.len();
        descriptors.extend(twin.map(Twin::hub_socket));
        self.wait_for(&descriptors, LOOK);
        descriptors[..clear].iter().for_each(|&descriptor| clear_eventfd(descriptor));
        ntb.doorbell_clear(handshake::DOORBELL);
    }

    fn wait_for(&self, descriptors: &[BorrowedFd<'_>], limit: Duration) {
        if self.stopping() {
            return;
        }
        let mut polled: Vec<_> =
            descriptors.iter().map(|descriptor| PollFd::new(descriptor, PollFlags::IN)).collect();
        let timeout = Timespec { tv_sec: 0, tv_nsec: limit.subsec_nanos().into() };
        // A signal ends the wait early, which is harmless.
        let _ = poll(&mut polled, Some(&timeout));
    }
}
