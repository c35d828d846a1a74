//! Scripts of segments for the rules that the crate implements. Each test's name begins with the RFC that
//! states the rule.
//!
//! A test plays the peer of one connection: it passes segments to the connection and checks what the
//! connection sends. Sequence numbers are relative: 0 is the first byte of the stream in each direction.

mod acknowledgments;
mod attacks;
mod closing;
mod handshake;
mod listener;
mod options;
mod path;
mod recovery;
mod sending;
mod timers;
mod windows;

use inlane_tcp::*;
use inlane_wire::tcp::{ACK, CWR, ECE, FIN, PSH, RST, SYN, URG};

/// The initial sequence number of this side.
pub(crate) const ISS: u32 = 1000;
/// The peer's initial sequence number. The peer's numbers wrap during the test.
pub(crate) const IRS: u32 = u32::MAX - 5000;
pub(crate) const RTT: u64 = 10 * MILLISECOND;

pub(crate) struct Memory(pub Vec<u8>);

impl ReceiveBuffer for Memory {
    fn write(&mut self, index: u64, bytes: &[u8]) {
        let len = self.0.len();
        for (at, &byte) in (index as usize..).zip(bytes) {
            self.0[at % len] = byte;
        }
    }
}

/// A connection and the peer that the test plays.
pub(crate) struct Script {
    pub(crate) connection: Connection,
    pub(crate) memory: Memory,
    pub(crate) now: u64,
    /// The peer's clock for timestamps.
    pub(crate) clock: u32,
    /// The timestamp that the connection sent last.
    pub(crate) echo: u32,
    pub(crate) timestamps: bool,
    /// The window field of the peer's segments.
    pub(crate) window: u16,
    /// The index up to which the peer's segments acknowledge the connection's data.
    pub(crate) ack: u64,
    pub(crate) events: Events,
}

/// A segment that the peer sends. Its numbers are relative to the start of each stream. The script sets each
/// field that is `None`.
#[derive(Clone)]
pub(crate) struct Seg {
    pub(crate) flags: u8,
    pub(crate) seq: i64,
    pub(crate) ack: Option<u64>,
    pub(crate) payload: Vec<u8>,
    pub(crate) sack: Vec<(u64, u64)>,
    pub(crate) window: Option<u16>,
    pub(crate) timestamps: Option<Option<(u32, u32)>>,
    pub(crate) ecn: Ecn,
}

pub(crate) fn seg(flags: u8, seq: i64, len: usize) -> Seg {
    let payload = (0..len).map(|at| (seq + at as i64) as u8).collect();
    Seg { flags, seq, ack: None, payload, sack: vec![], window: None, timestamps: None, ecn: Ecn::NotEct }
}

pub(crate) fn data(seq: i64, len: usize) -> Seg {
    seg(ACK, seq, len)
}

pub(crate) fn ack(ack: u64) -> Seg {
    Seg { ack: Some(ack), ..seg(ACK, 0, 0) }
}

impl Seg {
    pub(crate) fn sack(mut self, blocks: &[(u64, u64)]) -> Self {
        self.sack = blocks.to_vec();
        self
    }

    pub(crate) fn window(mut self, window: u16) -> Self {
        self.window = Some(window);
        self
    }

    pub(crate) fn at(mut self, seq: i64) -> Self {
        self.seq = seq;
        self
    }

    pub(crate) fn acking(mut self, ack: u64) -> Self {
        self.ack = Some(ack);
        self
    }

    pub(crate) fn stamp(mut self, value: u32, echo: u32) -> Self {
        self.timestamps = Some(Some((value, echo)));
        self
    }
}

/// Returns the options of the SYN of a peer with MSS 1460, window scaling, SACK and timestamps.
pub(crate) fn modern() -> Options {
    Options {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some(Timestamps { value: 500, echo: 0 }),
        ..Options::default()
    }
}

/// Returns the options of a SYN with SACK but without timestamps and window scaling. Segments then hold 1460
/// bytes.
pub(crate) fn plain() -> Options {
    Options { timestamps: None, window_scale: None, ..modern() }
}

pub(crate) fn raw(header: Header) -> Segment<'static> {
    Segment { header, payload: &[], ecn: Ecn::NotEct }
}

impl Script {
    pub(crate) fn new(config: &Config) -> Self {
        let start = InitialNumbers { sequence: ISS, timestamp_offset: 7000 };
        Self {
            connection: Connection::connect(0, config, start).unwrap(),
            memory: Memory(vec![0xee; config.receive_capacity as usize]),
            now: 0,
            clock: 500,
            echo: 0,
            timestamps: false,
            window: 0,
            ack: 0,
            events: Events::NONE,
        }
    }

