//! Reads the state of `flow-count`, whose packet processing is in `functions/flow_count.cu`.

use crate::report::{Counter, FunctionReport, Table, u32_at, u64_at};
use inlane_core::struct_layout;
use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// One place in the hash table of the function `flow-count`. The C++ source calls this struct `flow`.
#[repr(C, align(64))]
struct Place {
    tag: u32,
    protocol: u32,
    ports: u32,
    reserved: u32,
    source: [u8; 16],
    destination: [u8; 16],
    packets: u64,
    bytes: u64,
}

/// The state of `flow-count`. The C++ source calls this struct `flow_count`.
#[repr(C)]
struct State {
    others: u64,
    unplaced: u64,
    flows: [Place; 65536],
}

/// The largest number of flows that a report lists.
const LISTED: usize = 20;

/// A flow that `flow-count` counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The sender's address.
    pub source: IpAddr,
    /// The receiver's address.
    pub destination: IpAddr,
    /// The number of the protocol that IP carries, for example 6 for TCP and 17 for UDP.
    pub protocol: u8,
    /// The source port. 0 for fragments and for protocols without ports.
    pub source_port: u16,
    /// The destination port. 0 for fragments and for protocols without ports.
    pub destination_port: u16,
    /// The number of packets of the flow.
    pub packets: u64,
    /// The total size of the flow's frames in bytes.
    pub bytes: u64,
}

/// Returns the flows in a state of `flow-count`, in descending order of packets.
pub fn flows(state: &[u8]) -> Vec<Flow> {
    let table = state.get(offset_of!(State, flows)..).unwrap_or_default();
    // List only places of the flow table with a tag above 1. Tag 0 marks a free place. Tag 1 marks a place
    // that a thread had not finished filling.
    let used =
        table.chunks_exact(size_of::<Place>()).filter(|place| u32_at(place, offset_of!(Place, tag)) > 1);
    let mut flows: Vec<Flow> = used.map(flow).collect();
    flows.sort_by_key(|flow| {
        (std::cmp::Reverse(flow.packets), flow.source, flow.destination, flow.source_port)
    });
    flows
}

fn flow(place: &[u8]) -> Flow {
    let protocol = u32_at(place, offset_of!(Place, protocol));
    let ports = u32_at(place, offset_of!(Place, ports));
    let address = |at: usize| {
        let bytes: [u8; 16] = place[at..at + 16].try_into().expect("16 bytes");
        match protocol >> 8 {
            4 => IpAddr::V4(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3])),
            _ => IpAddr::V6(Ipv6Addr::from(bytes)),
        }
    };
    Flow {
        source: address(offset_of!(Place, source)),
        destination: address(offset_of!(Place, destination)),
        protocol: protocol as u8,
        source_port: (ports >> 16) as u16,
        destination_port: ports as u16,
        packets: u64_at(place, offset_of!(Place, packets)),
        bytes: u64_at(place, offset_of!(Place, bytes)),
    }
}

/// Returns C++ text that asserts the layout of the state.
pub(super) fn layout() -> String {
    let place = struct_layout!(Place as "flow" { tag, protocol, ports, reserved, source, destination, packets, bytes });
    place + &struct_layout!(State as "flow_count" { others, unplaced, flows })
}

pub(super) fn report(state: &[u8], _settings: &str) -> FunctionReport {
    let mut report = FunctionReport::from_numbers(state, 0, &["other_packets", "unplaced_packets"]);
    let flows = flows(state);
    let mut table = Table::new(
        format!("{} flows{}", flows.len(), if flows.len() > LISTED { ", the largest" } else { "" }),
        &["source", "destination", "protocol", "packets", "bytes"],
    );
    for flow in flows.iter().take(LISTED) {
        let endpoint = |address: IpAddr, port: u16| match (address, port) {
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
            endpoint(flow.source, flow.source_port),
            endpoint(flow.destination, flow.destination_port),
            protocol,
            flow.packets.to_string(),
            flow.bytes.to_string(),
        ]);
    }
    report.counters.push(Counter { name: "flows".into(), value: flows.len() as u64 });
    report.tables.push(table);
    report
}
