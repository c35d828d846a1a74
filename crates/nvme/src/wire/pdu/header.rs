//! The headers of each type of PDU, in their layout on the wire.

use super::fault::field::{DATAL, DATAO, FLAGS, R2TL};
use super::layout::{COMMON, DDGSTF, DIGEST, HDGSTF};
use super::{Digests, FatalStatus, Fault, Kind, Layout, Rules, Sender, Termination, digest};
use crate::wire::command::{Command, Completion};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

wire! {
    /// The common header. [`encode`] fills it in.
    pub struct Common {
        /// PDU-Type.
        pub code: u8,
        /// FLAGS.
        pub flags: u8,
        /// HLEN: the length of the header in bytes. The header digest is not included.
        pub hlen: u8,
        /// PDO: the offset of the data in the PDU, in bytes.
        pub pdo: u8,
        /// PLEN: the length of the whole PDU, in bytes.
        pub plen: U32,
    }

    /// ICReq and ICResp (TCP sections 3.6.2.2 and 3.6.2.3).
    pub struct Initialization {
        /// PFV: the version of the PDU format, 0.
        pub pfv: U16,
        /// HPDA or CPDA: the data alignment that the sender asks for, in units of 4 bytes, minus one. 0 stands for 4
        /// bytes.
        pub alignment: u8,
        /// DGST: the digests that the host asks for, or that the controller has chosen.
        pub dgst: u8,
        /// MAXR2T of a host: the R2Ts that it allows in flight for a command, less one. MAXH2CDATA of a controller: the
        /// most data in an H2CData, in bytes, at least 4096 and a multiple of 4.
        pub limit: U32,
        /// Reserved.
        pub reserved: [u8; 112],
    }

    /// H2CTermReq and C2HTermReq (TCP sections 3.6.2.4 and 3.6.2.5). Up to 128 bytes of the bad PDU follow.
    pub struct TermReq {
        /// FES: the reason.
        pub fes: U16,
        /// FEI: the offset of the bad field, or the bad digest.
        pub fei: U32,
        /// Reserved.
        pub reserved: [u8; 10],
    }

    /// H2CData, C2HData and R2T (TCP sections 3.6.2.8 to 3.6.2.10).
    pub struct Transfer {
        /// CCCID: the identifier of the command.
        pub cccid: U16,
        /// TTAG: the tag of an R2T, which the host repeats in its H2CData.
        pub ttag: U16,
        /// DATAO or R2TO: the offset of the data in the command's buffer, in bytes.
        pub offset: U32,
        /// DATAL or R2TL: the length of the data, in bytes.
        pub length: U32,
        /// Reserved.
        pub reserved: [u8; 4],
    }
}

/// The header of a PDU: the common header, and the fields of its type. The fields of a capsule are the command or the
/// completion.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub struct Pdu<T> {
    /// The common header.
    pub common: Common,
    /// The other fields.
    pub fields: T,
}

/// The flags of H2CData and C2HData.
pub mod data_flags {
    /// LAST_PDU: no data of this transfer follows.
    pub const LAST: u8 = 1 << 2;
    /// SUCCESS, in C2HData only: the command has completed with success, and no CapsuleResp follows.
    pub const SUCCESS: u8 = 1 << 3;
}

impl<T> Pdu<T> {
    /// Creates a header. [`encode`] sets its data offset, length and digest flags.
    #[inline]
    pub const fn new(kind: Kind, flags: u8, fields: T) -> Self {
        let (code, hlen) = (kind as u8, kind.header_len() as u8);
        Self { common: Common { code, flags, hlen, pdo: 0, plen: U32::ZERO }, fields }
    }
}

impl Pdu<Initialization> {
    /// Creates an ICReq or ICResp with PDU format version 0 and without data alignment. `limit` is MAXR2T or
    /// MAXH2CDATA.
    pub fn initialization(kind: Kind, digests: Digests, limit: u32) -> Self {
        let (pfv, limit) = (U16::ZERO, limit.into());
        let fields = Initialization { pfv, alignment: 0, dgst: digests.bits(), limit, reserved: [0; 112] };
        Self::new(kind, 0, fields)
    }
}

