//! Runs the control socket: accepts clients, reads their requests and sends replies. Limits the requests per
//! round.

use super::area::SharedArea;
use super::permits::{Kind, MOST_CLIENTS, Permit, Permits};
use super::report::KernelSocket;
use super::shared::Task;
use super::{CLIENT, Engine};
use crate::error::{Error, Result, address_of, kind_of_no_socket};
use crate::field::SOCKET;
use crate::host::closer::UserCloser;
use crate::host::pair;
use crate::settings::Settings;
use crate::stack::arena::{Arena, Key};
use inlane_offload_protocol::message::{self, Message, Operation};
use rustix::event::epoll;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Returns what to do if the path of the control socket cannot be used.
fn other_path() -> String {
    format!("run as root, or choose another path with {SOCKET}")
}

/// The most requests that the engine processes for one client in one round. Without this limit, one client
/// could hold up the engine.
const MOST_REQUESTS: usize = message::MOST_AHEAD as usize;
/// How long a request is put off, in nanoseconds, if it names a socket that another client may be opening. That client's
/// request arrived earlier, so the engine usually processes it in the next rounds.
const EARLY_NS: u64 = 10_000_000;
/// How long a request is put off, in nanoseconds, if another thread holds the slot of the kept pair for which the program asks. If the request
/// failed, the program would wait for its connection for ever, because there is no pair that could carry the error.
const KEPT_NS: u64 = 1_000_000_000;
/// The most requests that are put off at the same time.
const MOST_EARLY: usize = 256;
/// The most requests of one client that other threads process at once. At this number, the engine reads no
/// further request of the client.
pub(super) const MOST_PASSED: usize = 64;

/// A process that has connected to the control socket. One thread receives the client's requests and may pass
/// a request to another thread. That thread then sends the reply.
pub(super) struct Client {
    fd: ManuallyDrop<OwnedFd>,
    /// The client's process ID, from the kernel (SO_PEERCRED).
    pub process: i32,
    /// Closes descriptors of the client's user. The user ID is from the kernel (SO_PEERCRED).
    pub closer: Arc<UserCloser>,
    /// The memory that the engine shares with the process. `None` until the process asks for it.
    pub area: Mutex<Option<Arc<SharedArea>>>,
    /// The number of this client's unanswered requests at other threads of the engine.
    passed: AtomicUsize,
    /// Counts the client until its descriptor is closed. `None` if the process or the user has too many.
    permit: Option<Permit>,
}

/// Work that other threads do for a client. Until this value is dropped, it counts as `weight` passed
/// requests of the client.
pub(super) struct Outstanding {
    client: Arc<Client>,
    weight: usize,
}

impl Outstanding {
    pub fn new(client: &Arc<Client>, weight: usize) -> Self {
        client.passed.fetch_add(weight, Ordering::Relaxed);
        Self { client: client.clone(), weight }
    }

    /// Returns the client.
    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }
}

impl Deref for Outstanding {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Drop for Outstanding {
    fn drop(&mut self) {
        self.client.passed.fetch_sub(self.weight, Ordering::Relaxed);
    }
}

/// A request that one thread has received and passes to another.
pub(super) struct PassedRequest {
    request: Request,
    /// Counts this request as one of its client's passed requests, until the request has been processed.
    _outstanding: Outstanding,
}

impl Client {
    pub fn new(fd: OwnedFd, process: i32, closer: Arc<UserCloser>, permit: Option<Permit>) -> Self {
        let (fd, passed) = (ManuallyDrop::new(fd), AtomicUsize::new(0));
        Self { fd, process, closer, area: Mutex::default(), passed, permit }
    }

    /// Closes descriptors that came with a request and may block. If the closer is full, disconnects the client and
    /// counts one client more for its process until they are closed.
    fn close(&self, descriptors: Vec<OwnedFd>) {
        if descriptors.is_empty() {
            return;
        }
        let mut permit = None;
        if self.closer.is_full() {
            let _ = net::shutdown(&*self.fd, net::Shutdown::Both);
            permit = self.permit.as_ref().map(Permit::another);
        }
        self.closer.close(descriptors, permit.map(|permit| Box::new(permit) as Box<dyn Send>));
    }

