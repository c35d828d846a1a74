//! Checks whether the engine has a route to a datagram's destination. If not, the send fails.
//!
//! A send only writes the datagram to the socket pair and gets no reply. So the library asks the engine
//! before it first sends to an address. It remembers the addresses that have a route, because the routes of
//! an engine do not change while it runs.

use crate::control;
use inlane_offload_protocol::address;
use inlane_offload_protocol::message::{Message, Operation};
use inlane_offload_protocol::name::SocketName;
use libc::c_int;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of remembered addresses, a power of two.
const PLACES: usize = 256;

/// The remembered addresses: hashes of an engine, a socket and a remote address. The engine has a route to
/// each of these addresses. An address without a route may have the same hash by chance. Sends to that
/// address then report no error, and the engine drops and counts the datagrams.
static ROUTES: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];

/// Checks that the engine can send from the socket `fd` to `remote`. Fails with an errno.
pub fn check(fd: RawFd, name: &SocketName, remote: SocketAddr) -> Result<(), c_int> {
    let hash = hash(name, remote);
    let place = &ROUTES[hash as usize % PLACES];
    if place.load(Ordering::Relaxed) == hash {
        return Ok(());
    }
    let mut message = Message::new(Operation::Route);
    message.remote = Some(remote);
    match control::request(&mut message, fd) {
        Some((reply, _)) if reply.status > 0 => Err(reply.status),
        Some(_) => {
            place.store(hash, Ordering::Relaxed);
            Ok(())
        }
        // The engine has ended. Report no error here, because the following send reports it.
        None => Ok(()),
    }
}

/// Returns a hash of the engine, the socket and the remote IP address (FNV-1a).
fn hash(name: &SocketName, remote: SocketAddr) -> u64 {
    let remote = address::encode(Some(SocketAddr::new(remote.ip(), 0)));
    let bytes = name.engine.to_le_bytes().into_iter().chain(name.socket.to_le_bytes()).chain(remote);
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
