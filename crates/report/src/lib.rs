//! Renders result documents for people and programs: text, tables, JSON, CSV, SVG.
//!
//! This crate depends on `core` only. Each system describes its rows by implementing
//! [`inlane_result::Row`].

pub mod compare;
mod csv;
pub mod figures;
pub mod page;
mod panels;
mod plot;
mod style;
mod table;
mod text;
mod write;

pub use csv::csv;
pub use page::escaped;
pub use panels::{BarGroup, Panel, panels};
pub use plot::{Line, Plot, Point, Scale, figure};
pub use table::{Lines, grid};
pub use text::{markdown, text};
pub use write::{Error, OutputTarget, remove_fresh, stdout};
