//! Reads and writes ranges of a namespace, with several commands in flight.

use super::connection::{Done, Submission};
use super::{Buffer, Session};
use crate::field::{LENGTH, OFFSET};
use crate::wire::command::{Command, io};
use crate::{Error, Result};
use inlane_core::setting::Field;
use inlane_core::units;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The most bytes that one read or write command transfers.
const CHUNK: u32 = 256 << 10;
/// The most commands in flight.
const DEPTH: usize = 16;
/// The longest time for which a transfer uses its stream before it lets the session progress. A stream that is always
/// ready may move only a few bytes at a time.
const TURN: Duration = Duration::from_millis(100);

/// One command of a transfer.
struct Chunk {
    token: u64,
    /// The number of bytes at the chunk's start that lie before the requested range.
    skip: usize,
    /// The requested bytes.
    len: usize,
    done: Option<Buffer>,
}

/// Provides buffers for [`read_to`] and consumes the data. Implement it to read into device memory.
///
/// While a call blocks, the session sends no keep-alives and `stop` has no effect. So a call should end within about
/// 100 ms.
pub trait Sink {
    /// Returns a buffer of at least `bytes` bytes for the next command. Returns `None` to be called again if none is free
    /// yet.
    ///
    /// # Errors
    /// If the sink cannot provide memory, or earlier data could not be stored.
    fn buffer(&mut self, bytes: usize) -> Result<Option<Buffer>>;

    /// Consumes a buffer of whole blocks that were read. Only the bytes in the range `data` were requested.
    /// Buffers arrive in the order of their offsets in the namespace.
    ///
    /// # Errors
    /// If the data cannot be stored.
    fn take(&mut self, buffer: Buffer, data: Range<usize>) -> Result<()>;

    /// Stores more of the data that was taken. Returns false to be called again if some is left.
    ///
    /// # Errors
    /// If the data cannot be stored.
    fn store_rest(&mut self) -> Result<bool> {
        Ok(true)
    }
}

/// What a [`Source`] has.
#[derive(Debug)]
pub enum Supply {
    /// The next bytes.
    Data(Buffer),
    /// Nothing yet. Ask again.
    NotYet,
    /// No data is left.
    End,
}

/// Provides the data that [`write_from`] writes. Implement it to write from a device's memory. As with [`Sink`], a call
/// should end within about 100 ms.
pub trait Source {
    /// Returns a buffer with the next `most` bytes of the data. At the end of the data it may be fewer bytes.
    /// The buffer's length is exactly the number of these bytes.
    ///
    /// # Errors
    /// If the data cannot be read.
    fn next(&mut self, most: usize) -> Result<Supply>;

    /// Takes a buffer back after its data was written.
    fn recycle(&mut self, buffer: Buffer);
}

/// Returns true if a read or write of a stream must be repeated.
fn is_transient(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// A [`Sink`] that writes to a stream.
struct WriterSink<'a> {
    out: &'a mut dyn Write,
    /// The data that the stream has not taken yet.
    waiting: VecDeque<(Buffer, Range<usize>)>,
    spare: Vec<Buffer>,
}

impl Sink for WriterSink<'_> {
    fn buffer(&mut self, bytes: usize) -> Result<Option<Buffer>> {
        if self.waiting.len() >= DEPTH && !self.store_rest()? && self.waiting.len() >= DEPTH {
            return Ok(None);
        }
        match self.spare.pop() {
            Some(buffer) => Ok(Some(buffer)),
            None => Ok(Some(Buffer::new(bytes)?)),
        }
    }

    fn take(&mut self, buffer: Buffer, data: Range<usize>) -> Result<()> {
        self.waiting.push_back((buffer, data));
        self.store_rest().map(drop)
    }

    fn store_rest(&mut self) -> Result<bool> {
        let started = Instant::now();
        while let Some((buffer, data)) = self.waiting.front_mut() {
            match self.out.write(&buffer.bytes()[data.clone()]) {
                Ok(0) => return Err(cannot_write(ErrorKind::WriteZero.into())),
                Ok(written) => data.start += written,
                Err(error) if is_transient(&error) => return Ok(false),
                Err(error) => return Err(cannot_write(error)),
            }
            if data.start == data.end {
                self.spare.extend(self.waiting.pop_front().map(|(buffer, _)| buffer));
            }
            if started.elapsed() >= TURN {
                return Ok(self.waiting.is_empty());
            }
        }
        Ok(true)
    }
}

