//! The association with a controller: its admin queue, properties, namespaces, keep-alive and events.

mod authenticate;
mod connect_queue;
mod events;
mod namespaces;

pub use namespaces::{NamespaceIdentity, NamespaceInfo};

use super::connection::{Done, Submission};
use super::queue::sleep;
use super::{Address, Buffer, HostIdentity, Queue, QueueOptions};
use crate::wire::command::{Cap, Command, ConnectData, admin, cc, connect, csts, feature, property};
use crate::wire::identify::{IdentifyController, cns, controller_type};
use crate::wire::nqn;
use crate::{Error, Result};
use connect_queue::connect_queue;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use zerocopy::{FromZeros, IntoBytes};

/// The entries of the admin queue. Linux uses the same number.
const ADMIN_ENTRIES: u32 = 32;
/// The most in-capsule data of a Fabrics or admin command, in bytes (NVMe/TCP section 3.3.2).
const ADMIN_CAPSULE_DATA: u32 = 8192;
/// The most data bytes of one command, even if the controller allows more.
const UNLIMITED_TRANSFER: u64 = 4 << 20;

/// How long a host usually waits for the shutdown of a controller.
pub const SHUTDOWN: Duration = Duration::from_secs(1);

/// How to connect to a controller.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// The subsystem's NQN.
    pub subsystem: String,
    /// The host.
    pub host: HostIdentity,
    /// How the connections of the queues are made. The number of entries applies to I/O queues only.
    pub queue: QueueOptions,
    /// The keep-alive timeout; zero turns keep-alive off. The initiator ends the connection if a Keep Alive
    /// is not answered within this time. The target ends it if the host is silent for this time.
    pub keep_alive: Duration,
}

/// A connected controller, as a host uses it.
#[derive(Debug)]
pub struct Association {
    admin: Queue,
    address: SocketAddr,
    options: ConnectOptions,
    id: u16,
    identify: Box<IdentifyController>,
    cap: Cap,
    last_keep_alive: Instant,
    keep_alive_in_flight: bool,
    /// True if the controller reports events, so this host waits for them.
    watches_events: bool,
    event_armed: bool,
    events: Vec<u32>,
}

/// The token of an admin command that the caller waits for. It marks the completion of the command.
const TOKEN_COMMAND: u64 = 0;
/// The token that marks the completion of a Keep Alive.
const TOKEN_KEEP_ALIVE: u64 = 1;
/// The token that marks the completion of an Asynchronous Event Request.
const TOKEN_EVENT: u64 = 2;

/// Sends a command and waits until it has completed. The queue must have no other commands in flight.
fn call(queue: &mut Queue, command: Command, buffer: Buffer) -> Result<Done> {
    let request = Submission { token: TOKEN_COMMAND, command, buffer: Some(buffer) };
    queue.connection.submit(request).unwrap_or_else(|_| unreachable!("the queue is empty"));
    loop {
        let result = queue.progress(true);
        if let Some(done) = queue.connection.next_done() {
            return Ok(done);
        }
        result?;
    }
}

