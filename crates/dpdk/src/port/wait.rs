//! Waits for a memif peer, the link of a card, and the last packets that a card sends.

use super::EthPort;
use crate::endpoint::{link_is_up, link_megabits};
use crate::error::{Error, Result};
use crate::spec::PortKind;
use crate::sys;
use std::time::{Duration, Instant};

/// How long a memif client waits for its server's first answer. Doubled after each connection without an
/// answer.
const FIRST_WAIT_FOR_SERVER: Duration = Duration::from_millis(300);

/// The longest wait for a card's link to come up. testpmd waits as long.
const LINK_UP: Duration = Duration::from_secs(9);

/// The longest time to wait until a card has sent the packets that it holds.
const LAST_PACKETS: Duration = Duration::from_millis(200);

impl EthPort {
    /// Starts the device. A memif client can start only while its server listens. So for a client, tries
    /// again for as long as the specification's `wait=` allows.
    pub(super) fn start_device(&self) -> Result<()> {
        // SAFETY: `start` checks that the device is configured.
        let start = || self.call("starting the device", |port| unsafe { sys::rte_eth_dev_start(port) });
        let PortKind::Memif { server: false, wait_s, .. } = self.spec.kind else { return start() };
        let begun = Instant::now();
        while start().is_err() && !crate::is_stopping() {
            if begun.elapsed() > Duration::from_secs_f64(wait_s) {
                return Err(self.no_peer(wait_s, false));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    pub(super) fn wait_for_peer(&self, seconds: f64, server: bool) -> Result<()> {
        let (start, mut connected, mut wait) = (Instant::now(), Instant::now(), FIRST_WAIT_FOR_SERVER);
        while !link_is_up(self.device.port) && !crate::is_stopping() {
            if start.elapsed() > Duration::from_secs_f64(seconds) {
                return Err(self.no_peer(seconds, server));
            }
            std::thread::sleep(Duration::from_millis(5));
            // A memif server disconnects clients until its own device is started. So if the server has not
            // answered within `wait`, connect again.
            if !server && connected.elapsed() > wait {
                // SAFETY: the device is started. The gate keeps the port's queues out of the driver until
                // `start` ends.
                self.call("stopping the device", |port| unsafe { sys::rte_eth_dev_stop(port) })?;
                self.start_device()?;
                (connected, wait) = (Instant::now(), wait * 2);
            }
        }
        Ok(())
    }

    fn no_peer(&self, seconds: f64, server: bool) -> Error {
        let other = if server { "client" } else { "server" };
        Error::NoPeer {
            port: self.spec.text.clone(),
            seconds,
            remedy: format!(
                "start one with role={other} and the same socket, id, secret and number of queues ({}), \
                 or give wait=SECONDS",
                crate::field::QUEUES
            ),
        }
    }

    /// Waits for at most 9 s until the link of a card is up, because a card drops packets while its link is
    /// down. Warns if the link stays down.
    pub(super) fn wait_for_link(&mut self) {
        let start = Instant::now();
        let megabits = loop {
            match link_megabits(self.device.port) {
                Some(megabits) => break megabits,
                None if crate::is_stopping() => return,
                None if start.elapsed() > LINK_UP => {
                    tracing::warn!(
                        "port {}: its link is still down after {} s; check the cable and the other end",
                        self.spec.text,
                        LINK_UP.as_secs()
                    );
                    return;
                }
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        // Ignore 0 and all ones. Drivers that do not know the link's rate report these values.
        if (1..u32::MAX).contains(&megabits) {
            self.info.link_bits_per_second = Some(f64::from(megabits) * 1e6);
        }
    }

    /// Waits for at most 200 ms until a card has sent its queued packets. A card drops unsent packets when it
    /// stops.
    pub(super) fn wait_for_last_packets(&self) {
        let start = Instant::now();
        let mut statistics = sys::rte_eth_stats::default();
        while start.elapsed() < LAST_PACKETS {
            // SAFETY: the structure is written during the call. An invalid port is refused.
            let code = unsafe { sys::rte_eth_stats_get(self.device.port, &mut statistics) };
            if code != 0 || statistics.opackets + statistics.oerrors >= self.context.sent() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
