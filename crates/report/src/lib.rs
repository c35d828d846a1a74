//! From `core`'s result types to what people and programs read: tables, JSON, SVG. Knows nothing of how results are made.

mod packets;
mod plot;
mod table;
mod transfers;
mod write;

pub use packets::packets;
pub use plot::{Line, Plot, Scale, figure};
pub use table::{Rows, grid};
pub use transfers::transfers;
pub use write::{Error, Target, remove_fresh, stdout};
