//! A connection of `inlane-rdma` to a queue pair of Linux.
//!
//! The connection's data packets go to Linux as they are, except that they request an acknowledgment. inlane's peers exchange
//! control messages, which Linux drops. So the session translates: Linux's acknowledgments (AETH) into control messages for the
//! connection, and the connection's control messages into acknowledgments for Linux.

use crate::link::Link;
use crate::peer::{Completion, Peer};
use anyhow::{Context, bail, ensure};
use inlane_rdma::{CONTROL, Config, Connection, Endpoint, MAX_HEADERS, Memory};
use inlane_wire::roce::{self, AETH, Aeth, BTH, Bth, ImmDt, RETH, opcode};
use std::time::{Duration, Instant};

/// Bytes of memory in each direction.
pub const BYTES: u32 = 128 << 10;
/// The bytes of data in a packet, at most: the path MTU of an interface with an MTU of 1500.
pub const PAYLOAD: u16 = 1024;
/// How long any step may take.
const LIMIT: Duration = Duration::from_secs(60);
/// The connection's flag of a control message that ends the connection.
const RESET: u8 = 2;

/// Syndromes of acknowledgments.
pub mod syndrome {
    /// An acknowledgment without a limit of messages.
    pub const ACK: u8 = 0x1f;
    /// A packet is missing.
    pub const SEQUENCE: u8 = 0x60;
    pub const INVALID_REQUEST: u8 = 0x61;
    pub const REMOTE_ACCESS: u8 = 0x62;
}

/// Returns byte `index` of the pattern. The pattern of rxe-peer is the same.
pub fn byte(index: u64) -> u8 {
    (index * 7 + index / 251 + 1) as u8
}

/// A range of the stream that Linux may write, and its key.
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    pub key: u32,
    pub start: u64,
    pub end: u64,
}

/// The memory that Linux writes to.
pub struct Target(pub Vec<u8>);

impl Memory for Target {
    fn write_ring(&mut self, index: u64, bytes: &[u8]) {
        // A range outside of the memory ends the program.
        self.0[index as usize..][..bytes.len()].copy_from_slice(bytes);
    }
}

/// What the session does to packets. Each number is a period: of so many packets, it affects one. 0 affects none.
#[derive(Clone, Copy, Default)]
pub struct Faults {
    /// Data packets to Linux that are not sent.
    pub lose: u64,
    /// Data packets to Linux that are sent with a wrong ICRC.
    pub damage: u64,
    /// Data packets from Linux that are not received.
    pub lose_received: u64,
}

/// Numbers of packets.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Data packets that the connection gave out.
    pub data: u64,
    pub lost: u64,
    pub damaged: u64,
    /// Packets with a right ICRC that Linux accepts or refuses by sequence number and key.
    pub intact: u64,
    /// Data packets from Linux.
    pub received: u64,
    /// Acknowledgments from Linux, and the three kinds of negative ones.
    pub acknowledgments: u64,
    pub missing: u64,
    pub not_ready: u64,
    pub access: u64,
}

pub struct Session<'a> {
    link: &'a mut Link,
    peer: &'a mut Peer,
    pub connection: Connection,
    pub target: Target,
    pub grants: Vec<Grant>,
    pub faults: Faults,
    pub counts: Counts,
    /// The end of the stream to Linux so far.
    written: u64,
    local: Endpoint,
    pub remote: Endpoint,
    key: u32,
    /// The PSN of the last negative acknowledgment for a missing packet.
    missing: Option<u32>,
    start: Instant,
}

