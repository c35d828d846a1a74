//! Ports over AF_XDP for interfaces that count receive and transmit queues separately, as veth does. DPDK's
//! driver counts only pairs of queues, so it finds one queue there. This module opens one device for each
//! queue and combines the devices into one port.

use super::EthPort;
use crate::error::{Error, Result};
use crate::spec::EthSpec;
use inlane_core::packet::Pool;
use inlane_core::port::{Counters, Port, PortInfo, Rx, Tx};
use std::os::fd::RawFd;
use std::sync::Arc;

/// An AF_XDP port of several queues. Each queue is a separate device.
pub(super) struct XdpQueues {
    spec: EthSpec,
    info: PortInfo,
    /// One device for each queue. The first device is opened with the port. The others are opened once the
    /// number of queues is known.
    devices: Vec<EthPort>,
}

impl XdpQueues {
    /// Creates a port that can have up to `queues` queues. `first` is the device for queue 0.
    pub(super) fn new(spec: EthSpec, first: EthPort, queues: u16) -> Self {
        let info = PortInfo { max_queues: queues, spreads_flows: true, ..first.info().clone() };
        Self { spec, info, devices: vec![first] }
    }

    fn device(&mut self, queue: u16) -> Result<&mut EthPort> {
        let why = format!("queue {queue} was not configured");
        self.devices.get_mut(queue as usize).ok_or_else(|| Error::Usage { port: self.info.name.clone(), why })
    }
}

impl Port for XdpQueues {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn wait_descriptors(&self) -> Vec<RawFd> {
        self.devices.iter().flat_map(|device| device.wait_descriptors()).collect()
    }

    fn configure(&mut self, pools: &[Arc<dyn Pool>], tx_queues: u16) -> inlane_core::Result<()> {
        let queues = pools.len().max(tx_queues as usize);
        if queues > self.info.max_queues as usize || queues == 0 {
            let why = format!("{queues} queues were requested; give 1 to {}", self.info.max_queues);
            return Err(Error::Usage { port: self.info.name.clone(), why }.into());
        }
        self.spec.check_all_are_read(pools.len(), self.info.max_queues)?;
        for queue in self.devices.len()..queues {
            self.devices.push(EthPort::new(self.spec.of_queue(queue as u16))?);
        }
        for (queue, device) in self.devices.iter_mut().enumerate() {
            let pool = pools.get(queue).map(std::slice::from_ref).unwrap_or_default();
            device.configure(pool, u16::from(queue < tx_queues as usize))?;
        }
        Ok(())
    }

    fn take_rx(&mut self, queue: u16) -> inlane_core::Result<Box<dyn Rx>> {
        self.device(queue)?.take_rx(0)
    }

    fn take_tx(&mut self, queue: u16, pool: Arc<dyn Pool>) -> inlane_core::Result<Box<dyn Tx>> {
        self.device(queue)?.take_tx(0, pool)
    }

    fn start(&mut self) -> inlane_core::Result<()> {
        self.devices.iter_mut().try_for_each(Port::start)
    }

    fn stop(&mut self) {
        self.devices.iter_mut().for_each(Port::stop);
    }

    fn device_counters(&self) -> Counters {
        let mut sum = Counters::default();
        self.devices.iter().for_each(|device| sum += device.device_counters());
        sum
    }
}
