//! How a process joins and leaves a job that a process manager such as `mpirun` started.
//!
//! ```text
//! PE 0      makes the hub (over windows) or the TCP server (over UCX), and listens; stores a text at the
//!           manager, its card: the heap size, and the socket's name or the server's TCP addresses
//! all PEs   wait in the manager's fence
//! PE n      reads the card of PE 0, connects, sends its number
//! ```

use super::STATICS;
use super::hub::JobHub;
use super::manager::ProcessManager;
use super::network::{self, Meetings};
use super::processors;
use crate::error::{Error, Result};
use crate::transport::bootstrap::PeEvent;
use crate::transport::machine::machine;
use crate::transport::rendezvous::{Client, Server};
use inlane_ntb::twin::{Hub, MAX_PORTS};
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use rustix::net::{RecvFlags, SendFlags, acceptfrom_with, recv, send};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const CARD: &str = "inlane-card";
/// The key of the PEs' announcements of their processors.
const PROCESSORS: &str = "inlane-processors";
/// How long a process that has connected may take to send its number.
const NUMBER_TIMEOUT: Duration = Duration::from_secs(10);

/// What the other PEs need to connect to PE 0's hub (the owner of the twin bridge).
#[derive(Clone, Debug, PartialEq)]
struct Card {
    /// A text that identifies PE 0's machine, from [`machine`]. A process on another kernel cannot map PE 0's memory.
    machine: String,
    /// Name of the socket at which the hub of PE 0 accepts the other PEs. It is in the abstract namespace.
    socket: String,
    heap_bytes: u64,
}

impl Card {
    fn encode(&self) -> String {
        format!("{}/{}/{}", self.machine, self.socket, self.heap_bytes)
    }

    fn decode(text: &str) -> Option<Self> {
        let mut parts = text.split('/');
        let card = Self {
            machine: parts.next()?.into(),
            socket: parts.next()?.into(),
            heap_bytes: parts.next()?.parse().ok()?,
        };
        // Refuse longer names, because they do not fit into the address of a UNIX socket.
        (parts.next().is_none() && (1..100).contains(&card.socket.len())).then_some(card)
    }
}

/// The record of which PEs of a job have finished or ended.
#[derive(Default)]
struct Ends {
    ended: Mutex<Vec<bool>>,
    changed: Condvar,
}

impl Ends {
    fn lock(&self) -> MutexGuard<'_, Vec<bool>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// This process's membership in a job that a process manager started.
pub(super) struct Member {
    manager: Mutex<Box<dyn ProcessManager>>,
    /// At PE 0: the job's hub (the owner of the twin bridge) or its TCP server, and the record of finished
    /// and ended PEs. `None` at other PEs.
    hub: Option<(Arc<JobHub>, Arc<Ends>)>,
}

fn os(what: &str) -> impl Fn(rustix::io::Errno) -> Error + '_ {
    move |error| Error::os(what, error)
}

/// A process's place in a job over windows that a process manager started.
pub(super) struct Joined {
    pub member: Member,
    /// The socket to the hub (the owner of the twin bridge).
    pub socket: OwnedFd,
    /// PE 0's heap size.
    pub heap_bytes: u64,
    /// True if the PEs are more than the processors that they may use.
    pub share_processors: bool,
}