    /// Sends a reply. Sends `descriptor` with it if there is one. Disconnects a client that does not read its
    /// replies. Returns false if the client does not get the reply.
    pub fn reply(&self, reply: &Message, descriptor: Option<&OwnedFd>) -> bool {
        let sent = !reply.operation.has_reply()
            || pair::send_descriptor(
                self.fd.as_raw_fd(),
                &reply.encode(),
                descriptor.map(AsRawFd::as_raw_fd),
            )
            .is_ok();
        if !sent {
            // The thread that receives this client's requests then reads the end of the stream, and removes
            // the client.
            let _ = net::shutdown(&*self.fd, net::Shutdown::Both);
        }
        sent
    }
}

impl Drop for Client {
    /// Closes the client's descriptor: on another thread if messages wait there, because these may have descriptors whose
    /// close blocks.
    fn drop(&mut self) {
        let permit = self.permit.take();
        // SAFETY: the descriptor is not used any more.
        let fd = unsafe { ManuallyDrop::take(&mut self.fd) };
        if !pair::drop_messages(&fd) {
            self.closer.close(vec![fd], permit.map(|permit| Box::new(permit) as Box<dyn Send>));
        }
    }
}

/// The listening control socket and its file. Dropping this value removes the file.
struct ControlListener {
    fd: OwnedFd,
    path: PathBuf,
    /// The folders that `open` created. They are removed when this field is dropped. By then, `drop` has
    /// removed the control socket.
    _folders: Folders,
}

/// One thread's part of the control socket: the clients that the thread serves, and their requests.
pub(super) struct Control {
    /// The control socket, on the one thread that accepts clients. `None` on the other threads.
    listener: Option<ControlListener>,
    clients: Arena<Arc<Client>>,
    /// The requests for a report that wait for their turn, the oldest first. Each client has at most one such
    /// request.
    reports: VecDeque<PassedRequest>,
    /// The requests about sockets that other clients have not opened yet, the oldest first, and in how many rounds each
    /// was processed in vain.
    early: VecDeque<(PassedRequest, u64)>,
    /// The numbers of sockets and clients of each process and user. All threads share this table.
    pub permits: Permits,
    /// True if the number of the client's descriptor that was accepted last is reserved for the closer.
    exhausted: bool,
}

impl Control {
    /// Creates the control socket. If the path holds the socket file of an engine that has ended, replaces
    /// this file.
    ///
    /// # Errors
    /// If another engine listens there, a file that is not a socket exists at the path, or the socket cannot
    /// be created.
    pub fn open(settings: &Settings) -> Result<Self> {
        let path = settings.socket.clone();
        let shown = path.display().to_string();
        let os = |what: &'static str| {
            let shown = shown.clone();
            move |error: rustix::io::Errno| Error::os(format!("{what} {shown}"))(error.into())
        };
        check_replaceable(&path)?;
        let folders = Folders::create(path.parent())?;
        let address = address_of(&path)?;
        let new = || net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let probe = new().map_err(os("creating the control socket"))?;
        match net::connect(&probe, &address) {
            Ok(()) => return Err(Error::Busy(shown)),
            Err(rustix::io::Errno::CONNREFUSED) => {
                std::fs::remove_file(&path).map_err(Error::os(format!("removing the old socket {shown}")))?;
            }
            Err(_) => {}
        }
        let listener = new().map_err(os("creating the control socket"))?;
        net::bind(&listener, &address).map_err(|error| {
            let why = match error {
                rustix::io::Errno::ADDRINUSE => {
                    format!("another program listens on it; stop that program, or choose another path with {SOCKET}")
                }
                error => format!("{}; {}", io::Error::from(error), other_path()),
            };
            inlane_core::Error::device_environment(format!("cannot create the control socket {shown}"), why)
        })?;
        if settings.group.is_some() {
            std::os::unix::fs::chown(&path, None, settings.group)
                .map_err(Error::os(format!("setting the group of {shown}")))?;
        }
        let permissions = std::fs::Permissions::from_mode(settings.mode);
        std::fs::set_permissions(&path, permissions)
            .map_err(Error::os(format!("setting the permissions of {shown}")))?;
        net::listen(&listener, 4096).map_err(os("listening on"))?;
        rustix::io::ioctl_fionbio(&listener, true).map_err(os("listening on"))?;
        Ok(Self {
            listener: Some(ControlListener { fd: listener, path, _folders: folders }),
            clients: Arena::default(),
            reports: VecDeque::new(),
            early: VecDeque::new(),
            permits: Permits::new(settings.sockets_per_program),
            exhausted: false,
        })
    }

