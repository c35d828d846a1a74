//! Wrappers around the queues of any port: they capture packets ([`capture`]), inject faults ([`fault`]) or limit the rate
//! ([`pace`]). A run wraps its queues when it is set up, so a run without wrappers has no overhead.

pub mod capture;
pub mod fault;
pub mod pace;

#[cfg(test)]
mod tests;
