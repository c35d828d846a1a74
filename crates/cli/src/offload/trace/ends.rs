//! The two programs of `inlane offload trace`: one sends messages, one receives and answers them. They use sockets as any
//! program does, so each runs on an engine or on the kernel's TCP.

use super::kernel_times::{KernelClock, KernelTimes};
use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use inlane_core::clock::Clock;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

/// The number of messages before those that are measured. Connections get their shared memory, and caches become warm.
pub const WARM_UP: u32 = 2000;

/// The longest time that a program may take, in seconds.
const LIMIT: u32 = 120;

/// Sends messages of 4 bytes, or receives and answers them. Prints when each passed
#[derive(Args)]
pub struct MessageEnd {
    /// What this program does
    #[arg(value_enum)]
    side: Side,
    /// The address of the receiver
    #[arg(long)]
    at: SocketAddr,
    /// The number of the first message that is measured
    #[arg(long)]
    first: u32,
    /// The number of messages that are measured
    #[arg(long)]
    messages: u32,
    /// The core of this program
    #[arg(long)]
    core: Option<usize>,
    /// Also ask the kernel for its times
    #[arg(long)]
    kernel_times: bool,
}

/// A side of the measurement.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Side {
    Send,
    Receive,
}

impl MessageEnd {
    /// Runs the program.
    ///
    /// # Errors
    /// If the connection fails, or a message is wrong.
    pub fn run(self) -> anyhow::Result<()> {
        // A lost message must not hang the measurement.
        // SAFETY: has no preconditions.
        unsafe { libc::alarm(LIMIT) };
        if let Some(core) = self.core {
            inlane_core::cores::bind(&[core]).with_context(|| format!("binding to core {core}"))?;
        }
        let lines = match self.side {
            Side::Send => self.send()?,
            Side::Receive => self.receive()?,
        };
        crate::print(|out| out.write_all(lines.as_bytes()))
    }

    /// Returns the numbers of all messages, and whether each is measured.
    fn numbers(&self) -> impl Iterator<Item = (u32, bool)> {
        let (first, count) = (self.first.wrapping_sub(WARM_UP), WARM_UP + self.messages);
        (0..count).map(move |index| (first.wrapping_add(index), index >= WARM_UP))
    }

    fn send(&self) -> anyhow::Result<String> {
        let mut stream = TcpStream::connect(self.at).with_context(|| format!("connecting to {}", self.at))?;
        stream.set_nodelay(true)?;
        let kernel = self.kernel_times.then(|| KernelTimes::of_sent(&stream)).transpose()?;
        let (clock, start) = (Clock::new(), KernelClock::read());
        let mut times = Vec::with_capacity(self.messages as usize);
        for (number, measured) in self.numbers() {
            let called = clock.raw();
            stream.write_all(&number.to_be_bytes())?;
            let returned = clock.raw();
            let mut answer = [0; 4];
            stream.read_exact(&mut answer).context("waiting for an answer")?;
            ensure!(u32::from_be_bytes(answer) == !number, "a wrong answer to message {number}");
            let sent = kernel.as_ref().map(|kernel| kernel.sent(&stream)).unwrap_or_default();
            if measured {
                times.push((called, returned, sent));
            }
        }
        let raw = start.converter(KernelClock::read());
        Ok(times.iter().fold(String::new(), |mut lines, (called, returned, [queued, driver])| {
            let shown = |time: Option<u64>| time.map_or(0, &raw);
            let _ = writeln!(lines, "{called} {returned} {} {}", shown(*queued), shown(*driver));
            lines
        }))
    }

    fn receive(&self) -> anyhow::Result<String> {
        let listener = TcpListener::bind(self.at).with_context(|| format!("listening at {}", self.at))?;
        crate::print(|out| writeln!(out, "{READY}"))?;
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let kernel = self.kernel_times.then(|| KernelTimes::of_received(&stream)).transpose()?;
        let (clock, start) = (Clock::new(), KernelClock::read());
        let mut times = Vec::with_capacity(self.messages as usize);
        for (number, measured) in self.numbers() {
            let mut message = [0; 4];
            let arrived = match &kernel {
                Some(kernel) => kernel.receive(&stream, &mut message)?,
                None => stream.read_exact(&mut message).map(|()| None)?,
            };
            let read = clock.raw();
            ensure!(u32::from_be_bytes(message) == number, "a wrong message in place of {number}");
            stream.write_all(&(!number).to_be_bytes())?;
            if measured {
                times.push((read, arrived));
            }
        }
        let raw = start.converter(KernelClock::read());
        Ok(times.iter().fold(String::new(), |mut lines, (read, arrived)| {
            let _ = writeln!(lines, "{read} {}", arrived.map_or(0, &raw));
            lines
        }))
    }
}

/// The line that the receiver prints when it listens.
pub const READY: &str = "ready";
