//! What the payloads of IP packets have in common.

use crate::stack::ring::ByteRing;
use inlane_wire::checksum::Sum;
use std::ops::Range;

/// The payload of an IP packet to send: everything after the IP header, such as a TCP segment.
pub trait Payload {
    /// The IP protocol.
    const PROTOCOL: u8;

    /// Returns the length of the payload in bytes.
    fn len(&self) -> usize;

    /// Returns the ring and the range with the last bytes of the payload, apart from [`Payload::tail`] zeros, if they lie in a
    /// ring. The bytes before them are the payload's head.
    fn body(&self) -> Option<(&ByteRing, Range<u64>)> {
        None
    }

    /// Returns the number of zeros behind the body.
    fn tail(&self) -> usize {
        0
    }

    /// Writes the payload's head to `head`, which has its length. `checksum` has the sum of the pseudo header and of the body.
    /// Only called if there is a body.
    fn write_head(&self, head: &mut [u8], checksum: Checksum) {
        let _ = (head, checksum);
    }

    /// Writes the payload to `buffer`, which has [`Payload::len`] bytes. Computes the payload's checksum from
    /// `pseudo`, the sum of the pseudo header. If `pseudo` is `None`, leaves the checksum out: the receiver
    /// does not check it.
    fn write(&self, buffer: &mut [u8], pseudo: Option<Sum>);

    /// Completes the IP packet, which has all its headers now. Most payloads have nothing to add. Not called if there is a
    /// body.
    fn finish(&self, _packet: &mut [u8]) {}
}

/// The checksum of a payload whose head is not written yet.
#[derive(Clone, Copy, Debug)]
pub enum Checksum {
    /// The sum of the pseudo header and of the body. The head's own sum is missing.
    Whole(Sum),
    /// The sum of the pseudo header, which is stored instead of a checksum.
    Partial(Sum),
}
