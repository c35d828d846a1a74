//! Packet functions in Rust, written by a user of the library. They run on the CPU only.

use crate::report::FunctionReport;
use inlane_core::ring::layout::{self, PacketVerdict};
use std::fmt;
use std::sync::Arc;

/// A packet function in Rust. Each thread that runs it has a value of its own.
pub trait RustFunction: Send {
    /// Processes a packet and decides what becomes of it. May change the packet's bytes and its length.
    fn process(&mut self, packet: &mut FunctionPacket<'_>) -> Verdict;

    /// Returns what the function has counted. The result adds up the counters of all threads.
    fn report(&self) -> FunctionReport {
        FunctionReport::default()
    }
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Send it to the first transmit port.
    Forward,
    /// Drop it.
    Drop,
    /// Send it to the transmit port with this number, from 0. Packets for a port that the run lacks are dropped.
    Port(u32),
}

/// A packet while a function processes it.
pub struct FunctionPacket<'a> {
    /// The packet's buffer, as far as the packet may use it.
    room: &'a mut [u8],
    length: usize,
}

impl<'a> FunctionPacket<'a> {
    /// Creates a packet of `length` bytes at the start of `room`.
    pub(crate) fn new(room: &'a mut [u8], length: usize) -> Self {
        Self { room, length }
    }

    /// Returns the packet's bytes, without FCS.
    pub fn bytes(&self) -> &[u8] {
        &self.room[..self.length]
    }

    /// Returns the packet's bytes, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.room[..self.length]
    }

    /// Sets the packet's length in bytes. Bytes by which a packet grows have any value, so write them. Returns false, and
    /// changes nothing, if the packet's buffer has too little room.
    #[must_use]
    pub fn set_length(&mut self, length: usize) -> bool {
        let fits = length <= self.room.len();
        if fits {
            self.length = length;
        }
        fits
    }

    /// Returns the verdict in the form of the burst ring.
    pub(crate) fn verdict(&self, verdict: Verdict) -> PacketVerdict {
        let verdict = match verdict {
            Verdict::Forward => layout::FORWARD,
            Verdict::Drop => layout::DROP,
            Verdict::Port(number) => layout::PORT_BASE.saturating_add(number),
        };
        PacketVerdict { length: self.length as u32, verdict }
    }
}

/// Creates the function's value for one thread.
type Create = dyn Fn() -> Box<dyn RustFunction> + Send + Sync;

/// A packet function in Rust with the name that results show.
#[derive(Clone)]
pub struct OwnFunction {
    /// The name.
    pub name: String,
    create: Arc<Create>,
}

impl OwnFunction {
    /// Creates a packet function. `create` makes the value of each thread.
    pub fn new<F: RustFunction + 'static>(
        name: impl Into<String>,
        create: impl Fn() -> F + Send + Sync + 'static,
    ) -> Self {
        Self { name: name.into(), create: Arc::new(move || Box::new(create())) }
    }

    /// Returns the value of one more thread.
    pub(crate) fn create(&self) -> Box<dyn RustFunction> {
        (self.create)()
    }
}

impl fmt::Debug for OwnFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnFunction").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The packet function of a run.
#[derive(Clone, Debug)]
pub enum FunctionSpec {
    /// A built-in function or a user's source file, as on the command line: see
    /// [`PacketFunction::parse`](crate::PacketFunction::parse).
    Named(String),
    /// A function in Rust.
    Own(OwnFunction),
}

impl FunctionSpec {
    /// Returns the name that results show.
    pub fn name(&self) -> &str {
        match self {
            Self::Named(text) => text,
            Self::Own(own) => &own.name,
        }
    }

    /// Returns the function's text on the command line. `None` for a function in Rust.
    pub fn named(&self) -> Option<&str> {
        match self {
            Self::Named(text) => Some(text),
            Self::Own(_) => None,
        }
    }
}

impl From<OwnFunction> for FunctionSpec {
    fn from(own: OwnFunction) -> Self {
        Self::Own(own)
    }
}

impl From<&str> for FunctionSpec {
    fn from(text: &str) -> Self {
        Self::Named(text.into())
    }
}

impl From<String> for FunctionSpec {
    fn from(text: String) -> Self {
        Self::Named(text)
    }
}

impl fmt::Display for FunctionSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_stays_in_its_room() {
        let mut room = [1u8, 2, 3, 4];
        let mut packet = FunctionPacket::new(&mut room, 2);
        assert_eq!(packet.bytes(), [1, 2]);
        assert!(!packet.set_length(5));
        assert_eq!(packet.bytes(), [1, 2], "a refused length changes nothing");
        assert!(packet.set_length(4));
        packet.bytes_mut()[3] = 9;
        let of = |verdict| (packet.verdict(verdict).length, packet.verdict(verdict).verdict);
        assert_eq!(of(Verdict::Forward), (4, layout::FORWARD));
        assert_eq!(of(Verdict::Drop), (4, layout::DROP));
        assert_eq!(of(Verdict::Port(3)), (4, layout::PORT_BASE + 3));
        assert_ne!(packet.verdict(Verdict::Port(u32::MAX)).verdict, layout::FORWARD, "numbers do not wrap");
        assert_eq!(room, [1, 2, 3, 9]);
    }

    #[test]
    fn each_thread_has_a_function_of_its_own() {
        struct Counting(u64);
        impl RustFunction for Counting {
            fn process(&mut self, packet: &mut FunctionPacket<'_>) -> Verdict {
                self.0 += packet.bytes().len() as u64;
                Verdict::Drop
            }
            fn report(&self) -> FunctionReport {
                FunctionReport::from_numbers(&self.0.to_ne_bytes(), 0, &["bytes"])
            }
        }
        let spec = FunctionSpec::from(OwnFunction::new("counting", || Counting(0)));
        assert_eq!((spec.name(), spec.named(), spec.to_string().as_str()), ("counting", None, "counting"));
        assert_eq!(FunctionSpec::from("io").named(), Some("io"));
        let FunctionSpec::Own(own) = spec else { panic!("made of a function in Rust") };
        let (mut one, other) = (own.create(), own.create());
        one.process(&mut FunctionPacket::new(&mut [0; 7], 7));
        assert_eq!((one.report().counter("bytes"), other.report().counter("bytes")), (Some(7), Some(0)));
    }
}
