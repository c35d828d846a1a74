//! Lists the directions in which a run forwards packets, and creates the pipelines for these directions.

use super::wrappers::Wrappers;
use crate::config::{Config, Route};
use crate::error::{Error, Result};
use crate::field;
use crate::pipeline::Pipeline;
use inlane_core::{Pool, Port, units};
use inlane_ports::spec::{Kind, PortSpec};
use inlane_ports::wrap::fault;
use std::sync::Arc;

/// One direction of a run. Holds the index of the port to receive from, and the indices of the ports to send
/// to.
pub(super) struct Direction {
    pub(super) rx: usize,
    pub(super) tx: Vec<usize>,
}

/// Lists the ports of a route, and its directions. If the route names a port twice and one open port can
/// serve both directions, the port is listed once.
///
/// # Errors
/// [`Error::Config`] if two specifications of the same ring have different options.
pub(super) fn directions(route: &Route) -> Result<(Vec<PortSpec>, Vec<Direction>)> {
    let mut ports: Vec<PortSpec> = Vec::new();
    // A route may name the same ring twice, with the options at only one of the names. So compare rings without
    // their options.
    let is_ring = |port: &PortSpec| port.kind() == Kind::Ring;
    let has_options = |port: &PortSpec| port.text() != port.without_options();
    let same_ring =
        |a: &PortSpec, b: &PortSpec| is_ring(a) && is_ring(b) && a.without_options() == b.without_options();
    let mut index = |port: &PortSpec| {
        if port.is_shared()
            && let Some(found) = ports.iter().position(|known| known == port || same_ring(known, port))
        {
            if !has_options(&ports[found]) {
                ports[found] = port.clone();
            }
            return found;
        }
        ports.push(port.clone());
        ports.len() - 1
    };
    let directions = match route {
        Route::OneWay { rx, tx } => {
            vec![Direction { rx: index(rx), tx: tx.iter().map(&mut index).collect() }]
        }
        Route::Between(a, b) => {
            let (a, b) = (index(a), index(b));
            vec![Direction { rx: a, tx: vec![b] }, Direction { rx: b, tx: vec![a] }]
        }
    };
    for port in route.ports().into_iter().filter(|port| has_options(port)) {
        if let Some(other) = ports.iter().find(|known| *known != port && same_ring(known, port)) {
            let why = format!("names the same ring as {other} with other options; give options once");
            return Err(Error::config(format!("port {port}"), why));
        }
    }
    Ok((ports, directions))
}

/// Configures every port with the queues that its directions need. Creates the pipelines of each direction.
///
/// # Errors
/// If a port lacks queues, or a wrapper (faults, pacing, a capture) cannot be put around a queue.
pub(super) fn connect(
    config: &Config,
    ports: &mut [Box<dyn Port>],
    pools: &[Vec<Arc<dyn Pool>>],
    directions: &[Direction],
    wrappers: &Wrappers,
) -> Result<(Vec<Pipeline>, Vec<Arc<fault::FaultCounts>>)> {
    let queues = config.pipelines;
    for (index, port) in ports.iter_mut().enumerate() {
        let receives = directions.iter().position(|direction| direction.rx == index);
        let sends: usize = directions.iter().map(|d| d.tx.iter().filter(|&&tx| tx == index).count()).sum();
        if queues > port.info().max_queues {
            let most = port.info().max_queues;
            let queues_of_port = units::counted(most.into(), "queue");
            let why = format!("{} has {queues_of_port}; give at most {most}", port.info().name);
            return Err(Error::config(field::PIPELINES.with(queues), why));
        }
        if queues > 1 && receives.is_some() && !port.info().spreads_flows {
            tracing::warn!("port {} does not spread flows over queues", port.info().name);
        }
        let pools: &[_] = receives.map_or(&[], |direction| &pools[direction]);
        port.configure(pools, queues * sends as u16)?;
    }
    let (mut pipelines, mut faults) = (Vec::new(), Vec::new());
    let mut next_tx = vec![0u16; ports.len()];
    let shares = [1.0 / f64::from(queues), 1.0 / f64::from(queues) / directions.len() as f64];
    for (direction, pools) in directions.iter().zip(pools) {
        for (queue, pool) in pools.iter().enumerate() {
            let rx = ports[direction.rx].take_rx(queue as u16)?;
            let rx = wrappers.rx(rx, pool, shares, &mut faults)?;
            let mut txs = Vec::new();
            for &tx in &direction.tx {
                txs.push(wrappers.tx(ports[tx].take_tx(next_tx[tx], pool.clone())?, pool)?);
                next_tx[tx] += 1;
            }
            pipelines.push(Pipeline { rx, txs, pool: pool.clone(), instances: Vec::new() });
        }
    }
    Ok((pipelines, faults))
}
