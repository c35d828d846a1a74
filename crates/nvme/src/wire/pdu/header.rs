//! The headers of each type of PDU, in their layout on the wire.

use super::layout::{COMMON, DDGSTF, DIGEST, HDGSTF};
use super::{Digests, FatalStatus, Fault, Kind, Layout, Termination, digest};
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

    /// ICReq (TCP section 3.6.2.2).
    pub struct IcReq {
        /// The common header.
        pub common: Common,
        /// PFV: the version of the PDU format, 0.
        pub pfv: U16,
        /// HPDA: the data alignment that the host asks for, in units of 4 bytes, minus one. 0 stands for 4
        /// bytes.
        pub hpda: u8,
        /// DGST: the digests that the host asks for.
        pub dgst: u8,
        /// MAXR2T: the R2Ts that the host allows in flight for a command, less one.
        pub maxr2t: U32,
        /// Reserved.
        pub reserved: [u8; 112],
    }

    /// ICResp (TCP section 3.6.2.3).
    pub struct IcResp {
        /// The common header.
        pub common: Common,
        /// PFV: the version of the PDU format, 0.
        pub pfv: U16,
        /// CPDA: the data alignment that the controller asks for, in units of 4 bytes, minus 1.
        pub cpda: u8,
        /// DGST: the digests that the connection uses, as the controller has chosen.
        pub dgst: u8,
        /// MAXH2CDATA: the most data in an H2CData, in bytes. At least 4096 and a multiple of 4.
        pub maxh2cdata: U32,
        /// Reserved.
        pub reserved: [u8; 112],
    }

    /// H2CTermReq and C2HTermReq (TCP sections 3.6.2.4 and 3.6.2.5). Up to 128 bytes of the bad PDU follow.
    pub struct TermReq {
        /// The common header.
        pub common: Common,
        /// FES: the reason.
        pub fes: U16,
        /// FEI: the offset of the bad field, or the bad digest.
        pub fei: U32,
        /// Reserved.
        pub reserved: [u8; 10],
    }

    /// CapsuleCmd (TCP section 3.6.2.6).
    pub struct CapsuleCmd {
        /// The common header.
        pub common: Common,
        /// The command: a submission queue entry.
        pub command: Command,
    }

    /// CapsuleResp (TCP section 3.6.2.7).
    pub struct CapsuleResp {
        /// The common header.
        pub common: Common,
        /// The completion queue entry.
        pub completion: Completion,
    }

    /// H2CData and C2HData (TCP sections 3.6.2.8 and 3.6.2.9).
    pub struct Data {
        /// The common header.
        pub common: Common,
        /// CCCID: the identifier of the command.
        pub cccid: U16,
        /// TTAG in H2CData: the tag of the R2T that this data answers. Reserved in C2HData.
        pub ttag: U16,
        /// DATAO: the offset of the data in the command's buffer, in bytes.
        pub datao: U32,
        /// DATAL: the length of the data, in bytes.
        pub datal: U32,
        /// Reserved.
        pub reserved: [u8; 4],
    }

    /// R2T (TCP section 3.6.2.10).
    pub struct R2t {
        /// The common header.
        pub common: Common,
        /// CCCID: the identifier of the command.
        pub cccid: U16,
        /// TTAG: the tag that the host repeats in its H2CData.
        pub ttag: U16,
        /// R2TO: the offset of the requested data in the command's buffer, in bytes.
        pub r2to: U32,
        /// R2TL: the length of the requested data, in bytes.
        pub r2tl: U32,
        /// Reserved.
        pub reserved: [u8; 4],
    }
}

/// The flags of H2CData and C2HData.
pub mod data_flags {
    /// LAST_PDU: no data of this transfer follows.
    pub const LAST: u8 = 1 << 2;
    /// SUCCESS, in C2HData only: the command has completed with success, and no CapsuleResp follows.
    pub const SUCCESS: u8 = 1 << 3;
}

impl Common {
    /// Creates the common header of a PDU. [`encode`] sets its data offset, length and digest flags.
    pub const fn new(kind: Kind, flags: u8) -> Self {
        Self { code: kind as u8, flags, hlen: kind.header_len() as u8, pdo: 0, plen: U32::ZERO }
    }
}

impl IcReq {
    /// Creates an ICReq with PDU format version 0 and without data alignment (HPDA 0). `max_r2t` is the most
    /// R2Ts in flight for a command, at least 1.
    pub fn new(digests: Digests, max_r2t: u32) -> Self {
        Self {
            common: Common::new(Kind::IcReq, 0),
            pfv: U16::ZERO,
            hpda: 0,
            dgst: digests.bits(),
            maxr2t: (max_r2t - 1).into(),
            reserved: [0; 112],
        }
    }
}

impl IcResp {
    /// Creates an ICResp with PDU format version 0 and without data alignment (CPDA 0). `max_h2c_data` is
    /// the most data in an H2CData, in bytes.
    pub fn new(digests: Digests, max_h2c_data: u32) -> Self {
        Self {
            common: Common::new(Kind::IcResp, 0),
            pfv: U16::ZERO,
            cpda: 0,
            dgst: digests.bits(),
            maxh2cdata: max_h2c_data.into(),
            reserved: [0; 112],
        }
    }
}

