//! Setting a device up: what it is asked for, its queues, frames that it or the buffers cannot hold.

use super::EthPort;
use crate::error::Result;
use crate::spec::Kind;
use crate::{MbufPool, device, dma, sys, xdp_sockets};
use inlane_core::packet::Pool;
use std::sync::Arc;

/// Receive and send descriptors of a queue when the user asks for none: what testpmd takes, or the device's own.
const DESCRIPTORS: u16 = 1024;

/// Bytes of a buffer that fits a page of memory with what DPDK puts in front of it.
const MOST_XDP_ROOM: usize = 3584;

impl EthPort {
    /// [`Self::configure_device`], and which sockets its driver opened.
    pub(super) fn configure_and_watch(&mut self, filled: Vec<Arc<MbufPool>>, queues: u16) -> Result<()> {
        if !self.shared.forgets {
            return self.configure_device(filled, queues);
        }
        let watch = xdp_sockets::Watch::begin();
        let outcome = self.configure_device(filled, queues);
        self.sockets = watch.end();
        outcome
    }

    /// As many queues each way: some drivers know pairs only.
    pub(super) fn configure_device(&mut self, filled: Vec<Arc<MbufPool>>, queues: u16) -> Result<()> {
        let mut configuration = sys::rte_eth_conf::default();
        if queues > 1 && self.limits.flow_type_rss_offloads != 0 {
            configuration.rxmode.mq_mode = sys::RTE_ETH_MQ_RX_RSS;
            configuration.rx_adv_conf.rss_conf.rss_hf =
                self.limits.flow_type_rss_offloads & sys::INLANE_RSS_FLOWS;
        }
        self.check_frames_fit(&filled)?;
        // memif's driver has a limit of its own, which it does not keep to.
        if let (Some(mtu), false) = (self.spec.mtu, matches!(self.spec.kind, Kind::Memif { .. })) {
            configuration.rxmode.mtu = mtu.into();
        }
        let frame = self.spec.mtu.map_or(1500, u32::from) + 18;
        let scatter = sys::INLANE_RX_SCATTER;
        if filled.iter().any(|pool| (pool.room() as u32) < frame)
            && self.limits.rx_offload_capa & scatter != 0
        {
            configuration.rxmode.offloads |= scatter;
        }
        // Packets of several segments go out whole wherever the device can.
        configuration.txmode.offloads |= self.limits.tx_offload_capa & sys::INLANE_TX_MULTI_SEGS;
        self.call("configuring the device", |port| {
            // SAFETY: the structure is read during the call.
            unsafe { sys::rte_eth_dev_configure(port, queues, queues, &configuration) }
        })?;
        let (mut rx_descriptors, mut tx_descriptors) =
            (self.spec.descriptors.unwrap_or(DESCRIPTORS), self.spec.descriptors.unwrap_or(DESCRIPTORS));
        self.call("choosing descriptors", |port| {
            // SAFETY: both numbers are read and written during the call.
            unsafe { sys::rte_eth_dev_adjust_nb_rx_tx_desc(port, &mut rx_descriptors, &mut tx_descriptors) }
        })?;
        // SAFETY: reads a number of a valid port.
        let socket = unsafe { sys::rte_eth_dev_socket_id(self.device.port) } as u32;
        for pool in &filled {
            self.map(pool)?;
        }
        // From the first queue on the device may hold buffers, also when a later step fails.
        self.filled = filled;
        for queue in 0..queues {
            let pool = self.filled[queue as usize % self.filled.len()].raw();
            self.call("setting a receive queue up", |port| {
                // SAFETY: the pool lives in `filled` until the device is closed.
                unsafe {
                    sys::rte_eth_rx_queue_setup(port, queue, rx_descriptors, socket, std::ptr::null(), pool)
                }
            })?;
        }
        for queue in 0..queues {
            self.call("setting a send queue up", |port| {
                // SAFETY: no memory is passed.
                unsafe { sys::rte_eth_tx_queue_setup(port, queue, tx_descriptors, socket, std::ptr::null()) }
            })?;
        }
        Ok(())
    }

    /// Refuses frames that the driver or the buffers cannot hold, before DPDK does so in its own words.
    pub(super) fn check_frames_fit(&self, filled: &[Arc<MbufPool>]) -> Result<()> {
        let room = filled.iter().map(|pool| pool.room()).min().unwrap_or(usize::MAX);
        if let Some(slot) = self.device.slot
            && room < slot as usize
        {
            return Err(self.usage(format!(
                "its frames need buffers of {slot} bytes, and the pool's have {room}; give --room {slot}, lower the \
                 interface's MTU, or give frame=BYTES"
            )));
        }
        if let (Kind::AfXdp { interface: name, .. }, Some(interface)) =
            (&self.spec.kind, &self.shared.interface)
        {
            if room != usize::MAX && room > MOST_XDP_ROOM {
                return Err(self.usage(format!(
                    "AF_XDP's buffers fit a page of memory: give --room {MOST_XDP_ROOM} at most"
                )));
            }
            let frame = interface.mtu() + device::LINK_HEADERS;
            if frame as usize > MOST_XDP_ROOM {
                return Err(self.usage(format!(
                    "its frames have up to {frame} bytes, and AF_XDP takes {MOST_XDP_ROOM}; lower the interface's MTU (ip link \
                     set {name} mtu 1500) or use af_packet:{name}"
                )));
            }
            if frame as usize > room {
                return Err(
                    self.usage(format!("its frames need buffers of {frame} bytes: give --room {frame}"))
                );
            }
        }
        let longest = self.limits.max_rx_pktlen;
        match self.spec.mtu.map(|mtu| u32::from(mtu) + device::LINK_HEADERS) {
            Some(frame) if frame > longest && !matches!(self.spec.kind, Kind::Memif { .. }) => {
                let most = longest.saturating_sub(device::LINK_HEADERS);
                Err(self.usage(format!(
                    "its driver takes frames of up to {longest} bytes: give mtu={most} at most"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Lets a card reach the memory of `pool`; other ports move packets with the CPU.
    pub(super) fn map(&mut self, pool: &Arc<MbufPool>) -> Result<()> {
        if self.is_card() {
            self.mapped.push(dma::Mapping::new(&self.spec.text, pool.clone(), self.limits.device)?);
        }
        Ok(())
    }
}
