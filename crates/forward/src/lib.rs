//! System 1: packets come in from a port, a packet function runs on them, and they go out.

pub mod ports;