    /// Creates the `Control` of another engine thread. It accepts no clients. All threads share the limits on
    /// the sockets of a process.
    pub fn share(&self) -> Self {
        let (permits, clients) = (self.permits.clone(), Arena::default());
        let (reports, early) = (VecDeque::new(), VecDeque::new());
        Self { listener: None, clients, reports, early, permits, exhausted: false }
    }

    /// Returns the listening socket, or `None` if another thread accepts the clients.
    pub fn listener(&self) -> Option<&OwnedFd> {
        self.listener.as_ref().map(|listener| &listener.fd)
    }

    /// Returns the number of clients that this thread serves.
    #[cfg(test)]
    pub fn clients(&self) -> usize {
        self.clients.len()
    }
}

impl Drop for ControlListener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The folders created for the control socket, the outermost first. Dropping the value removes the folders
/// that are empty.
struct Folders(Vec<PathBuf>);

impl Folders {
    /// Creates a folder and its missing parents.
    fn create(folder: Option<&Path>) -> Result<Self> {
        let around = folder.into_iter().flat_map(Path::ancestors);
        let missing: Vec<&Path> =
            around.take_while(|path| !path.as_os_str().is_empty() && !path.exists()).collect();
        let mut created = Self(Vec::new());
        for path in missing.into_iter().rev() {
            match std::fs::create_dir(path) {
                Ok(()) => created.0.push(path.to_owned()),
                // Continue, because another program has created the directory meanwhile.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    let what = format!("cannot create the directory {}", path.display());
                    let why = format!("{error}; {}", other_path());
                    return Err(inlane_core::Error::device_environment(what, why).into());
                }
            }
        }
        Ok(created)
    }
}

impl Drop for Folders {
    fn drop(&mut self) {
        for path in self.0.iter().rev() {
            // Ignore a failure, because a folder that holds another program's files must stay.
            let _ = std::fs::remove_dir(path);
        }
    }
}

/// Checks that the control socket's path leads to a socket or to nothing. The engine never replaces a file of
/// another kind.
fn check_replaceable(path: &Path) -> Result<()> {
    let kind = match path.symlink_metadata() {
        Ok(found) if found.is_symlink() => "a symbolic link",
        _ => match kind_of_no_socket(path) {
            Some(kind) => kind,
            None => return Ok(()),
        },
    };
    let why = format!("it is {kind}, not a socket; choose another path");
    Err(Error::Setting { what: SOCKET.with(path.display()).into(), why })
}

/// A request and the client that sent it.
pub(super) struct Request {
    pub message: Message,
    /// The descriptor that the client sent with the message.
    pub attached: Option<OwnedFd>,
    /// The second descriptor that the client sent with the message.
    pub second: Option<OwnedFd>,
    pub process: i32,
    pub user: u32,
    /// The client that sent the request.
    pub client: Arc<Client>,
    /// True if `attached` is the program's end of a socket of the engine. Its close does not block.
    pub known: Cell<bool>,
}

impl Request {
    /// Creates the request of a message and the descriptors that the client sent with it.
    pub fn new(message: Message, [attached, second]: [Option<OwnedFd>; 2], client: &Arc<Client>) -> Self {
        let (process, user, client) = (client.process, client.closer.user(), client.clone());
        Self { message, attached, second, process, user, client, known: Cell::new(false) }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let unknown = self.attached.take_if(|_| !self.known.get()).into_iter().chain(self.second.take());
        // A request about an ended connection is usual.
        self.client.close(unknown.filter(|fd| !pair::is_ended(fd)).collect());
    }
}

/// Returns the name of the program that `process` runs, or "?" if the process has ended.
fn program_of(process: i32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{process}/comm"));
    name.map_or_else(|_| "?".into(), |name| crate::status::printable(name.trim_end()))
}

