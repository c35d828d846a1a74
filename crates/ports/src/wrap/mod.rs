//! Wrappers around any port's queues: what goes through is captured ([`capture`]), disturbed ([`fault`]) or slowed
//! ([`pace`]). They are put around a queue when a run is set up, so that a run without them pays nothing.

pub mod capture;
pub mod fault;
pub mod pace;

#[cfg(test)]
mod tests;
