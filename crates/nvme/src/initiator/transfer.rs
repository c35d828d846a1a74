//! Reads and writes ranges of a namespace, with several commands in flight.

use super::connection::{Done, Request};
use super::{Buffer, Session};
use crate::command::{Command, Sgl, io};
use crate::{Error, Result};
use inlane_core::units;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// The most bytes of a command.
const CHUNK: u32 = 256 << 10;
/// The most commands in flight.
const DEPTH: usize = 16;

/// One command of a transfer.
struct Chunk {
    token: u64,
    /// The number of bytes at the chunk's start that lie before the requested range.
    skip: usize,
    /// The requested bytes.
    len: usize,
    done: Option<Buffer>,
}

fn chunk_bytes(session: &Session) -> u64 {
    let unit = session.namespace().block_bytes;
    u64::from((session.namespace().max_transfer.min(CHUNK) / unit).max(1) * unit)
}

fn stopped() -> Error {
    Error::Incomplete { what: "the transfer".into(), why: "it was interrupted".into() }
}

/// Prints a size with a unit if that is exact, otherwise in bytes.
fn exact(bytes: u64) -> String {
    let text = units::bytes(bytes);
    if text.contains('.') { format!("{bytes} bytes") } else { text }
}

/// Checks that a range lies in the namespace, and returns its end.
///
/// # Errors
/// If the range exceeds the namespace.
pub fn check_range(session: &Session, offset: u64, length: u64) -> Result<u64> {
    let bytes = session.namespace().bytes();
    let end = offset.checked_add(length).filter(|end| *end <= bytes);
    end.ok_or_else(|| outside(session, offset, length))
}

fn outside(session: &Session, offset: u64, length: u64) -> Error {
    let bytes = session.namespace().bytes();
    let what = format!("--offset {}", exact(offset));
    let why = match bytes.checked_sub(offset) {
        None => format!("it is beyond the end of the namespace ({}); give less", exact(bytes)),
        Some(room) => format!(
            "the namespace has {} from there, less than the {} to transfer; give --length {room} or less, or a smaller --offset",
            exact(room),
            exact(length)
        ),
    };
    Error::Invalid { what, why }
}

fn status(done: &Done, what: &str) -> Result<()> {
    if done.status().is_success() {
        return Ok(());
    }
    let what = format!("{what} at block {}", done.command.lba());
    Err(Error::Status { what, status: done.status() })
}

/// Reads `length` bytes from `offset` and writes them to `out`, in order. The range need not be aligned to blocks.
///
/// # Errors
/// If the range exceeds the namespace, a command fails, no path works, `out` fails, or `stop` is set.
pub fn read_range(
    session: &mut Session,
    offset: u64,
    length: u64,
    out: &mut dyn Write,
    stop: &AtomicBool,
) -> Result<()> {
    let end = check_range(session, offset, length)?;
    let unit = u64::from(session.namespace().block_bytes);
    let nsid = session.namespace().nsid;
    let most = chunk_bytes(session);
    let mut at = offset;
    let mut chunks: VecDeque<Chunk> = VecDeque::new();
    let mut spare = Vec::new();
    let mut token = 0;
    while at < end || !chunks.is_empty() {
        if stop.load(Ordering::Relaxed) {
            return Err(stopped());
        }
        while at < end && chunks.len() < DEPTH && session.available() > 0 {
            let start = at / unit * unit;
            let stop = end.next_multiple_of(unit).min(start + most);
            let mut buffer = match spare.pop() {
                Some(buffer) => buffer,
                None => Buffer::new(most as usize)?,
            };
            buffer.set_len((stop - start) as usize);
            let blocks = ((stop - start) / unit) as u32;
            let command = Command::blocks(io::READ, nsid, start / unit, blocks, Sgl::NONE);
            session
                .submit(Request { token, command, buffer: Some(buffer) })
                .unwrap_or_else(|_| unreachable!("checked before"));
            let len = (stop.min(end) - at) as usize;
            chunks.push_back(Chunk { token, skip: (at - start) as usize, len, done: None });
            token += 1;
            at = stop.min(end);
        }
        session.progress(true)?;
        while let Some(done) = session.next_done() {
            status(&done, "read")?;
            let chunk = chunks.iter_mut().find(|chunk| chunk.token == done.token);
            chunk.expect("a chunk in flight").done = done.buffer;
        }
        while let Some(buffer) = chunks.front_mut().and_then(|chunk| chunk.done.take()) {
            let chunk = chunks.pop_front().expect("looked at before");
            let data = &buffer.bytes()[chunk.skip..chunk.skip + chunk.len];
            out.write_all(data)
                .map_err(|source| Error::Os { what: "cannot write the data".into(), source })?;
            spare.push(buffer);
        }
    }
    Ok(())
}