impl Engine {
    /// Accepts new connections to the control socket. Closes them at once if there are `MOST_CLIENTS`.
    pub(super) fn accept_clients(&mut self) {
        for _ in 0..MOST_REQUESTS {
            // Let clients wait if the closer may have no descriptors left for those that are refused.
            if self.control.exhausted && self.closer.is_full() {
                let probe = rustix::io::fcntl_dupfd_cloexec(&self.epoll, 0);
                self.control.exhausted = probe.is_ok_and(|probe| self.closer.free_after(&probe) == 0);
                if self.control.exhausted {
                    return;
                }
            }
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Some(listener) = self.control.listener() else { return };
            let Ok(fd) = net::accept_with(listener, flags) else { return };
            let Ok(peer) = net::sockopt::socket_peercred(&fd) else { continue };
            let (process, user) = (peer.pid.as_raw_nonzero().get(), peer.uid.as_raw());
            let free = self.closer.free_after(&fd);
            self.control.exhausted = free == 0;
            let permit = self.control.permits.admit(Kind::Client, process, user, free);
            let client = Client::new(fd, process, self.closer.of_user(user), permit);
            if client.permit.is_none() {
                continue;
            }
            // Spread the clients over the threads, because a thread also runs the connections of its clients.
            match &self.shared {
                Some(shared) => {
                    let thread = shared.choose_for_client();
                    shared.give(thread, Task::Client(client));
                }
                None => self.add_client(client),
            }
        }
    }

    /// Serves a client from now on.
    pub(super) fn add_client(&mut self, client: Client) {
        if self.control.clients.len() >= MOST_CLIENTS / self.stack.threads() {
            self.release_client();
            return;
        }
        let key = self.control.clients.insert_with(|_| Arc::new(client));
        let Some(client) = self.control.clients.get(key) else { return };
        if self.watch(&*client.fd, CLIENT | key.to_u64(), epoll::EventFlags::IN).is_err() {
            self.remove_client(key);
        }
    }

    /// Removes a client of this thread.
    fn remove_client(&mut self, key: Key) {
        if let Some(client) = self.control.clients.remove(key) {
            super::stop_watching(&self.epoll, &*client.fd);
            self.release_client();
        }
    }

