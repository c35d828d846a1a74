//! The numbers and messages of the NBD protocol. All are big-endian.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `NBDMAGIC`.
pub(super) const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`.
pub(super) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// The magic number at the start of the reply to an option.
pub(super) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// The magic number at the start of a request.
pub(super) const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;

/// The most data of one request in bytes. Clients may use requests of this size without asking (section
/// "Block sizes").
pub(super) const MAX_DATA: u32 = 32 << 20;

/// Transmission flags.
pub(super) mod export {
    pub const HAS_FLAGS: u16 = 1 << 0;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const FLUSH: u16 = 1 << 2;
    pub const FUA: u16 = 1 << 3;
    pub const TRIM: u16 = 1 << 5;
    pub const WRITE_ZEROES: u16 = 1 << 6;
    pub const MULTI_CONN: u16 = 1 << 8;
}

/// Error numbers.
pub(super) mod error {
    pub const EPERM: u32 = 1;
    pub const EIO: u32 = 5;
    pub const EINVAL: u32 = 22;
    pub const ENOSPC: u32 = 28;
    pub const ENOTSUP: u32 = 95;
}

/// Command flag: the data is durable before the reply.
pub(super) const FUA: u16 = 1 << 0;
/// Command flag of write zeroes: do not deallocate.
pub(super) const NO_HOLE: u16 = 1 << 1;

/// The types of requests.
pub(super) mod request {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISCONNECT: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const WRITE_ZEROES: u16 = 6;
}

/// The header of a request. The data of a write follows it.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct NbdRequest {
    pub(super) magic: U32,
    pub(super) flags: U16,
    /// The type; see [`request`].
    pub(super) kind: U16,
    /// The number that the reply repeats.
    pub(super) cookie: U64,
    /// The offset, in bytes.
    pub(super) offset: U64,
    /// The length, in bytes.
    pub(super) length: U32,
}

/// Returns a reply. The data of a successful read follows it.
pub(super) fn reply(cookie: U64, error: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&REPLY_MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&error.to_be_bytes());
    bytes[8..].copy_from_slice(cookie.as_bytes());
    bytes
}
