//! The numbers and messages of the NBD protocol. All are big-endian.

/// `NBDMAGIC`.
pub(super) const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`.
pub(super) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// The magic number at the start of the reply to an option.
pub(super) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// The length in bytes of an NBD request's header.
pub(super) const REQUEST: usize = 28;
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
    pub const DONT_FRAGMENT: u16 = 1 << 7;
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

/// The identifier of the metadata context `base:allocation`, which the server chooses.
pub(super) const ALLOCATION: u32 = 1;

/// The optional features of the NBD protocol that a client has negotiated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Features {
    /// True if the client has negotiated structured replies, which reads and block status requests get.
    pub(super) structured: bool,
    /// True if the client has selected the metadata context `base:allocation`. Only then it may request block
    /// status.
    pub(super) allocation: bool,
}

/// The type of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestType {
    /// Read.
    Read,
    /// Write; the data follows.
    Write,
    /// The client ends the connection. There is no reply.
    Disconnect,
    /// Flush.
    Flush,
    /// Deallocate.
    Trim,
    /// Write zeroes.
    WriteZeroes,
    /// Report the state of blocks.
    BlockStatus,
    /// Any other type.
    Other(u16),
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbdRequest {
    /// The command flags.
    pub flags: u16,
    /// The type.
    pub kind: RequestType,
    /// The number that the reply repeats.
    pub cookie: u64,
    /// The offset, in bytes.
    pub offset: u64,
    /// The length, in bytes.
    pub length: u32,
}

impl NbdRequest {
    /// Returns the number of data bytes that follow the request header. Only writes have data; for others, it
    /// is 0.
    pub(super) fn payload(&self) -> u32 {
        if self.kind == RequestType::Write { self.length } else { 0 }
    }
}

/// Parses a request. Returns `None` if its magic number is wrong.
pub fn parse_request(bytes: &[u8; 28]) -> Option<NbdRequest> {
    fn field<const N: usize>(bytes: &[u8; 28], at: usize) -> [u8; N] {
        bytes[at..at + N].try_into().expect("inside")
    }
    if u32::from_be_bytes(field(bytes, 0)) != REQUEST_MAGIC {
        return None;
    }
    let kind = match u16::from_be_bytes(field(bytes, 6)) {
        0 => RequestType::Read,
        1 => RequestType::Write,
        2 => RequestType::Disconnect,
        3 => RequestType::Flush,
        4 => RequestType::Trim,
        6 => RequestType::WriteZeroes,
        7 => RequestType::BlockStatus,
        other => RequestType::Other(other),
    };
    Some(NbdRequest {
        flags: u16::from_be_bytes(field(bytes, 4)),
        kind,
        cookie: u64::from_be_bytes(field(bytes, 8)),
        offset: u64::from_be_bytes(field(bytes, 16)),
        length: u32::from_be_bytes(field(bytes, 24)),
    })
}

/// Returns a simple reply. The data of a successful read follows it.
pub(super) fn reply(cookie: u64, error: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&REPLY_MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&error.to_be_bytes());
    bytes[8..].copy_from_slice(&cookie.to_be_bytes());
    bytes
}

/// Returns the header and `payload` of a structured reply with one chunk. The caller must send `data_bytes`
/// bytes of data after it.
fn chunk(kind: u16, cookie: u64, payload: &[u8], data_bytes: u32) -> Vec<u8> {
    const DONE: u16 = 1 << 0;
    let mut bytes = CHUNK_MAGIC.to_be_bytes().to_vec();
    bytes.extend_from_slice(&DONE.to_be_bytes());
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&cookie.to_be_bytes());
    bytes.extend_from_slice(&(payload.len() as u32 + data_bytes).to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// Returns the start of the structured reply to a read. The data follows it.
pub(super) fn data_chunk(cookie: u64, offset: u64, data_bytes: u32) -> Vec<u8> {
    const OFFSET_DATA: u16 = 1;
    chunk(OFFSET_DATA, cookie, &offset.to_be_bytes(), data_bytes)
}

/// Returns a structured reply with an error number and no message.
pub(super) fn error_chunk(cookie: u64, error: u32) -> Vec<u8> {
    const ERROR: u16 = 1 << 15 | 1;
    chunk(ERROR, cookie, &[&error.to_be_bytes()[..], &[0, 0]].concat(), 0)
}

/// Returns the structured reply to a block status request. It reports `length` bytes as allocated and not
/// known to be zero.
pub(super) fn allocated_chunk(cookie: u64, length: u32) -> Vec<u8> {
    const BLOCK_STATUS: u16 = 5;
    const ALLOCATED: u32 = 0;
    chunk(BLOCK_STATUS, cookie, &[ALLOCATION, length, ALLOCATED].map(u32::to_be_bytes).concat(), 0)
}
