//! Reads the requests of a client, and the data of its writes.

use super::request::Part;
use super::{Client, Reading, lost};
use crate::protocol::{NbdRequest, REQUEST_MAGIC};
use inlane_nvme::Result;
use inlane_nvme::initiator::Buffer;
use std::io::{ErrorKind, Read};
use zerocopy::FromBytes;

impl Client<'_> {
    /// Reads from the client. Returns true if something arrived.
    pub(super) fn receive(&mut self) -> Result<bool> {
        let received = match &mut self.reading {
            // The input buffer holds no earlier bytes, so receive directly into the buffer of the write
            // command.
            Reading::Data { buffers, part, at, .. } if self.input.bytes().is_empty() => {
                self.stream.read(missing(&mut buffers[*part], *at)).inspect(|bytes| *at += bytes)
            }
            _ => {
                let result = self.stream.read(self.input.lend(usize::MAX));
                result.inspect(|bytes| self.input.received(*bytes))
            }
        };
        match received {
            Ok(0) => {
                (self.closing, self.gone) = (true, true);
                Ok(true)
            }
            Ok(_) => self.parse().map(|()| true),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(false),
            Err(source) => Err(lost(source)),
        }
    }

    /// Begins requests that had already arrived when a limit paused the reading. Returns true if there were
    /// any.
    pub(super) fn parse_rest(&mut self) -> Result<bool> {
        if !matches!(self.reading, Reading::Request) || self.input.bytes().len() < size_of::<NbdRequest>() {
            return Ok(false);
        }
        self.parse().map(|()| true)
    }

    /// Processes the received bytes. Stops before a request while the client has reached a limit on its
    /// requests or replies.
    fn parse(&mut self) -> Result<()> {
        loop {
            let full = self.is_full();
            match &mut self.reading {
                // Do not read further requests while the client is full. One read of the socket may bring
                // thousands of requests of 32 MiB each.
                Reading::Request if full => return Ok(()),
                Reading::Request => {
                    let request = NbdRequest::read_from_prefix(self.input.bytes());
                    let Ok((request, _)) = request else { return Ok(()) };
                    if request.magic != REQUEST_MAGIC {
                        let text = "a request without its magic number";
                        return Err(lost(std::io::Error::new(ErrorKind::InvalidData, text)));
                    }
                    self.input.consume(size_of::<NbdRequest>());
                    self.begin(request)?;
                    if self.closing {
                        return Ok(());
                    }
                }
                Reading::Skip(rest) => {
                    let skipped = (*rest).min(self.input.bytes().len());
                    self.input.consume(skipped);
                    *rest -= skipped;
                    if *rest > 0 {
                        return Ok(());
                    }
                    self.reading = Reading::Request;
                }
                Reading::Data { buffers, part, at, .. } => {
                    let missing = missing(&mut buffers[*part], *at);
                    let len = missing.len().min(self.input.bytes().len());
                    missing[..len].copy_from_slice(&self.input.bytes()[..len]);
                    let complete = len == missing.len();
                    self.input.consume(len);
                    *at += len;
                    if !complete {
                        return Ok(());
                    }
                    (*part, *at) = (*part + 1, 0);
                    if *part == buffers.len() {
                        let data = std::mem::replace(&mut self.reading, Reading::Request);
                        if let Reading::Data { request, buffers, .. } = data {
                            self.start_write(request, buffers)?;
                        }
                    }
                }
            }
        }
    }
}

/// Returns the memory for the bytes of a part that have not arrived, if `at` bytes have.
fn missing((buffer, part): &mut (Option<Buffer>, Part), at: usize) -> &mut [u8] {
    let buffer = buffer.as_mut().expect("a buffer for the data");
    &mut buffer.bytes_mut()[part.data.start + at..part.data.end]
}
