//! A meeting point for the PEs of a job: a TCP server in the launcher, and a client in each PE. PEs exchange
//! addresses and keys through it. They also report through it how they end.
//!
//! ```text
//! PE                           launcher
//! HELLO(magic, token, pe) -->
//!                         <--  WELCOME(number of PEs)
//! GATHER(bytes)           -->                           once for each exchange
//!                         <--  GATHERED(bytes of each PE)
//! FINISHED, EXIT, LOST    -->                           how the PE ends
//!                         <--  GONE(pe)                 a PE has ended before it had finished
//!                         <--  END(status)              the PE must end
//! ```
//!
//! A frame consists of the length of its payload (4 bytes), its kind (1 byte) and the payload. Numbers are
//! little-endian. The token is a random number that only the launcher and its PEs have, so no other program
//! can join the job.

mod addresses;
mod client;
mod server;
#[cfg(test)]
mod tests;

pub use addresses::Meetings;
pub use client::Client;
pub use server::Server;

use crate::error::{Error, Result};
use rustix::net::sockopt;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::str::FromStr;
use std::time::Duration;

const MAGIC: u64 = 0x3230_5a56_4e4c_4e49;
/// The largest payload of a PE's frame in bytes.
const MAX_PAYLOAD: usize = 1 << 20;
/// The largest number of PEs.
pub const MAX_PES: u32 = 1024;

const HELLO: u8 = 1;
const GATHER: u8 = 2;
const FINISHED: u8 = 3;
const EXIT: u8 = 4;
const LOST: u8 = 5;
const WELCOME: u8 = 129;
const GATHERED: u8 = 130;
const GONE: u8 = 131;
const END: u8 = 132;

/// A message between a PE and the launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A PE joins.
    Hello {
        /// The job's token.
        token: [u8; 16],
        /// The PE's number.
        pe: u32,
    },
    /// The bytes of one PE for an exchange. In an exchange the launcher collects bytes from all PEs.
    Gather(Vec<u8>),
    /// The PE has finished.
    Finished,
    /// The PE asks to end the job with this status.
    Exit(i32),
    /// The PE ends because its link to the PE with this number was lost.
    Lost(u32),
    /// The launcher admits the PE to a job of this many PEs.
    Welcome(u32),
    /// The result of an exchange: the bytes that each PE contributed, in the order of the PEs.
    Gathered(Vec<Vec<u8>>),
    /// The PE with this number has ended without a `Finished` frame.
    Gone(u32),
    /// The launcher asks the PE to end with this status.
    End(i32),
}