impl Pdu<Transfer> {
    /// Creates an H2CData, a C2HData or an R2T for `length` bytes at `offset` of the data of command `cid`. `flags` are
    /// those of [`data_flags`].
    #[inline]
    pub fn transfer(kind: Kind, flags: u8, cid: u16, tag: u16, offset: u32, length: u32) -> Self {
        let (cccid, ttag) = (cid.into(), tag.into());
        let (offset, length) = (offset.into(), length.into());
        Self::new(kind, flags, Transfer { cccid, ttag, offset, length, reserved: [0; 4] })
    }
}

/// Writes a header with its digest to `out`, and the padding before `data_bytes` bytes of data. Returns the
/// number of written bytes. The caller sends these bytes, then the data, and then the data's [`digest`] if
/// data digests are in use.
///
/// `alignment` is the data alignment that the receiver requested, 4 to 128 bytes.
///
/// # Panics
/// If `out` is too short. [`super::MAX_HEADER`] bytes suffice.
#[inline]
pub fn encode<T: IntoBytes + Immutable + Unaligned>(
    header: &Pdu<T>,
    data_bytes: u32,
    digests: Digests,
    alignment: u8,
    out: &mut [u8],
) -> usize {
    let hlen = size_of::<Pdu<T>>();
    out[..hlen].copy_from_slice(header.as_bytes());
    let connection = hlen == Kind::IcReq.header_len();
    let mut written = hlen;
    let mut plen = 0;
    if digests.header && !connection {
        out[1] |= HDGSTF;
        written += DIGEST;
    }
    if data_bytes > 0 {
        let pdo = written.next_multiple_of(alignment.max(4).into());
        out[written..pdo].fill(0);
        written = pdo;
        out[3] = pdo as u8;
        plen = data_bytes;
        if digests.data {
            out[1] |= DDGSTF;
            plen += DIGEST as u32;
        }
    }
    out[4..COMMON].copy_from_slice(&(written as u32 + plen).to_le_bytes());
    if digests.header && !connection {
        let bytes = digest(&out[..hlen]);
        out[hlen..hlen + DIGEST].copy_from_slice(&bytes);
    }
    written
}

/// The contents of a received header.
#[derive(Clone, Copy, Debug)]
pub enum Header<'a> {
    /// ICReq.
    IcReq {
        /// The digests that the host asks for.
        digests: Digests,
        /// The data alignment that the host asks for, in bytes.
        alignment: u8,
    },
    /// ICResp.
    IcResp {
        /// The digests that the connection uses.
        digests: Digests,
        /// The data alignment that the controller asks for, in bytes.
        alignment: u8,
        /// The most data in an H2CData, in bytes.
        max_h2c_data: u32,
    },
    /// H2CTermReq or C2HTermReq.
    TermReq(Termination),
    /// CapsuleCmd.
    CapsuleCmd(&'a Command),
    /// CapsuleResp.
    CapsuleResp(Completion),
    /// H2CData.
    H2cData(Transfer),
    /// C2HData.
    C2hData(Transfer),
    /// R2T.
    R2t(Transfer),
}

