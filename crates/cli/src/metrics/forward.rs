//! The metrics of `inlane forward`.

use super::{Labels, Page};
use inlane_core::port::Counters;
use inlane_forward::PortCounters;
use inlane_forward::run::Reading;

/// Returns the page for a reading.
pub fn page(reading: &Reading) -> String {
    let mut page = Page::new();
    let each = |value: fn(&Counters) -> u64| {
        let of = move |port: &PortCounters| {
            let sample = |direction: &'static str, counters: Option<Counters>| {
                counters.map(|counters| (labels(&port.port, direction), value(&counters)))
            };
            [sample("rx", port.rx), sample("tx", port.tx)]
        };
        reading.ports.iter().flat_map(of).flatten().collect::<Vec<_>>()
    };
    page.counter(
        "forward_packets",
        "Packets received from a port, or sent to it",
        each(|counters| counters.packets),
    );
    page.counter("forward_bytes", "Bytes of these packets, without FCS", each(|counters| counters.bytes));
    page.counter(
        "forward_missed_packets",
        "Packets that were lost at a port because no buffer was free or nobody received them in time",
        each(|counters| counters.missed),
    );
    page.counter(
        "forward_error_packets",
        "Packets that a port refused, that were malformed, or that were lost with the port",
        each(|counters| counters.errors),
    );
    let counts = &reading.counts;
    page.counter(
        "forward_dropped_packets",
        "Packets dropped by the packet function, or because a ring or port was full",
        [(Labels::new(), counts.dropped)],
    );
    page.seconds("forward_busy", "Time in which the threads had work", [(Labels::new(), counts.busy_ns)]);
    page.seconds(
        "forward_blocked",
        "Time in which the threads waited for a full port",
        [(Labels::new(), counts.blocked_ns)],
    );
    page.seconds("forward_cpu", "Processor time of the threads", [(Labels::new(), counts.on_cpu_ns)]);
    page.text()
}

fn labels(port: &str, direction: &str) -> Labels {
    vec![("port", port.to_owned()), ("direction", direction.to_owned())]
}