/// Writes the bytes of `input` from `offset`, up to its end or `length` bytes, and flushes them. Returns the bytes written.
///
/// # Errors
/// If the offset or the length is not a multiple of the block size, the range exceeds the namespace, a command fails, no path
/// works, `input` fails, or `stop` is set. [`Error::Incomplete`] if the input is longer than the rest of the namespace, shorter
/// than `length`, or ends within a block. Bytes before the error may have been written.
pub fn write_range(
    session: &mut Session,
    offset: u64,
    length: Option<u64>,
    input: &mut dyn Read,
    stop: &AtomicBool,
) -> Result<u64> {
    let unit = u64::from(session.namespace().block_bytes);
    let aligned = |what: &str, value: u64| match value.is_multiple_of(unit) {
        true => Ok(()),
        false => Err(Error::Invalid {
            what: what.into(),
            why: format!("{value} bytes are no multiple of the namespace's blocks of {unit} bytes"),
        }),
    };
    aligned("--offset", offset)?;
    aligned("the length", length.unwrap_or(0))?;
    let room = session.namespace().bytes().checked_sub(offset).filter(|room| length.unwrap_or(0) <= *room);
    let Some(room) = room else {
        return Err(outside(session, offset, length.unwrap_or(0)));
    };
    if session.namespace().read_only {
        let what = format!("namespace {}", session.namespace().nsid);
        return Err(Error::Invalid { what, why: "it is read-only; choose another".into() });
    }
    let nsid = session.namespace().nsid;
    let most = chunk_bytes(session);
    let length = length.unwrap_or(u64::MAX);
    let mut spare = Vec::new();
    let (mut written, mut ended, mut token) = (0_u64, false, 0);
    let mut problem = None;
    while !ended || session.in_flight() > 0 {
        if stop.load(Ordering::Relaxed) {
            return Err(stopped());
        }
        while !ended && session.in_flight() < DEPTH && session.available() > 0 {
            let mut buffer = match spare.pop() {
                Some(buffer) => buffer,
                None => Buffer::new(most as usize)?,
            };
            buffer.set_len(most as usize);
            let wanted = most.min(length - written) as usize;
            let got = fill(input, &mut buffer.bytes_mut()[..wanted])?;
            ended = got < wanted || written + got as u64 == length;
            if got == 0 {
                break;
            }
            if written + got as u64 > room {
                problem = Some(format!("it is longer than the namespace's {} from the offset", exact(room)));
            } else if !(got as u64).is_multiple_of(unit) {
                let length = written + got as u64;
                problem = Some(format!("its {length} bytes do not end at a block of {unit} bytes"));
            }
            if problem.is_some() {
                ended = true;
                break;
            }
            buffer.set_len(got);
            let blocks = (got as u64 / unit) as u32;
            let lba = (offset + written) / unit;
            let command = Command::blocks(io::WRITE, nsid, lba, blocks, Sgl::NONE);
            session
                .submit(Request { token, command, buffer: Some(buffer) })
                .unwrap_or_else(|_| unreachable!("checked before"));
            token += 1;
            written += got as u64;
        }
        if session.in_flight() > 0 || session.available() == 0 {
            session.progress(true)?;
        }
        while let Some(done) = session.next_done() {
            status(&done, "write")?;
            spare.extend(done.buffer);
        }
    }
    if problem.is_none() && length != u64::MAX && written < length {
        problem = Some(format!("it ended before the {} of --length", exact(length)));
    }
    flush(session)?;
    match problem {
        None => Ok(written),
        Some(problem) => {
            let why = format!("{problem}; {} were written", exact(written));
            Err(Error::Incomplete { what: "the input".into(), why })
        }
    }
}

/// Makes all completed writes durable.
///
/// # Errors
/// If the command fails or no path works.
pub fn flush(session: &mut Session) -> Result<()> {
    let command = Command::new(io::FLUSH, session.namespace().nsid);
    let mut request = Some(Request { token: u64::MAX, command, buffer: None });
    loop {
        if let Some(flush) = request.take() {
            request = session.submit(flush).err();
        }
        session.progress(true)?;
        if let Some(done) = session.next_done() {
            return status(&done, "flush");
        }
    }
}

/// Reads until `buffer` is full or the input ends.
fn fill(input: &mut dyn Read, buffer: &mut [u8]) -> Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match input.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(bytes) => filled += bytes,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(source) => return Err(Error::Os { what: "cannot read the input".into(), source }),
        }
    }
    Ok(filled)
}
