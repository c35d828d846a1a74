//! Operations alone and together: what limits each of them, and what they will do together.
//!
//! A session opens several loads once. It then measures short phases in random order: each load alone, all together, all
//! while one is slowed down, and each beside an antagonist that takes part of one resource. The differences between the
//! phases show which resource limits each load.
//!
//! | module | contents |
//! | --- | --- |
//! | [`scenario`] | loads with their settings, from TOML files and texts |
//! | [`kinds`], [`settings`] | the kinds of loads; their keys and values |
//! | [`session`] | opens loads once and measures their phases |
//! | [`observation`] | what a session has measured |
//! | [`statistics`] | medians with intervals, changes within blocks, equal phases that differ |
//! | [`solo`] | uses and capacities from solo runs |
//! | [`verdict`] | what limits each load |
//! | [`text`] | the sentences of a verdict |
//! | [`predict`] | the rates of mixes, predicted from solo runs |
//! | [`result`] | the rows of the result document |

pub mod field;
pub mod kinds;
pub mod observation;
mod open;
pub mod phases;
pub mod predict;
pub mod result;
mod running;
pub mod scenario;
pub mod session;
pub mod settings;
mod signals;
pub mod solo;
pub mod statistics;
#[cfg(test)]
mod test_sessions;
pub mod text;
pub mod verdict;

pub use scenario::{Draft, Scenario};
pub use session::{Plan, Session};
