//! The metrics of `inlane offload serve`.

use super::{Labels, Page};
use inlane_offload::status::EngineStatus;

/// Returns the page for the state of an engine.
pub fn page(engine: &EngineStatus) -> String {
    let mut page = Page::new();
    let one = |value: u64| [(Labels::new(), value)];
    page.gauge(
        "engine_uptime_seconds",
        "Time since the engine started",
        [(Labels::new(), engine.uptime_ns as f64 / 1e9)],
    );
    page.seconds("engine_cpu", "Processor time of the engine", one(engine.cpu_ns));
    page.gauge(
        "engine_open_sockets",
        "Sockets that the engine runs now",
        [(Labels::new(), engine.sockets.len() as f64)],
    );
    let link = &engine.link;
    let both = |rx: u64, tx: u64| {
        let label = |direction: &str| vec![("direction", direction.to_owned())];
        [(label("rx"), rx), (label("tx"), tx)]
    };
    page.counter("engine_link_packets", "Frames of the port", both(link.received_packets, link.sent_packets));
    page.counter(
        "engine_link_bytes",
        "Bytes of frames of the port",
        both(link.received_bytes, link.sent_bytes),
    );
    page.counter(
        "engine_malformed_packets",
        "Received packets with a malformed header or a wrong checksum",
        one(link.malformed),
    );
    page.counter("engine_dropped_packets", "Packets to send that were dropped", one(link.dropped));
    let connections = &engine.connections;
    let payload = both(connections.received_bytes, connections.sent_bytes);
    page.counter("engine_connection_bytes", "Payload of connections", payload);
    for (name, help, value) in [
        ("engine_sockets", "Sockets that were created", connections.sockets),
        ("engine_opened_connections", "Connections that programs opened", connections.connected),
        ("engine_accepted_connections", "Connections that listeners accepted", connections.accepted),
        ("engine_resets_sent", "Resets for segments without a connection", connections.resets_sent),
        (
            "engine_hostile_connections",
            "Connections reset because their program broke the protocol",
            connections.hostile,
        ),
        ("engine_kernel_sockets", "Sockets that stayed with the kernel", connections.kernel),
        ("engine_requests", "Requests of programs", connections.requests),
        ("engine_direct_bytes", "Payload that went through shared memory", connections.direct_bytes),
        ("engine_buffer_bytes", "Received payload placed into buffers of programs", connections.buffer_bytes),
        ("engine_retransmitted_bytes", "Payload that was retransmitted", connections.retransmitted_bytes),
    ] {
        page.counter(name, help, one(value));
    }
    let datagrams = &engine.datagrams.sockets;
    page.counter("engine_datagrams", "Datagrams of UDP sockets", both(datagrams.received, datagrams.sent));
    page.counter(
        "engine_datagram_bytes",
        "Payload of datagrams",
        both(datagrams.received_bytes, datagrams.sent_bytes),
    );
    page.counter(
        "engine_dropped_datagrams",
        "Datagrams dropped because a program's buffer was full",
        one(datagrams.dropped),
    );
    page.counter("engine_unsent_datagrams", "Datagrams that could not be sent", one(datagrams.unsent));
    let threads =
        engine.threads.iter().map(|thread| (vec![("thread", thread.thread.to_string())], thread.cpu_ns));
    page.seconds("engine_thread_cpu", "Processor time of each thread", threads);
    page.text()
}
