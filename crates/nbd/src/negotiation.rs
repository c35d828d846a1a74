//! The NBD negotiation: answers a client's options until the client chooses the export.

use super::protocol::{INIT_MAGIC, MAX_DATA, OPTION_MAGIC, OPTION_REPLY_MAGIC, export};
use inlane_nvme::initiator::NamespaceInfo;
use std::io::{self, Read, Write};

const FIXED_NEWSTYLE: u16 = 1 << 0;
const NO_ZEROES: u16 = 1 << 1;
/// The longest option that is read, in bytes. The longest useful option is a name of 4096 bytes with a few
/// numbers.
const MAX_OPTION: u32 = 8192;

mod option {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
}

mod answer {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const UNSUPPORTED: u32 = 1 << 31 | 1;
    pub const INVALID: u32 = 1 << 31 | 3;
    pub const UNKNOWN: u32 = 1 << 31 | 6;
}

const INFO_EXPORT: u16 = 0;
const INFO_BLOCK_SIZE: u16 = 3;

/// What the server offers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Export<'a> {
    pub(super) namespace: &'a NamespaceInfo,
    /// The export's name. Clients select the export by this name, or by the empty name of NBD's default
    /// export.
    pub(super) name: &'a str,
}

impl Export<'_> {
    fn flags(&self) -> u16 {
        let NamespaceInfo { read_only, deallocate, write_zeroes, .. } = *self.namespace;
        let optional = [
            (read_only, export::READ_ONLY),
            (!read_only && deallocate, export::TRIM),
            (!read_only && write_zeroes, export::WRITE_ZEROES),
        ];
        let always = export::HAS_FLAGS | export::FLUSH | export::FUA | export::MULTI_CONN;
        optional.iter().filter(|(on, _)| *on).fold(always, |flags, (_, flag)| flags | flag)
    }

    /// Returns the size of the export and its transmission flags in the form that answers contain.
    fn size_and_flags(&self) -> Vec<u8> {
        [&self.namespace.bytes().to_be_bytes()[..], &self.flags().to_be_bytes()].concat()
    }

    fn is_named(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }
}

/// Negotiates until the client chooses the export. Returns false if the client aborts the negotiation.
///
/// # Errors
/// If the client violates the protocol, or the connection fails.
pub(super) fn negotiate<S: Read + Write>(stream: &mut S, export: &Export<'_>) -> io::Result<bool> {
    let (magics, flags) = ([INIT_MAGIC, OPTION_MAGIC].map(u64::to_be_bytes), FIXED_NEWSTYLE | NO_ZEROES);
    stream.write_all(&[&magics.concat()[..], &flags.to_be_bytes()].concat())?;
    let client_flags = u32::from_be_bytes(take(stream)?);
    if client_flags & !u32::from(FIXED_NEWSTYLE | NO_ZEROES) != 0 {
        return Err(violation("unknown client flags"));
    }
    let no_zeroes = client_flags & u32::from(NO_ZEROES) != 0;
    loop {
        if u64::from_be_bytes(take(stream)?) != OPTION_MAGIC {
            return Err(violation("an option without its magic number"));
        }
        let option = u32::from_be_bytes(take(stream)?);
        let len = u32::from_be_bytes(take(stream)?);
        if len > MAX_OPTION {
            return Err(violation("an option of more than 8192 bytes"));
        }
        let mut data = vec![0; len as usize];
        stream.read_exact(&mut data)?;
        match option {
            option::EXPORT_NAME => {
                if !export.is_named(&data) {
                    return Err(violation("an unknown export name"));
                }
                stream.write_all(&export.size_and_flags())?;
                if !no_zeroes {
                    stream.write_all(&[0; 124])?;
                }
                return Ok(true);
            }
            option::ABORT => {
                // Ignore a failure to answer, because the client may have closed the connection already.
                let _ = answer(stream, option, answer::ACK, &[]);
                return Ok(false);
            }
            option::LIST if !data.is_empty() => answer(stream, option, answer::INVALID, &[])?,
            option::LIST => {
                let length = (export.name.len() as u32).to_be_bytes();
                answer(stream, option, answer::SERVER, &[&length, export.name.as_bytes()].concat())?;
                answer(stream, option, answer::ACK, &[])?;
            }
            option::INFO | option::GO => {
                let Some(name) = name_of(&data) else {
                    answer(stream, option, answer::INVALID, &[])?;
                    continue;
                };
                if !export.is_named(name) {
                    answer(stream, option, answer::UNKNOWN, &[])?;
                    continue;
                }
                let info = [&INFO_EXPORT.to_be_bytes()[..], &export.size_and_flags()].concat();
                answer(stream, option, answer::INFO, &info)?;
                let preferred = export.namespace.block_bytes.max(4096);
                let sizes = [1, preferred, MAX_DATA.max(preferred)].map(u32::to_be_bytes).concat();
                let info = [&INFO_BLOCK_SIZE.to_be_bytes()[..], &sizes].concat();
                answer(stream, option, answer::INFO, &info)?;
                answer(stream, option, answer::ACK, &[])?;
                if option == option::GO {
                    return Ok(true);
                }
            }
            _ => answer(stream, option, answer::UNSUPPORTED, &[])?,
        }
    }
}

/// Returns the name in the data of INFO or GO, or `None` if the data is malformed.
fn name_of(data: &[u8]) -> Option<&[u8]> {
    let (len, rest) = data.split_first_chunk::<4>()?;
    let (name, rest) = rest.split_at_checked(u32::from_be_bytes(*len) as usize)?;
    let (count, requests) = rest.split_first_chunk::<2>()?;
    (requests.len() == usize::from(u16::from_be_bytes(*count)) * 2).then_some(name)
}

fn answer<S: Write>(stream: &mut S, option: u32, kind: u32, data: &[u8]) -> io::Result<()> {
    let words = [option, kind, data.len() as u32].map(u32::to_be_bytes).concat();
    stream.write_all(&[&OPTION_REPLY_MAGIC.to_be_bytes()[..], &words, data].concat())
}

fn take<const N: usize, S: Read>(stream: &mut S) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn violation(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the NBD client sent {what}"))
}
