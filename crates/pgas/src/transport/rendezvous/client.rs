//! The PE's part of the rendezvous: joins the meeting point, exchanges data with the other PEs, and reports
//! how this PE ends.

use super::{Frame, MAX_PAYLOAD, MAX_PES, Meeting, prepare};
use crate::error::{Error, Lost, Result};
use crate::field::ADDRESS;
use crate::transport::bootstrap::{Exchange, JobControl};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a PE tries to connect. The launcher listens before it starts any PE, so the first attempt fails
/// only if the network loses packets.
const CONNECT_TIME: Duration = Duration::from_secs(30);
/// How often a thread that waits for the data of all PEs checks whether a PE was lost.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Value of [`Client::lost`] if there is no such PE.
const NONE: u32 = u32::MAX;

/// A PE's connection to the launcher.
pub struct Client {
    me: u32,
    pes: u32,
    /// Locked while a frame is sent, because several threads send frames.
    stream: Mutex<TcpStream>,
    /// Receives the results of exchanges with the other PEs. Keep it locked for the whole exchange, because a
    /// result does not name its exchange.
    gathered: Mutex<Receiver<Vec<Vec<u8>>>>,
    /// Receives an exit status if the launcher asks this PE to end.
    end: Mutex<Receiver<i32>>,
    /// The number of a PE that ended before it sent `FINISHED`. [`NONE`] if there is no such PE.
    lost: Arc<AtomicU32>,
}

impl Client {
    /// Joins the job at `meeting` as PE `me`.
    ///
    /// # Errors
    /// [`Error::Failed`] if the launcher cannot be reached or refuses.
    pub fn join(meeting: &Meeting, me: u32) -> Result<Self> {
        let address = meeting.address;
        let failed =
            |why: String| Error::Failed { what: format!("joining the job at {address} as PE {me}"), why };
        let unreachable = |error: std::io::Error| {
            failed(format!("{error}; give the launcher an address that this machine reaches, by {ADDRESS}"))
        };
        let mut stream = connect(meeting).map_err(unreachable)?;
        prepare(&stream).map_err(unreachable)?;
        stream.set_read_timeout(Some(CONNECT_TIME)).map_err(unreachable)?;
        Frame::Hello { token: meeting.token, pe: me }.write(&mut stream).map_err(unreachable)?;
        let pes = match Frame::read(&mut stream, 64) {
            Ok(Frame::Welcome(pes)) if (1..=MAX_PES).contains(&pes) && me < pes => pes,
            Ok(frame) => return Err(failed(format!("the answer was {frame:?}"))),
            Err(_) => {
                return Err(failed("the launcher refused; start each PE once, by the launcher".into()));
            }
        };
        stream.set_read_timeout(None).map_err(unreachable)?;
        let lost = Arc::new(AtomicU32::new(NONE));
        let ((sender, gathered), (ending, end)) = (channel(), channel());
        let (mut reading, theirs) = (stream.try_clone().map_err(unreachable)?, lost.clone());
        let limit = (MAX_PAYLOAD + 4) * pes as usize;
        let watch = move || {
            loop {
                match Frame::read(&mut reading, limit) {
                    Ok(Frame::Gathered(all)) if all.len() == pes as usize => drop(sender.send(all)),
                    Ok(Frame::Gone(pe)) if pe < pes => theirs.store(pe, Ordering::Release),
                    Ok(Frame::End(status)) => drop(ending.send(status)),
                    _ => break,
                }
            }
        };
        std::thread::Builder::new()
            .name("rendezvous".into())
            .spawn(watch)
            .map_err(|error| Error::os("starting the thread rendezvous", error))?;
        Ok(Self {
            me,
            pes,
            stream: Mutex::new(stream),
            gathered: Mutex::new(gathered),
            end: Mutex::new(end),
            lost,
        })
    }

    fn send(&self, frame: &Frame) -> std::io::Result<()> {
        frame.write(&mut *self.stream.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn connect(meeting: &Meeting) -> std::io::Result<TcpStream> {
    let until = Instant::now() + CONNECT_TIME;
    loop {
        match TcpStream::connect_timeout(&meeting.address, CONNECT_TIME) {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() > until => return Err(error),
            // The launcher has ended.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

impl Exchange for Client {
    fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let gathered = self.gathered.lock().unwrap_or_else(PoisonError::into_inner);
        if bytes.len() > MAX_PAYLOAD {
            return Err(Error::Failed {
                what: "an exchange between the PEs".into(),
                why: "an address or key of UCX is longer than 1 MiB; report this as a bug".into(),
            });
        }
        let sent = self.send(&Frame::Gather(bytes.to_vec()));
        loop {
            // Read `lost` first and look for the result afterwards. If the exchange completed before a PE was
            // lost, this finds the result and returns it instead of an error.
            let lost = self.lost();
            match (gathered.recv_timeout(LOOK_EVERY), lost) {
                (Ok(all), _) => return Ok(all),
                (Err(_), Some(peer)) => return Err(Error::LinkLost { peer, lost: Lost::default() }),
                (Err(RecvTimeoutError::Timeout), None) if sent.is_ok() => {}
                (Err(_), None) => return Err(Error::LauncherLost),
            }
        }
    }

    fn lost(&self) -> Option<u32> {
        Some(self.lost.load(Ordering::Acquire)).filter(|pe| *pe != NONE)
    }
}

impl JobControl for Client {
    fn me(&self) -> u32 {
        self.me
    }

    fn pes(&self) -> u32 {
        self.pes
    }

    fn report_finished(&self) {
        let _ = self.send(&Frame::Finished);
    }

    fn report_lost(&self, peer: u32) {
        let _ = self.send(&Frame::Lost(peer));
    }

    fn request_exit_all(&self, status: i32) {
        let _ = self.send(&Frame::Exit(status));
    }

    fn wait_for_end(&self) -> Option<i32> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let stream = self.stream.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = stream.shutdown(Shutdown::Both);
    }
}