fn cannot_write(source: std::io::Error) -> Error {
    Error::Os { what: "cannot write the data".into(), source }
}

/// A [`Source`] that reads a stream.
struct ReaderSource<'a> {
    input: &'a mut dyn Read,
    /// A buffer that is not full yet, and the number of bytes in it.
    partial: Option<(Buffer, usize)>,
    spare: Vec<Buffer>,
}

impl Source for ReaderSource<'_> {
    fn next(&mut self, most: usize) -> Result<Supply> {
        let (mut buffer, mut filled) = match (self.partial.take(), self.spare.pop()) {
            (Some(partial), spare) => {
                self.spare.extend(spare);
                partial
            }
            (None, Some(buffer)) if buffer.capacity() >= most => (buffer, 0),
            (None, _) => (Buffer::new(most)?, 0),
        };
        buffer.set_len(most);
        let started = Instant::now();
        while filled < most {
            match self.input.read(&mut buffer.bytes_mut()[filled..]) {
                Ok(0) => break,
                Ok(bytes) => filled += bytes,
                Err(error) if is_transient(&error) => {
                    self.partial = Some((buffer, filled));
                    return Ok(Supply::NotYet);
                }
                Err(source) => return Err(Error::Os { what: "cannot read the input".into(), source }),
            }
            if filled < most && started.elapsed() >= TURN {
                self.partial = Some((buffer, filled));
                return Ok(Supply::NotYet);
            }
        }
        if filled == 0 {
            return Ok(Supply::End);
        }
        buffer.set_len(filled);
        Ok(Supply::Data(buffer))
    }

    fn recycle(&mut self, buffer: Buffer) {
        self.spare.push(buffer);
    }
}

/// Returns the most bytes that each command of a transfer moves: whole blocks, up to 256 KiB and up to the
/// controller's limit, but at least one block.
fn chunk_bytes(session: &Session) -> u64 {
    let unit = session.namespace().block_bytes;
    u64::from((session.namespace().max_transfer.min(CHUNK) / unit).max(1) * unit)
}

/// Returns an error if `stop` is set.
///
/// # Errors
/// [`Error::Incomplete`]: the transfer was interrupted.
pub fn check_stop(stop: &AtomicBool) -> Result<()> {
    match stop.load(Ordering::Relaxed) {
        true => Err(Error::incomplete("the transfer", "it was interrupted")),
        false => Ok(()),
    }
}

/// Formats a size with a unit if that is exact, otherwise in bytes.
fn exact(bytes: u64) -> String {
    let text = units::bytes(bytes);
    if text.contains('.') { format!("{bytes} bytes") } else { text }
}

/// Checks that a range lies in the namespace. Returns its end.
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
    let room = bytes.saturating_sub(offset);
    if room == 0 {
        let why = format!("the namespace ends at {}; give less", exact(bytes));
        return Error::invalid(OFFSET.with(exact(offset)), why);
    }
    let why = format!(
        "the namespace has {} from {}; give {} or less",
        exact(room),
        OFFSET.with(exact(offset)),
        LENGTH.with(room)
    );
    Error::invalid(LENGTH.with(exact(length)), why)
}

fn status(done: &Done, what: &str) -> Result<()> {
    if done.status().is_success() {
        return Ok(());
    }
    let what = format!("{what} at block {}", done.command.lba());
    Err(Error::Status { what, status: done.status() })
}