impl CapsuleCmd {
    /// Creates the capsule of `command`.
    #[inline]
    pub fn new(command: Command) -> Self {
        Self { common: Common::new(Kind::CapsuleCmd, 0), command }
    }
}

impl CapsuleResp {
    /// Creates the capsule of `completion`.
    #[inline]
    pub fn new(completion: Completion) -> Self {
        Self { common: Common::new(Kind::CapsuleResp, 0), completion }
    }
}

impl Data {
    /// Creates the header of an H2CData or C2HData. `flags` are those of [`data_flags`].
    #[inline]
    pub fn new(kind: Kind, flags: u8, cid: u16, tag: u16, offset: u32, len: u32) -> Self {
        Self {
            common: Common::new(kind, flags),
            cccid: cid.into(),
            ttag: tag.into(),
            datao: offset.into(),
            datal: len.into(),
            reserved: [0; 4],
        }
    }
}

impl R2t {
    /// Creates an R2T: requests `len` bytes at `offset` of the data of command `cid`.
    #[inline]
    pub fn new(cid: u16, tag: u16, offset: u32, len: u32) -> Self {
        Self {
            common: Common::new(Kind::R2t, 0),
            cccid: cid.into(),
            ttag: tag.into(),
            r2to: offset.into(),
            r2tl: len.into(),
            reserved: [0; 4],
        }
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
pub fn encode<T: IntoBytes + Immutable>(
    header: &T,
    data_bytes: u32,
    digests: Digests,
    alignment: u8,
    out: &mut [u8],
) -> usize {
    let hlen = size_of::<T>();
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
    H2cData(Data),
    /// C2HData.
    C2hData(Data),
    /// R2T.
    R2t(R2t),
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
            T::ref_from_prefix(bytes).expect("the header is complete").0
        }
        let fault = |status, field, offset, found: u32, why| {
            Err(Fault { status, kind: layout.kind as u8, field, offset, found: found.into(), why })
        };
        use FatalStatus::{InvalidHeaderField, UnsupportedParameter};
        Ok(match layout.kind {
            Kind::IcReq | Kind::IcResp => {
                // Both have the same fields. Only the last one has another meaning.
                let header: &IcResp = view(bytes);
                let is_request = layout.kind == Kind::IcReq;
                if header.pfv != U16::ZERO {
                    let why = "only PDU format 0 is supported";
                    return fault(UnsupportedParameter, "PFV", 8, header.pfv.get().into(), why);
                }
                if header.cpda > 31 {
                    let (field, why) =
                        (if is_request { "HPDA" } else { "CPDA" }, "the alignment is at most 31");
                    return fault(InvalidHeaderField, field, 10, header.cpda.into(), why);
                }
                let (digests, alignment) = (Digests::from_bits(header.dgst), (header.cpda + 1) * 4);
                if is_request {
                    return Ok(Header::IcReq { digests, alignment });
                }
                let max_h2c_data = header.maxh2cdata.get();
                if max_h2c_data < 4096 || !max_h2c_data.is_multiple_of(4) {
                    let why = "it must be at least 4096 and a multiple of 4";
                    return fault(InvalidHeaderField, "MAXH2CDATA", 12, max_h2c_data, why);
                }
                Header::IcResp { digests, alignment, max_h2c_data }
            }
            Kind::H2cTermReq | Kind::C2hTermReq => {
                let header: &TermReq = view(bytes);
                Header::TermReq(Termination { status: header.fes.get(), information: header.fei.get() })
            }
            Kind::CapsuleCmd => Header::CapsuleCmd(&view::<CapsuleCmd>(bytes).command),
            Kind::CapsuleResp => Header::CapsuleResp(view::<CapsuleResp>(bytes).completion),
            Kind::H2cData | Kind::C2hData => {
                let header: &Data = view(bytes);
                if header.datal.get() != layout.data_bytes {
                    let why = "it differs from the length of the data in the PDU";
                    return fault(InvalidHeaderField, "DATAL", 16, header.datal.get(), why);
                }
                if header.datao.get().checked_add(header.datal.get()).is_none() {
                    let why = "the data would end beyond 4 GiB";
                    return fault(FatalStatus::DataOutOfRange, "DATAO", 12, header.datao.get(), why);
                }
                if layout.kind == Kind::H2cData {
                    return Ok(Header::H2cData(*header));
                }
                if layout.flags & data_flags::SUCCESS != 0 && layout.flags & data_flags::LAST == 0 {
                    let why = "SUCCESS is allowed only together with LAST_PDU";
                    return fault(InvalidHeaderField, "FLAGS", 1, layout.flags.into(), why);
                }
                Header::C2hData(*header)
            }
            Kind::R2t => {
                let header: &R2t = view(bytes);
                let len = header.r2tl.get();
                if len == 0 || header.r2to.get().checked_add(len).is_none() {
                    let why = "it is 0 or ends beyond 4 GiB";
                    return fault(InvalidHeaderField, "R2TL", 16, len, why);
                }
                Header::R2t(*header)
            }
        })
    }
}
