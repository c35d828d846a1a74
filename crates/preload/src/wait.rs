//! Waits for events of offloaded sockets in epoll_wait, poll and select.
//!
//! A thread first polls, and then sleeps ([`polling`](crate::polling)). While it polls, the kernel alone decides which events
//! there are. Therefore all of its rules hold, such as those of edge-triggered and one-shot registrations.

mod epoll;
mod failed;
mod poll;
mod select;

pub use epoll::epoll;
pub use failed::report_events;
pub use poll::{poll, ppoll};
pub use select::{Sets, pselect, select};

/// The most descriptors for which a thread polls before it sleeps in poll(2) or select(2). With more
/// descriptors, each polling call takes too long.
const MOST_POLLED: usize = 64;