/// Joins the job that `manager` started, over windows. `heap_bytes` is the size of the symmetric heap that
/// this process asks for, but all PEs use PE 0's size.
///
/// # Errors
/// If the processes run on several machines, if there are too many, or if the manager or the system refuses.
pub(super) fn join(mut manager: Box<dyn ProcessManager>, heap_bytes: u64) -> Result<Joined> {
    let (rank, size) = (manager.rank(), manager.size());
    if rank == 0 {
        let hub = Arc::new(Hub::new(size, heap_bytes.saturating_add(STATICS))?);
        let (listener, name) = listen_anywhere()?;
        let card = Card { machine: machine(), socket: name, heap_bytes };
        manager.put(CARD, &card.encode())?;
        let own = hub.admit(0)?;
        let admitting = hub.clone();
        std::thread::spawn(move || admit(&admitting, &listener, size));
        let hub = watched(JobHub::Windows(hub), size);
        let share_processors = share_processors(&mut *manager)?;
        let member = Member { manager: Mutex::new(manager), hub: Some(hub) };
        return Ok(Joined { member, socket: own, heap_bytes, share_processors });
    }
    let share_processors = share_processors(&mut *manager)?;
    let text = manager.get(0, CARD)?;
    let card = Card::decode(&text).ok_or_else(|| {
        Error::invalid(
            format!("the card of PE 0, '{text}'"),
            "it is another release's; use one release for all PEs",
        )
    })?;
    if card.machine != machine() {
        return Err(Error::invalid(
            format!("PE {rank}"),
            "it runs on another machine than PE 0, and windows join the processes of one machine; start all PEs on one machine",
        ));
    }
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(os("making a socket"))?;
    let address = SocketAddrUnix::new_abstract_name(card.socket.as_bytes()).map_err(os("PE 0's socket"))?;
    connect(&socket, &address).map_err(|error| Error::Failed {
        what: format!("connecting PE {rank} to PE 0"),
        why: format!("{error}; start all PEs in one network namespace, and check that PE 0 runs"),
    })?;
    send(&socket, &rank.to_ne_bytes(), SendFlags::NOSIGNAL).map_err(os("the socket to PE 0"))?;
    let member = Member { manager: Mutex::new(manager), hub: None };
    Ok(Joined { member, socket, heap_bytes: card.heap_bytes, share_processors })
}

/// Joins the job that the process manager `manager` started. Its PEs communicate over UCX. `heap_bytes` is
/// the size of the symmetric heap that this process requests, but all PEs use PE 0's size. Returns the
/// membership, the connection to PE 0's server, and PE 0's heap size in bytes.
///
/// PE 0's server listens at `address`. If `address` is `None`, it listens at the loopback address if all
/// processes run on this machine, and at all addresses otherwise.
///
/// # Errors
/// If PE 0 cannot be reached, if there are too many processes, or if the manager or the system refuses.
pub(super) fn join_over_ucx(
    mut manager: Box<dyn ProcessManager>,
    heap_bytes: u64,
    address: Option<IpAddr>,
) -> Result<(Member, Client, u64)> {
    let (rank, size) = (manager.rank(), manager.size());
    if rank == 0 {
        let on_one_machine = manager.local_size() == Some(size);
        let server = Server::new(size, network::listening_address(address, on_one_machine))?;
        let card = Meetings::of(server.meeting(), heap_bytes)?;
        manager.put(CARD, &card.to_string())?;
        let hub = watched(JobHub::Ucx(server), size);
        manager.fence()?;
        let client = card.join(0)?;
        return Ok((Member { manager: Mutex::new(manager), hub: Some(hub) }, client, heap_bytes));
    }
    manager.fence()?;
    let card: Meetings = manager.get(0, CARD)?.parse()?;
    let client = card.join(rank)?;
    Ok((Member { manager: Mutex::new(manager), hub: None }, client, card.heap_bytes))
}

/// Announces this PE's processors, and waits in the manager's fence. Returns true if the PEs of this machine
/// are more than the processors that they may use. Reads the announcements of all PEs only if this PE alone
/// may not use enough processors for all.
fn share_processors(manager: &mut dyn ProcessManager) -> Result<bool> {
    let own = processors::announcement();
    manager.put(PROCESSORS, &own)?;
    manager.fence()?;
    if super::processors().len() >= manager.size() as usize {
        return Ok(false);
    }
    let all: Vec<String> =
        (0..manager.size()).map(|rank| manager.get(rank, PROCESSORS)).collect::<Result<_>>()?;
    Ok(processors::are_shared(&own, all.iter().map(String::as_str)))
}

