//! Configures a device: checks that frames fit, requests offloads, and sets up queues.

use super::EthPort;
use crate::error::Result;
use crate::field;
use crate::spec::PortKind;
use crate::{MbufPool, device, dma, sys, xdp};
use inlane_core::packet::Pool;
use std::sync::Arc;

/// The default number of descriptors of each receive and transmit queue. DPDK reduces it if the device
/// supports fewer.
const DESCRIPTORS: u16 = 1024;

impl EthPort {
    /// Configures the device with `queues` receive queues and `queues` transmit queues. The numbers are equal
    /// because some drivers support only pairs of queues. Records the sockets of an AF_XDP port. Set
    /// `receives` if the receive queues will be read.
    pub(super) fn configure_device(
        &mut self,
        filled: Vec<Arc<MbufPool>>,
        queues: u16,
        receives: bool,
    ) -> Result<()> {
        self.check_frames_fit(&filled, receives)?;
        let (outcome, sockets) = xdp::record_sockets(|| self.set_up(filled, queues));
        self.sockets = sockets;
        outcome
    }

    fn set_up(&mut self, filled: Vec<Arc<MbufPool>>, queues: u16) -> Result<()> {
        let mut configuration = sys::rte_eth_conf::default();
        if queues > 1 && self.limits.flow_type_rss_offloads != 0 {
            configuration.rxmode.mq_mode = sys::RTE_ETH_MQ_RX_RSS;
            configuration.rx_adv_conf.rss_conf.rss_hf =
                self.limits.flow_type_rss_offloads & sys::INLANE_RSS_FLOWS;
        }
        // Do not set the MTU of a memif port, because its driver refuses a large MTU. The port receives
        // frames up to the size of its buffers without it.
        if let (Some(mtu), false) = (self.spec.mtu, matches!(self.spec.kind, PortKind::Memif { .. })) {
            configuration.rxmode.mtu = mtu.into();
        }
        let frame = self.spec.mtu.map_or(1500, u32::from) + device::LINK_HEADERS;
        let scatter = sys::INLANE_RX_SCATTER;
        if filled.iter().any(|pool| (pool.room() as u32) < frame)
            && self.limits.rx_offload_capa & scatter != 0
        {
            configuration.rxmode.offloads |= scatter;
        }
        // Enable packets of several segments, if the device can send them.
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
        // Store the pools before setting up the first queue. From then on, the device may hold buffers of the
        // pools, even if a later step fails.
        self.filled = filled;
        for queue in 0..queues {
            let pool = self.filled[queue as usize % self.filled.len()].raw();
            self.call("setting up a receive queue", |port| {
                // SAFETY: `filled` keeps the pool alive until the device is closed.
                unsafe {
                    sys::rte_eth_rx_queue_setup(port, queue, rx_descriptors, socket, std::ptr::null(), pool)
                }
            })?;
        }
        for queue in 0..queues {
            self.call("setting up a transmit queue", |port| {
                // SAFETY: the call gets no pointer.
                unsafe { sys::rte_eth_tx_queue_setup(port, queue, tx_descriptors, socket, std::ptr::null()) }
            })?;
        }
        Ok(())
    }

    /// Returns an error if the interface's frames do not fit the driver or the pools' buffers.
    fn check_frames_fit(&self, filled: &[Arc<MbufPool>], receives: bool) -> Result<()> {
        let room = filled.iter().map(|pool| pool.room()).min().unwrap_or(usize::MAX);
        if let Some(required) = self.device.required_room
            && room < required as usize
        {
            return Err(self.usage(format!(
                "its slots need buffers of {required} bytes, and the pool's have {room}; give {}, lower the \
                 interface's MTU, or give frame=BYTES",
                field::ROOM.with(required)
            )));
        }
        if let PortKind::AfXdp { interface, .. } = &self.spec.kind {
            self.check_xdp_frames_fit(interface, filled, receives)?;
        }
        let longest = self.limits.max_rx_pktlen;
        match self.spec.mtu.map(|mtu| u32::from(mtu) + device::LINK_HEADERS) {
            Some(frame) if frame > longest && !matches!(self.spec.kind, PortKind::Memif { .. }) => {
                let most = longest.saturating_sub(device::LINK_HEADERS);
                Err(self.usage(format!(
                    "its driver takes frames of up to {longest} bytes; give mtu={most} at most"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Returns an error if the kernel does not accept the pools' buffers for an AF_XDP socket. Also returns
    /// an error if the interface's frames do not fit into the buffers, because the kernel would drop such
    /// frames.
    fn check_xdp_frames_fit(&self, name: &str, filled: &[Arc<MbufPool>], receives: bool) -> Result<()> {
        let mtu = self.context.interface.as_ref().filter(|_| receives).map(|interface| interface.mtu());
        for pool in filled {
            if pool.is_external() {
                return Err(self.usage("AF_XDP needs packets in the pool's own memory (MbufPool::new)"));
            }
            let room = pool.room() as u32;
            // The data rooms that the kernel accepts, each with the longest frame that it can hold. Error
            // messages recommend one of them.
            let fitting: Vec<(u32, u32)> = (64..=4096)
                .step_by(64)
                .filter_map(|room| Some((room, pool.longest_xdp_frame(room)?)))
                .collect();
            let (Some((least, _)), Some((most, most_frame))) = (fitting.first(), fitting.last()) else {
                return Err(self.usage("this DPDK's packet buffers do not fit AF_XDP"));
            };
            let Some(longest) = pool.longest_xdp_frame(room) else {
                return Err(self.usage(format!(
                    "AF_XDP's buffers have {least} to {most} bytes, and the pool's have {room}; give {}",
                    field::ROOM.with(room.clamp(*least, *most))
                )));
            };
            let Some((mtu, frame)) = mtu.map(|mtu| (mtu, mtu + device::LINK_HEADERS)) else { continue };
            if frame <= longest {
                continue;
            }
            let remedy = match fitting.iter().find(|(_, longest)| frame <= *longest) {
                Some((room, _)) => {
                    let accepted = longest - device::LINK_HEADERS;
                    let room = field::ROOM.with(room);
                    format!("give {room}, or lower the MTU: ip link set {name} mtu {accepted}")
                }
                None => {
                    let accepted = longest - device::LINK_HEADERS;
                    let or = match *most_frame > longest {
                        true => format!(
                            ", or mtu {} with {}",
                            most_frame - device::LINK_HEADERS,
                            field::ROOM.with(most)
                        ),
                        false => String::new(),
                    };
                    format!("lower the MTU: ip link set {name} mtu {accepted}{or}; or use af_packet:{name}")
                }
            };
            return Err(self.usage(format!(
                "frames of MTU {mtu} have up to {frame} bytes, and AF_XDP receives up to {longest} into buffers of {room}; {remedy}"
            )));
        }
        Ok(())
    }

    /// Maps the memory of `pool` for the port's network card, if the port has one.
    pub(super) fn map(&mut self, pool: &Arc<MbufPool>) -> Result<()> {
        if self.is_card() {
            self.mapped.push(dma::DmaMapping::new(&self.spec.text, pool.clone(), self.limits.device)?);
        }
        Ok(())
    }
}
