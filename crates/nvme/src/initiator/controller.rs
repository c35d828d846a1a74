//! A connected controller: its admin queue, properties, namespaces, keep-alive and events.

use super::connection::{Done, Request};
use super::host::check_nqn;
use super::{Address, Buffer, HostIdentity, Queue, QueueOptions};
use crate::command::{
    Cap, Command, ConnectData, DISCOVERY_NQN, Status, admin, async_event, cc, connect, csts, feature, log,
    property,
};
use crate::identify::{
    self, Controller as IdentifyController, Namespace, NamespaceDescriptor, cns, controller_type, oncs,
};
use crate::{Error, Result};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// The entries of the admin queue. Linux uses the same number.
const ADMIN_ENTRIES: u32 = 32;
/// The most in-capsule data of a Fabrics or admin command, in bytes (NVMe/TCP section 3.3.2).
const ADMIN_CAPSULE_DATA: u32 = 8192;
/// The most data of one command, in bytes, even if the controller allows more.
const UNLIMITED_TRANSFER: u64 = 4 << 20;

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

/// The properties of a namespace that an initiator uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// The namespace's identifier.
    pub nsid: u32,
    /// The number of blocks.
    pub blocks: u64,
    /// The size of a block, in bytes.
    pub block_bytes: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// Write Zeroes is supported.
    pub write_zeroes: bool,
    /// True if the controller supports Dataset Management, so blocks can be deallocated. False otherwise.
    pub deallocate: bool,
    /// True if there is a volatile write cache, so a flush is needed to make data durable.
    pub volatile_cache: bool,
    /// The most data of one command, in bytes. A multiple of the block size.
    pub max_transfer: u32,
    /// The UUID, else the NGUID, else the EUI64 followed by zeros. `None` if the namespace has none of them.
    /// Two namespaces with different identities have different contents.
    pub identity: Option<[u8; 16]>,
}

impl NamespaceInfo {
    /// Returns the size in bytes.
    pub fn bytes(&self) -> u64 {
        self.blocks * u64::from(self.block_bytes)
    }
}

/// A connected controller.
#[derive(Debug)]
pub struct Controller {
    admin: Queue,
    address: SocketAddr,
    options: ConnectOptions,
    id: u16,
    identify: Box<IdentifyController>,
    cap: Cap,
    queues: u16,
    io_queues: u16,
    last_keep_alive: Instant,
    keep_alive_in_flight: bool,
    event_armed: bool,
    events: Vec<u32>,
}

/// The token that marks the completion of an admin command that the caller waits for.
const TOKEN_COMMAND: u64 = 0;
/// The token that marks the completion of a Keep Alive.
const TOKEN_KEEP_ALIVE: u64 = 1;
/// The token that marks the completion of an Asynchronous Event Request.
const TOKEN_EVENT: u64 = 2;

impl Controller {
    /// Connects to a controller of a subsystem, enables it and identifies it. Tries each address that the
    /// target's name resolves to.
    ///
    /// # Errors
    /// If the target cannot be reached, refuses the host or the subsystem, or does not become ready.
    pub fn connect(address: &Address, options: &ConnectOptions) -> Result<Self> {
        check_nqn("subsystem", &options.subsystem)?;
        let mut failure = None;
        for address in address.resolve()? {
            match Self::connect_to(address, options) {
                Ok(controller) => return Ok(controller),
                Err(error @ (Error::Disconnected { .. } | Error::Unreachable { .. })) => {
                    failure = failure.or(Some(error))
                }
                Err(error) => return Err(error),
            }
        }
        Err(failure.expect("a name resolves to at least one address"))
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
            queues: 0,
            io_queues: 0,
            last_keep_alive: Instant::now(),
            keep_alive_in_flight: false,
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
        Error::Disconnected {
            peer: self.admin.peer().into(),
            why: format!("the controller is unusable: {why}"),
        }
    }

    /// Returns true if this is a discovery controller.
    pub fn is_discovery(&self) -> bool {
        self.identify.cntrltype == controller_type::DISCOVERY || self.options.subsystem == DISCOVERY_NQN
    }

