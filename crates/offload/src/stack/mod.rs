//! The network stack of the engine: frames, ARP and neighbour discovery, IP, TCP, UDP, and their timers.
//!
//! The stack has no descriptors and makes no system calls. Its user hands it frames, bytes of sockets and the time. So tests
//! drive it without an operating system, and nothing here depends on the module `host`.

pub mod arena;
pub mod budget;
pub mod flows;
pub mod network;
pub mod ring;
pub mod wheel;
