//! Wrappers around the queues of any port: they capture packets ([`capture`]), inject faults ([`fault`]) or
//! limit the rate ([`pace`]). Queues without a wrapper have no overhead.

pub mod capture;
pub mod fault;
pub mod pace;

#[cfg(test)]
mod tests;