    /// Returns the controller's identifier.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// Returns the data of Identify Controller.
    pub fn identify(&self) -> &IdentifyController {
        &self.identify
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
        let mut request = Request { token: TOKEN_COMMAND, command, buffer };
        while let Err(back) = self.admin.submit(request) {
            request = back;
            self.admin.progress(true)?;
            self.take_background();
        }
        loop {
            let result = self.admin.progress(true);
            while let Some(done) = self.admin.next_done() {
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
        }
    }

    fn take_background(&mut self) {
        while let Some(done) = self.admin.next_done() {
            self.background(&done);
        }
    }

    fn background(&mut self, done: &Done) {
        match done.token {
            TOKEN_KEEP_ALIVE => self.keep_alive_in_flight = false,
            TOKEN_EVENT => {
                self.admin.held_completed();
                self.event_armed = false;
                if done.status().is_success() {
                    self.events.push(done.completion.dw0.get());
                    self.arm_event();
                }
            }
            _ => {}
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
                return Err(Error::Disconnected {
                    peer: self.admin.peer().into(),
                    why: format!("no answer to a keep-alive within {} s", keep_alive.as_secs_f64()),
                });
            }
            if !self.keep_alive_in_flight && since > keep_alive / 3 {
                let command = Command::new(admin::KEEP_ALIVE, 0);
                let request = Request { token: TOKEN_KEEP_ALIVE, command, buffer: None };
                if self.admin.submit(request).is_ok() {
                    self.keep_alive_in_flight = true;
                    self.last_keep_alive = Instant::now();
                }
            }
        }
        self.admin.progress(false)?;
        self.take_background();
        Ok(())
    }

