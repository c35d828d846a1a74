//! The types of PDUs, and the side that sends each of them.

use zerocopy::TryFromBytes;

/// The type of a PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, TryFromBytes)]
#[repr(u8)]
pub enum Kind {
    /// Initialize Connection Request, from the host.
    IcReq = 0x00,
    /// Initialize Connection Response, from the controller.
    IcResp = 0x01,
    /// Host to Controller Terminate Connection Request.
    H2cTermReq = 0x02,
    /// Controller to Host Terminate Connection Request.
    C2hTermReq = 0x03,
    /// Command Capsule, from the host.
    CapsuleCmd = 0x04,
    /// Response Capsule, from the controller.
    CapsuleResp = 0x05,
    /// Host to Controller Data Transfer.
    H2cData = 0x06,
    /// Controller to Host Data Transfer.
    C2hData = 0x07,
    /// Ready to Transfer, from the controller.
    R2t = 0x09,
}

impl Kind {
    /// Returns the type with this code.
    #[inline]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::try_read_from_bytes(&[code]).ok()
    }

    /// Returns the name of this PDU type in the specification.
    pub fn name(self) -> &'static str {
        match self {
            Kind::IcReq => "ICReq",
            Kind::IcResp => "ICResp",
            Kind::H2cTermReq => "H2CTermReq",
            Kind::C2hTermReq => "C2HTermReq",
            Kind::CapsuleCmd => "CapsuleCmd",
            Kind::CapsuleResp => "CapsuleResp",
            Kind::H2cData => "H2CData",
            Kind::C2hData => "C2HData",
            Kind::R2t => "R2T",
        }
    }

    /// Returns the side that sends PDUs of this type.
    #[inline]
    pub fn sender(self) -> Sender {
        match self {
            Kind::IcReq | Kind::H2cTermReq | Kind::CapsuleCmd | Kind::H2cData => Sender::Host,
            _ => Sender::Controller,
        }
    }

    /// Returns the length of the header, in bytes: the required value of HLEN.
    #[inline]
    pub const fn header_len(self) -> usize {
        match self {
            Kind::IcReq | Kind::IcResp => 128,
            Kind::CapsuleCmd => 72,
            _ => 24,
        }
    }

    /// Returns true if PDUs of this type carry the negotiated digests. PDUs that set up or terminate the
    /// connection do not.
    #[inline]
    pub(super) fn has_digests(self) -> bool {
        !matches!(self, Kind::IcReq | Kind::IcResp | Kind::H2cTermReq | Kind::C2hTermReq)
    }
}

/// A side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The initiator.
    Host,
    /// The target.
    Controller,
}
