//! Operations alone and together: what limits each of them, and what they will do together.
//!
//! A session opens several loads once. It then measures short phases in random order: each load alone, all together, all
//! while one is slowed down, and each beside an antagonist that takes part of one resource. The differences between the
//! phases show which resource limits each load.
//!
//! | module | contents |
//! | --- | --- |
//! | [`observation`] | what a session has measured |
//! | [`statistics`] | medians with intervals, changes within blocks, equal phases that differ |
//! | [`solo`] | uses and capacities from solo runs |
//! | [`verdict`] | what limits each load |
//! | [`text`] | the sentences of a verdict |
//! | [`predict`] | the rates of mixes, predicted from solo runs |

pub mod observation;
pub mod predict;
pub mod solo;
pub mod statistics;
pub mod text;
pub mod verdict;
