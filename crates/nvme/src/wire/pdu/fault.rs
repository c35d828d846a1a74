//! Violations of the protocol.

use super::Kind;
use std::fmt;

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

/// The fields of headers that both sides check, each with its offset.
pub(crate) mod field {
    pub const TYPE: (&str, u32) = ("PDU-Type", 0);
    pub const FLAGS: (&str, u32) = ("FLAGS", 1);
    pub const CCCID: (&str, u32) = ("CCCID", 8);
    pub const TTAG: (&str, u32) = ("TTAG", 10);
    pub const DATAO: (&str, u32) = ("DATAO", 12);
    pub const DATAL: (&str, u32) = ("DATAL", 16);
    pub const R2TL: (&str, u32) = ("R2TL", 16);
    pub const CID: (&str, u32) = ("CID", 20);
}

impl Fault {
    /// Creates a fault of a known type of PDU.
    pub fn new(
        status: FatalStatus,
        kind: Kind,
        (field, offset): (&'static str, u32),
        found: impl Into<u64>,
        why: &'static str,
    ) -> Self {
        Self { status, kind: kind as u8, field, offset, found: found.into(), why }
    }

    /// Returns [`Fault::new`] unless `ok`.
    #[inline]
    pub fn check(
        ok: bool,
        status: FatalStatus,
        kind: Kind,
        field: (&'static str, u32),
        found: u32,
        why: &'static str,
    ) -> Result<(), Self> {
        if ok { Ok(()) } else { Err(Self::new(status, kind, field, found, why)) }
    }

    /// Creates the fault of a PDU that may not come now.
    pub fn of_sequence(kind: Kind, why: &'static str) -> Self {
        Self::new(FatalStatus::SequenceError, kind, field::TYPE, kind as u8, why)
    }

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