    /// Asks the controller to report changes of namespaces, or of the discovery log.
    /// [`Controller::next_event`] returns them.
    ///
    /// # Errors
    /// If the connection failed.
    pub fn watch_events(&mut self) -> Result<()> {
        let notices =
            if self.is_discovery() { async_event::DISCOVERY_NOTICES } else { async_event::NAMESPACE_NOTICES };
        let supported = self.identify.oaes.get() & notices;
        if supported == 0 {
            return Ok(());
        }
        let mut command = Command::new(admin::SET_FEATURES, 0);
        command.cdw10 = u32::from(feature::ASYNC_EVENT_CONFIGURATION).into();
        command.cdw11 = supported.into();
        match self.admin(command, None, "enabling events") {
            Ok(_) => self.arm_event(),
            // Ignore a refusal of this command, because the controller may still report events that the host
            // cannot choose.
            Err(Error::Status { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn arm_event(&mut self) {
        if !self.event_armed {
            let command = Command::new(admin::ASYNC_EVENT_REQUEST, 0);
            self.admin.submit_held(Request { token: TOKEN_EVENT, command, buffer: None });
            self.event_armed = true;
        }
    }

    /// Returns the next event that the controller reported: dword 0 of the completion, see [`async_event`].
    pub fn next_event(&mut self) -> Option<u32> {
        (!self.events.is_empty()).then(|| self.events.remove(0))
    }

    fn identify_page(&mut self, cns: u8, nsid: u32) -> Result<Buffer> {
        let mut command = Command::new(admin::IDENTIFY, nsid);
        command.cdw10 = u32::from(cns).into();
        let buffer = Buffer::new(identify::IDENTIFY_BYTES)?;
        let done = self.admin(command, Some(buffer), &format!("Identify {cns:02x}h of namespace {nsid}"))?;
        Ok(done.buffer.expect("the command had a buffer"))
    }

    /// Returns the identifiers of the active namespaces, in ascending order.
    ///
    /// # Errors
    /// If the controller refuses or the connection fails.
    pub fn namespace_ids(&mut self) -> Result<Vec<u32>> {
        let mut ids: Vec<u32> = Vec::new();
        loop {
            let after = ids.last().copied().unwrap_or(0);
            let page = self.identify_page(cns::ACTIVE_NAMESPACES, after)?;
            let words = page.bytes().chunks_exact(4);
            let list = words.map(|word| u32::from_le_bytes(word.try_into().expect("4 bytes")));
            let before = ids.len();
            for id in list.take_while(|id| *id != 0) {
                if id <= ids.last().copied().unwrap_or(0) {
                    return Err(self.unusable("its list of namespaces is not in ascending order"));
                }
                ids.push(id);
            }
            if ids.len() - before < identify::IDENTIFY_BYTES / 4 {
                return Ok(ids);
            }
        }
    }

    /// Identifies a namespace.
    ///
    /// # Errors
    /// If the namespace does not exist or its format is unsupported, or the connection fails.
    pub fn namespace(&mut self, nsid: u32) -> Result<NamespaceInfo> {
        let page = self.identify_page(cns::NAMESPACE, nsid)?;
        let namespace = Namespace::ref_from_bytes(page.bytes()).expect("4096 bytes");
        let what = || format!("namespace {nsid} of {}", self.admin.peer());
        let blocks = namespace.nsze.get();
        if blocks == 0 {
            let why = "it does not exist or is inactive; choose another with --namespace".into();
            return Err(Error::Invalid { what: what(), why });
        }
        let block_bytes = namespace.block_bytes().filter(|bytes| {
            blocks.checked_mul((*bytes).into()).is_some() && u64::from(*bytes) <= UNLIMITED_TRANSFER
        });
        let Some(block_bytes) = block_bytes else {
            let why = "its format is unsupported: metadata, or an impossible block size or capacity".into();
            return Err(Error::Invalid { what: what(), why });
        };
        let limit = self.identify.max_transfer_bytes().unwrap_or(u64::MAX);
        // A command has at most 65,536 blocks.
        let limit = limit.min(UNLIMITED_TRANSFER).min(u64::from(block_bytes) << 16) as u32;
        let optional = self.identify.oncs.get();
        let identity = self.identity(nsid, namespace)?;
        Ok(NamespaceInfo {
            nsid,
            blocks,
            block_bytes,
            read_only: namespace.nsattr & 1 != 0,
            write_zeroes: optional & oncs::WRITE_ZEROES != 0,
            deallocate: optional & oncs::DATASET_MANAGEMENT != 0,
            volatile_cache: self.identify.vwc & 1 != 0,
            max_transfer: (limit / block_bytes).max(1) * block_bytes,
            identity,
        })
    }

    /// Returns what [`NamespaceInfo::identity`] describes.
    fn identity(&mut self, nsid: u32, namespace: &Namespace) -> Result<Option<[u8; 16]>> {
        let descriptors = match self.identify_page(cns::NAMESPACE_DESCRIPTORS, nsid) {
            Ok(page) => NamespaceDescriptor::decode_all(page.bytes()),
            // Controllers of NVMe 1.2 and older do not have the list.
            Err(Error::Status { .. }) => Vec::new(),
            Err(error) => return Err(error),
        };
        let uuid = descriptors.iter().find_map(|descriptor| match descriptor {
            NamespaceDescriptor::Uuid(id) => Some(*id),
            _ => None,
        });
        let mut eui64 = [0; 16];
        eui64[..8].copy_from_slice(&namespace.eui64);
        Ok([uuid, Some(namespace.nguid), Some(eui64)].into_iter().flatten().find(|id| *id != [0; 16]))
    }

    /// Reads a part of a log page. `offset` and the buffer's length are multiples of 4.
    ///
    /// # Errors
    /// If the controller refuses or the connection fails.
    pub fn log_page(&mut self, page: u8, offset: u64, buffer: Buffer) -> Result<Buffer> {
        let mut command = Command::new(admin::GET_LOG_PAGE, 0);
        let dwords = (buffer.len() / 4 - 1) as u32;
        command.cdw10 = (u32::from(page) | dwords << 16).into();
        command.cdw11 = (dwords >> 16).into();
        command.cdw12 = (offset as u32).into();
        command.cdw13 = ((offset >> 32) as u32).into();
        let done = self.admin(command, Some(buffer), &format!("reading log page {page:02x}h"))?;
        Ok(done.buffer.expect("the command had a buffer"))
    }

    /// Reads the list of changed namespaces, and ignores it. The controller reports the next change only
    /// after this read.
    ///
    /// # Errors
    /// If the controller refuses or the connection fails.
    pub fn clear_changed_namespaces(&mut self) -> Result<()> {
        self.log_page(log::CHANGED_NAMESPACES, 0, Buffer::new(4096)?).map(|_| ())
    }

    /// Connects an I/O queue.
    ///
    /// # Errors
    /// If the controller has no more queues, or the connection fails.
    pub fn open_queue(&mut self) -> Result<Queue> {
        if self.queues == 0 {
            let asked = 64_u32;
            let mut command = Command::new(admin::SET_FEATURES, 0);
            command.cdw10 = u32::from(feature::NUMBER_OF_QUEUES).into();
            command.cdw11 = ((asked - 1) << 16 | (asked - 1)).into();
            let granted = self.admin(command, None, "asking for I/O queues")?.completion.dw0.get();
            self.queues = ((granted & 0xFFFF).min(granted >> 16) + 1).min(asked) as u16;
        }
        if self.io_queues == self.queues {
            let why = format!("it has only {} I/O queues; use fewer", self.queues);
            return Err(Error::Disconnected { peer: self.admin.peer().into(), why });
        }
        let most = match self.identify.maxcmd.get() {
            0 => u32::MAX,
            commands => u32::from(commands),
        };
        let entries = self.options.queue.entries.min(self.cap.max_entries()).min(most).max(2);
        let options = QueueOptions { entries, ..self.options.queue };
        let mut queue = Queue::connect(self.address, &options, size_of::<ConnectData>() as u32)?;
        let qid = self.io_queues + 1;
        connect_queue(&mut queue, Command::connect(qid, entries, 0, 0), self.id, &self.options)?;
        queue.set_max_capsule_data(self.identify.max_capsule_data());
        self.io_queues = qid;
        Ok(queue)
    }

    /// Shuts the controller down, and waits up to a second until the shutdown is complete (Base section
    /// 3.6.2).
    pub fn shut_down(&mut self) {
        let value = cc::ENABLE | cc::ENTRY_SIZES | cc::SHUTDOWN_NORMAL;
        let started = Instant::now();
        let set = Command::property_set(property::CC, value);
        if self.admin(set, None, "shutting down").is_err() {
            return;
        }
        while started.elapsed() < Duration::from_secs(1) {
            let get = Command::property_get(property::CSTS, false);
            match self.admin(get, None, "reading the controller's status") {
                Ok(done) if done.completion.dw0.get() & csts::SHUTDOWN_MASK != csts::SHUTDOWN_COMPLETE => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                _ => return,
            }
        }
    }
}

/// Sends a Connect and returns the controller's identifier.
fn connect_queue(
    queue: &mut Queue,
    command: Command,
    controller: u16,
    options: &ConnectOptions,
) -> Result<u16> {
    let ConnectOptions { subsystem, host, .. } = options;
    let mut buffer = Buffer::new(size_of::<ConnectData>())?;
    let data = ConnectData::new(host.id, controller, subsystem, &host.nqn);
    buffer.bytes_mut().copy_from_slice(data.as_bytes());
    let request = Request { token: TOKEN_COMMAND, command, buffer: Some(buffer) };
    queue.submit(request).unwrap_or_else(|_| unreachable!("the queue is empty"));
    let done = loop {
        let result = queue.progress(true);
        if let Some(done) = queue.next_done() {
            break done;
        }
        result?;
    };
    let (status, dw0) = (done.status(), done.completion.dw0.get());
    if status.is_success() {
        return Ok(dw0 as u16);
    }
    let peer = queue.peer();
    let hint = match (Status(status.0 & 0x7FF), dw0 >> 16 & 1, dw0 & 0xFFFF) {
        (Status::CONNECT_INVALID_PARAMETERS, 1, 256) => {
            let what = format!("subsystem {subsystem}");
            let why = format!(
                "{peer} does not have it ({status}); 'inlane nvme discover {peer}' lists those that it has"
            );
            return Err(Error::Invalid { what, why });
        }
        (Status::CONNECT_INVALID_HOST, ..) | (Status::CONNECT_INVALID_PARAMETERS, 1, 512) => {
            "; the target does not allow this host: add its NQN there, or give another with --host-nqn"
        }
        (Status::AUTHENTICATION_REQUIRED, ..) => "; authentication is unsupported",
        _ => "",
    };
    match hint {
        "" => Err(Error::Status { what: format!("{peer}: connecting to {subsystem}"), status }),
        _ => Err(Error::Disconnected {
            peer: peer.into(),
            why: format!("connecting to {subsystem} as {}: {status}{hint}", host.nqn),
        }),
    }
}
