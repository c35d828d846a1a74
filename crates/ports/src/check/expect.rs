//! The packets that must arrive at a checker, and how received packets compare with them.

use super::reference::{ExpectedVerdict, ReferenceFunction};
use crate::generate::Traffic;
use crate::generate::stamp::{self, Stamp};
use crate::generate::template::Template;
use crate::generate::traffic::{FlowHeaders, MIN_FRAME, checksum_and_payload};
use inlane_wire::Layers;
use std::sync::{Arc, OnceLock};

/// The packets that must arrive at one checker. All queues of the checker share this value.
pub struct ExpectedPackets {
    traffic: Arc<Traffic>,
    body: Vec<u8>,
    /// `None` if only stamps are checked.
    reference: Option<Arc<dyn ReferenceFunction>>,
    /// The number of the checker's port in verdicts.
    number: u16,
    cases: OnceLock<Cases>,
}

/// What must arrive for each flow and size. Ordered by flow and then by size.
pub struct Cases {
    /// The expected packets. Empty if the checker must build each packet to compare it.
    templates: Vec<Template>,
    /// True for packets that must not arrive at this checker.
    dropped: Vec<bool>,
}

/// The result of comparing a received packet with the packets that must arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Classification {
    /// An expected packet with the right content.
    Correct(Stamp),
    /// A packet of the generator with wrong content, or a packet that must not arrive here. Its [`Stamp`] is
    /// intact, so the packet can be identified.
    Altered(Stamp),
    /// A packet of the generator with a damaged [`Stamp`]. Its flow and its sequence number are unknown.
    Unidentified,
    /// A packet that does not come from the generator.
    Foreign,
}

impl ExpectedPackets {
    /// Computes the packets that arrive at port `number` if `reference` processes `traffic`. Without a reference, all packets
    /// arrive, and only their stamps are checked.
    pub fn new(traffic: Arc<Traffic>, reference: Option<Arc<dyn ReferenceFunction>>, number: u16) -> Self {
        let body = traffic.body();
        let expectation = Self { body, traffic, reference, number, cases: OnceLock::new() };
        if expectation.reference.as_ref().is_none_or(|reference| reference.is_ready()) {
            expectation.cases();
        }
        expectation
    }

    /// Returns what must arrive for each flow and size. The first call computes it.
    pub fn cases(&self) -> &Cases {
        self.cases.get_or_init(|| self.compute_cases())
    }

    fn compute_cases(&self) -> Cases {
        let count = self.traffic.flows as usize * self.traffic.sizes.len();
        let Some(reference) = &self.reference else {
            return Cases { templates: Vec::new(), dropped: vec![false; count] };
        };
        let (mut templates, mut dropped) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for flow in 0..self.traffic.flows {
            for index in 0..self.traffic.sizes.len() {
                let stamp = Stamp { flow, sequence: index as u32, due_ns: 0 };
                let (frame, verdict) = self.frame(stamp);
                let arrives = verdict.arrives_at(self.number);
                dropped.push(!arrives);
                templates.extend(
                    Template::of(&frame)
                        .map(|template| if arrives { template } else { template.into_dropped() }),
                );
            }
        }
        // `Template::of` refuses some packets, such as those that the function leaves with a wrong checksum.
        // Use templates only if each combination of flow and size has one. Do not use templates if the
        // function's result depends on the payload, because packets of one flow and size have different
        // payloads.
        if templates.len() != count || reference.depends_on_payload() {
            templates.clear();
        }
        Cases { templates, dropped }
    }

    /// Returns the traffic that the generator sends.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Returns the name under which results list this check.
    pub fn method(&self) -> String {
        match &self.reference {
            Some(reference) => format!("every packet against the reference function {}", reference.name()),
            None => "the stamp of every packet: the function has no reference for other bytes".into(),
        }
    }

    /// Returns how many of the first `sent` packets of `flow` must not arrive here.
    pub fn dropped_of(&self, flow: u32, sent: u64) -> u64 {
        let sizes = self.traffic.sizes.len();
        let dropped = &self.cases().dropped[flow as usize * sizes..][..sizes];
        let count = |dropped: &[bool]| dropped.iter().filter(|dropped| **dropped).count() as u64;
        sent / sizes as u64 * count(dropped) + count(&dropped[..(sent % sizes as u64) as usize])
    }

    /// Returns true if the packet with this [`Stamp`] must not arrive here.
    pub fn is_dropped(&self, stamp: Stamp) -> bool {
        let size = self.traffic.size_index(stamp.sequence);
        self.cases().dropped[stamp.flow as usize * self.traffic.sizes.len() + size]
    }

    /// Returns the expected packet for `stamp`, after the packet function has processed it. Also returns the
    /// verdict that the function must give.
    fn frame(&self, stamp: Stamp) -> (Vec<u8>, ExpectedVerdict) {
        let size = self.traffic.sizes[self.traffic.size_index(stamp.sequence)];
        let mut frame = self.traffic.frame(size, stamp, &self.body);
        let verdict = match &self.reference {
            Some(reference) => reference.apply(&mut frame),
            None => ExpectedVerdict::Forward,
        };
        (frame, verdict)
    }

