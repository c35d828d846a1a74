//! The counters of each port while a run goes on.
//!
//! Each thread publishes the counters of its queues when it publishes its meter. A thread of its own asks devices for packets
//! that are in no queue's counters, such as those that a card missed.

use inlane_core::Port;
use inlane_core::port::Counters;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// The time between two questions to a device.
const ASK_EVERY: Duration = Duration::from_millis(200);

/// The counters of a port up to a moment of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortCounters {
    /// The port, as the user wrote it.
    pub port: String,
    /// What the run received from the port, and what was lost before. `None` if the run only sends to it.
    pub rx: Option<Counters>,
    /// What the run sent to the port. `None` if the run only receives from it.
    pub tx: Option<Counters>,
}

/// Counters that one thread writes and others read.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct PublishedCounters([AtomicU64; 4]);

impl PublishedCounters {
    /// Publishes the totals. Only one thread calls it.
    pub fn set(&self, Counters { packets, bytes, missed, errors }: Counters) {
        for (place, value) in self.0.iter().zip([packets, bytes, missed, errors]) {
            place.store(value, Relaxed);
        }
    }

    fn get(&self) -> Counters {
        let [packets, bytes, missed, errors] = self.0.each_ref().map(|place| place.load(Relaxed));
        Counters { packets, bytes, missed, errors }
    }
}

/// The counters of one pipeline's queues.
#[derive(Debug, Default)]
pub(crate) struct QueueCounters {
    pub rx: PublishedCounters,
    /// One for each transmit queue.
    pub txs: Vec<PublishedCounters>,
}

/// The counters of all ports of a run.
#[derive(Debug)]
pub(crate) struct RunCounters {
    /// The names of the ports, and what their devices count.
    ports: Vec<(String, PublishedCounters)>,
    /// Each pipeline with the indices of the ports that it receives from and sends to.
    pipelines: Vec<(usize, Vec<usize>, QueueCounters)>,
}

impl RunCounters {
    /// Creates counters for ports and for pipelines. A pipeline is given by the indices of its ports.
    pub fn new(ports: Vec<String>, pipelines: impl Iterator<Item = (usize, Vec<usize>)>) -> Self {
        let pipelines = pipelines.map(|(rx, txs)| {
            let queues = QueueCounters {
                txs: txs.iter().map(|_| PublishedCounters::default()).collect(),
                ..Default::default()
            };
            (rx, txs, queues)
        });
        Self {
            pipelines: pipelines.collect(),
            ports: ports.into_iter().map(|port| (port, PublishedCounters::default())).collect(),
        }
    }

    /// Returns the counters of the pipeline with this number.
    pub fn of_pipeline(&self, index: usize) -> &QueueCounters {
        &self.pipelines[index].2
    }

    /// Asks the devices of `ports` again and again, until the sender of `ended` is dropped.
    pub fn ask_devices(&self, ports: &[Box<dyn Port>], ended: &Receiver<()>) {
        loop {
            for (port, (_, counters)) in ports.iter().zip(&self.ports) {
                counters.set(port.device_counters());
            }
            if ended.recv_timeout(ASK_EVERY) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }

    /// Reads the counters of all ports.
    pub fn read(&self) -> Vec<PortCounters> {
        let port = |(index, (name, device)): (usize, &(String, PublishedCounters))| {
            let (mut rx, mut tx) = (None::<Counters>, None::<Counters>);
            for (from, to, queues) in &self.pipelines {
                if *from == index {
                    *rx.get_or_insert_default() += queues.rx.get();
                }
                for (_, queue) in to.iter().zip(&queues.txs).filter(|(to, _)| **to == index) {
                    *tx.get_or_insert_default() += queue.get();
                }
            }
            if let Some(rx) = &mut rx {
                *rx += device.get();
            }
            PortCounters { port: name.clone(), rx, tx }
        };
        self.ports.iter().enumerate().map(port).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_summed_by_port_and_direction() {
        let names = ["a", "b"].map(String::from).to_vec();
        // Two pipelines in each direction between a and b.
        let counters = RunCounters::new(
            names,
            [(0, 1), (0, 1), (1, 0), (1, 0)].map(|(rx, tx)| (rx, vec![tx])).into_iter(),
        );
        let count = |packets| Counters { packets, bytes: packets * 64, missed: 1, errors: 0 };
        for index in 0..4 {
            let queues = counters.of_pipeline(index);
            queues.rx.set(count(10 * (index as u64 + 1)));
            queues.txs[0].set(count(index as u64 + 1));
        }
        counters.ports[1].1.set(Counters { missed: 18_341, ..Counters::default() });
        let [a, b] = &counters.read()[..] else { panic!("two ports") };
        assert_eq!((a.port.as_str(), a.rx.unwrap().packets, a.tx.unwrap().packets), ("a", 30, 7));
        assert_eq!((a.rx.unwrap().missed, b.rx.unwrap().missed), (2, 18_343));
        assert_eq!((b.rx.unwrap().packets, b.tx.unwrap().bytes), (70, 3 * 64));
    }

    #[test]
    fn a_port_has_only_the_directions_of_the_run() {
        let names = ["from", "one", "two"].map(String::from).to_vec();
        let counters = RunCounters::new(names, std::iter::once((0, vec![1, 2])));
        counters.of_pipeline(0).txs[1].set(Counters { packets: 5, ..Counters::default() });
        let read = counters.read();
        assert!(read[0].rx.is_some() && read[0].tx.is_none() && read[1].rx.is_none());
        assert_eq!((read[1].tx.unwrap().packets, read[2].tx.unwrap().packets), (0, 5));
    }
}