/// Starts a thread that handles the events of `hub`. Returns `hub`, and one flag for each of the `size` PEs.
/// The thread sets the flag of a PE when the PE has finished or ended.
fn watched(hub: JobHub, size: u32) -> (Arc<JobHub>, Arc<Ends>) {
    let (hub, ends) = (Arc::new(hub), Arc::new(Ends::default()));
    *ends.lock() = vec![false; size as usize];
    let theirs = (hub.clone(), ends.clone());
    std::thread::spawn(move || watch(&theirs.0, &theirs.1));
    (hub, ends)
}

/// Makes a listening socket with a random name in the abstract namespace, which leaves no file behind.
fn listen_anywhere() -> Result<(OwnedFd, String)> {
    let mut random = [0u8; 16];
    // SAFETY: the call writes at most the variable's 16 bytes.
    let got = unsafe { libc::getrandom(random.as_mut_ptr().cast(), random.len(), 0) };
    if got != random.len() as isize {
        return Err(Error::os("random bytes for a socket's name", std::io::Error::last_os_error()));
    }
    let name = format!("inlane-{:032x}", u128::from_ne_bytes(random));
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(os("making a socket"))?;
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(os("the socket of PE 0"))?;
    bind(&listener, &address).map_err(os("the socket of PE 0"))?;
    listen(&listener, MAX_PORTS as i32).map_err(os("the socket of PE 0"))?;
    Ok((listener, name))
}

/// Accepts connections of the other PEs. Passes their sockets to the hub, the owner of the twin bridge.
/// Returns when all PEs have connected.
fn admit(hub: &Hub, listener: &OwnedFd, size: u32) {
    let mut missing: Vec<u32> = (1..size).collect();
    while !missing.is_empty() {
        let socket = match acceptfrom_with(listener, SocketFlags::CLOEXEC) {
            Ok((socket, _)) => socket,
            Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => continue,
            Err(_) => return,
        };
        // Any process in this network namespace can connect. Accept only processes of the same user as this
        // process.
        let own = rustix::process::geteuid();
        let Some(number) =
            number(&socket).filter(|_| socket_peercred(&socket).is_ok_and(|peer| peer.uid == own))
        else {
            continue;
        };
        if missing.contains(&number) && hub.serve(number, socket).is_ok() {
            missing.retain(|one| *one != number);
        }
    }
}

/// Receives the number of the PE at the other end.
fn number(socket: &OwnedFd) -> Option<u32> {
    set_socket_timeout(socket, Timeout::Recv, Some(NUMBER_TIMEOUT)).ok()?;
    let mut bytes = [0u8; 4];
    let (_, length) = recv(socket, &mut bytes, RecvFlags::empty()).ok()?;
    set_socket_timeout(socket, Timeout::Recv, None).ok()?;
    (length == bytes.len()).then(|| u32::from_ne_bytes(bytes))
}

/// Handles the events of the hub or TCP server ([`JobHub`]) until there are no more. Records in `ends` which
/// PEs have finished or ended. If a PE asks to end the job, asks all PEs to end.
fn watch(hub: &JobHub, ends: &Ends) {
    let Some(events) = hub.events() else { return };
    for (pe, event) in events {
        match event {
            PeEvent::ExitAll(status) => hub.end_all(status),
            PeEvent::Finished | PeEvent::Gone => {
                ends.lock()[pe as usize] = true;
                ends.changed.notify_all();
            }
            PeEvent::Attached | PeEvent::Lost(_) => {}
        }
    }
}

impl Member {
    /// Leaves the job. PE 0 waits until every other PE has finished or ended. The reason: PE 0 runs the job's
    /// hub (the owner of the twin bridge) or TCP server.
    pub fn finish(&self) {
        if let Some((_, ends)) = &self.hub {
            let mut ended = ends.lock();
            while !ended.iter().all(|ended| *ended) {
                ended = ends.changed.wait(ended).unwrap_or_else(PoisonError::into_inner);
            }
        }
        self.leave();
    }

