//! The numbers of resources and flows.

/// The number of a resource in its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceId(pub(crate) usize);

/// The number of a flow in its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub(crate) usize);

impl ResourceId {
    /// Returns the index of the resource in [`crate::Solution::resources`].
    pub fn index(self) -> usize {
        self.0
    }
}

impl FlowId {
    /// Returns the index of the flow in [`crate::Solution::flows`].
    pub fn index(self) -> usize {
        self.0
    }
}
