//! Violations of the protocol, and the termination requests that report them.

use super::layout::TERMINATION_DATA;
use super::{Common, Kind, Sender, TermReq};
use std::fmt;
use zerocopy::IntoBytes;

/// The reason why a connection is terminated (FES; TCP sections 3.6.2.4 and 3.6.2.5). The termination request
/// also has a field FEI with details, such as the offset of an invalid field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum FatalStatus {
    /// A field of a header is invalid. FEI is the field's offset.
    InvalidHeaderField = 1,
    /// The peer sent a PDU that the protocol does not allow in the connection's current state.
    SequenceError = 2,
    /// The header digest is wrong. FEI is the received digest.
    HeaderDigest = 3,
    /// Data lies outside the command's buffer or the requested range. FEI: the offset of the invalid field.
    DataOutOfRange = 4,
    /// The peer sent more R2Ts, or more data in a PDU, than was negotiated.
    LimitExceeded = 5,
    /// A parameter of the connection is not supported. FEI is the offset of the invalid field.
    UnsupportedParameter = 6,
}

impl FatalStatus {
    fn name(code: u16) -> &'static str {
        match code {
            1 => "Invalid PDU Header Field",
            2 => "PDU Sequence Error",
            3 => "Header Digest Error",
            4 => "Data Transfer Out of Range",
            5 => "Data Transfer Limit Exceeded",
            6 => "Unsupported Parameter",
            _ => "an unknown reason",
        }
    }
}

/// A violation of the protocol in a received PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The reason as the specification classifies it.
    pub status: FatalStatus,
    /// The PDU-Type field of the PDU.
    pub kind: u8,
    /// The name of the invalid field in the specification.
    pub field: &'static str,
    /// The field's offset in the PDU, in bytes.
    pub offset: u32,
    /// The field's value.
    pub found: u64,
    /// Why the field's value is invalid.
    pub why: &'static str,
}

impl Fault {
    /// Returns the value of FEI in a termination request for this fault.
    pub fn information(&self) -> u32 {
        match self.status {
            FatalStatus::HeaderDigest => self.found as u32,
            _ => self.offset,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fault { field, offset, found, why, .. } = self;
        match Kind::from_code(self.kind) {
            Some(kind) => write!(f, "{}: {field} at byte {offset} is {found:#x}: {why}", kind.name()),
            None => write!(f, "{field} (byte {offset}) is {found:#x}, {why}"),
        }
    }
}

/// Why the peer terminated the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Termination {
    /// The FES field.
    pub status: u16,
    /// The FEI field: the offset of a field, or a digest.
    pub information: u32,
}

impl fmt::Display for Termination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (FES {}), ", FatalStatus::name(self.status), self.status)?;
        match self.status {
            1 | 4 | 6 => write!(f, "field at byte {}", self.information),
            3 => write!(f, "digest {:#010x}", self.information),
            _ => write!(f, "information {:#x}", self.information),
        }
    }
}

/// Writes a termination request from `sender` into `out`. `received` is the start of the faulty PDU. The
/// request contains up to 128 bytes of it. Returns the number of bytes written, at most 152.
///
/// # Panics
/// If `out` is shorter than 152 bytes.
pub fn encode_termination(sender: Sender, fault: &Fault, received: &[u8], out: &mut [u8]) -> usize {
    let kind = match sender {
        Sender::Host => Kind::H2cTermReq,
        Sender::Controller => Kind::C2hTermReq,
    };
    let received = &received[..received.len().min(TERMINATION_DATA)];
    let total = kind.header_len() + received.len();
    let header = TermReq {
        common: Common { code: kind as u8, flags: 0, hlen: 24, pdo: 0, plen: (total as u32).into() },
        fes: (fault.status as u16).into(),
        fei: fault.information().into(),
        reserved: [0; 10],
    };
    out[..24].copy_from_slice(header.as_bytes());
    out[24..total].copy_from_slice(received);
    total
}