    /// Tells the process manager that this process ends normally, not by a failure.
    pub fn leave(&self) {
        // If the manager has ended, there is nothing left to tell it.
        let _ = self.manager.lock().unwrap_or_else(PoisonError::into_inner).finish();
    }

    /// At PE 0, asks all PEs to end with `status`. At other PEs does nothing, because they send their request
    /// to PE 0's hub or TCP server.
    pub fn end_all(&self, status: i32) {
        if let Some((hub, _)) = &self.hub {
            hub.end_all(status);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn cards_are_read_as_written() {
        let card = Card { machine: "1-2".into(), socket: "inlane-7".into(), heap_bytes: 1 << 40 };
        assert_eq!(Card::decode(&card.encode()), Some(card));
        for bad in ["", "a", "a/b", "a/b/c", "a/b/1/2", "a//1", "a/b/-1"] {
            assert_eq!(Card::decode(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_card_or_refused(text in ".{0,200}") {
            let _ = Card::decode(&text);
        }
    }

    /// A process manager for a test. Threads of the test process stand for the processes of the job.
    struct Threads {
        rank: u32,
        shared: Arc<(std::sync::Barrier, Mutex<std::collections::HashMap<String, String>>)>,
    }

    impl ProcessManager for Threads {
        fn rank(&self) -> u32 {
            self.rank
        }
        fn size(&self) -> u32 {
            3
        }
        fn put(&mut self, key: &str, text: &str) -> Result<()> {
            self.shared.1.lock().unwrap().insert(format!("{key}-{}", self.rank), text.into());
            Ok(())
        }
        fn fence(&mut self) -> Result<()> {
            self.shared.0.wait();
            Ok(())
        }
        fn get(&mut self, rank: u32, key: &str) -> Result<String> {
            Ok(self.shared.1.lock().unwrap()[&format!("{key}-{rank}")].clone())
        }
        fn finish(&mut self) -> Result<()> {
            self.fence()
        }
    }

    #[test]
    fn the_processes_of_a_manager_become_one_job() {
        use inlane_ntb::device::Ntb;
        use inlane_ntb::fault::Faults;
        use inlane_ntb::twin::Twin;
        let shared = Arc::new((std::sync::Barrier::new(3), Mutex::default()));
        std::thread::scope(|scope| {
            for rank in 0..3 {
                let manager = Box::new(Threads { rank, shared: shared.clone() });
                scope.spawn(move || {
                    let heap = if rank == 0 { 8192 } else { 1 << 30 };
                    let Joined { member, socket, heap_bytes: heap, .. } = join(manager, heap).unwrap();
                    assert_eq!(heap, 8192, "PE 0's heap");
                    let twin = Twin::attach_with(socket, &Faults::default(), |_| 8192).unwrap();
                    assert_eq!((twin.port(), twin.ports()), (rank, 3));
                    twin.report_finished();
                    member.finish();
                });
            }
        });
    }

    #[test]
    fn the_processes_of_a_manager_meet_at_pe_0() {
        use crate::transport::bootstrap::{Exchange, JobControl};
        for address in [None, Some(IpAddr::from([127, 0, 0, 1]))] {
            let shared = Arc::new((std::sync::Barrier::new(3), Mutex::default()));
            std::thread::scope(|scope| {
                for rank in 0..3 {
                    let manager = Box::new(Threads { rank, shared: shared.clone() });
                    scope.spawn(move || {
                        let heap = if rank == 0 { 8192 } else { 1 << 30 };
                        let (member, client, heap) = join_over_ucx(manager, heap, address).unwrap();
                        assert_eq!(heap, 8192, "PE 0's heap");
                        assert_eq!((client.me(), client.pes()), (rank, 3));
                        let all = client.gather(&rank.to_le_bytes()).unwrap();
                        assert_eq!(all, [0u32, 1, 2].map(|pe| pe.to_le_bytes().to_vec()));
                        client.report_finished();
                        member.finish();
                    });
                }
            });
        }
    }
}
