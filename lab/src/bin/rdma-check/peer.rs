//! The program `rxe-peer` (lab/guest/rxe-peer.c): a peer that uses Linux's RDMA by libibverbs.

use anyhow::{Context, bail};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};

/// The running peer.
pub struct Peer {
    process: Child,
    answers: Receiver<String>,
}

/// A completion of an operation of the peer, as libibverbs reports it.
#[derive(Debug, PartialEq, Eq)]
pub struct Completion {
    /// A value of `enum ibv_wc_status`.
    pub status: u32,
    /// `written` for an RDMA WRITE of the peer, `received` for immediate data that it has received, `failed` with an error.
    pub kind: String,
    pub len: u32,
    pub immediate: u32,
}

/// A remote access error in [`Completion::status`].
pub const REMOTE_ACCESS: u32 = 10;
/// A remote invalid request in [`Completion::status`].
pub const REMOTE_INVALID_REQUEST: u32 = 9;

impl Peer {
    pub fn start(arguments: &[&str]) -> anyhow::Result<Self> {
        let mut command = Command::new("rxe-peer");
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().context("rxe-peer")?;
        let output = BufReader::new(process.stdout.take().context("a pipe")?);
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Ok(Self { process, answers })
    }

    /// Sends a command. Its answer comes later, by [`Peer::answer`].
    pub fn command(&mut self, line: &str) -> anyhow::Result<()> {
        let input = self.process.stdin.as_mut().context("a pipe")?;
        writeln!(input, "{line}").context("rxe-peer has ended")
    }

    /// Returns the next answer, or `None` if it is not there yet.
    pub fn answer(&mut self) -> anyhow::Result<Option<String>> {
        match self.answers.try_recv() {
            Ok(line) => Ok(Some(line)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => bail!("rxe-peer has ended: {}", self.process.wait()?),
        }
    }

    /// Ends the peer. It must exit with status 0.
    pub fn end(mut self) -> anyhow::Result<()> {
        drop(self.process.stdin.take());
        let status = self.process.wait()?;
        if status.success() { Ok(()) } else { bail!("rxe-peer: {status}") }
    }
}

impl Completion {
    /// Parses an answer to the command `completions`.
    pub fn parse(answer: &str) -> anyhow::Result<Vec<Self>> {
        let words = answer.strip_prefix("completions").with_context(|| answer.to_owned())?.split_whitespace();
        let parse = |word: &str| {
            let [status, kind, len, immediate] = word.split(':').collect::<Vec<_>>().try_into().ok()?;
            let (status, len) = (status.parse().ok()?, len.parse().ok()?);
            Some(Self { status, kind: kind.into(), len, immediate: immediate.parse().ok()? })
        };
        words.map(|word| parse(word).with_context(|| answer.to_owned())).collect()
    }
}