/// Reads `length` bytes from `offset` and writes them to `out`. The range need not be aligned to blocks. If a write fails
/// with [`ErrorKind::WouldBlock`], repeats it.
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
    let mut sink = WriterSink { out, waiting: VecDeque::new(), spare: Vec::new() };
    read_to(session, offset, length, &mut sink, stop)
}

/// Reads `length` bytes from `offset` into the buffers of `sink`. The range need not be aligned to blocks.
///
/// # Errors
/// If the range exceeds the namespace, a command fails, no path works, `sink` fails, or `stop` is set.
pub fn read_to(
    session: &mut Session,
    offset: u64,
    length: u64,
    sink: &mut dyn Sink,
    stop: &AtomicBool,
) -> Result<()> {
    let end = check_range(session, offset, length)?;
    let unit = u64::from(session.namespace().block_bytes);
    let most = chunk_bytes(session);
    let mut at = offset;
    let mut chunks: VecDeque<Chunk> = VecDeque::new();
    let mut token = 0;
    while at < end || !chunks.is_empty() {
        check_stop(stop)?;
        while at < end && chunks.len() < DEPTH && session.available() > 0 {
            let start = at / unit * unit;
            let stop = end.next_multiple_of(unit).min(start + most);
            let Some(mut buffer) = sink.buffer(most as usize)? else { break };
            buffer.set_len((stop - start) as usize);
            let command = session.namespace().command(io::READ, start, stop - start);
            session
                .submit(Submission { token, command, buffer: Some(buffer) })
                .unwrap_or_else(|_| unreachable!("checked before"));
            let len = (stop.min(end) - at) as usize;
            chunks.push_back(Chunk { token, skip: (at - start) as usize, len, done: None });
            token += 1;
            at = stop.min(end);
        }
        // Do not wait for the target if only the sink is late.
        session.progress(session.in_flight() > 0 || session.available() == 0)?;
        while let Some(done) = session.next_done() {
            status(&done, "read")?;
            let chunk = chunks.iter_mut().find(|chunk| chunk.token == done.token);
            chunk.expect("a chunk in flight").done = done.buffer;
        }
        let started = Instant::now();
        while started.elapsed() < TURN
            && let Some(buffer) = chunks.front_mut().and_then(|chunk| chunk.done.take())
        {
            let chunk = chunks.pop_front().expect("looked at before");
            sink.take(buffer, chunk.skip..chunk.skip + chunk.len)?;
        }
    }
    while !sink.store_rest()? {
        check_stop(stop)?;
        session.progress(false)?;
    }
    Ok(())
}

/// Writes `input` to the namespace at `offset`, and flushes the data. Stops at the end of `input` or after
/// `length` bytes. Returns the number of bytes written.
///
/// # Errors
/// Bytes before the error may have been written. Errors are:
///
/// * the offset or the length is not a multiple of the block size;
/// * the range exceeds the namespace;
/// * a command fails, or no path works;
/// * `input` fails, or `stop` is set;
/// * [`Error::Incomplete`]: the input is longer than the rest of the namespace, shorter than `length`, or
///   ends within a block.
pub fn write_range(
    session: &mut Session,
    offset: u64,
    length: Option<u64>,
    input: &mut dyn Read,
    stop: &AtomicBool,
) -> Result<u64> {
    write_from(session, offset, length, &mut ReaderSource { input, partial: None, spare: Vec::new() }, stop)
}

