//! The metrics of `inlane nvme target`.

use super::{Labels, Page};
use inlane_nvme::target::{NamespaceResult, TargetResult};

/// Returns the page for the counters of a target.
pub fn page(target: &TargetResult) -> String {
    let mut page = Page::new();
    for (name, help, value) in [
        ("target_connections", "Accepted connections", target.connections),
        (
            "target_refused",
            "Refused connections and commands, failed authentications, and connections closed by a limit",
            target.refused,
        ),
        ("target_displaced_connections", "Connections closed to make room for others", target.displaced),
        (
            "target_protocol_violations",
            "Connections ended because the host violated the protocol",
            target.protocol_violations,
        ),
        ("target_data_digest_errors", "Received PDUs with a wrong data digest", target.data_digest_errors),
        ("target_controllers", "Controllers that hosts created", target.controllers),
        (
            "target_keep_alive_expirations",
            "Controllers that ended because their keep-alive timer expired",
            target.keep_alive_expirations,
        ),
    ] {
        page.counter(name, help, [(Labels::new(), value)]);
    }
    let label = |namespace: &NamespaceResult| vec![("namespace", namespace.id.to_string())];
    let by_command = |value: fn(&NamespaceResult) -> [(&'static str, u64); 2]| {
        let samples = move |namespace: &NamespaceResult| {
            let base = label(namespace);
            value(namespace).map(|(command, value)| {
                ([base.clone(), vec![("command", command.to_owned())]].concat(), value)
            })
        };
        target.namespaces.iter().flat_map(samples).collect::<Vec<_>>()
    };
    let mut commands = by_command(|it| [("read", it.reads), ("write", it.writes)]);
    commands.extend(by_command(|it| [("flush", it.flushes), ("other", it.other_commands)]));
    page.counter("target_commands", "Successful commands", commands);
    let bytes = by_command(|it| [("read", it.read_bytes), ("write", it.written_bytes)]);
    page.counter("target_bytes", "Bytes that successful commands read and wrote", bytes);
    let errors = target.namespaces.iter().map(|it| (label(it), it.errors));
    page.counter("target_failed_commands", "Commands that ended with an error status", errors);
    let sizes = target.namespaces.iter().map(|it| (label(it), it.size_bytes as f64));
    page.gauge("target_namespace_size_bytes", "The size of a namespace", sizes);
    page.text()
}
