//! Software ports of inlane's own: captures, generators, checkers, and wrappers around any port.
//!
//! | port | what it is |
//! | --- | --- |
//! | `gen:SIZE` | [`generate::Generator`]: packets of known flows, by a schedule |
//! | `gen:oran` | [`oran::Radio`]: the user plane of an O-RAN radio |
//! | `check` | [`check::Checker`]: verifies that they arrive as the packet function has to make them |
//! | `pcap:FILE` | [`pcap::Source`], [`pcap::Sink`]: captures, read and written |
//! | `null[:SIZE]` | [`null::Null`]: makes and swallows packets without touching their bytes |

pub mod check;
mod error;
pub mod generate;
pub mod null;
pub mod open;
pub mod oran;
pub mod pcap;
pub mod wrap;

pub use error::{Error, Result};
