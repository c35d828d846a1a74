//! The launcher's side of the meeting point. Admits the PEs, carries out their exchanges, and reports how
//! each PE ends.

use super::{Frame, MAX_PAYLOAD, MAX_PES, Meeting, Meetings, prepare};
use crate::error::{Error, Result};
use crate::transport::bootstrap::{MeetingPoint, Opening, PeEvent};
use rustix::net::listen;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a connection may take to send its HELLO.
const HELLO_TIME: Duration = Duration::from_secs(10);
/// The most connections that have not sent a HELLO yet.
const MAX_STRANGERS: usize = 2 * MAX_PES as usize;

/// The launcher's server for one job. Each PE of the job connects to it. Dropping the server closes the
/// connections.
pub struct Server {
    shared: Arc<Shared>,
    meeting: Meeting,
    receiver: Mutex<Option<Receiver<(u32, PeEvent)>>>,
}

struct Shared {
    pes: u32,
    token: [u8; 16],
    state: Mutex<State>,
}

struct State {
    members: Vec<Member>,
    events: Sender<(u32, PeEvent)>,
    /// The number of connections that have not sent a HELLO yet.
    strangers: usize,
    stopped: bool,
}

#[derive(Default)]
struct Member {
    /// If the PE has joined: the queue of frames to send to it, and its connection.
    connection: Option<(Sender<Arc<[u8]>>, TcpStream)>,
    joined: bool,
    finished: bool,
    gone: bool,
    given: Option<Vec<u8>>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Server {
    /// Listens at `address` for the PEs of a job of `pes` PEs.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless `pes` is 1 to [`MAX_PES`], [`Error::Os`] if the address cannot be used.
    pub fn new(pes: u32, address: IpAddr) -> Result<Self> {
        if !(1..=MAX_PES).contains(&pes) {
            return Err(Error::invalid(format!("a job of {pes} PEs"), format!("give 1 to {MAX_PES}")));
        }
        let os = |error: std::io::Error| {
            let what = format!("cannot listen for the PEs at {address}");
            match error.kind() {
                std::io::ErrorKind::AddrNotAvailable => {
                    let why = format!("{error}; give an address of this machine, which 'ip address' lists");
                    inlane_core::Error::device_environment(what, why).into()
                }
                _ => Error::os(what, error),
            }
        };
        let listener = TcpListener::bind(SocketAddr::new(address, 0)).map_err(os)?;
        // Many PEs may connect at once. The usual queue holds 128 connections.
        listen(&listener, MAX_PES as i32).map_err(|error| os(error.into()))?;
        let mut token = [0u8; 16];
        // SAFETY: the call writes at most the array's bytes.
        if unsafe { libc::getrandom(token.as_mut_ptr().cast(), token.len(), 0) } != token.len() as isize {
            return Err(Error::os("a random number", std::io::Error::last_os_error()));
        }
        let meeting = Meeting { address: listener.local_addr().map_err(os)?, token };
        let (events, receiver) = channel();
        let members = (0..pes).map(|_| Member::default()).collect();
        let state = Mutex::new(State { members, events, strangers: 0, stopped: false });
        let shared = Arc::new(Shared { pes, token, state });
        let theirs = shared.clone();
        spawn("rendezvous", move || accept(&listener, &theirs))?;
        Ok(Self { shared, meeting, receiver: Mutex::new(Some(receiver)) })
    }

    /// Returns the address of this server and its token. A PE needs both to join the job.
    pub fn meeting(&self) -> &Meeting {
        &self.meeting
    }

    /// Returns a channel of events. An event is the number of a PE and how it ends: it finished, it lost a
    /// peer, it asked all PEs to exit, or its connection closed. Returns `None` after the first call.
    pub fn events(&self) -> Option<Receiver<(u32, PeEvent)>> {
        self.receiver.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Opens the server of a job.
    ///
    /// # Errors
    /// As for [`Server::new`].
    pub fn open(opening: &Opening) -> Result<Arc<dyn MeetingPoint>> {
        Ok(Arc::new(Self::new(opening.pes, opening.address)?))
    }
}

impl MeetingPoint for Server {
    fn events(&self) -> Option<Box<dyn Iterator<Item = (u32, PeEvent)> + Send>> {
        Some(Box::new(self.events()?.into_iter()))
    }

    fn end_all(&self, status: i32) {
        self.shared.state().send_all(&Frame::End(status));
    }

    fn invite(&self, _pe: u32, command: &mut Command) -> Result<(String, Option<OwnedFd>)> {
        // The PEs find out themselves whether they share processors, because some may run on other machines.
        command.env_remove(crate::variables::YIELD);
        Ok((self.meeting.to_string(), None))
    }

    fn invitation(&self) -> Result<String> {
        Ok(Meetings::of(&self.meeting)?.to_string())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.stopped = true;
        for member in &mut state.members {
            if let Some((_, stream)) = member.connection.take() {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
        drop(state);
        // Connect once. The accepting thread then returns from accept(2) and checks `stopped`.
        let _ = TcpStream::connect_timeout(&self.meeting.address, Duration::from_secs(1));
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<()> {
    let thread = std::thread::Builder::new().name(name.into()).spawn(body);
    thread.map(drop).map_err(|error| Error::os(format!("starting the thread {name}"), error))
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    loop {
        let Ok((stream, _)) = listener.accept() else {
            // Accept again after a pause, because the error may pass. For example, the process may have no
            // free descriptor.
            std::thread::sleep(Duration::from_millis(10));
            if shared.state().stopped {
                return;
            }
            continue;
        };
        let mut state = shared.state();
        if state.stopped {
            return;
        }
        if state.strangers >= MAX_STRANGERS {
            continue;
        }
        state.strangers += 1;
        drop(state);
        let theirs = shared.clone();
        if spawn("rendezvous-pe", move || serve(stream, &theirs)).is_err() {
            shared.state().strangers -= 1;
        }
    }
}

/// Reads the first frame of a connection. Returns the PE, or `None` if the frame is not a valid HELLO of
/// this job.
fn greet(stream: &mut TcpStream, shared: &Shared) -> Option<u32> {
    stream.set_read_timeout(Some(HELLO_TIME)).ok()?;
    prepare(stream).ok()?;
    match Frame::read(stream, 64) {
        Ok(Frame::Hello { token, pe }) if token == shared.token && pe < shared.pes => {
            stream.set_read_timeout(None).ok()?;
            Some(pe)
        }
        _ => None,
    }
}

/// Serves one connection at the meeting point until it ends.
fn serve(mut stream: TcpStream, shared: &Arc<Shared>) {
    let greeted = greet(&mut stream, shared);
    let (sender, frames) = channel::<Arc<[u8]>>();
    {
        let mut state = shared.state();
        state.strangers -= 1;
        let (Some(pe), Ok(ours)) = (greeted, stream.try_clone()) else { return };
        let member = &mut state.members[pe as usize];
        if member.joined {
            return;
        }
        member.joined = true;
        let _ = sender.send(Frame::Welcome(shared.pes).encode().into());
        member.connection = Some((sender, ours));
        // A PE that joins late has missed the `GONE` frames. Tell it which PEs have ended.
        let gone: Vec<u32> =
            (0..).zip(&state.members).filter(|(_, one)| one.gone).map(|(pe, _)| pe).collect();
        gone.into_iter().for_each(|gone| state.send(pe, &Frame::Gone(gone)));
        let _ = state.events.send((pe, PeEvent::Attached));
    }
    let Some(pe) = greeted else { return };
    // Send the frames by another thread, because a PE that does not read would otherwise delay other PEs.
    let Ok(mut writing) = stream.try_clone() else { return shared.state().leave(pe) };
    let writer = spawn("rendezvous-write", move || {
        for frame in frames {
            if std::io::Write::write_all(&mut writing, &frame).is_err() {
                break;
            }
        }
        let _ = writing.shutdown(Shutdown::Both);
    });
    if writer.is_ok() {
        while let Ok(frame) = Frame::read(&mut stream, MAX_PAYLOAD) {
            let mut state = shared.state();
            if !state.receive(pe, frame) {
                break;
            }
        }
    }
    shared.state().leave(pe);
}

impl State {
    fn send(&self, pe: u32, frame: &Frame) {
        if let Some((sender, _)) = &self.members[pe as usize].connection {
            let _ = sender.send(frame.encode().into());
        }
    }

    fn send_all(&self, frame: &Frame) {
        let bytes: Arc<[u8]> = frame.encode().into();
        for (sender, _) in self.members.iter().filter_map(|member| member.connection.as_ref()) {
            let _ = sender.send(bytes.clone());
        }
    }

    /// Acts on a frame of `pe`. Returns false if the PE may not send such a frame.
    fn receive(&mut self, pe: u32, frame: Frame) -> bool {
        let event = match frame {
            Frame::Gather(bytes) => return self.gather(pe, bytes),
            Frame::Finished => {
                self.members[pe as usize].finished = true;
                PeEvent::Finished
            }
            Frame::Exit(status) => PeEvent::ExitAll(status),
            Frame::Lost(peer) => PeEvent::Lost(peer),
            _ => return false,
        };
        let _ = self.events.send((pe, event));
        true
    }

    fn gather(&mut self, pe: u32, bytes: Vec<u8>) -> bool {
        if self.members[pe as usize].given.replace(bytes).is_some() {
            return false;
        }
        if self.members.iter().all(|member| member.given.is_some()) {
            let all = self.members.iter_mut().filter_map(|member| member.given.take()).collect();
            self.send_all(&Frame::Gathered(all));
        }
        true
    }

    fn leave(&mut self, pe: u32) {
        let member = &mut self.members[pe as usize];
        // Drop the queue of frames for the PE. The thread that sends the frames then ends.
        member.connection = None;
        member.gone = !member.finished;
        if member.gone {
            self.send_all(&Frame::Gone(pe));
        }
        let _ = self.events.send((pe, PeEvent::Gone));
    }
}