impl<'a> Header<'a> {
    /// Decodes a header that has `layout`. Checks the fields whose valid values follow from the PDU alone.
    /// Call [`Layout::check_digest`] before, because the header digest is not checked here.
    ///
    /// # Errors
    /// A [`Fault`] that names the invalid field.
    ///
    /// # Panics
    /// If `bytes` is shorter than the header.
    #[inline]
    pub fn decode(layout: &Layout, bytes: &'a [u8]) -> Result<Self, Fault> {
        fn view<T: FromBytes + KnownLayout + Immutable + Unaligned>(bytes: &[u8]) -> &T {
            T::ref_from_prefix(&bytes[COMMON..]).expect("the header is complete").0
        }
        let check = |ok, status, field, found, why| Fault::check(ok, status, layout.kind, field, found, why);
        use FatalStatus::{DataOutOfRange, InvalidHeaderField, UnsupportedParameter};
        Ok(match layout.kind {
            Kind::IcReq | Kind::IcResp => {
                let header: &Initialization = view(bytes);
                let is_request = layout.kind == Kind::IcReq;
                let (pfv, alignment) = (header.pfv.get(), header.alignment);
                let why = "only PDU format 0 is supported";
                check(pfv == 0, UnsupportedParameter, ("PFV", 8), pfv.into(), why)?;
                let field = (if is_request { "HPDA" } else { "CPDA" }, 10);
                let why = "the alignment is at most 31";
                check(alignment <= 31, InvalidHeaderField, field, alignment.into(), why)?;
                let (digests, alignment) = (Digests::from_bits(header.dgst), (alignment + 1) * 4);
                if is_request {
                    return Ok(Header::IcReq { digests, alignment });
                }
                let max_h2c_data = header.limit.get();
                let ok = max_h2c_data >= 4096 && max_h2c_data.is_multiple_of(4);
                let why = "it must be at least 4096 and a multiple of 4";
                check(ok, InvalidHeaderField, ("MAXH2CDATA", 12), max_h2c_data, why)?;
                Header::IcResp { digests, alignment, max_h2c_data }
            }
            Kind::H2cTermReq | Kind::C2hTermReq => {
                let header: &TermReq = view(bytes);
                Header::TermReq(Termination { status: header.fes.get(), information: header.fei.get() })
            }
            Kind::CapsuleCmd => Header::CapsuleCmd(view(bytes)),
            Kind::CapsuleResp => Header::CapsuleResp(*view(bytes)),
            Kind::H2cData | Kind::C2hData => {
                let header: &Transfer = view(bytes);
                let (offset, length, flags) = (header.offset.get(), header.length.get(), layout.flags);
                let why = "it differs from the length of the data in the PDU";
                check(length == layout.data_bytes, InvalidHeaderField, DATAL, length, why)?;
                let fits = offset.checked_add(length).is_some();
                check(fits, DataOutOfRange, DATAO, offset, "the data would end beyond 4 GiB")?;
                if layout.kind == Kind::H2cData {
                    return Ok(Header::H2cData(*header));
                }
                let ok = flags & data_flags::SUCCESS == 0 || flags & data_flags::LAST != 0;
                let why = "SUCCESS is allowed only together with LAST_PDU";
                check(ok, InvalidHeaderField, FLAGS, flags.into(), why)?;
                Header::C2hData(*header)
            }
            Kind::R2t => {
                let header: &Transfer = view(bytes);
                let len = header.length.get();
                let ok = len > 0 && header.offset.get().checked_add(len).is_some();
                check(ok, InvalidHeaderField, R2TL, len, "it is 0 or ends beyond 4 GiB")?;
                Header::R2t(*header)
            }
        })
    }
}

/// Writes the termination request for `fault` into `out`. `input` begins with the faulty PDU, which was received under
/// `rules`. The request repeats its header, or only the first 8 bytes if these are invalid. Returns the number of bytes
/// written, at most 152.
///
/// # Panics
/// If `out` is shorter than 152 bytes.
pub fn encode_termination(rules: &Rules, fault: &Fault, input: &[u8], out: &mut [u8]) -> usize {
    let kind = match rules.sender {
        Sender::Host => Kind::C2hTermReq,
        Sender::Controller => Kind::H2cTermReq,
    };
    let layout = input.first_chunk().and_then(|common| Layout::decode(common, rules).ok());
    let length = layout.map_or(COMMON, |layout| layout.kind.header_len());
    let received = &input[..length.min(input.len())];
    let total = kind.header_len() + received.len();
    let (fes, fei) = ((fault.status as u16).into(), fault.information().into());
    let mut header = Pdu::new(kind, 0, TermReq { fes, fei, reserved: [0; 10] });
    header.common.plen = (total as u32).into();
    out[..24].copy_from_slice(header.as_bytes());
    out[24..total].copy_from_slice(received);
    total
}