    /// Returns the packet's [`Stamp`] if the packet equals its [`Template`], and if the packet function
    /// should not have dropped it. Returns `None` for other packets; classify these by
    /// [`ExpectedPackets::examine`]. `bytes` is the whole packet.
    #[inline(always)]
    pub fn matches_template(&self, cases: &Cases, bytes: &[u8]) -> Option<Stamp> {
        let last = bytes.last_chunk::<{ stamp::BYTES }>()?;
        let stamp = Stamp::from_bytes(last);
        if stamp.flow >= self.traffic.flows {
            return None;
        }
        let index = stamp.flow as usize * self.traffic.sizes.len() + self.traffic.size_index(stamp.sequence);
        let template = cases.templates.get(index)?;
        let correct = !template.is_dropped() && template.matches(bytes, &self.body, stamp);
        correct.then_some(stamp)
    }

    /// Classifies any packet. Slower than [`ExpectedPackets::matches_template`].
    pub fn examine(&self, bytes: &[u8]) -> Classification {
        let parsed = Layers::of(bytes);
        let (is_ip, layers) = (!matches!(parsed, Ok(None)), parsed.ok().flatten());
        // Links pad short frames, so look for a stamp before the packet's end according to the IP header. The
        // length in this header may be damaged, so also look at the end of the frame.
        let end = layers.map_or(bytes.len(), |layers| layers.end);
        for end in [end, bytes.len()] {
            if let Some(found) = self.compare(&bytes[..end], bytes.len()) {
                return found;
            }
        }
        match layers {
            _ if !is_ip => Classification::Foreign,
            Some(layers) if Traffic::is_foreign(bytes, &layers) => Classification::Foreign,
            _ => Classification::Unidentified,
        }
    }

    /// Returns the number of an altered packet and its first difference from the expected packet, as text. `stamp`
    /// is the packet's intact [`Stamp`].
    pub fn difference(&self, bytes: &[u8], stamp: Stamp) -> String {
        let (expected, verdict) = self.frame(stamp);
        let name = format!("packet {} of flow {}", stamp.sequence, stamp.flow);
        if !verdict.arrives_at(self.number) {
            return format!("{name} must not arrive at this port");
        }
        match bytes.iter().zip(&expected).position(|(found, wanted)| found != wanted) {
            Some(at) => {
                format!("byte {at} of {name} is 0x{:02x} instead of 0x{:02x}", bytes[at], expected[at])
            }
            None => format!("{name} has {} bytes instead of {}", bytes.len(), expected.len()),
        }
    }

    /// Builds the packet that the stamp at the end of `bytes` describes. Compares this packet with `bytes`.
    /// Returns `None` if the stamp is damaged.
    fn compare(&self, bytes: &[u8], frame_length: usize) -> Option<Classification> {
        let stamp = Stamp::from_bytes(bytes.last_chunk()?);
        if stamp.flow >= self.traffic.flows {
            return None;
        }
        if self.reference.is_none() {
            return self.is_intact(bytes, stamp).then_some(Classification::Correct(stamp));
        }
        let (expected, verdict) = self.frame(stamp);
        let wrongly_padded = frame_length > bytes.len() && frame_length > MIN_FRAME;
        if expected == bytes && verdict.arrives_at(self.number) && !wrongly_padded {
            return Some(Classification::Correct(stamp));
        }
        // A stamp is intact if its CRC is right. The CRC covers the payload. If the headers are damaged, the
        // start of the payload is uncertain, so this tries all possible starts.
        let intact = self.payload_starts(bytes).any(|start| bytes.get(start..).is_some_and(stamp::crc_ok));
        (intact || self.is_intact(bytes, stamp)).then_some(Classification::Altered(stamp))
    }

    /// Returns true if the payload that ends with `stamp` is as the generator sent it. The function may have changed the
    /// length of the headers, so the payload's place is counted from its end.
    fn is_intact(&self, bytes: &[u8], stamp: Stamp) -> bool {
        let size = self.traffic.sizes[self.traffic.size_index(stamp.sequence)];
        let payload = |headers: &FlowHeaders| size.checked_sub(self.traffic.header_length(*headers));
        let starts = self.traffic.headers.iter().filter_map(payload);
        let mut payloads = starts.filter_map(|length| bytes.get(bytes.len().checked_sub(length)?..));
        payloads.any(stamp::crc_ok)
    }

    /// Returns every offset at which the payload of a possibly damaged packet may begin.
    fn payload_starts(&self, bytes: &[u8]) -> impl Iterator<Item = usize> {
        let expected = self.traffic.headers.iter().map(|headers| self.traffic.header_length(*headers));
        let layers = Layers::of(bytes).ok().flatten();
        let own = layers.and_then(|layers| checksum_and_payload(bytes, &layers)).map(|(_, payload)| payload);
        expected.chain(own)
    }
}
