//! Decodes and checks the common header, with which each PDU begins: its type, flags and lengths.

use super::{FatalStatus, Fault, Kind, Sender, digest};

/// The most bytes that a header takes when it is encoded: a 128-byte ICReq, or a 72-byte header with digest,
/// padded to 128 bytes.
pub const MAX_HEADER: usize = 128;

/// The length of the common header, in bytes.
pub(super) const COMMON: usize = 8;
/// The length of a digest.
pub(super) const DIGEST: usize = 4;
/// Flag HDGSTF: a header digest follows the header.
pub(super) const HDGSTF: u8 = 1 << 0;
/// Flag DDGSTF: a data digest follows the data.
pub(super) const DDGSTF: u8 = 1 << 1;
/// The most data that a termination request carries (TCP sections 3.6.2.4 and 3.6.2.5).
pub(super) const TERMINATION_DATA: usize = 128;

/// The digests that a connection uses: the DGST field of ICReq and ICResp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// True if each header is followed by its digest.
    pub header: bool,
    /// True if the data of each PDU is followed by its digest.
    pub data: bool,
}

impl Digests {
    /// Returns the digests that the DGST field enables. Ignores reserved bits.
    pub fn from_bits(bits: u8) -> Self {
        Self { header: bits & 1 != 0, data: bits & 2 != 0 }
    }

    /// Returns the value of the DGST field.
    pub fn bits(self) -> u8 {
        u8::from(self.header) | u8::from(self.data) << 1
    }
}

/// The limits and digests that a receiver uses to check PDUs. Some are negotiated, others are the receiver's
/// own.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The side that sends the received PDUs.
    pub sender: Sender,
    /// The negotiated digests.
    pub digests: Digests,
    /// The data alignment that the receiver asked for, in bytes: 4 * (HPDA + 1) or 4 * (CPDA + 1).
    pub alignment: u8,
    /// The most in-capsule data, in bytes.
    pub max_capsule_data: u32,
    /// The most data in one H2CData or C2HData, in bytes.
    pub max_data: u32,
}

/// The layout of one PDU: its type, its flags, and the lengths of its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The PDU's type.
    pub kind: Kind,
    /// The FLAGS field.
    pub flags: u8,
    /// The length of the header in bytes, including its digest.
    pub header_bytes: u8,
    /// True if the header has a digest.
    pub header_digest: bool,
    /// True if the data has a digest.
    pub data_digest: bool,
    /// The number of padding bytes between the header and the data. The header's digest, if any, precedes the
    /// padding.
    pub padding_bytes: u8,
    /// The data's length in bytes, without its digest.
    pub data_bytes: u32,
}

