//! Waiting for the other side: a memif peer, the link of a card, its last packets.

use super::EthPort;
use crate::endpoint::{link_is_up, link_megabits};
use crate::error::{Error, Result};
use crate::spec::Kind;
use crate::sys;
use std::time::{Duration, Instant};

/// How long a memif client waits for its server's answer, at first; twice as long each time that none came.
const CALL_AGAIN: Duration = Duration::from_millis(300);

/// How long a card's link may take to come up: testpmd waits as long.
const LINK_UP: Duration = Duration::from_secs(9);

/// How long a card may take to put on the wire what it was given.
const LAST_PACKETS: Duration = Duration::from_millis(200);

impl EthPort {
    pub(super) fn start_device(&self) -> Result<()> {
        // SAFETY: configured, by the order that `start` keeps.
        let start = || self.call("starting the device", |port| unsafe { sys::rte_eth_dev_start(port) });
        let Kind::Memif { server: false, wait_s, .. } = self.spec.kind else { return start() };
        // A client of memif starts only when its server listens.
        let begun = Instant::now();
        while start().is_err() && !crate::hurried() {
            if begun.elapsed() > Duration::from_secs_f64(wait_s) {
                return Err(self.no_peer(wait_s, false));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    pub(super) fn wait_for_peer(&self, seconds: f64, server: bool) -> Result<()> {
        let (start, mut tried, mut patience) = (Instant::now(), Instant::now(), CALL_AGAIN);
        while !link_is_up(self.device.port) && !crate::hurried() {
            if start.elapsed() > Duration::from_secs_f64(seconds) {
                return Err(self.no_peer(seconds, server));
            }
            std::thread::sleep(Duration::from_millis(5));
            // A server that listens, but has not started its device yet, turned the client away: it must call again.
            if !server && tried.elapsed() > patience {
                // SAFETY: started, and its ends are not let in before `start` is through.
                self.call("stopping the device", |port| unsafe { sys::rte_eth_dev_stop(port) })?;
                self.start_device()?;
                (tried, patience) = (Instant::now(), patience * 2);
            }
        }
        Ok(())
    }

    pub(super) fn no_peer(&self, seconds: f64, server: bool) -> Error {
        let other = if server { "client" } else { "server" };
        Error::NoPeer {
            port: self.spec.text.clone(),
            seconds,
            remedy: format!(
                "start one with role={other}, the same id, socket and number of queues (--pipelines), or give \
                 wait=SECONDS"
            ),
        }
    }

    /// A card without a link drops what it is given: waits for it, and goes on without after a while, aloud.
    pub(super) fn wait_for_link(&mut self) {
        let start = Instant::now();
        let megabits = loop {
            match link_megabits(self.device.port) {
                Some(megabits) => break megabits,
                None if crate::hurried() => return,
                None if start.elapsed() > LINK_UP => {
                    tracing::warn!(
                        "port {}: its link is down; is the cable in, and the other end up? Going on",
                        self.spec.text
                    );
                    return;
                }
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        // Those that do not know say 0 or all ones.
        if (1..u32::MAX).contains(&megabits) {
            self.info.link_bits_per_second = Some(f64::from(megabits) * 1e6);
        }
    }

    /// A card that stops drops what waits in its send queues: lets it finish.
    pub(super) fn let_last_packets_out(&self) {
        let start = Instant::now();
        let mut statistics = sys::rte_eth_stats::default();
        while start.elapsed() < LAST_PACKETS {
            // SAFETY: fills the structure; a port that is not valid is refused.
            let code = unsafe { sys::rte_eth_stats_get(self.device.port, &mut statistics) };
            if code != 0 || statistics.opackets + statistics.oerrors >= self.shared.sent() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
