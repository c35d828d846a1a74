//! The options of a socket that the stack uses, and what follows from them for a connection.

use inlane_tcp::{Config, Keepalive, SECOND};
use std::collections::BTreeMap;

/// How long the engine delays the acknowledgment of a request on a new connection, in nanoseconds. The
/// acknowledgment can then be sent with the program's answer. If the program is not asleep, it answers within
/// microseconds.
const QUICK_ACK_NS: u64 = inlane_tcp::MILLISECOND / 5;
/// How long the acknowledgment of a run of segments waits for further segments, in nanoseconds. A sender of bulk data sends a
/// segment every few microseconds at most. Each acknowledgment is a frame, which costs a system call on most ports.
pub const ACK_GAP_NS: u64 = 10_000;

/// Options of a socket. Accepted connections inherit those of the listener.
#[derive(Clone, Debug, Default)]
pub struct SocketOptions {
    /// SO_REUSEADDR.
    pub reuse_address: bool,
    /// SO_REUSEPORT.
    pub reuse_port: bool,
    /// SO_KEEPALIVE.
    pub keepalive: bool,
    /// The time of SO_LINGER in seconds; `None` if the option is off.
    pub linger: Option<i32>,
    /// IPV6_V6ONLY.
    pub v6_only: bool,
    /// SO_SNDBUF, if set, as the kernel's getsockopt returns it: twice the number that the program set.
    pub send_buffer: Option<i32>,
    /// SO_RCVBUF, if set, as the kernel's getsockopt returns it: twice the number that the program set.
    pub receive_buffer: Option<i32>,
    /// TCP_NODELAY.
    pub no_delay: bool,
    /// TCP_CORK.
    pub cork: bool,
    /// TCP_USER_TIMEOUT in milliseconds; 0 if off.
    pub user_timeout: u32,
    /// TCP_MAXSEG; 0 if not set.
    pub max_segment: u16,
    /// The options that have no field in this struct. The key is level and name, the value is as the program
    /// set it.
    pub others: BTreeMap<(i32, i32), Vec<u8>>,
    /// TCP_KEEPIDLE and TCP_KEEPINTVL in seconds, and TCP_KEEPCNT; `None` for an option that the program has
    /// not set.
    pub keepalive_times: [Option<u32>; 3],
    /// The listener of an earlier engine that the socket replaces. Sockets that replace the same listener share its port,
    /// because processes may have shared that listener.
    pub predecessor: Option<Predecessor>,
}

/// A listener of an engine that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Predecessor {
    /// The random number of its engine.
    pub engine: u64,
    /// Its number in that engine.
    pub socket: u64,
    /// The user of the socket that replaces it. Users do not share a port, because each could forge the other's names.
    pub user: u32,
}

impl SocketOptions {
    /// The lowest limit for the bytes of a ring that a connection may use. It is half of the smallest
    /// SO_SNDBUF that Linux's getsockopt returns.
    const LEAST_BUFFER: usize = 2304;

    /// Returns the times and the number of keepalive probes, or `None` if SO_KEEPALIVE is off.
    pub fn keepalive(&self) -> Option<Keepalive> {
        let [idle, interval, probes] = self.keepalive_times;
        let usual = Keepalive::default();
        self.keepalive.then(|| Keepalive {
            idle: idle.map_or(usual.idle, |seconds| u64::from(seconds) * SECOND),
            interval: interval.map_or(usual.interval, |seconds| u64::from(seconds) * SECOND),
            probes: probes.map_or(usual.probes, |probes| probes as u8),
        })
    }

    /// Returns the most bytes that a connection may use of a ring of `capacity` bytes. `option` is SO_SNDBUF
    /// or SO_RCVBUF as the kernel reports it, or `None` if the program has not set it. The ring gets half of
    /// the option's value. The socket pair gets the other half.
    fn share(option: Option<i32>, capacity: usize) -> usize {
        option.map_or(capacity, |bytes| (bytes.max(0) as usize / 2).clamp(Self::LEAST_BUFFER, capacity))
    }

    /// Returns the most bytes that the connection may use of a send ring of `capacity` bytes. This is the
    /// whole ring, unless the program has set SO_SNDBUF.
    pub fn send_limit(&self, capacity: usize) -> usize {
        Self::share(self.send_buffer, capacity)
    }

    /// Returns the most bytes of a receive ring of `capacity` bytes that the connection may use. This is
    /// `capacity`, unless the program has set SO_RCVBUF.
    pub fn receive_limit(&self, capacity: usize) -> usize {
        Self::share(self.receive_buffer, capacity)
    }

    /// Returns the user timeout in nanoseconds, if set.
    pub fn user_timeout(&self) -> Option<u64> {
        (self.user_timeout > 0).then(|| u64::from(self.user_timeout) * inlane_tcp::MILLISECOND)
    }

    /// Returns the settings of a connection with these options. `mss` is the largest payload of a segment on
    /// its route.
    pub fn config(&self, buffer: usize, mss: u16) -> Config {
        let mss = match self.max_segment {
            0 => mss,
            most => mss.min(most.max(Config::MIN_MSS)),
        };
        let usual = Config::default();
        Config {
            send_capacity: buffer as u32,
            // The window that the peer sees first must not be larger than the later ones.
            receive_capacity: self.receive_limit(buffer) as u32,
            mss,
            base_mss: usual.base_mss.min(mss),
            no_delay: self.no_delay,
            keepalive: self.keepalive(),
            user_timeout: self.user_timeout(),
            fin_timeout: self.fin_timeout().unwrap_or(usual.fin_timeout),
            quick_ack: QUICK_ACK_NS,
            ack_gap: ACK_GAP_NS,
            ..usual
        }
    }
}