impl Layout {
    /// Decodes the common header, the first 8 bytes of a PDU.
    ///
    /// # Errors
    /// A [`Fault`] if the type is unknown or not allowed from the sender. Also if a length is impossible or
    /// exceeds the limits of `rules`, or if the digest flags differ from the negotiated ones.
    #[inline]
    pub fn decode(common: &[u8; COMMON], rules: &Rules) -> Result<Self, Fault> {
        let [code, flags, hlen, pdo, l0, l1, l2, l3] = *common;
        let plen = u32::from_le_bytes([l0, l1, l2, l3]);
        let fault = |field, offset, found: u32, why| {
            let (status, found) = (FatalStatus::InvalidHeaderField, found.into());
            Fault { status, kind: code, field, offset, found, why }
        };
        let check = |ok: bool, field, offset, found, why| match ok {
            true => Ok(()),
            false => Err(fault(field, offset, found, why)),
        };
        let kind = Kind::from_code(code);
        let kind = kind.ok_or_else(|| fault("PDU-Type", 0, code.into(), "which does not exist"))?;
        let why = "this side does not send PDUs of this type";
        check(kind.sender() == rules.sender, "PDU-Type", 0, code.into(), why)?;
        let why = "PDUs of this type have a header of another length";
        check(usize::from(hlen) == kind.header_len(), "HLEN", 2, hlen.into(), why)?;
        let header_digest = rules.digests.header && kind.has_digests();
        let why = "bit HDGSTF differs from the negotiated header digest";
        check(!kind.has_digests() || (flags & HDGSTF != 0) == header_digest, "FLAGS", 1, flags.into(), why)?;
        let header_bytes = hlen + if header_digest { DIGEST as u8 } else { 0 };
        let mut layout = Layout {
            kind,
            flags,
            header_bytes,
            header_digest,
            data_digest: false,
            padding_bytes: 0,
            data_bytes: 0,
        };
        check(plen >= header_bytes.into(), "PLEN", 4, plen, "the PDU would end within its header")?;
        let limit = match kind {
            Kind::H2cTermReq | Kind::C2hTermReq => {
                layout.data_bytes = plen - u32::from(header_bytes);
                let fits = layout.data_bytes <= TERMINATION_DATA as u32;
                check(fits, "PLEN", 4, plen, "a termination request has at most 152 bytes")?;
                return Ok(layout);
            }
            Kind::CapsuleCmd => rules.max_capsule_data,
            Kind::H2cData | Kind::C2hData => rules.max_data,
            _ => 0,
        };
        let data_pdu = matches!(kind, Kind::H2cData | Kind::C2hData);
        if plen == u32::from(header_bytes) {
            return check(!data_pdu, "PLEN", 4, plen, "a data PDU without data").map(|()| layout);
        }
        let may_have_data = data_pdu || kind == Kind::CapsuleCmd;
        check(may_have_data, "PLEN", 4, plen, "PDUs of this type have no data")?;
        layout.data_digest = rules.digests.data;
        let why = "bit DDGSTF differs from the negotiated data digest";
        check((flags & DDGSTF != 0) == layout.data_digest, "FLAGS", 1, flags.into(), why)?;
        let aligned = pdo >= header_bytes && pdo.is_multiple_of(rules.alignment.max(4));
        check(aligned, "PDO", 3, pdo.into(), "the data would overlap the header or break its alignment")?;
        layout.padding_bytes = pdo - header_bytes;
        let trailer = if layout.data_digest { DIGEST as u32 } else { 0 };
        let data_bytes = plen.saturating_sub(u32::from(pdo) + trailer);
        check(data_bytes > 0, "PLEN", 4, plen, "the PDU would end before its data")?;
        check(data_bytes <= limit, "PLEN", 4, plen, "the data exceeds the negotiated limit")?;
        layout.data_bytes = data_bytes;
        Ok(layout)
    }

    /// Returns the length of the whole PDU: PLEN.
    #[inline]
    pub fn total_bytes(&self) -> usize {
        self.data_at() + self.data_bytes as usize + if self.data_digest { DIGEST } else { 0 }
    }

    /// Returns the offset of the data in the PDU, or the end of the header if there is no data.
    #[inline]
    pub fn data_at(&self) -> usize {
        usize::from(self.header_bytes) + usize::from(self.padding_bytes)
    }

    /// Checks the header digest, if the PDU has one. `header` holds [`Layout::header_bytes`] bytes.
    ///
    /// # Errors
    /// A [`Fault`] with [`FatalStatus::HeaderDigest`] and the received digest.
    ///
    /// # Panics
    /// If `header` is shorter than the header.
    #[inline]
    pub fn check_digest(&self, header: &[u8]) -> Result<(), Fault> {
        if !self.header_digest {
            return Ok(());
        }
        let (bytes, rest) = header.split_at(self.kind.header_len());
        if digest(bytes) == rest[..DIGEST] {
            return Ok(());
        }
        let found = u32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]]);
        let field = ("HDGST", self.kind.header_len() as u32);
        let why = "the header was corrupted on the way";
        Err(Fault::new(FatalStatus::HeaderDigest, self.kind, field, found, why))
    }
}
