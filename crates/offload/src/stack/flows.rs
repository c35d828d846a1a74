//! The connections of one thread of the engine, by their flows.

use crate::stack::arena::Key;
use inlane_tcp::Flow;
use std::collections::HashMap;

/// A table of connections. A search for the same flow as before takes no hash, because segments of one
/// connection often arrive one after another.
#[derive(Default)]
pub struct Flows {
    keys: HashMap<Flow, Key>,
    /// The flow and the key that the last successful search has returned. `keys` contains this entry.
    last: Option<(Flow, Key)>,
}

impl Flows {
    /// Returns the connection of `flow`, or `None` if there is none.
    #[inline]
    pub fn find(&mut self, flow: &Flow) -> Option<Key> {
        if let Some((last, key)) = &self.last
            && last == flow
        {
            return Some(*key);
        }
        let key = *self.keys.get(flow)?;
        self.last = Some((*flow, key));
        Some(key)
    }

    /// Returns the flows that have a connection.
    pub fn iter(&self) -> impl Iterator<Item = &Flow> {
        self.keys.keys()
    }

    /// Returns true if `flow` has a connection.
    pub fn contains(&self, flow: &Flow) -> bool {
        self.keys.contains_key(flow)
    }

    /// Makes `key` the connection of `flow`. Replaces the flow's former connection, if there is one.
    pub fn insert(&mut self, flow: Flow, key: Key) {
        self.last = None;
        self.keys.insert(flow, key);
    }

    /// Removes the connection of `flow`.
    pub fn remove(&mut self, flow: &Flow) {
        self.last = None;
        self.keys.remove(flow);
    }

    /// Returns the flows that have a connection.
    #[cfg(test)]
    pub fn keys(&self) -> impl Iterator<Item = &Flow> {
        self.keys.keys()
    }

    /// Returns the number of connections.
    pub fn len(&self) -> usize {
        self.keys.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn equals_a_plain_table(steps in proptest::collection::vec((0u8..3, 0u16..4, 0u64..4), 1..60)) {
            let flow = |port| Flow { local: ([10, 0, 0, 1], 80).into(), remote: ([10, 0, 0, 2], port).into() };
            let (mut flows, mut plain) = (Flows::default(), HashMap::new());
            for (step, port, number) in steps {
                let (flow, key) = (flow(port), Key::from_u64(number));
                match step {
                    0 => {
                        flows.insert(flow, key);
                        plain.insert(flow, key);
                    }
                    1 => {
                        flows.remove(&flow);
                        plain.remove(&flow);
                    }
                    _ => prop_assert_eq!(flows.find(&flow), plain.get(&flow).copied()),
                }
                prop_assert_eq!(flows.contains(&flow), plain.contains_key(&flow));
                prop_assert_eq!(flows.len(), plain.len());
            }
        }
    }
}