impl<'a> Session<'a> {
    /// Connects the queue pair `number` to a new queue pair of Linux. `wrong` is added to the key of Linux's memory.
    pub fn open(link: &'a mut Link, peer: &'a mut Peer, number: u32, wrong: u32) -> anyhow::Result<Self> {
        // Both sequence numbers wrap soon.
        let (psn, own_psn) = (roce::MASK - 20, roce::MASK - 10);
        peer.command(&format!("pair {number} {psn} {own_psn} {BYTES}"))?;
        let start = Instant::now();
        let answer = loop {
            ensure!(start.elapsed() < LIMIT, "rxe-peer does not connect");
            match peer.answer()? {
                Some(line) => break line,
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        let numbers = answer.strip_prefix("pair ").and_then(|rest| rest.split_once(' '));
        let (queue_pair, key) = numbers.with_context(|| answer.clone())?;
        let key = key.parse::<u32>()?.wrapping_add(wrong);
        let local = Endpoint { queue_pair: number, psn, token: 1 };
        let remote = Endpoint { queue_pair: queue_pair.parse()?, psn: own_psn, token: 2 };
        let config = Config {
            send_capacity: BYTES,
            receive_capacity: BYTES,
            payload: PAYLOAD,
            initial_rto: 50_000_000,
            ..Config::default()
        };
        let mut session = Self {
            link,
            peer,
            connection: Connection::new(&config, local, remote, [7; 16])?,
            target: Target(vec![0; BYTES as usize]),
            grants: Vec::new(),
            faults: Faults::default(),
            counts: Counts::default(),
            written: 0,
            local,
            remote,
            key,
            missing: None,
            start,
        };
        session.tell(local.psn, 0);
        Ok(session)
    }

    pub fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Gives the connection a control message with the PSN that Linux expects next. It also names Linux's memory.
    fn tell(&mut self, expected: u32, flags: u8) {
        let mut message = vec![0; BTH];
        let mut bth = Bth::new(&mut message[..]).expect("the length is right");
        bth.fill(CONTROL, self.local.queue_pair, expected, false, 0);
        message.extend([0x49, 2, flags, 1, 0, 0, 0, 0]);
        message.extend(self.local.token.to_be_bytes());
        let (slots, duplicates, generation) = (64u32, 0u32, 1u32);
        for number in [expected & roce::MASK, slots, duplicates, generation, self.key] {
            message.extend(number.to_be_bytes());
        }
        message.extend(0u64.to_be_bytes());
        message.extend(BYTES.to_be_bytes());
        self.connection.on_packet(self.now(), &message, &mut self.target);
    }

    /// Exchanges packets until `done` returns true.
    pub fn run(
        &mut self,
        what: &str,
        mut done: impl FnMut(&mut Self) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let start = Instant::now();
        loop {
            self.send()?;
            if done(self)? {
                return Ok(());
            }
            if start.elapsed() > LIMIT {
                bail!("no end of: {what}; {:?}; {:?}", self.counts, self.connection.counters());
            }
            if let Some(packet) = self.link.receive()? {
                self.receive(&packet)?;
            }
            let now = self.now();
            if self.connection.next_deadline().is_some_and(|at| at <= now) {
                self.connection.on_timer(now);
            }
        }
    }

    /// Sends a command to the peer. Exchanges packets until the answer is there.
    pub fn ask(&mut self, command: &str) -> anyhow::Result<String> {
        self.peer.command(command)?;
        let mut answer = None;
        self.run(command, |session| {
            answer = session.peer.answer()?;
            Ok(answer.is_some())
        })?;
        answer.context("an answer")
    }

    /// Waits for `count` completions, and returns all that the peer has.
    pub fn completions(&mut self, count: usize) -> anyhow::Result<Vec<Completion>> {
        Completion::parse(&self.ask(&format!("completions {count}"))?)
    }

    /// Appends `len` bytes of the pattern to the stream to Linux.
    pub fn write(&mut self, len: u64) -> anyhow::Result<()> {
        self.written += len;
        Ok(self.connection.set_written(self.now(), self.written)?)
    }

    /// Writes up to byte `end` of the pattern in pieces of odd sizes. Returns when Linux has acknowledged all bytes.
    pub fn write_up_to(&mut self, end: u64) -> anyhow::Result<()> {
        let mut piece = 1;
        self.run("data to Linux", |session| {
            while session.written < end && session.connection.sent() == session.written {
                piece = piece * 5 % 4099;
                session.write(piece.min(end - session.written))?;
                session.send()?;
            }
            ensure!(session.connection.ended().is_none(), "the connection has ended: {:?}", session.counts);
            Ok(session.connection.acknowledged() == end)
        })
    }

    /// Sends what the connection has to send.
    pub fn send(&mut self) -> anyhow::Result<()> {
        let mut headers = [0; MAX_HEADERS];
        while let Some(transmit) = self.connection.poll_transmit(self.now(), &mut headers) {
            let mut body = headers[..transmit.headers].to_vec();
            body.extend(transmit.payload.clone().map(byte));
            body.resize(body.len() + transmit.padding, 0);
            let mut bth = Bth::new(&mut body[..])?;
            if bth.opcode() == CONTROL {
                // Linux must drop the message, because its opcode is none of the standard's.
                let (expected, has_gap) = (bth.psn(), bth.payload()[4] > 0);
                self.link.send(&body, false)?;
                self.note_grants(&body[BTH..]);
                self.acknowledge(expected, has_gap)?;
                continue;
            }
            let request = bth.word_2() | 1 << 31;
            bth.set_word_2(request);
            let acknowledges = bth.opcode() == opcode::WRITE_ONLY_IMMEDIATE;
            let expected =
                ImmDt::new(&body[BTH + RETH..]).ok().filter(|_| acknowledges).map(|view| view.value());
            self.counts.data += 1;
            let hit = |period| period > 0 && self.counts.data % period == period / 2;
            if hit(self.faults.lose) {
                self.counts.lost += 1;
            } else {
                let damaged = hit(self.faults.damage);
                self.link.send(&body, damaged)?;
                self.counts.damaged += damaged as u64;
                self.counts.intact += !damaged as u64;
            }
            if let Some(expected) = expected {
                self.acknowledge(expected, false)?;
            }
        }
        Ok(())
    }

    /// Reads the ranges of the stream that Linux may write from the bytes of a control message.
    fn note_grants(&mut self, message: &[u8]) {
        let u64_at =
            |bytes: &[u8], at: usize| bytes[at..at + 8].iter().fold(0, |n, &byte| n << 8 | byte as u64);
        let grants = message[28 + message[4] as usize * 8..].chunks_exact(20).map(|bytes| {
            let (key, start) = (u64_at(bytes, 0) as u32, u64_at(bytes, 8));
            Grant { key, start, end: start + (u64_at(bytes, 12) & 0xffff_ffff) }
        });
        self.grants = grants.collect();
    }

    /// Acknowledges Linux's packets before the PSN `expected`. If `has_gap` is true, later packets than that have arrived.
    fn acknowledge(&mut self, expected: u32, has_gap: bool) -> anyhow::Result<()> {
        if expected != self.remote.psn {
            self.answer(expected.wrapping_sub(1), syndrome::ACK, expected)?;
        }
        if has_gap && self.missing.replace(expected) != Some(expected) {
            self.answer(expected, syndrome::SEQUENCE, expected)?;
        }
        Ok(())
    }

    /// Sends an acknowledgment with this syndrome for a PSN.
    fn answer(&mut self, psn: u32, syndrome: u8, expected: u32) -> anyhow::Result<()> {
        let mut body = [0; BTH + AETH];
        Bth::new(&mut body[..])?.fill(opcode::ACKNOWLEDGE, self.remote.queue_pair, psn, false, 0);
        // Each message is one packet, so this is the number of messages.
        let messages = expected.wrapping_sub(self.remote.psn) & roce::MASK;
        Aeth::new(&mut body[BTH..])?.set_word((syndrome as u32) << 24 | messages);
        self.counts.intact += 1;
        self.link.send(&body, false)
    }

    fn receive(&mut self, packet: &[u8]) -> anyhow::Result<()> {
        let bth = Bth::new(packet)?;
        // Packets to the queue pair of an earlier session may still arrive.
        if bth.queue_pair() != self.local.queue_pair {
            return Ok(());
        }
        if bth.opcode() == opcode::ACKNOWLEDGE {
            let (psn, syndrome) = (bth.psn(), Aeth::new(bth.payload())?.syndrome());
            let (expected, flags, count) = match syndrome {
                syndrome::ACK => (psn.wrapping_add(1), 0, &mut self.counts.acknowledgments),
                syndrome::SEQUENCE => (psn, 0, &mut self.counts.missing),
                syndrome::REMOTE_ACCESS => (psn, RESET, &mut self.counts.access),
                // Receiver not ready. The lower bits say how long the sender should wait.
                0x20..0x40 => (psn, 0, &mut self.counts.not_ready),
                _ => bail!("Linux sent the syndrome {syndrome:#x}"),
            };
            *count += 1;
            self.tell(expected, flags);
            return Ok(());
        }
        self.counts.received += 1;
        let period = self.faults.lose_received;
        if period > 0 && self.counts.received % period == period / 2 {
            return Ok(());
        }
        let before = self.connection.counters();
        self.connection.on_packet(self.now(), packet, &mut self.target);
        let after = self.connection.counters();
        let syndrome = if after.malformed > before.malformed {
            syndrome::INVALID_REQUEST
        } else if after.refused_key + after.refused_range > before.refused_key + before.refused_range {
            syndrome::REMOTE_ACCESS
        } else {
            return Ok(());
        };
        self.answer(bth.psn(), syndrome, bth.psn())
    }
}
