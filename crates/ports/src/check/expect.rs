//! What each packet of known traffic has to look like behind a packet function.

use super::reference::{Fate, Reference};
use crate::generate::Traffic;
use crate::generate::stamp::{self, Stamp};
use crate::generate::template::Template;
use crate::generate::traffic::checksum_and_payload;
use inlane_wire::Layers;
use std::sync::Arc;

/// The expectation of one run, shared by a checker's queues.
pub struct Expectation {
    traffic: Arc<Traffic>,
    body: Vec<u8>,
    reference: Box<dyn Reference>,
    /// The port's number in verdicts.
    number: u16,
    /// By flow, then by size; empty where packets must be rebuilt one by one.
    templates: Vec<Template>,
    /// Which of the same do not arrive.
    dropped: Vec<bool>,
}

/// What a packet turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// As it has to be.
    Right(Stamp),
    /// One of ours, which it says itself, but not as it has to be.
    Altered(Stamp),
    /// One of ours, so changed that it cannot say which.
    Unreadable,
    /// Other traffic of the link.
    Foreign,
}

impl Expectation {
    /// What `reference` makes of `traffic`.
    pub fn new(traffic: Arc<Traffic>, reference: Box<dyn Reference>, number: u16) -> Self {
        let mut expectation = Self {
            body: traffic.body(),
            traffic,
            reference,
            number,
            templates: Vec::new(),
            dropped: Vec::new(),
        };
        let cases = expectation.traffic.flows as usize * expectation.traffic.sizes.len();
        let mut templates = Vec::with_capacity(cases);
        for flow in 0..expectation.traffic.flows {
            for index in 0..expectation.traffic.sizes.len() {
                let stamp = Stamp { flow, number: index as u32, due_ns: 0 };
                let (frame, fate) = expectation.frame(stamp);
                expectation.dropped.push(!fate.arrives_at(number));
                templates.extend(
                    Template::of(&frame)
                        .map(|template| if fate.arrives_at(number) { template } else { template.dropped() }),
                );
            }
        }
        // A reference that leaves no stamp at the end, or no right checksum, is checked packet by packet.
        if templates.len() == cases && !expectation.reference.sees_payload() {
            expectation.templates = templates;
        }
        expectation
    }

    /// The traffic.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// What results call the check.
    pub fn method(&self) -> String {
        format!("every packet against a reference {}", self.reference.name())
    }

    /// How many of `sent` packets of `flow` are not to arrive.
    pub fn dropped_of(&self, flow: u32, sent: u64) -> u64 {
        let sizes = self.traffic.sizes.len();
        let flow = &self.dropped[flow as usize * sizes..][..sizes];
        let whole = flow.iter().filter(|dropped| **dropped).count() as u64;
        let part = flow[..(sent % sizes as u64) as usize].iter().filter(|dropped| **dropped).count() as u64;
        sent / sizes as u64 * whole + part
    }

    /// The packet of `stamp` is not to arrive.
    pub fn is_dropped(&self, stamp: Stamp) -> bool {
        let size = self.traffic.size_index(stamp.number);
        self.dropped[stamp.flow as usize * self.traffic.sizes.len() + size]
    }

    /// The packet of `stamp` as it has to arrive.
    fn frame(&self, stamp: Stamp) -> (Vec<u8>, Fate) {
        let size = self.traffic.sizes[self.traffic.size_index(stamp.number)];
        let mut frame = self.traffic.frame(size, stamp, &self.body);
        let fate = self.reference.apply(&mut frame);
        (frame, fate)
    }

    /// Looks at a packet of one segment; `None` when it takes [`Expectation::look_closely`] to tell.
    #[inline(always)]
    pub fn look(&self, bytes: &[u8]) -> Option<Found> {
        let last = bytes.last_chunk::<{ stamp::BYTES }>()?;
        let stamp = Stamp::from_bytes(last);
        if stamp.flow >= self.traffic.flows {
            return None;
        }
        let index = stamp.flow as usize * self.traffic.sizes.len() + self.traffic.size_index(stamp.number);
        let template = self.templates.get(index)?;
        let right = !template.is_dropped() && template.matches(bytes, &self.body, stamp);
        right.then_some(Found::Right(stamp))
    }

    /// Looks at a whole packet, however it is broken.
    pub fn look_closely(&self, bytes: &[u8]) -> Found {
        // Links pad short frames: what counts ends where IP says so.
        let layers = Layers::of(bytes);
        if let Ok(None) = layers {
            return Found::Foreign;
        }
        let layers = layers.ok().flatten();
        let end = layers.map_or(bytes.len(), |layers| layers.end);
        // The stamp is where it was put, at the end; a length that was altered hides it.
        for end in [end, bytes.len()] {
            if let Some(found) = self.compare(&bytes[..end], bytes.len()) {
                return found;
            }
        }
        match layers {
            Some(layers) if Traffic::is_foreign(bytes, &layers) => Found::Foreign,
            _ => Found::Unreadable,
        }
    }

    fn compare(&self, bytes: &[u8], length: usize) -> Option<Found> {
        let stamp = Stamp::from_bytes(bytes.last_chunk()?);
        if stamp.flow >= self.traffic.flows {
            return None;
        }
        let (expected, fate) = self.frame(stamp);
        let padded = length > bytes.len() && length > 60;
        if expected == bytes && fate.arrives_at(self.number) && !padded {
            return Some(Found::Right(stamp));
        }
        // Headers differ: believe the stamp where its checksum holds, which covers all of the payload.
        let believed = self.payload_starts(bytes).any(|start| bytes.get(start..).is_some_and(stamp::crc_ok));
        believed.then_some(Found::Altered(stamp))
    }

    /// Where the payload of a packet may begin: by the headers that each kind of flow has, and by those that it carries.
    fn payload_starts(&self, bytes: &[u8]) -> impl Iterator<Item = usize> {
        let own = self.traffic.kinds.iter().map(|kind| self.traffic.headers(*kind));
        let layers = Layers::of(bytes).ok().flatten();
        let carried =
            layers.and_then(|layers| checksum_and_payload(bytes, &layers)).map(|(_, payload)| payload);
        own.chain(carried)
    }
}
