//! The state of `flow-count`, read: each flow that it counted. The other half of `functions/flow_count.cu`.

use crate::report::{FunctionReport, Table, u32_at, u64_at};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Where the table begins, and how far its places are apart.
const FLOWS: usize = 64;
const PLACE: usize = 64;

/// How many flows a report lists.
const LISTED: usize = 20;

/// A flow that `flow-count` counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Who sent.
    pub source: IpAddr,
    /// To whom.
    pub destination: IpAddr,
    /// What IP carried (6 TCP, 17 UDP).
    pub protocol: u8,
    /// Source port; 0 for protocols without, and fragments.
    pub source_port: u16,
    /// Destination port; 0 likewise.
    pub destination_port: u16,
    /// Its packets.
    pub packets: u64,
    /// Bytes of its frames.
    pub bytes: u64,
}

/// The flows in a state of `flow-count`, those with the most packets first.
pub fn flows(state: &[u8]) -> Vec<Flow> {
    let table = state.get(FLOWS..).unwrap_or_default();
    let mut flows: Vec<Flow> =
        table.chunks_exact(PLACE).filter(|place| u32_at(place, 0) > 1).map(flow).collect();
    flows.sort_by_key(|flow| {
        (std::cmp::Reverse(flow.packets), flow.source, flow.destination, flow.source_port)
    });
    flows
}

fn flow(place: &[u8]) -> Flow {
    let (kind, ports) = (u32_at(place, 4), u32_at(place, 8));
    let address = |at: usize| {
        let bytes: [u8; 16] = place[at..at + 16].try_into().expect("sixteen");
        match kind >> 8 {
            4 => IpAddr::V4(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3])),
            _ => IpAddr::V6(Ipv6Addr::from(bytes)),
        }
    };
    Flow {
        source: address(16),
        destination: address(32),
        protocol: kind as u8,
        source_port: (ports >> 16) as u16,
        destination_port: ports as u16,
        packets: u64_at(place, 48),
        bytes: u64_at(place, 56),
    }
}

pub(super) fn report(state: &[u8], _settings: &str) -> FunctionReport {
    let mut report = FunctionReport::from_numbers(state, 0, &["other_packets", "unplaced_packets"]);
    let flows = flows(state);
    let mut table = Table::new(
        format!("{} flows{}", flows.len(), if flows.len() > LISTED { ", the largest" } else { "" }),
        &["source", "destination", "protocol", "packets", "bytes"],
    );
    for flow in flows.iter().take(LISTED) {
        let end = |address: IpAddr, port: u16| match (address, port) {
            (address, 0) => address.to_string(),
            (IpAddr::V4(address), port) => format!("{address}:{port}"),
            (IpAddr::V6(address), port) => format!("[{address}]:{port}"),
        };
        let protocol = match flow.protocol {
            1 => "ICMP".into(),
            6 => "TCP".into(),
            17 => "UDP".into(),
            58 => "ICMPv6".into(),
            132 => "SCTP".into(),
            other => other.to_string(),
        };
        table.rows.push(vec![
            end(flow.source, flow.source_port),
            end(flow.destination, flow.destination_port),
            protocol,
            flow.packets.to_string(),
            flow.bytes.to_string(),
        ]);
    }
    report.counters.push(crate::report::Counter { name: "flows".into(), value: flows.len() as u64 });
    report.tables.push(table);
    report
}
