//! Computes initial sequence numbers and timestamp offsets that attackers cannot predict, by a keyed hash
//! (RFC 6528).

use crate::options::Offer;
use siphasher::sip::SipHasher24;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, SocketAddr};

/// The two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flow {
    /// This side.
    pub local: SocketAddr,
    /// The peer.
    pub remote: SocketAddr,
}

// Implemented by hand for speed, because each received segment causes a hash-table lookup by flow. The
// derived function calls the hasher for each field of an address. This function calls it only once for IPv4.
impl Hash for Flow {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        let (local, remote) = (self.local.port().to_ne_bytes(), self.remote.port().to_ne_bytes());
        let ports = u32::from_ne_bytes([local[0], local[1], remote[0], remote[1]]);
        match (self.local.ip(), self.remote.ip()) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                let mut bytes = [0; 12];
                bytes[..4].copy_from_slice(&local.octets());
                bytes[4..8].copy_from_slice(&remote.octets());
                bytes[8..].copy_from_slice(&ports.to_ne_bytes());
                state.write(&bytes);
            }
            (local, remote) => {
                state.write_u32(ports);
                local.hash(state);
                remote.hash(state);
            }
        }
    }
}

/// Where the sequence numbers and the timestamps of a connection begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InitialNumbers {
    /// The initial sequence number.
    pub sequence: u32,
    /// The offset that is added to the clock in timestamps (RFC 7323, section 5.4).
    pub timestamp_offset: u32,
}

/// The secret key of a host. Create one at start-up from random bytes.
#[derive(Clone)]
pub struct Secrets {
    key: [u8; 16],
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secrets")
    }
}

impl Secrets {
    /// Creates secrets from random bytes.
    pub fn new(key: [u8; 16]) -> Self {
        Self { key }
    }

    /// Returns a keyed hash (SipHash-2-4) of `value`, different for each `purpose`.
    pub(crate) fn hash(&self, purpose: u8, value: &impl Hash) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        purpose.hash(&mut hasher);
        value.hash(&mut hasher);
        hasher.finish()
    }

    /// Returns the first sequence number and the start of the timestamps of a new connection. The sequence
    /// number is a keyed hash of the flow, plus a clock that counts every 4 microseconds (RFC 6528). So a
    /// later connection of the same flow begins above an earlier one.
    pub fn start(&self, now: u64, flow: &Flow) -> InitialNumbers {
        let hash = self.hash(0, flow);
        InitialNumbers {
            sequence: (hash as u32).wrapping_add((now / 4_000) as u32),
            timestamp_offset: (hash >> 32) as u32,
        }
    }

    /// Returns the offer of another transport for a new connection: pseudo-random bytes that depend on the flow
    /// and on the connection's first sequence number.
    pub fn offer(&self, flow: &Flow, sequence: u32) -> Offer {
        let mut bytes = [0; Offer::LEN];
        let hashes = [2, 3].map(|purpose| self.hash(purpose, &(flow, sequence)).to_be_bytes());
        bytes[..8].copy_from_slice(&hashes[0]);
        bytes[8..].copy_from_slice(&hashes[1][..Offer::LEN - 8]);
        Offer(bytes)
    }

    /// Returns a secret for the transport that `offer`, an offer of this side, has begun.
    pub fn carrier(&self, flow: &Flow, offer: &Offer) -> [u8; 16] {
        let hashes = [4, 5].map(|purpose| self.hash(purpose, &(flow, offer.0)));
        (u128::from(hashes[0]) << 64 | u128::from(hashes[1])).to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc6528_numbers_of_a_flow_grow_with_time_and_flows_differ() {
        let secrets = Secrets::new([3; 16]);
        let flow = |port| Flow { local: ([10, 0, 0, 1], port).into(), remote: ([10, 0, 0, 2], 80).into() };
        let first = secrets.start(0, &flow(1));
        let later = secrets.start(4_000_000, &flow(1));
        assert_eq!(later.sequence.wrapping_sub(first.sequence), 1000);
        assert_eq!(later.timestamp_offset, first.timestamp_offset);
        assert_ne!(first, secrets.start(0, &flow(2)));
        assert_ne!(first, Secrets::new([4; 16]).start(0, &flow(1)));
    }
}
