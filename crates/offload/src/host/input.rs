//! Hands received packets to the stack, and does what the stack cannot do itself: creates the pairs of new connections, writes
//! datagrams to pairs, and passes packets to other threads.

use super::Engine;
use super::shared::Task;
use crate::stack::outcome::Outcome;
use crate::stack::outcome::Refusal;
use crate::stack::packet::Arrival;

impl Engine {
    /// Processes a frame from the port.
    #[inline]
    pub(crate) fn on_frame(&mut self, now: u64, bytes: &[u8]) {
        match self.stack.on_frame(now, bytes) {
            Outcome::Done => {}
            outcome => self.on_outcome(now, outcome),
        }
    }

    /// Processes an IP packet that this engine has sent to itself, or that another thread has received.
    #[inline]
    pub(super) fn on_ip(&mut self, now: u64, bytes: &[u8], arrival: Arrival) {
        match self.stack.on_ip(now, bytes, arrival) {
            Outcome::Done => {}
            outcome => self.on_outcome(now, outcome),
        }
    }

    fn on_outcome(&mut self, now: u64, outcome: Outcome<'_>) {
        match outcome {
            Outcome::Done => {}
            Outcome::Pass { to, bytes, arrival } => self.pass(to, bytes, arrival),
            Outcome::Move { key, to, bytes, arrival } => self.move_socket(key, to, bytes, arrival),
            Outcome::Await { bytes, arrival } => {
                self.take_moved_sockets(now);
                self.on_ip(now, bytes, Arrival { awaited: true, ..arrival });
            }
            Outcome::Count { listener, bytes, arrival } => {
                self.count_waiting(listener);
                self.on_ip(now, bytes, Arrival { counted: true, ..arrival });
            }
            Outcome::Reassembled(packet) => {
                let outcome = self.stack.on_reassembled(now, &packet);
                self.on_outcome(now, outcome);
            }
            Outcome::Established(established) => {
                self.establish(now, &established);
                if established.reopens {
                    self.stack.end_time_wait(&established.flow);
                }
            }
            Outcome::Accepted { listener, flow, id, segment_size } => {
                self.establish_on_card(now, listener, flow, (id, segment_size));
            }
            Outcome::CountForCard { listener } => {
                self.count_waiting(listener);
                self.stack.tell_waiting(listener);
            }
            Outcome::Datagram(datagram) => self.on_datagram(now, &datagram),
            Outcome::Unreachable { key, refusal } => {
                let error = match refusal {
                    Refusal::Port => libc::ECONNREFUSED,
                    Refusal::Protocol => libc::ENOPROTOOPT,
                    Refusal::Prohibited => libc::EACCES,
                };
                self.report_error(key, error);
            }
            Outcome::Heard(heard) => self.spread_neighbour(now, &heard),
        }
    }

    /// Makes a flow this thread's. Returns false if another thread has a connection of it.
    pub(super) fn claim_flow(&mut self, flow: inlane_tcp::Flow, key: crate::stack::arena::Key) -> bool {
        use crate::stack::owners::Claim;
        match self.stack.claim_flow(flow, key) {
            Claim::Free => true,
            Claim::TakenFrom(thread) => {
                self.shared.iter().for_each(|shared| shared.give(thread, Task::Forget(flow)));
                true
            }
            Claim::Refused => false,
        }
    }
}