    /// Subtracts one client from the count of this thread.
    fn release_client(&self) {
        if let Some(shared) = &self.shared {
            shared.clients[self.stack.thread].fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Replies in the engine's version to a client of another version, so that the client can report both
    /// versions. Adds the client's socket to the list of sockets that stay with the kernel.
    fn refuse_version(&mut self, key: Key, version: u8) {
        let Some(client) = self.control.clients.get(key) else { return };
        client.reply(&Message::new(Operation::Status), None);
        let ours = message::VERSION;
        self.totals.note_kernel(KernelSocket {
            protocol: "unknown".into(),
            program: program_of(client.process),
            process: client.process,
            local: None,
            remote: None,
            reason: format!(
                "its preloaded library has protocol version {version}, and the engine version {ours}; start the program again with the \
                 'inlane offload run' of the engine's installation"
            ),
        });
    }

    /// Processes the requests of a client.
    pub(super) fn serve_client(&mut self, now: u64, key: Key) {
        for _ in 0..MOST_REQUESTS {
            let Some(client) = self.control.clients.get(key) else { return };
            if client.passed.load(Ordering::Relaxed) >= MOST_PASSED {
                return;
            }
            // Receive up to one byte more than the length of a message, in order to detect a longer message.
            let mut bytes = [0; message::LEN + 1];
            let request = match pair::receive_descriptors(client.fd.as_raw_fd(), &mut bytes, &client.closer) {
                Ok((len, descriptors)) => match Message::decode(&bytes[..len]) {
                    Some(message) => Some(Request::new(message, descriptors, client)),
                    None => {
                        client.close(descriptors.into_iter().flatten().collect());
                        if let Some(version) = message::other_version(&bytes[..len]) {
                            self.refuse_version(key, version);
                        }
                        None
                    }
                },
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => None,
            };
            // Disconnect a client that has gone or does not speak the protocol.
            let Some(request) = request else {
                self.remove_client(key);
                return;
            };
            self.totals.requests += 1;
            let operation = request.message.operation;
            if operation == Operation::Status {
                // Count the status request as MOST_PASSED requests. A client may not have more than that in
                // progress. So the engine reads no further request of this client until it has sent the
                // report.
                let _outstanding = Outstanding::new(&request.client, MOST_PASSED);
                self.control.reports.push_back(PassedRequest { request, _outstanding });
                return;
            }
            self.process_or_put_off(now, request);
            // Stop after a request that has a reply, and after Start. Such a request is usually the client's
            // last one. If another request waits, epoll reports it in the next round.
            if operation.has_reply() || operation == Operation::Start {
                return;
            }
        }
    }

    /// Processes a request, and replies. Puts it off if another client may be opening the socket.
    fn process_or_put_off(&mut self, now: u64, request: Request) {
        if let Some(request) = self.try_request(now, request, true) {
            // The engine reads no further request of this client before, because replies keep their order.
            let _outstanding = Outstanding::new(&request.client, MOST_PASSED);
            let limit = if Self::awaits_kept(&request) { KEPT_NS } else { EARLY_NS };
            self.control.early.push_back((PassedRequest { request, _outstanding }, now + limit));
        }
    }

    /// Processes a request, and replies, or passes it to the thread that must do so. If `may_wait` is true and another client may be
    /// opening the socket, returns the request instead: a program that has passed the socket on has sent its request
    /// [`Operation::Open`] before, but over another connection.
    fn try_request(&mut self, now: u64, mut request: Request, may_wait: bool) -> Option<Request> {
        if let Some(shared) = &self.shared {
            if request.message.operation == Operation::Status {
                self.start_report(now, &request);
                return None;
            }
            let thread = self.thread_of_request(shared, &request);
            if thread != self.stack.thread {
                let _outstanding = Outstanding::new(&request.client, 1);
                shared.give(thread, Task::Request(Box::new(PassedRequest { request, _outstanding })));
                return None;
            }
            self.take_moved_sockets(now);
        }
        let key = self.listener_to_announce(&request);
        let (reply, descriptor) = self.process(now, &mut request);
        // Only programs that may open sockets in this way may make the engine put off requests.
        let is_early = reply.status == libc::EBADF
            && may_wait
            && !request.known.get()
            && super::permits::is_trusted(request.user)
            && self.control.early.len() < MOST_EARLY;
        if is_early && (request.attached.as_ref().is_some_and(pair::is_opened) || Self::awaits_kept(&request))
        {
            return Some(request);
        }
        // Another thread may send the reply later.
        let announced =
            reply.status == 0 && key.is_some_and(|key| self.announce(key, &request.client, &reply));
        if !announced {
            self.reply(&request, &reply, descriptor);
        }
        None
    }

    /// Replies to a request. Removes a new connection whose program has given it up and does not get the reply.
    pub(super) fn reply(&mut self, request: &Request, reply: &Message, descriptor: Option<Arc<OwnedFd>>) {
        if !request.client.reply(reply, descriptor.as_deref())
            && reply.operation == Operation::Connect
            && let Some(program) = descriptor
            && let Ok(cookie) = pair::cookie(&program)
            && let Some(&key) = self.by_cookie.get(&cookie)
        {
            self.remove(key);
        }
    }

    /// Processes the requests again that were put off.
    pub(super) fn retry_early(&mut self, now: u64) {
        for _ in 0..self.control.early.len() {
            let Some((passed, end)) = self.control.early.pop_front() else { return };
            let PassedRequest { request, _outstanding } = passed;
            if let Some(request) = self.try_request(now, request, now < end) {
                let passed = PassedRequest { request, _outstanding };
                self.control.early.push_back((passed, end));
            }
        }
    }

    /// Processes the oldest request for a report. The engine does this after all other requests of a round. A
    /// report of many sockets takes long, so other clients have their turn before the next report.
    pub(super) fn report_next(&mut self, now: u64) {
        let Some(PassedRequest { request, _outstanding }) = self.control.reports.pop_front() else { return };
        self.process_or_put_off(now, request);
    }

    /// Returns true if a request waits for the next round.
    pub(super) fn owes_reply(&self) -> bool {
        !self.control.reports.is_empty() || !self.control.early.is_empty()
    }

    /// Processes a request that another thread has passed to this one. Passes it on if the socket has moved meanwhile: that thread takes the
    /// socket from its inbox first.
    pub(super) fn on_passed_request(&mut self, now: u64, passed: Box<PassedRequest>) {
        let PassedRequest { request, _outstanding } = *passed;
        self.process_or_put_off(now, request);
    }
}