/// Writes the data of `source` as [`write_range`] does.
///
/// # Errors
/// As for [`write_range`].
pub fn write_from(
    session: &mut Session,
    offset: u64,
    length: Option<u64>,
    source: &mut dyn Source,
    stop: &AtomicBool,
) -> Result<u64> {
    let unit = u64::from(session.namespace().block_bytes);
    let aligned = |field: Field, value: u64| {
        let why = format!("the blocks of the namespace have {unit} bytes; give a multiple of that");
        Error::require(value.is_multiple_of(unit), field.with(value), why)
    };
    aligned(OFFSET, offset)?;
    aligned(LENGTH, length.unwrap_or(0))?;
    let room = session.namespace().bytes().checked_sub(offset).filter(|room| length.unwrap_or(0) <= *room);
    let Some(room) = room else {
        return Err(outside(session, offset, length.unwrap_or(0)));
    };
    let what = format!("namespace {}", session.namespace().nsid);
    Error::require(!session.namespace().read_only, what, "it is read-only; choose another")?;
    let most = chunk_bytes(session);
    let length = length.unwrap_or(u64::MAX);
    let (mut written, mut ended, mut token) = (0_u64, length == 0, 0);
    let mut problem = None;
    while !ended || session.in_flight() > 0 {
        check_stop(stop)?;
        let started = Instant::now();
        while !ended && session.in_flight() < DEPTH && session.available() > 0 && started.elapsed() < TURN {
            let wanted = most.min(length - written) as usize;
            let buffer = match source.next(wanted)? {
                Supply::Data(buffer) => buffer,
                nothing => {
                    ended = matches!(nothing, Supply::End);
                    break;
                }
            };
            let got = buffer.len();
            ended = got < wanted || written + got as u64 == length;
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
            let command = session.namespace().command(io::WRITE, offset + written, got as u64);
            session
                .submit(Submission { token, command, buffer: Some(buffer) })
                .unwrap_or_else(|_| unreachable!("checked before"));
            token += 1;
            written += got as u64;
        }
        session.progress(session.in_flight() > 0 || session.available() == 0)?;
        while let Some(done) = session.next_done() {
            status(&done, "write")?;
            if let Some(buffer) = done.buffer {
                source.recycle(buffer);
            }
        }
    }
    if problem.is_none() && length != u64::MAX && written < length {
        problem = Some(format!("it ended before the {} of {LENGTH}", exact(length)));
    }
    flush(session, stop)?;
    match problem {
        None => Ok(written),
        Some(problem) => {
            let why = format!("{problem}; {} were written", exact(written));
            Err(Error::incomplete("the input", why))
        }
    }
}

/// Makes all completed writes durable.
///
/// # Errors
/// If the command fails, no path works, or `stop` is set.
pub fn flush(session: &mut Session, stop: &AtomicBool) -> Result<()> {
    let command = Command::new(io::FLUSH, session.namespace().nsid);
    let mut request = Some(Submission { token: u64::MAX, command, buffer: None });
    loop {
        check_stop(stop)?;
        if let Some(flush) = request.take() {
            request = session.submit(flush).err();
        }
        session.progress(true)?;
        if let Some(done) = session.next_done() {
            return status(&done, "flush");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    /// A stream that is always ready, and moves one byte in 5 ms.
    struct Slow;

    impl Write for Slow {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            std::thread::sleep(Duration::from_millis(5));
            Ok(1)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Read for Slow {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            std::thread::sleep(Duration::from_millis(5));
            bytes[0] = 1;
            Ok(1)
        }
    }

    /// The session must send keep-alives while a slow stream takes its bytes.
    #[test]
    fn a_slow_stream_delays_the_session_for_a_short_time_only() {
        let mut sink = WriterSink { out: &mut Slow, waiting: VecDeque::new(), spare: Vec::new() };
        let mut buffer = Buffer::new(4096).unwrap();
        buffer.set_len(4096);
        sink.take(buffer, 0..4096).unwrap();
        assert!(sink.waiting[0].1.start <= 100 / 5, "{:?}", sink.waiting[0].1);
        assert!(!sink.store_rest().unwrap());

        let mut source = ReaderSource { input: &mut Slow, partial: None, spare: Vec::new() };
        for turn in 1..=2 {
            assert!(matches!(source.next(4096).unwrap(), Supply::NotYet));
            let filled = source.partial.as_ref().unwrap().1;
            assert!(filled >= turn && filled <= turn * (100 / 5), "{filled} bytes in {turn} turns");
        }
    }
}