impl Frame {
    /// Returns the frame's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; 5];
        bytes[4] = match self {
            Frame::Hello { token, pe } => {
                bytes.extend(MAGIC.to_le_bytes());
                bytes.extend(token);
                bytes.extend(pe.to_le_bytes());
                HELLO
            }
            Frame::Gather(given) => {
                bytes.extend(given);
                GATHER
            }
            Frame::Finished => FINISHED,
            Frame::Exit(status) => {
                bytes.extend(status.to_le_bytes());
                EXIT
            }
            Frame::Lost(pe) => {
                bytes.extend(pe.to_le_bytes());
                LOST
            }
            Frame::Welcome(pes) => {
                bytes.extend(pes.to_le_bytes());
                WELCOME
            }
            Frame::Gathered(all) => {
                for one in all {
                    bytes.extend((one.len() as u32).to_le_bytes());
                    bytes.extend(one);
                }
                GATHERED
            }
            Frame::Gone(pe) => {
                bytes.extend(pe.to_le_bytes());
                GONE
            }
            Frame::End(status) => {
                bytes.extend(status.to_le_bytes());
                END
            }
        };
        let length = (bytes.len() - 5) as u32;
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        bytes
    }

    /// Decodes a frame from its kind and its payload. Returns `None` if they are no valid frame.
    pub fn decode(kind: u8, payload: &[u8]) -> Option<Self> {
        let number = || Some(u32::from_le_bytes(payload.try_into().ok()?));
        Some(match kind {
            HELLO => {
                let (magic, rest) = payload.split_first_chunk::<8>()?;
                let (token, pe) = rest.split_first_chunk::<16>()?;
                if *magic != MAGIC.to_le_bytes() {
                    return None;
                }
                Frame::Hello { token: *token, pe: u32::from_le_bytes(pe.try_into().ok()?) }
            }
            GATHER => Frame::Gather(payload.to_vec()),
            FINISHED if payload.is_empty() => Frame::Finished,
            EXIT => Frame::Exit(number()? as i32),
            LOST => Frame::Lost(number()?),
            WELCOME => Frame::Welcome(number()?),
            GATHERED => {
                let (mut all, mut rest) = (Vec::new(), payload);
                while let Some((length, after)) = rest.split_first_chunk::<4>() {
                    let (one, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
                    all.push(one.to_vec());
                    rest = after;
                }
                if !rest.is_empty() {
                    return None;
                }
                Frame::Gathered(all)
            }
            GONE => Frame::Gone(number()?),
            END => Frame::End(number()? as i32),
            _ => return None,
        })
    }

    /// Reads a frame with a payload of at most `limit` bytes.
    ///
    /// # Errors
    /// Errors of the stream; `InvalidData` for an invalid frame.
    pub fn read(stream: &mut impl Read, limit: usize) -> std::io::Result<Self> {
        let invalid = |why: &str| std::io::Error::new(std::io::ErrorKind::InvalidData, why.to_string());
        let mut head = [0u8; 5];
        stream.read_exact(&mut head)?;
        let [length @ .., kind] = head;
        let length = u32::from_le_bytes(length) as usize;
        if length > limit {
            return Err(invalid("the frame is too long"));
        }
        let mut payload = vec![0; length];
        stream.read_exact(&mut payload)?;
        Frame::decode(kind, &payload).ok_or_else(|| invalid("the frame is invalid"))
    }

    fn write(&self, stream: &mut impl Write) -> std::io::Result<()> {
        stream.write_all(&self.encode())
    }
}

/// Where a job's PEs meet. The launcher passes this in the environment as `ADDRESS:PORT/TOKEN`, the token in
/// hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meeting {
    /// The address of the launcher's server.
    pub address: SocketAddr,
    /// The job's token.
    pub token: [u8; 16],
}

impl std::fmt::Display for Meeting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{:032x}", self.address, u128::from_be_bytes(self.token))
    }
}

impl FromStr for Meeting {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let (address, token) = text.split_once('/')?;
            // Accept only 32 hexadecimal digits: `from_str_radix` would also accept a sign.
            let plain = token.len() == 32 && token.bytes().all(|digit| digit.is_ascii_hexdigit());
            let token = u128::from_str_radix(token, 16).ok().filter(|_| plain)?;
            Some(Self { address: address.parse().ok()?, token: token.to_be_bytes() })
        };
        parse().ok_or_else(|| {
            Error::invalid(
                format!("meeting point '{text}'"),
                "expected ADDRESS:PORT/TOKEN, as the launcher sets it",
            )
        })
    }
}

/// Joins a job as PE `pe` by the invitation of its server.
///
/// # Errors
/// [`Error::Invalid`] for an invalid invitation; errors of [`Client::join`].
pub fn join(invitation: &str, pe: u32) -> Result<Client> {
    match invitation.parse::<Meeting>() {
        Ok(meeting) => Client::join(&meeting, pe),
        Err(_) => invitation.parse::<Meetings>()?.join(pe),
    }
}

/// Sets options of a socket. Small frames are then sent at once, and a failure of the other machine is
/// detected within about a minute.
fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(20))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(10))?;
    sockopt::set_tcp_keepcnt(stream, 4)?;
    Ok(())
}
