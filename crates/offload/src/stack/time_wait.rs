//! The flows in TIME-WAIT.

use inlane_tcp::{Flow, TimeWait};
use std::collections::{HashMap, VecDeque};

/// The most flows in TIME-WAIT. If there are more, the oldest is forgotten.
const MOST: usize = 65536;

/// The TIME-WAIT entries of one thread's flows.
#[derive(Default)]
pub struct TimeWaits {
    entries: HashMap<Flow, TimeWait>,
    /// The flows by the end of their TIME-WAIT, the earliest first. The entry of a flow may since have been removed or
    /// prolonged.
    order: VecDeque<(u64, Flow)>,
}

impl TimeWaits {
    /// Adds the entry of a flow.
    pub fn insert(&mut self, flow: Flow, entry: TimeWait) {
        self.entries.insert(flow, entry);
        self.order.push_back((entry.until(), flow));
    }

    /// Returns the entry of a flow for writing.
    #[inline]
    pub fn get_mut(&mut self, flow: &Flow) -> Option<&mut TimeWait> {
        self.entries.get_mut(flow)
    }

    /// Returns true if the flow is in TIME-WAIT.
    pub fn contains(&self, flow: &Flow) -> bool {
        self.entries.contains_key(flow)
    }

    /// Removes the entry of a flow.
    pub fn remove(&mut self, flow: &Flow) {
        self.entries.remove(flow);
    }

    /// Removes the next entry whose time has passed, or the oldest one if there are too many. Returns its flow, or `None`
    /// if there is none.
    pub fn expire(&mut self, now: u64) -> Option<Flow> {
        while let Some(&(until, flow)) = self.order.front()
            && (until <= now || self.order.len() > MOST)
        {
            self.order.pop_front();
            match self.entries.get(&flow).map(TimeWait::until) {
                // A retransmitted FIN has restarted this flow's TIME-WAIT timer. Move the flow to the end of
                // the queue.
                Some(later) if later > now && later > until => self.order.push_back((later, flow)),
                _ if self.entries.remove(&flow).is_some() => return Some(flow),
                _ => {}
            }
        }
        None
    }

    /// Returns the time at which the next entry may end, in nanoseconds.
    pub fn next_timer(&self) -> Option<u64> {
        self.order.front().map(|entry| entry.0)
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the flows and their entries.
    pub fn iter(&self) -> impl Iterator<Item = (&Flow, &TimeWait)> {
        self.entries.iter()
    }
}