    /// Opens a connection to a peer with `options` and an RTT of 10 ms. The peer's window is 64 KiB.
    pub(crate) fn open(config: &Config, options: Options) -> Self {
        let mut script = Self::new(config);
        let syn = script.one();
        assert_eq!((syn.header.flags & !(ECE | CWR), syn.header.sequence), (SYN, ISS));
        script.now += RTT;
        script.timestamps = options.timestamps.is_some() && config.timestamps;
        script.window = if options.window_scale.is_some() { 512 } else { 65_535 };
        let flags = SYN | ACK | if config.ecn == EcnMode::Request { ECE } else { 0 };
        let reply = Header { sequence: IRS, acknowledgment: ISS + 1, window: 65_535, flags, options };
        script.events |= script.connection.on_segment(script.now, &raw(reply), &mut script.memory);
        assert!(script.events.contains(Events::CONNECTED));
        let ack = script.one();
        assert_eq!(
            (ack.header.flags, ack.header.sequence, ack.header.acknowledgment),
            (ACK, ISS + 1, IRS.wrapping_add(1))
        );
        script
    }

    pub(crate) fn receive(&mut self, seg: Seg) {
        let number = |start: u32, at: u64| start.wrapping_add(1).wrapping_add(at as u32);
        if let Some(ack) = seg.ack {
            self.ack = ack;
        }
        let mut options = Options::default();
        for &(left, right) in &seg.sack {
            options.sack.push(number(ISS, left), number(ISS, right));
        }
        self.clock = 500 + (self.now / MILLISECOND) as u32;
        options.timestamps = match seg.timestamps {
            Some(timestamps) => timestamps.map(|(value, echo)| Timestamps { value, echo }),
            None => self.timestamps.then_some(Timestamps { value: self.clock, echo: self.echo }),
        };
        let header = Header {
            sequence: number(IRS, seg.seq as u64),
            acknowledgment: if seg.flags & ACK != 0 { number(ISS, self.ack) } else { 0 },
            window: seg.window.unwrap_or(self.window),
            flags: seg.flags,
            options,
        };
        let segment = Segment { header, payload: &seg.payload, ecn: seg.ecn };
        self.events |= self.connection.on_segment(self.now, &segment, &mut self.memory);
    }

    pub(crate) fn sent(&mut self) -> Vec<Transmit> {
        let sent: Vec<_> = std::iter::from_fn(|| self.connection.poll_transmit(self.now)).collect();
        if let Some(timestamps) = sent.last().and_then(|transmit| transmit.header.options.timestamps) {
            self.echo = timestamps.value;
        }
        sent
    }

    /// Returns what the connection sends, as ranges of payload. Segments without payload are left out.
    pub(crate) fn ranges(&mut self) -> Vec<(u64, u64)> {
        let sent = self.sent();
        sent.iter().filter(|t| !t.is_empty()).map(|t| (t.payload.start, t.payload.end)).collect()
    }

    pub(crate) fn one(&mut self) -> Transmit {
        let mut sent = self.sent();
        assert_eq!(sent.len(), 1, "{sent:#?}");
        sent.remove(0)
    }

    /// Checks that the connection sends exactly one segment: an acknowledgment of `ack` without data. Returns
    /// its header.
    #[track_caller]
    pub(crate) fn acknowledges(&mut self, ack: u64) -> Header {
        let transmit = self.one();
        assert_eq!(transmit.header.flags & !ECE, ACK, "{transmit:#?}");
        assert!(transmit.is_empty());
        assert_eq!(transmit.header.acknowledgment, IRS.wrapping_add(1).wrapping_add(ack as u32));
        transmit.header
    }

    #[track_caller]
    pub(crate) fn silent(&mut self) {
        let sent = self.sent();
        assert!(sent.is_empty(), "{sent:#?}");
    }

    pub(crate) fn write(&mut self, len: u64, written: &mut u64) {
        *written += len;
        self.connection.set_written(*written).unwrap();
    }

    /// Advances the time.
    pub(crate) fn sleep(&mut self, time: u64) {
        self.now += time;
        self.events |= self.connection.on_timer(self.now);
    }

    /// Advances the time to the connection's next deadline. Returns the elapsed time in nanoseconds.
    pub(crate) fn next_timer(&mut self) -> u64 {
        let at = self.connection.next_deadline().expect("a timer runs");
        let elapsed = at.saturating_sub(self.now);
        self.sleep(elapsed);
        elapsed
    }

    pub(crate) fn state(&self) -> State {
        self.connection.state()
    }

    pub(crate) fn consume(&mut self, from: u64) -> Vec<u8> {
        let to = self.connection.received();
        self.connection.set_consumed(to).unwrap();
        let len = self.memory.0.len() as u64;
        (from..to).map(|index| self.memory.0[(index % len) as usize]).collect()
    }
}

/// Settings without segmentation offload, so that each segment is seen.
pub(crate) fn config() -> Config {
    Config { gso_bytes: 0, ..Config::default() }
}