impl Association {
    /// Connects to a controller of a subsystem, enables it and identifies it. If the target's name resolves
    /// to several addresses, tries them in turn.
    ///
    /// # Errors
    /// If the target cannot be reached, refuses the host or the subsystem, or does not become ready.
    pub fn connect(address: &Address, options: &ConnectOptions) -> Result<Self> {
        nqn::check_or_discovery(&options.subsystem)?;
        let mut failure = None;
        for address in address.resolve()? {
            match Self::connect_to(address, options) {
                Ok(controller) => return Ok(controller),
                Err(
                    error @ (Error::Disconnected { .. }
                    | Error::Unauthenticated { .. }
                    | Error::Unreachable { .. }),
                ) => failure = failure.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
        Err(failure.expect("a name resolves to at least one address").before_use())
    }

    fn connect_to(address: SocketAddr, options: &ConnectOptions) -> Result<Self> {
        let queue = QueueOptions { entries: ADMIN_ENTRIES, ..options.queue };
        let mut admin = Queue::connect(address, &queue, ADMIN_CAPSULE_DATA)?;
        let keep_alive = u32::try_from(options.keep_alive.as_millis()).unwrap_or(u32::MAX);
        let command = Command::connect(0, ADMIN_ENTRIES, 0, keep_alive);
        let id = connect_queue(&mut admin, command, connect::ANY_CONTROLLER, options)?;
        let mut controller = Self {
            admin,
            address,
            options: options.clone(),
            id,
            identify: Box::new(IdentifyController::new_zeroed()),
            cap: Cap(0),
            last_keep_alive: Instant::now(),
            keep_alive_in_flight: false,
            watches_events: false,
            event_armed: false,
            events: Vec::new(),
        };
        controller.enable()?;
        let page = controller.identify_page(cns::CONTROLLER, 0)?;
        controller.identify.as_mut_bytes().copy_from_slice(page.bytes());
        controller.check_identity()?;
        Ok(controller)
    }

    /// Enables the controller and waits until it is ready (Base section 3.5.1).
    fn enable(&mut self) -> Result<()> {
        let cap = self.admin(Command::property_get(property::CAP, true), None, "reading the capabilities")?;
        self.cap = Cap(cap.completion.result());
        let set = Command::property_set(property::CC, cc::ENABLE | cc::ENTRY_SIZES);
        self.admin(set, None, "enabling the controller")?;
        let limit = Duration::from_millis(500) * u32::from(self.cap.timeout_500ms().max(1));
        let started = Instant::now();
        loop {
            let get = Command::property_get(property::CSTS, false);
            let status = self.admin(get, None, "reading the controller's status")?.completion.dw0.get();
            if status & csts::FATAL != 0 {
                return Err(self.unusable("it reports a fatal error; restart the target"));
            }
            if status & csts::READY != 0 {
                return Ok(());
            }
            if started.elapsed() > limit {
                return Err(self.unusable("it did not become ready in the time that it announced"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn check_identity(&self) -> Result<()> {
        let identify = &self.identify;
        if identify.cntlid.get() != self.id {
            return Err(self.unusable("Identify names another controller than Connect did"));
        }
        if !self.is_discovery() {
            if identify.ioccsz.get() < 4 || identify.iorcsz.get() < 1 {
                return Err(self.unusable("its capsules are smaller than a command or a response"));
            }
            if identify.sqes & 0x0F > 6 || identify.cqes & 0x0F > 4 {
                return Err(self.unusable("it requires larger queue entries than 64 and 16 bytes"));
            }
        }
        Ok(())
    }

    fn unusable(&self, why: &str) -> Error {
        Error::disconnected(self.admin.peer(), format!("the controller is unusable: {why}"))
    }

    /// Returns true if this is a discovery controller.
    pub fn is_discovery(&self) -> bool {
        self.identify.cntrltype == controller_type::DISCOVERY || self.options.subsystem == nqn::DISCOVERY
    }

    /// Returns the address and port of the controller.
    pub fn peer(&self) -> &str {
        self.admin.peer()
    }

    /// Returns the controller's admin queue. Its socket can be polled together with the sockets of the I/O
    /// queues.
    pub fn admin_queue(&self) -> &Queue {
        &self.admin
    }

    /// Sends an admin command and waits for its completion. `what` describes the command in error messages.
    ///
    /// # Errors
    /// If the command completes with an error status, or the connection fails.
    pub fn admin(&mut self, command: Command, buffer: Option<Buffer>, what: &str) -> Result<Done> {
        self.admin_until(command, buffer, what, None)
    }

    /// As [`Association::admin`], but also fails if the command has not completed at `deadline`.
    fn admin_until(
        &mut self,
        command: Command,
        buffer: Option<Buffer>,
        what: &str,
        deadline: Option<Instant>,
    ) -> Result<Done> {
        let mut request = Submission { token: TOKEN_COMMAND, command, buffer };
        while let Err(back) = self.admin.connection.submit(request) {
            request = back;
            self.admin.progress(true)?;
            self.take_background();
        }
        loop {
            let result = self.admin.progress(deadline.is_none());
            while let Some(done) = self.admin.connection.next_done() {
                if done.token != TOKEN_COMMAND {
                    self.background(&done);
                } else if done.status().is_success() {
                    return Ok(done);
                } else {
                    let what = format!("{}: {what}", self.admin.peer());
                    return Err(Error::Status { what, status: done.status() });
                }
            }
            result?;
            let Some(deadline) = deadline else { continue };
            match deadline.saturating_duration_since(Instant::now()) {
                Duration::ZERO => {
                    return Err(Error::disconnected(self.admin.peer(), format!("no answer in time: {what}")));
                }
                left => sleep(&mut [self.admin.interest()], left),
            }
        }
    }

    /// Sends a keep-alive if one is due, and receives what has arrived. Does not block. Call it at least
    /// every 100 ms.
    ///
    /// # Errors
    /// If the connection failed, or the target did not answer a keep-alive in time.
    pub fn tick(&mut self) -> Result<()> {
        let keep_alive = self.options.keep_alive;
        let since = self.last_keep_alive.elapsed();
        if !keep_alive.is_zero() {
            if self.keep_alive_in_flight && since > keep_alive {
                let why = format!("no answer to a keep-alive within {} s", keep_alive.as_secs_f64());
                return Err(Error::disconnected(self.admin.peer(), why));
            }
            if !self.keep_alive_in_flight && since > keep_alive / 3 {
                let command = Command::new(admin::KEEP_ALIVE, 0);
                let request = Submission { token: TOKEN_KEEP_ALIVE, command, buffer: None };
                if self.admin.connection.submit(request).is_ok() {
                    self.keep_alive_in_flight = true;
                    self.last_keep_alive = Instant::now();
                }
            }
        }
        self.arm_event();
        self.admin.progress(false)?;
        self.take_background();
        Ok(())
    }

    /// Requests `count` I/O queues. Connects as many of them as the controller grants, at least one. Call it
    /// once, because a controller grants queues only before the first one is connected (Base section
    /// 5.27.1.5).
    ///
    /// # Errors
    /// If the controller refuses the request or a queue, or the connection fails.
    ///
    /// # Panics
    /// If `count` is 0.
    pub fn open_queues(&mut self, count: u16) -> Result<Vec<Queue>> {
        let last = u32::from(count.checked_sub(1).expect("at least one queue"));
        let mut command = Command::new(admin::SET_FEATURES, 0);
        command.cdw10 = u32::from(feature::NUMBER_OF_QUEUES).into();
        command.cdw11 = (last << 16 | last).into();
        let granted = self.admin(command, None, "asking for I/O queues")?.completion.dw0.get();
        // Use no more queues than the host asked for, because the controller may grant more.
        let last = (granted & 0xFFFF).min(granted >> 16).min(last) as u16;
        (1..=last + 1).map(|id| self.open_queue(id)).collect()
    }

    fn open_queue(&self, qid: u16) -> Result<Queue> {
        let most = match self.identify.maxcmd.get() {
            0 => u32::MAX,
            commands => u32::from(commands),
        };
        let entries = self.options.queue.entries.min(self.cap.max_entries()).min(most).max(2);
        let options = QueueOptions { entries, ..self.options.queue };
        let connect = |attributes| {
            let mut queue = Queue::connect(self.address, &options, size_of::<ConnectData>() as u32)?;
            let command = Command::connect(qid, entries, attributes, 0);
            connect_queue(&mut queue, command, self.id, &self.options).map(|_| queue)
        };
        // Without flow control of the submission queue, the controller may omit the completions of successful
        // reads. Controllers need not support this mode. If the controller refuses it, connect again with
        // flow control.
        let mut queue = match connect(connect::DISABLE_FLOW_CONTROL) {
            Err(Error::Status { .. }) => connect(0)?,
            result => result?,
        };
        queue.connection.max_capsule_data = self.identify.max_capsule_data();
        Ok(queue)
    }

    /// Shuts the controller down, and waits for at most `time` until the shutdown is complete (Base section
    /// 3.6.2).
    pub fn shut_down(&mut self, time: Duration) {
        let value = cc::ENABLE | cc::ENTRY_SIZES | cc::SHUTDOWN_NORMAL;
        let deadline = Some(Instant::now() + time);
        // The answer to the property's change has no status.
        let set = Command::property_set(property::CC, value);
        let mut result = self.admin_until(set, None, "shutting down", deadline);
        while result.is_ok() {
            let get = Command::property_get(property::CSTS, false);
            result = self.admin_until(get, None, "shutting down", deadline);
            let status = result.as_ref().map_or(0, |done| done.completion.dw0.get());
            if status & csts::SHUTDOWN_MASK == csts::SHUTDOWN_COMPLETE {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
